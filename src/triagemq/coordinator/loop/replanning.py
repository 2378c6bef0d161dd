"""Planning in a thread of its own: takes intents and measured rates, gives plans.

The intent book belongs to this thread, which takes one call at a time; what clients have announced meanwhile waits
until the next plan.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from triagemq.channel.orders import Orders
from triagemq.coordinator.decide.decide import Decided, PlannerSettings, Question, bounded, decide
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.book import IntentBook, Planned
from triagemq.coordinator.intents.registry import Key, Record
from triagemq.coordinator.policy.claims import Entitlement, entitle
from triagemq.coordinator.policy.record import NO_POLICY, ClientIdentity, OperatorPolicy
from triagemq.coordinator.ports import PortsNow
from triagemq.coordinator.rates import DeclaredRate, Rates
from triagemq.intents import PUBLISHER, PublisherIntent
from triagemq.plan import Decision
from triagemq.plan.dataplane import applied, difference
from triagemq.scenario.utility import maximum_utility

_LOG = logging.getLogger("triagemq.coordinator")


class Replanner:
    """The intents, the network and the last decision. A plan that fails leaves the last one as it is.

    An intent that no plan can be made with is set aside, with the one of before in its place. Everything else is
    planned for.
    """

    def __init__(
        self,
        network: Network,
        settings: PlannerSettings,
        last_orders: Orders,
        default_budget: float = math.inf,
    ) -> None:
        # Nobody has a smaller budget than a subscriber of the operator's own scenario needs.
        worth = network.scenario.subscriptions
        stated = np.bincount(worth.subscriber, maximum_utility(worth), minlength=1)
        self._default_budget = max(default_budget, float(stated.max()))
        self._network = network
        self.settings = settings
        self._book = IntentBook()
        self._policy = NO_POLICY
        self._factors: Mapping[str, float] = {}
        self._previous: Decided | Orders = last_orders
        # What clients want, as it was taken last.
        self._requested: dict[Key, Record] = {}
        # What clients wanted in the last plan that worked, of those that want something else now.
        self._before: dict[Key, Planned | None] = {}

    def take(
        self,
        records: Mapping[Key, Record],
        policy: OperatorPolicy = NO_POLICY,
        factors: Mapping[str, float] | None = None,
    ) -> tuple[Mapping[str, DeclaredRate] | None, list[Decision], set[Key]]:
        """Follow what clients want now, by the policy of now and the factors of its phase.

        What publishers declare, None if none has changed; what to record; and whose intents failed by a mistake of the
        coordinator's own: they are taken again with the next plan, and the others do not wait for them.
        """
        if policy != self._policy:
            self._policy, self._requested = (
                policy,
                {key: record for key, record in self._requested.items() if key not in records},
            )
        self._factors = factors or {}
        change = difference(self._requested, records)
        news, failed = list[Decision](), set[Key]()
        for key, record in change.items():
            before = self._book.get(key)
            try:
                planned = None if record is None else self._planned(record)
                self._put({key: planned})
            except Exception:
                _LOG.exception("an intent could not be taken into the plan; it is tried again")
                failed.add(key)
            else:
                self._before.setdefault(key, before)
                news += _refusals(planned)
        taken = {key: record for key, record in change.items() if key not in failed}
        self._requested = applied(self._requested, taken)
        is_of_publishers = any(kind == PUBLISHER for kind, _ in change)
        declared = self._book.declared(self._network) if is_of_publishers else None
        return declared, bounded(news, "more_claims", "all clients", "more claims are refused"), failed

    def _planned(self, record: Record) -> Planned:
        """An intent as it is planned for."""
        if isinstance(record.intent, PublisherIntent):
            return record.intent
        client = ClientIdentity(record.intent.name, record.address, record.user, record.role)
        return entitle(
            self._policy,
            client,
            record.intent,
            default_budget=self._default_budget,
            stated=self._network.stated_worth,
        )

    def plan(
        self, rates: Rates, bandwidths: Mapping[str, float], ports: PortsNow, why: Sequence[str]
    ) -> Decided:
        """Decide on everything taken so far; `bandwidths` are stated, and `ports` is what was measured instead."""
        network = replace(self._network, survival=ports.survival)
        network = network.with_bandwidths({**bandwidths, **ports.bandwidth_bps})

        def attempt() -> Decided:
            question = Question(
                scenario=self._book.scenario(network, rates, self._factors),
                why=tuple(why),
                settings=self.settings,
                paced_bps=bandwidths,
                measured=ports.decisions,
                listening=self._book.listening(),
                unseen=self._book.unseen(network, self._factors),
                terms=self._book.terms(network),
                sources=self._book.sources(),
            )
            return replace(decide(question, self._previous), limited=self._book.limited())

        try:
            decided = attempt()
        except Exception as error:
            decided = self._plan_without_faulty(attempt, error)
        before = self._previous.limited if isinstance(self._previous, Decided) else {}
        news = [
            Decision("claims_scaled", name, "as claimed", "within the budget", each.reason)
            for name, several in decided.limited.items()
            for each in several
            if not each.topic and each not in before.get(name, ())
        ]
        news = bounded(news, "more_claims", "all clients", "more clients claim more than their budget")
        self._previous = decided = replace(decided, decisions=(*decided.decisions, *news))
        self._before.clear()
        return decided

    def _plan_without_faulty(self, attempt: Callable[[], Decided], error: Exception) -> Decided:
        """Find the intents that make planning fail, and plan without them; or raise the error.

        They are announced again in halves, on top of those that are known to work: few faulty ones among many cost few
        attempts.
        """
        wanted = {key: self._book.get(key) for key in self._before}
        self._put(self._before)
        try:
            decided = attempt()
        except Exception:
            # It is not an intent: the next plan begins with all of them.
            self._put(wanted)
            raise error from None
        faulty: list[Key] = []

        def announce(keys: Sequence[Key]) -> None:
            nonlocal decided
            self._put({key: wanted[key] for key in keys})
            try:
                decided = attempt()
            except Exception:
                self._put({key: self._before[key] for key in keys})
                if len(keys) > 1:
                    announce(keys[: len(keys) // 2])
                    announce(keys[len(keys) // 2 :])
                else:
                    faulty.extend(keys)

        announce(list(wanted))
        if faulty:
            _LOG.error("set aside, because no plan can be made with it: %s", faulty, exc_info=error)
        reason = f"no plan can be made with it: {type(error).__name__}: {error}"
        news = [Decision("set_aside", " ".join(key), "", "", reason) for key in faulty]
        return replace(decided, decisions=(*decided.decisions, *news))

    def _put(self, intents: Mapping[Key, Planned | None]) -> None:
        for key, intent in intents.items():
            if intent is self._book.get(key):
                continue
            if intent is None:
                self._book.withdraw(*key)
            else:
                self._book.announce(intent)


def _refusals(planned: Planned | None) -> list[Decision]:
    """What the policy refuses of a subscriber's claims, for the record."""
    refused = planned.refused if isinstance(planned, Entitlement) else ()
    return [
        Decision("claim_refused", f"{planned.intent.name} {each.topic}", "claimed", "refused", each.reason)
        for each in refused
        if isinstance(planned, Entitlement)
    ]
