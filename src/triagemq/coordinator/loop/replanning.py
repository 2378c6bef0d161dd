"""When to plan, and planning in a thread of its own: takes changes of intents and measured rates, gives plans.

The intent book belongs to this thread, which takes one call at a time; what clients have announced meanwhile waits
until the next plan.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from triagemq.coordinator.decide.decide import Decided, PlannerSettings, Question, decide
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.decide.orders import Orders
from triagemq.coordinator.decide.promised import DEFAULT_RANGE, MulticastRange
from triagemq.coordinator.intents.book import IntentBook
from triagemq.coordinator.intents.registry import Key
from triagemq.coordinator.ports.watch import PortsNow
from triagemq.coordinator.rates.watch import DeclaredRate, Rates
from triagemq.intents import PUBLISHER, Intent, PublisherIntent

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
        """How long until a plan is due; None while nobody has asked for one."""
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


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A decision, the ports it was made by, and how long it took."""

    decided: Decided
    ports: PortsNow
    seconds: float


class Replanner:
    """The intents, the network and the last decision. A plan that fails leaves the last one as it is."""

    def __init__(
        self,
        network: Network,
        settings: PlannerSettings,
        last_orders: Orders,
        multicast: MulticastRange = DEFAULT_RANGE,
    ) -> None:
        self._network = network
        self._multicast = multicast
        self.settings = settings
        self._book = IntentBook()
        self._previous: Decided | Orders = last_orders

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
        return Taken(self._book.declared(self._network) if news else None, again)

    def plan(
        self, rates: Rates, bandwidths: Mapping[str, float], ports: PortsNow, why: Sequence[str]
    ) -> Planned:
        """Decide on everything taken so far; `bandwidths` are stated, and `ports` is what was measured instead."""
        started = time.perf_counter()
        network = replace(self._network, survival=ports.survival)
        for port, width in {**bandwidths, **ports.bandwidth_bps}.items():
            network = network.with_bandwidth(port, width)
        question = Question(
            scenario=self._book.scenario(network, rates),
            flow_limits=self._book.flow_limits(network),
            why=tuple(why),
            settings=self.settings,
            paced_bps=bandwidths,
            measured=ports.decisions,
            multicast=self._multicast,
            listening=self._book.listening(),
        )
        self._previous = decided = decide(question, self._previous)
        return Planned(decided, ports, time.perf_counter() - started)

    def _take(self, step: Step) -> None:
        if isinstance(step, tuple):
            self._book.withdraw(*step)
        else:
            self._book.announce(step)
