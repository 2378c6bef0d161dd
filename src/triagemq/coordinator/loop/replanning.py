"""Planning in a thread of its own: takes changes of intents and measured rates, gives plans. One call at a time.

The intent book belongs to this thread; what clients have announced meanwhile waits until the next plan.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from triagemq.coordinator.decide.decide import Decided, PlannerSettings, Situation, decide
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.decide.orders import Orders
from triagemq.coordinator.intents.asked import PublisherIntent, SubscriberIntent
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.intents.json_text import PUBLISHER
from triagemq.coordinator.intents.records import Key
from triagemq.coordinator.ports.watch import PortsNow
from triagemq.coordinator.rates.watch import DeclaredRate, Rates
from triagemq.errors import ParameterError
from triagemq.plan import Decision

__all__ = ["Planned", "Replanner", "Step", "Taken"]

_LOG = logging.getLogger("triagemq.coordinator")

Step = PublisherIntent | SubscriberIntent | Key
"""An intent that was announced, or the key of one that was withdrawn."""


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What came of steps: `declared` is None if publishers declare what they did before.

    `refused` cannot be planned for. `again` failed by a mistake of the coordinator's own, and has to be taken again.
    """

    declared: Mapping[str, DeclaredRate] | None
    refused: Sequence[Decision]
    again: Sequence[Step]


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A decision, the ports it was made by, and how long it took."""

    decided: Decided
    ports: PortsNow
    seconds: float


class Replanner:
    """The intents, the network and the last decision. A plan that fails leaves the last one as it is."""

    def __init__(self, network: Network, settings: PlannerSettings, last_orders: Orders) -> None:
        self._network = network
        self._settings = settings
        self._book = IntentBook()
        self._previous: Decided | Orders = last_orders

    def take(self, steps: Sequence[Step]) -> Taken:
        """Follow what clients did; one that goes wrong does not keep the others waiting."""
        refused, again = [], []
        for step in steps:
            try:
                self._take(step)
            except ParameterError as error:
                refused.append(
                    Decision(
                        "refused", str(step[1] if isinstance(step, tuple) else step.name), "", "", str(error)
                    )
                )
            except Exception:
                _LOG.exception("an intent could not be taken into the plan; it is tried again")
                again.append(step)
        news = any(
            isinstance(step, PublisherIntent) or (isinstance(step, tuple) and step[0] == PUBLISHER)
            for step in steps
        )
        return Taken(self._book.declared(self._network) if news else None, refused, again)

    def plan(
        self, rates: Rates, bandwidths: Mapping[str, float], ports: PortsNow, why: Sequence[str]
    ) -> Planned:
        """Decide on everything taken so far; `bandwidths` are stated, and `ports` is what was measured instead."""
        started = time.perf_counter()
        network = replace(self._network, survival=ports.survival)
        for port, width in {**bandwidths, **ports.bandwidth_bps}.items():
            network = network.with_bandwidth(port, width)
        situation = Situation(
            scenario=self._book.scenario(network, rates),
            flow_limits=self._book.flow_limits(network),
            why=tuple(why),
            settings=self._settings,
            paced_bps=bandwidths,
            measured=ports.decisions,
        )
        self._previous = decided = decide(situation, self._previous)
        return Planned(decided, ports, time.perf_counter() - started)

    def _take(self, step: Step) -> None:
        if not isinstance(step, tuple):
            self._book.announce(step)
        elif step[0] == PUBLISHER:
            self._book.withdraw_publisher(step[1])
        else:
            self._book.withdraw_subscriber(step[1])
