"""Ports as they are measured: bandwidth from counters, loss behind them from reports, and what to plan with.

No I/O; the caller brings times (seconds of one clock) and readings. A value that is stated (in the scenario, or by an
operator) is planned with until measurements leave its band (port_estimates.py); then the measured one is, and judged in
the same way. What is stated anew overrules what was measured. A port is paced at its stated bandwidth all the time: it
has that or less, and only so does it show when it has more again.

What cannot be measured: that a link behind a port without room for a queue of its own is slower than the port; it shows
as loss. And the loss of a port of which no subscriber, or only one of several, reports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from triagemq.coordinator.decide.orders import Orders
from triagemq.coordinator.ports.estimates import Drain, Interval, Loss, Windows
from triagemq.coordinator.ports.reports import PortReports
from triagemq.plan import Decision, FlowCounters, PortCounters
from triagemq.scenario import Scenario

WINDOW_SECONDS = 10.0
STOOD_STILL_SECONDS = 1.0
"""Who was not asked for so long stood still, or whoever asks did: that window does not count."""

LARGEST_PACKETS_BITS = 2 * 8 * 1500
"""A port takes its time for two of the largest packets if it has half of what is planned with."""

LEAST_SURVIVAL = 1e-3
"""What seems to be lost entirely may come back."""

FIRST_HOLD_SECONDS, LONGEST_HOLD_SECONDS = 20.0, 3600.0
"""A port that was found to have less is not found to have more for so long; twice as long each time it was not so."""

TRUSTED_AFTER = 10
"""A port that had more for so many times as long did have more."""


@dataclass(frozen=True, slots=True)
class PortsNow:
    """What to plan with where measurements overrule what is stated, and the decisions that say so.

    `survival` multiplies the share of packets that subscribers behind a port are stated to get.
    """

    bandwidth_bps: Mapping[str, float] = field(default_factory=dict)
    survival: Mapping[str, float] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class PortFacts:
    """A port for people: what is stated, planned with and measured (None while nothing is)."""

    stated_bps: float
    planned_bps: float
    planned_error_rate: float | None
    bandwidth_bps: Interval | None
    error_rate: Interval | None


@dataclass(frozen=True, slots=True)
class PortChange:
    """A port that has left its band; `str()` says it in words."""

    port: str
    decision: Decision

    def __str__(self) -> str:
        what = self.decision.kind.removesuffix("_measured").replace("_", " ")
        return f"measured {what} of port {self.port} from {self.decision.before} to {self.decision.after}"


class PortWatch:
    """What is stated of all ports; `restored` is what `to_store` gave before a restart."""

    def __init__(
        self,
        bandwidth_bps: Mapping[str, float],
        error_rate: Mapping[str, float] | None = None,
        *,
        restored: Mapping[str, Any] | None = None,
    ) -> None:
        errors = error_rate or {}
        self._ports = {name: _Port(name, bps, errors.get(name, 0.0)) for name, bps in bandwidth_bps.items()}
        self._reports = PortReports()
        self.window_seconds = WINDOW_SECONDS
        self._window_from: float | None = None
        self._looked_at = 0.0
        self._epoch = ""
        for name, kept in (restored or {}).items():
            if name in self._ports:
                self._ports[name].restore(kept)

    def state(self, port: str, bandwidth_bps: float) -> None:
        """An operator says what the port has: that holds until measurements leave its band."""
        self._ports[port].state(bandwidth_bps)

    def planned(self, scenario: Scenario, orders: Orders, survival: Mapping[str, float]) -> None:
        """What is planned with and ordered from now on; `survival` is that of the PortsNow it was planned by."""
        self._reports.planned(scenario, orders)
        for name, port in self._ports.items():
            if port.planned_survival != survival.get(name, 1.0):
                port.planned_survival = survival.get(name, 1.0)
                port.losses.clear()
                self._reports.expected_anew(name)

    def report(self, subscriber: str, count: int | None, at_seconds: float) -> None:
        """A subscriber has received so many events since its last report; None: it does not tell all of them."""
        self._reports.report(subscriber, count, at_seconds)

    def count(self, at_seconds: float, flows: Mapping[str, FlowCounters], epoch: str) -> None:
        """What flows have counted, once a second or so; reports of before are set against it."""
        self._reports.count(at_seconds, {flow.flow_id: flow for flow in flows.values()}, epoch)

    def observe(
        self, at_seconds: float, ports: Mapping[str, PortCounters], epoch: str
    ) -> tuple[PortChange, ...]:
        """What ports have counted, several times a second: which of them have left their band."""
        seconds, self._looked_at = at_seconds - self._looked_at, at_seconds
        if self._window_from is None or epoch != self._epoch or seconds > STOOD_STILL_SECONDS:
            self._begin(at_seconds, ports, epoch)
            return ()
        for name, counters in ports.items():
            if name in self._ports:
                self._ports[name].look(counters, seconds)
        whole = at_seconds - self._window_from
        if whole < self.window_seconds:
            return ()
        self._window_from = at_seconds
        lost = self._reports.take(whole)
        changes = []
        for name, port in self._ports.items():
            changes += port.end_window(lost.get(name), at_seconds)
        return tuple(changes)

    def now(self) -> PortsNow:
        """What to plan with."""
        ports = self._ports.values()
        return PortsNow(
            {port.name: port.planned_bps for port in ports if port.planned_bps != port.stated_bps},
            {port.name: port.survival for port in ports if port.survival != 1.0},
            tuple(decision for port in ports for decision in port.decisions.values()),
        )

    def facts(self) -> dict[str, PortFacts]:
        """Every port, for people and metrics."""
        errors = self._reports.planned_errors()
        return {
            name: PortFacts(
                port.stated_bps,
                port.planned_bps,
                errors.get(name),
                None if port.drains.shown is None else port.drains.shown.bandwidth_bps(),
                None if port.losses.shown is None else port.losses.shown.interval(),
            )
            for name, port in self._ports.items()
        }

    def to_store(self) -> dict[str, dict[str, Any]]:
        """What overrules what is stated, in numbers and words that a file can hold."""
        return {port.name: port.to_store() for port in self._ports.values() if port.decisions}

    def _begin(self, at_seconds: float, ports: Mapping[str, PortCounters], epoch: str) -> None:
        self._window_from, self._epoch = at_seconds, epoch
        self._reports.take(1.0)
        for name, port in self._ports.items():
            port.begin(ports.get(name))


class _Port:
    """One port: what is stated and planned with, and its windows."""

    def __init__(self, name: str, stated_bps: float, stated_error_rate: float) -> None:
        self.name = name
        self.stated_bps = self.planned_bps = stated_bps
        self.stated_error_rate = stated_error_rate
        # To plan with, and in the plan of now.
        self.survival = self.planned_survival = 1.0
        self.decisions: dict[str, Decision] = {}
        self.drains: Windows[Drain] = Windows(self._side)
        self.losses: Windows[Loss] = Windows(Loss.side)
        self._drain: Drain | None = None
        self._left_before: int | None = None
        self._silent_seconds = 0.0
        self._stalled = False
        self._at = 0.0
        self._hold()

    def state(self, bandwidth_bps: float) -> None:
        self.stated_bps = self.planned_bps = bandwidth_bps
        self.decisions.pop("bandwidth", None)
        self.drains.clear()
        self.drains.shown = self._drain = None
        self._hold()

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from before a restart, where the same is stated as then."""
        decisions = {name: Decision(*words) for name, words in kept["decisions"].items()}
        if kept["stated_bps"] == self.stated_bps:
            self.planned_bps = kept["bandwidth_bps"]
        else:
            decisions.pop("bandwidth", None)
        if kept["stated_error_rate"] == self.stated_error_rate:
            self.survival = kept["survival"]
        else:
            decisions.pop("error_rate", None)
        self.decisions = decisions

    def to_store(self) -> dict[str, Any]:
        return {
            "stated_bps": self.stated_bps,
            "stated_error_rate": self.stated_error_rate,
            "bandwidth_bps": self.planned_bps,
            "survival": self.survival,
            "decisions": {name: list(astuple(each)) for name, each in self.decisions.items()},
        }

    def begin(self, counters: PortCounters | None) -> None:
        """A new window, without what the last one has counted."""
        self._drain = None
        self._left_before = None if counters is None else _left(counters)

    def look(self, counters: PortCounters, seconds: float) -> None:
        left, before = _left(counters), self._left_before
        self._left_before = left
        if before is None or left < before:
            self._drain = None
            return
        busy = _is_busy(counters)
        # A port that has something to send and does not is down, or whoever counts is away: that is no bandwidth.
        self._silent_seconds = self._silent_seconds + seconds if busy and left == before else 0.0
        if self._silent_seconds > STOOD_STILL_SECONDS + LARGEST_PACKETS_BITS / self.planned_bps:
            self._stalled = True
        seen = Drain(left - before, seconds, 1, int(busy))
        self._drain = seen if self._drain is None else self._drain + seen

    def end_window(self, lost: Loss | None, at_seconds: float) -> list[PortChange]:
        """Judge what was counted and reported; changes by now."""
        self._at = at_seconds
        changes = []
        drain, self._drain = self._drain, None
        stalled, self._stalled = self._stalled, False
        if drain is None or drain.octets == 0 or stalled:
            self.drains.clear()
        elif (other := self.drains.add(drain)) is not None:
            changes.append(self._set_bandwidth(other))
        if lost is not None and (found := self.losses.add(lost)) is not None:
            changes.append(self._set_loss(found))
        return changes

    def _hold(self) -> None:
        """Nothing is known of how long to wait before it is found to have more."""
        self._hold_seconds, self._held_until, self._rose_at = FIRST_HOLD_SECONDS, -math.inf, -math.inf

    def _side(self, drain: Drain) -> int:
        side = drain.side_of(self.planned_bps, self.stated_bps)
        return 0 if side > 0 and self._at < self._held_until else side

    def _set_bandwidth(self, drain: Drain) -> PortChange:
        found, before = drain.bandwidth_bps(), self.planned_bps
        self.planned_bps = min(found.value, self.stated_bps)
        if self.planned_bps > before:
            self._rose_at = self._at
        else:
            again = self._at - self._rose_at < TRUSTED_AFTER * self._hold_seconds
            self._hold_seconds = (
                min(2 * self._hold_seconds, LONGEST_HOLD_SECONDS) if again else FIRST_HOLD_SECONDS
            )
            self._held_until = self._at + self._hold_seconds
        high = min(found.high, self.stated_bps)
        return self._decide(
            "bandwidth",
            f"{before:.4g} bit/s",
            f"{self.planned_bps:.4g} bit/s",
            f"in {drain.seconds:.0f} s it sent {8 * drain.octets / drain.seconds:.4g} bit/s and was busy "
            f"{drain.busy / drain.looks:.0%} of the time, so that it has {min(found.low, high):.4g} to {high:.4g} "
            f"bit/s; stated are {self.stated_bps:.4g}",
        )

    def _set_loss(self, loss: Loss) -> PortChange:
        agreed = loss.agreed
        found = agreed.loss()
        self.survival = max(self.planned_survival * agreed.survival_ratio, LEAST_SURVIVAL)
        return self._decide(
            "error_rate",
            f"{agreed.planned:.2%}",
            f"{found.value:.2%}",
            f"of {agreed.sent:.0f} copies that left the port its subscribers report {agreed.received:.0f}, so that "
            f"{found.low:.2%} to {found.high:.2%} are lost behind it; a link there that is slower than the port "
            "would lose them, too",
        )

    def _decide(self, what: str, before: str, after: str, reason: str) -> PortChange:
        decision = Decision(f"{what}_measured", self.name, before, after, reason)
        self.decisions[what] = decision
        return PortChange(self.name, decision)


def _is_busy(counters: PortCounters) -> bool:
    """Whether the port sends as fast as it can: something waits, or, where queues have widths, in every one of them."""
    port_bps = counters.control.width_bps
    narrow = [
        queue
        for queue in counters.queues
        if queue.width_bps is not None and port_bps is not None and queue.width_bps < port_bps
    ]
    if narrow:
        return all(queue.backlog_packets > 0 for queue in narrow)
    return any(queue.backlog_packets > 0 for queue in (*counters.queues, counters.control))


def _left(counters: PortCounters) -> int:
    return counters.control.bytes_out + sum(queue.bytes_out for queue in counters.queues)
