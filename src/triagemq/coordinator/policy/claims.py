"""Claims of clients, as they are planned for: the operator's terms as they are, a client's own within its role.

What all own claims of a client are worth together depends on the topics there are: `IntentBook` scales them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from triagemq.client.coordinator import LimitedClaim
from triagemq.coordinator.policy.record import UNNAMED, ClientIdentity, ClientRole, ClientRule, OperatorPolicy
from triagemq.errors import ParameterError
from triagemq.intents import NOT_SERIALIZED, SubscriberIntent, SubscriptionIntent, Text, Utility
from triagemq.mqttsn.filters import intersection, within

_MOST_SHOWN = 5
_WORTHLESS = Utility("linear", 0.0)
ORDINARY = Utility("log", 1.0)
"""What a subscription without terms is worth."""

ClientId = Annotated[str, Text(65_535, fit=str.isprintable, unfit="has characters that cannot be printed")]


@dataclass(frozen=True, slots=True)
class ObservedIntent(SubscriberIntent):
    """A client that was not announced, under whatever id it has; it states nothing of the filters in `silent`."""

    name: ClientId = field(kw_only=True, metadata=NOT_SERIALIZED)
    silent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Entitlement:
    """A subscriber as it is planned for.

    Its claims together are worth at most the `budget`, but for those of `granted` filters: they are the operator's.
    `refused` is what is planned otherwise than it was claimed, and why.
    """

    intent: SubscriberIntent
    budget: float = math.inf
    rank: int = 0
    role: str = ""
    granted: frozenset[str] = frozenset()
    refused: tuple[LimitedClaim, ...] = ()


def budget_words(entitled: Entitlement) -> str:
    """Why claims are scaled."""
    whose = f"role {entitled.role}" if entitled.role != UNNAMED else "a client"
    return (
        f"its claims add up to more than {whose} has as a budget, {entitled.budget:g}, and are scaled to it"
    )


Stated = Callable[[str], Mapping[str, float]]
"""By topic, what a scenario says that it is worth to the subscriber of a name."""


def entitle(
    policy: OperatorPolicy,
    client: ClientIdentity,
    intent: SubscriberIntent,
    *,
    default_budget: float = math.inf,
    stated: Stated = lambda name: {},
) -> Entitlement:
    """What a client gets of what it claims.

    >>> visitor = OperatorPolicy({"visitor": ClientRole("visitor", 5.0, 9, ("lobby/#",))}, (ClientRule("visitor"),))
    >>> intent = SubscriberIntent((SubscriptionIntent("lobby/news"), SubscriptionIntent("#")), name="guest")
    >>> found = entitle(visitor, ClientIdentity("guest"), intent)
    >>> [(each.topic, each.utility.weight) for each in found.intent.subscriptions]
    [('lobby/news', 1.0), ('lobby/#', 1.0), ('#', 0.0)]
    >>> found.budget, found.rank, [each.topic for each in found.refused]
    (5.0, 9, ['#'])
    """
    role, rule = policy.role_of(client)
    budget = default_budget if role.budget is None else role.budget
    port = rule.port if rule is not None and intent.port is None else intent.port
    terms = _Terms(role, rule, stated(intent.name))
    silent = intent.silent if isinstance(intent, ObservedIntent) else frozenset()
    for each in intent.subscriptions:
        terms.add(each, silent=each.topic in silent)
    subscriptions = tuple(terms.found.values())
    if subscriptions != intent.subscriptions or port != intent.port:
        intent = replace(intent, subscriptions=subscriptions, port=port)
    return Entitlement(intent, budget, role.rank, role.name, frozenset(terms.granted), tuple(terms.refused))


class _Terms:
    """By filter the terms of a client, in the order in which they count."""

    def __init__(self, role: ClientRole, rule: ClientRule | None, stated: Mapping[str, float]) -> None:
        self._role, self._stated = role, stated
        self._operators = () if rule is None else rule.subscriptions
        self.found: dict[str, SubscriptionIntent] = {}
        self.granted: set[str] = set()
        self.refused: list[LimitedClaim] = []

    def add(self, claim: SubscriptionIntent, *, silent: bool) -> None:
        topic = claim.topic
        if silent:
            for each in self._operators:
                common = intersection(topic, each.topic)
                if common is not None and common not in self.found:
                    self._put(replace(each, topic=common, qos=claim.qos), granted=True)
        elif claim.utility.weight <= self._stated.get(topic, -1.0):
            self._put(claim, granted=True)
        if topic in self.found:
            return
        if self._role.may is None or within(topic, self._role.may):
            self._put(self._without_reserving(claim))
            return
        allowed = ", ".join(self._role.may[:_MOST_SHOWN]) or "nothing"
        reason = f"role {self._role.name} may subscribe to {allowed}"
        self.refused.append(LimitedClaim(topic, reason))
        for pattern in self._role.may:
            if (common := intersection(topic, pattern)) is not None and common not in self.found:
                self._put(self._without_reserving(replace(claim, topic=common)))
        self._put(SubscriptionIntent(topic, _WORTHLESS, qos=claim.qos), granted=True)

    def _put(self, terms: SubscriptionIntent, *, granted: bool = False) -> None:
        self.found[terms.topic] = terms
        if granted:
            self.granted.add(terms.topic)

    def _without_reserving(self, claim: SubscriptionIntent) -> SubscriptionIntent:
        reserving = claim.min_share is not None or claim.max_separation_seconds is not None
        if self._role.may_reserve or not (reserving or claim.guaranteed):
            return claim
        reason = (
            f"role {self._role.name} may not reserve bandwidth: no least share, longest separation or promise"
        )
        self.refused.append(LimitedClaim(claim.topic, reason))
        return replace(claim, min_share=None, max_separation_seconds=None, guaranteed=False)


def observed_intent(client_id: str, subscriptions: Mapping[str, str]) -> ObservedIntent | None:
    """What an observed client wants, by the text of its own terms; None if there is nothing that can be planned.

    Terms that cannot be understood count as none; a shared subscription is one to its filter.

    >>> observed_intent("panel 1", {"hall/#": "", "$share/group/smoke": "log:3", "bad#": ""}).subscriptions[1].topic
    'smoke'
    """
    found: dict[str, SubscriptionIntent] = {}
    silent = set()
    for topic_filter, text in subscriptions.items():
        topic = topic_filter.split("/", 2)[-1] if topic_filter.startswith("$share/") else topic_filter
        try:
            own = _own_terms(topic, text)
            found.setdefault(topic, own or SubscriptionIntent(topic, ORDINARY))
        except ParameterError:
            continue
        if own is None:
            silent.add(topic)
    if not found:
        return None
    try:
        return ObservedIntent(tuple(found.values()), name=client_id, silent=frozenset(silent))
    except ParameterError:
        return None


def _own_terms(topic: str, text: str) -> SubscriptionIntent | None:
    try:
        return SubscriptionIntent.parse(topic, text) if text.strip() else None
    except ParameterError:
        return None
