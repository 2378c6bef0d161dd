"""When to plan, and planning in a thread of its own: takes changes of intents and measured rates, gives plans.

The intent book belongs to this thread, which takes one call at a time; what clients have announced meanwhile waits
until the next plan.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from triagemq.coordinator.decide.decide import Decided, PlannerSettings, Question, decide
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.decide.orders import Orders
from triagemq.coordinator.decide.promised import DEFAULT_RANGE, MulticastRange
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.intents.registry import Key
from triagemq.coordinator.ports import PortsNow
from triagemq.coordinator.rates import DeclaredRate, Rates
from triagemq.intents import PUBLISHER, Intent, PublisherIntent, SubscriberIntent
from triagemq.plan import Decision

_LOG = logging.getLogger("triagemq.coordinator")

MOST_REASONS = 20
"""Reasons kept of one gathering; the others are counted."""

Step = Intent | Key
"""An intent that was announced, or the key of one that was withdrawn."""


@dataclass(slots=True)
class Pacing:
    """When to plan: requests are gathered, so that a storm of changes makes few plans and a single one waits little.

    Pure: the caller tells the time, in seconds of any clock that does not go back. The first after a quiet time
    waits `gather_seconds`; plans are `apart_seconds` apart.

    >>> pacing = Pacing(gather_seconds=0.05, apart_seconds=0.5)
    >>> pacing.request(10.0, "ff-7 joins"); pacing.request(10.01, "ff-8 joins")
    >>> pacing.due(10.0), pacing.due(10.05), pacing.wait_seconds(10.0)
    (False, True, 0.05...)
    >>> pacing.take(10.05)
    ('ff-7 joins', 'ff-8 joins')
    >>> pacing.request(10.1, "ff-9 joins"); pacing.due(10.2), pacing.due(10.55)
    (False, True)
    """

    gather_seconds: float = 0.05
    apart_seconds: float = 0.5
    _due_at: float | None = None
    _last_taken: float | None = None
    _reasons: dict[str, None] = field(default_factory=dict)
    _unnamed: int = 0

    def request(self, now: float, reason: str) -> None:
        """Ask for a plan; a reason that is known already is not kept twice."""
        if self._due_at is None:
            earliest = now if self._last_taken is None else self._last_taken + self.apart_seconds
            self._due_at = max(now + self.gather_seconds, earliest)
        if reason in self._reasons:
            return
        if len(self._reasons) < MOST_REASONS:
            self._reasons[reason] = None
        else:
            self._unnamed += 1

    def due(self, now: float) -> bool:
        """Whether a plan should be made now."""
        return self._due_at is not None and now >= self._due_at

    def wait_seconds(self, now: float) -> float | None:
        """How long until a plan is due; None while none is requested."""
        return None if self._due_at is None else max(self._due_at - now, 0.0)

    def take(self, now: float) -> tuple[str, ...]:
        """The reasons gathered, for the plan that is made now; the gathering starts anew."""
        reasons = [*self._reasons, *([f"{self._unnamed} more changes"] if self._unnamed else [])]
        self._reasons, self._unnamed = {}, 0
        self._due_at, self._last_taken = None, now
        return tuple(reasons)


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What came of steps: `declared` is None if publishers declare what they did before.

    `again` failed by a mistake of the coordinator's own, and has to be taken again.
    """

    declared: Mapping[str, DeclaredRate] | None
    again: Sequence[Step]
    news: Sequence[Decision] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A decision, the ports it was made by, and how long it took."""

    decided: Decided
    ports: PortsNow
    seconds: float


_Change = Key | str
"""A client whose intent is new, or a topic whose rate or size is."""


class Replanner:
    """The intents, the network and the last decision. A plan that fails leaves the last one as it is.

    What no plan can be made with is set aside: the intent of one client, or the rate of one topic, that came after the
    last plan. Everything else is planned for.
    """

    def __init__(
        self,
        network: Network,
        settings: PlannerSettings,
        last_orders: Orders,
        multicast: MulticastRange = DEFAULT_RANGE,
        most_worth: float = math.inf,
    ) -> None:
        # What the operator's own scenario says of a topic is no claim of a client.
        stated = float(network.scenario.subscriptions.utility_weight.max(initial=0.0))
        self._most_worth = max(most_worth, stated)
        self._network = network
        self._multicast = multicast
        self.settings = settings
        self._book = IntentBook(self._most_worth)
        self._previous: Decided | Orders = last_orders
        self._intents: dict[Key, Intent] = {}
        # What clients wanted in the last plan that worked, of those that want something else now.
        self._before: dict[Key, Intent | None] = {}
        self._rates = Rates()
        # Rates and sizes that no plan can be made with.
        self._unusable: dict[str, tuple[float | None, float | None]] = {}

    def take(self, steps: Sequence[Step]) -> Taken:
        """Follow what clients did; one that goes wrong does not keep the others waiting."""
        again = []
        for step in steps:
            try:
                self._take(step)
            except Exception:
                _LOG.exception("an intent could not be taken into the plan; it is tried again")
                again.append(step)
        news = any(
            isinstance(step, PublisherIntent) or (isinstance(step, tuple) and step[0] == PUBLISHER)
            for step in steps
        )
        capped = [decision for step in steps if (decision := self._capped(step)) is not None]
        return Taken(self._book.declared(self._network) if news else None, again, capped)

    def _capped(self, step: Step) -> Decision | None:
        """What is to be recorded of a subscriber that claims more than a topic may be worth."""
        if not isinstance(step, SubscriberIntent):
            return None
        most = max(step.subscriptions, key=lambda each: each.utility.weight, default=None)
        if most is None or most.utility.weight <= self._most_worth:
            return None
        return Decision(
            "worth_capped",
            f"{step.name} {most.topic}",
            f"{most.utility.weight:g}",
            f"{self._most_worth:g}",
            "no client may claim more for a topic (--most-worth)",
        )

    def plan(
        self, rates: Rates, bandwidths: Mapping[str, float], ports: PortsNow, why: Sequence[str]
    ) -> Planned:
        """Decide on everything taken so far; `bandwidths` are stated, and `ports` is what was measured instead."""
        unusable = self._unusable = {
            topic: values for topic, values in self._unusable.items() if _values(rates, topic) == values
        }
        rates = _without(rates, unusable)
        try:
            planned = self._plan(rates, bandwidths, ports, why)
        except Exception as error:
            planned = self._plan_without_faulty(rates, bandwidths, ports, why, error)
        self._previous = planned.decided
        self._before.clear()
        self._rates = rates
        return planned

    def _plan_without_faulty(
        self,
        rates: Rates,
        bandwidths: Mapping[str, float],
        ports: PortsNow,
        why: Sequence[str],
        error: Exception,
    ) -> Planned:
        """Find the changes since the last plan that make planning fail, and plan without them; or raise the error."""
        topics = [
            topic
            for topic in {**rates.per_second, **rates.size_bytes}
            if _values(rates, topic) != _values(self._rates, topic)
        ]
        changes: list[_Change] = [*topics, *self._before]
        wanted = {key: self._intents.get(key) for key in self._before}
        planned: Planned | None = None

        def works(chosen: Sequence[_Change]) -> bool:
            nonlocal planned
            left_out = set(changes).difference(chosen)
            for key, intent in wanted.items():
                self._put(key, self._before[key] if key in left_out else intent)
            try:
                planned = self._plan(_without(rates, left_out), bandwidths, ports, why)
            except Exception:
                return False
            return True

        faulty = faulty_changes(changes, works)
        if faulty is None or not works([change for change in changes if change not in faulty]):
            for key, intent in wanted.items():
                self._put(key, intent)
            raise error
        assert planned is not None
        _LOG.error("set aside, because no plan can be made with it: %s", faulty, exc_info=error)
        self._unusable |= {topic: _values(rates, topic) for topic in faulty if isinstance(topic, str)}
        reason = f"no plan can be made with it: {type(error).__name__}: {error}"
        news = [
            Decision("set_aside", change if isinstance(change, str) else " ".join(change), "", "", reason)
            for change in faulty
        ]
        decided = replace(planned.decided, decisions=(*planned.decided.decisions, *news))
        return replace(planned, decided=decided)

    def _plan(
        self, rates: Rates, bandwidths: Mapping[str, float], ports: PortsNow, why: Sequence[str]
    ) -> Planned:
        started = time.perf_counter()
        network = replace(self._network, survival=ports.survival)
        for port, width in {**bandwidths, **ports.bandwidth_bps}.items():
            network = network.with_bandwidth(port, width)
        question = Question(
            scenario=self._book.scenario(network, rates),
            why=tuple(why),
            settings=self.settings,
            paced_bps=bandwidths,
            measured=ports.decisions,
            multicast=self._multicast,
            listening=self._book.listening(),
            unseen=self._book.unseen(network),
            sources=self._book.sources(),
        )
        decided = decide(question, self._previous)
        return Planned(decided, ports, time.perf_counter() - started)

    def _take(self, step: Step) -> None:
        key, intent = (step, None) if isinstance(step, tuple) else ((step.kind, step.name), step)
        before = self._intents.get(key)
        self._put(key, intent)
        self._before.setdefault(key, before)

    def _put(self, key: Key, intent: Intent | None) -> None:
        if intent is None:
            self._book.withdraw(*key)
            self._intents.pop(key, None)
        else:
            self._book.announce(intent)
            self._intents[key] = intent


def _values(rates: Rates, topic: str) -> tuple[float | None, float | None]:
    return rates.per_second.get(topic), rates.size_bytes.get(topic)


def _without(rates: Rates, topics: Container[object]) -> Rates:
    if not topics:
        return rates
    return Rates(
        {topic: rate for topic, rate in rates.per_second.items() if topic not in topics},
        {topic: size for topic, size in rates.size_bytes.items() if topic not in topics},
    )


Change = TypeVar("Change")


def faulty_changes(
    changes: Sequence[Change], works: Callable[[Sequence[Change]], bool]
) -> list[Change] | None:
    """The changes to leave out so that the rest works; None if it does not work without all of them.

    Changes are tried in halves on top of those that are known to work: few faulty ones among many cost few tries.

    >>> faulty_changes([1, 2, 3, 4, 5], lambda chosen: 3 not in chosen)
    [3]
    >>> faulty_changes([1, 2], lambda chosen: False) is None
    True
    """
    if not works(()):
        return None
    good: list[Change] = []
    faulty: list[Change] = []

    def search(some: Sequence[Change]) -> None:
        if works([*good, *some]):
            good.extend(some)
        elif len(some) == 1:
            faulty.extend(some)
        else:
            search(some[: len(some) // 2])
            search(some[len(some) // 2 :])

    if changes:
        search(changes)
    return faulty
