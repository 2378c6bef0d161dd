"""Planning in a thread of its own: takes intents and measured rates, gives plans.

The intent book belongs to this thread, which takes one call at a time; what clients have announced meanwhile waits
until the next plan.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from triagemq.channel.orders import Orders
from triagemq.coordinator.decide.decide import Decided, PlannerSettings, Question, decide
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.intents.registry import Key
from triagemq.coordinator.ports import PortsNow
from triagemq.coordinator.rates import DeclaredRate, Rates
from triagemq.intents import PUBLISHER, Intent, SubscriberIntent
from triagemq.plan import Decision
from triagemq.plan.dataplane import applied, difference

_LOG = logging.getLogger("triagemq.coordinator")


class Replanner:
    """The intents, the network and the last decision. A plan that fails leaves the last one as it is.

    An intent that no plan can be made with is set aside, with the one of before in its place. Everything else is
    planned for.
    """

    def __init__(
        self, network: Network, settings: PlannerSettings, last_orders: Orders, most_worth: float = math.inf
    ) -> None:
        # What the operator's own scenario says of a topic is no claim of a client.
        stated = float(network.scenario.subscriptions.utility_weight.max(initial=0.0))
        self._most_worth = max(most_worth, stated)
        self._network = network
        self.settings = settings
        self._book = IntentBook(self._most_worth)
        self._previous: Decided | Orders = last_orders
        # What clients want, as it was taken last.
        self._requested: dict[Key, Intent] = {}
        # What clients wanted in the last plan that worked, of those that want something else now.
        self._before: dict[Key, Intent | None] = {}

    def take(
        self, intents: Mapping[Key, Intent]
    ) -> tuple[Mapping[str, DeclaredRate] | None, list[Decision], set[Key]]:
        """Follow what clients want now.

        What publishers declare, None if none has changed; what to record; and whose intents failed by a mistake of the
        coordinator's own: they are taken again with the next plan, and the others do not wait for them.
        """
        change = difference(self._requested, intents)
        news, failed = list[Decision](), set[Key]()
        for key, intent in change.items():
            if (capped := self._capped(intent)) is not None:
                news.append(capped)
            before = self._book.get(key)
            try:
                self._put({key: intent})
            except Exception:
                _LOG.exception("an intent could not be taken into the plan; it is tried again")
                failed.add(key)
            else:
                self._before.setdefault(key, before)
        taken = {key: intent for key, intent in change.items() if key not in failed}
        self._requested = applied(self._requested, taken)
        is_of_publishers = any(kind == PUBLISHER for kind, _ in change)
        return self._book.declared(self._network) if is_of_publishers else None, news, failed

    def _capped(self, intent: Intent | None) -> Decision | None:
        """What is to be recorded of a subscriber that claims more than a topic may be worth."""
        if not isinstance(intent, SubscriberIntent):
            return None
        most = max(intent.subscriptions, key=lambda each: each.utility.weight, default=None)
        if most is None or most.utility.weight <= self._most_worth:
            return None
        return Decision(
            "worth_capped",
            f"{intent.name} {most.topic}",
            f"{most.utility.weight:g}",
            f"{self._most_worth:g}",
            "no client may claim more for a topic (--most-worth)",
        )

    def plan(
        self, rates: Rates, bandwidths: Mapping[str, float], ports: PortsNow, why: Sequence[str]
    ) -> Decided:
        """Decide on everything taken so far; `bandwidths` are stated, and `ports` is what was measured instead."""
        network = replace(self._network, survival=ports.survival)
        network = network.with_bandwidths({**bandwidths, **ports.bandwidth_bps})

        def attempt() -> Decided:
            question = Question(
                scenario=self._book.scenario(network, rates),
                why=tuple(why),
                settings=self.settings,
                paced_bps=bandwidths,
                measured=ports.decisions,
                listening=self._book.listening(),
                unseen=self._book.unseen(network),
                terms=self._book.terms(network),
                sources=self._book.sources(),
            )
            return decide(question, self._previous)

        try:
            decided = attempt()
        except Exception as error:
            decided = self._plan_without_faulty(attempt, error)
        self._previous = decided
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

    def _put(self, intents: Mapping[Key, Intent | None]) -> None:
        for key, intent in intents.items():
            if intent is self._book.get(key):
                continue
            if intent is None:
                self._book.withdraw(*key)
            else:
                self._book.announce(intent)
