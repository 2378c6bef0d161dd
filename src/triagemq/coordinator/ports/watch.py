"""Measured bandwidth and loss of ports: what to plan with.

No I/O; the caller brings times (seconds of one clock) and readings. A stated value (by the scenario, or an operator)
is planned with until measurements leave its band twice in a row; then the measured one is. A newly stated value
overrules measurements. A port is paced at its stated bandwidth all the time: only so does it show when it has more.

A link behind a port that is slower than the port shows as loss. The loss of a port is unknown if none, or only one of
several subscribers, reports.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from triagemq.coordinator.decide.orders import Orders
from triagemq.coordinator.ports.reports import PortReports
from triagemq.coordinator.ports.tallies import Drain, Interval, Loss, MovingAverage, TwiceInARow
from triagemq.plan import Decision, FlowCounters, PortCounters
from triagemq.scenario import Scenario

WINDOW_SECONDS = 10.0
STOOD_STILL_SECONDS = 1.0
"""A longer pause between looks means that the gateway or the coordinator stood still: that window does not count."""

LARGEST_PACKETS_BITS = 2 * 8 * 1500
"""A port takes its time for two of the largest packets if it has half of what is planned with."""

LEAST_SURVIVAL = 1e-3
"""A loss of everything may end."""

FIRST_HOLD_SECONDS, LONGEST_HOLD_SECONDS = 20.0, 3600.0
"""After a port was found to have less, it is not found to have more for so long; twice as long after each failure."""

TRUSTED_AFTER = 10
"""A hold is shorter again by one second for every so many seconds for which a rise lasted."""


@dataclass(frozen=True, slots=True)
class PortsNow:
    """Measured values that overrule stated ones, and the decisions that say so.

    `survival` multiplies the share of packets that subscribers behind a port are stated to get.
    """

    bandwidth_bps: Mapping[str, float] = field(default_factory=dict)
    survival: Mapping[str, float] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class PortFacts:
    """A port's stated, planned and measured values (None while nothing is measured)."""

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
    """Watches all ports; `restored` is what `to_store` gave before a restart."""

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
        for name, stored in (restored or {}).items():
            if name in self._ports:
                self._ports[name].restore(stored)

    def state(self, port: str, bandwidth_bps: float) -> None:
        """An operator states a port's bandwidth, which holds until measurements leave its band."""
        self._ports[port].state(bandwidth_bps)

    def planned(self, scenario: Scenario, orders: Orders, survival: Mapping[str, float]) -> None:
        """A plan is in effect; `survival` is that of the PortsNow it was made with."""
        self._reports.plan(scenario, orders, survival)

    def report(self, subscriber: str, count: int | None, at_seconds: float) -> None:
        """A subscriber received so many events since its last report; None: it does not report all of them."""
        self._reports.report(subscriber, count, at_seconds)

    def count(self, at_seconds: float, flows: Mapping[str, FlowCounters], epoch: str) -> None:
        """Counters of flows, about once a second."""
        self._reports.count(at_seconds, {flow.flow_id: flow for flow in flows.values()}, epoch)

    def observe(
        self, at_seconds: float, ports: Mapping[str, PortCounters], epoch: str
    ) -> tuple[PortChange, ...]:
        """Counters of ports, several times a second; returns the ports that have left their band."""
        seconds, self._looked_at = at_seconds - self._looked_at, at_seconds
        if self._window_from is None or epoch != self._epoch or seconds > STOOD_STILL_SECONDS:
            self._window_from, self._epoch = at_seconds, epoch
            self._reports.drop_window()
            for name, port in self._ports.items():
                port.drop_window(ports.get(name))
            return ()
        for name, counters in ports.items():
            if name in self._ports:
                self._ports[name].look(counters, seconds)
        lasted = at_seconds - self._window_from
        if lasted < self.window_seconds:
            return ()
        self._window_from = at_seconds
        self._reports.end_window(lasted)
        losses = self._reports.losses()
        changes = []
        for name, port in self._ports.items():
            if (change := port.judge_bandwidth(at_seconds)) is not None:
                changes.append(change)
            if name in losses and (change := port.judge_loss(*losses[name])) is not None:
                changes.append(change)
                self._reports.restart(name)
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
                port.stated_bps, port.planned_bps, errors.get(name), port.bandwidth_bps(), port.error_rate
            )
            for name, port in self._ports.items()
        }

    def to_store(self) -> dict[str, dict[str, Any]]:
        """Measurements that overrule what is stated, as JSON."""
        return {port.name: port.to_store() for port in self._ports.values() if port.decisions}


class _Port:
    """One port: stated, planned and measured values."""

    def __init__(self, name: str, stated_bps: float, stated_error_rate: float) -> None:
        self.name = name
        self.stated_bps = self.planned_bps = stated_bps
        self.stated_error_rate = stated_error_rate
        self.survival = 1.0
        self.error_rate: Interval | None = None
        self.decisions: dict[str, Decision] = {}
        self._loss_band = TwiceInARow()
        self._left_before: int | None = None
        self._silent_seconds = 0.0
        self._reset_bandwidth()

    def _reset_bandwidth(self) -> None:
        self._drain = MovingAverage(Drain())
        self._bandwidth_band = TwiceInARow()
        self._stalled = False
        self._hold_seconds, self._held_until, self._rose_at = FIRST_HOLD_SECONDS, -math.inf, -math.inf

    def state(self, bandwidth_bps: float) -> None:
        self.stated_bps = self.planned_bps = bandwidth_bps
        self.decisions.pop("bandwidth", None)
        self._reset_bandwidth()

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Values that were measured before a restart hold where the same is stated as then."""
        decisions = {name: Decision(*words) for name, words in stored["decisions"].items()}
        if stored["stated_bps"] == self.stated_bps:
            self.planned_bps = stored["bandwidth_bps"]
        else:
            decisions.pop("bandwidth", None)
        if stored["stated_error_rate"] == self.stated_error_rate:
            self.survival = stored["survival"]
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

    def bandwidth_bps(self) -> Interval | None:
        return self._drain.average.bandwidth_bps() if self._drain.average.octets > 0 else None

    def drop_window(self, counters: PortCounters | None) -> None:
        self._drain.drop_window()
        self._left_before = None if counters is None else _left(counters)

    def look(self, counters: PortCounters, seconds: float) -> None:
        left, before = _left(counters), self._left_before
        self._left_before = left
        if before is None or left < before:
            self._drain.drop_window()
            return
        busy = _is_busy(counters)
        # A port that has something to send and does not is down, or its counters stand still: that is no bandwidth.
        self._silent_seconds = self._silent_seconds + seconds if busy and left == before else 0.0
        if self._silent_seconds > STOOD_STILL_SECONDS + LARGEST_PACKETS_BITS / self.planned_bps:
            self._stalled = True
        self._drain.add(Drain(left - before, seconds, 1, int(busy)))

    def judge_bandwidth(self, at_seconds: float) -> PortChange | None:
        """End the window; the change if the planned bandwidth has left its band."""
        stalled, self._stalled = self._stalled, False
        if stalled or self._drain.current.octets == 0:
            self._drain.drop_window()
            self._bandwidth_band.reset()
            return None
        self._drain.end_window()
        seen = self._drain.window, self._drain.average
        sides = [drain.side(self.planned_bps, self.stated_bps) for drain in seen]
        if at_seconds < self._held_until:
            sides = [min(side, 0) for side in sides]
        index = self._bandwidth_band.find(*sides)
        if index is None:
            return None
        self._drain.restart()
        return self._set_bandwidth(seen[index], at_seconds)

    def _set_bandwidth(self, drain: Drain, at_seconds: float) -> PortChange:
        found, before = drain.bandwidth_bps(), self.planned_bps
        self.planned_bps = min(found.value, self.stated_bps)
        if self.planned_bps > before:
            self._rose_at = at_seconds
        else:
            trusted = (at_seconds - self._rose_at) / TRUSTED_AFTER
            self._hold_seconds = min(
                max(2 * self._hold_seconds - trusted, FIRST_HOLD_SECONDS), LONGEST_HOLD_SECONDS
            )
            self._held_until = at_seconds + self._hold_seconds
        high = min(found.high, self.stated_bps)
        return self._decide(
            "bandwidth",
            f"{before:.4g} bit/s",
            f"{self.planned_bps:.4g} bit/s",
            f"in {drain.seconds:.0f} s it sent {8 * drain.octets / drain.seconds:.4g} bit/s and was busy "
            f"{drain.busy / drain.looks:.0%} of the time, so that it has {min(found.low, high):.4g} to {high:.4g} "
            f"bit/s; stated are {self.stated_bps:.4g}",
        )

    def judge_loss(self, window: Loss, average: Loss) -> PortChange | None:
        """The change if the planned loss has left its band."""
        self.error_rate = average.interval()
        seen = window, average
        index = self._loss_band.find(*(loss.side(self.survival) for loss in seen))
        if index is None:
            return None
        agreed = seen[index].agreed(self.survival)
        found, planned = agreed.loss(), agreed.planned_loss(self.survival)
        self.survival = max(agreed.survival(), LEAST_SURVIVAL)
        return self._decide(
            "error_rate",
            f"{planned:.2%}",
            f"{found.value:.2%}",
            f"of {agreed.sent:.0f} copies that left the port its subscribers report {agreed.received:.0f}, so that "
            f"{found.low:.2%} to {min(found.high, 1.0):.2%} are lost behind it; a link there that is slower than the "
            "port would lose them, too",
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
