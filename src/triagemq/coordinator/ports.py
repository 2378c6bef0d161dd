"""Measured bandwidth and loss of ports: what to plan with.

A stated value (by the scenario, or an operator) is planned with until measurements leave its band twice in a row; then
the measured one is. A port is paced at its stated bandwidth all the time: only so does it show when it has more. A
slower link behind a port shows as loss, which is unknown if no subscriber reports, or one of several.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np

from triagemq.coordinator.decide.orders import client_id_of
from triagemq.plan import Decision, FlowCounters, PortCounters
from triagemq.scenario import Floats, Scenario

WINDOW_SECONDS, DECAY = 10.0, 0.9
"""The length of a window, and the weight of earlier ones in an average after one more."""

DEVIATIONS = 4.0
"""Half the width of an interval in standard deviations."""

BAND, LEAST_LOSS_CHANGE = 0.2, 0.01
"""A value within a fifth of the planned one, or a loss that near, needs no plan of its own."""

STOOD_STILL_SECONDS = 1.0
"""A longer pause between looks means that the gateway or the coordinator stood still: that window does not count."""

LARGEST_PACKETS_BITS, LEAST_SURVIVAL = 2 * 8 * 1500, 1e-3
"""A port takes its time for two of the largest packets if it has half of what is planned; a loss of all may end."""

FIRST_HOLD_SECONDS, LONGEST_HOLD_SECONDS, TRUSTED_AFTER = 20.0, 3600.0, 10
"""After a port was found to have less, it is not found to have more for so long; twice as long after each failure, and
shorter again by one second for every so many seconds for which a rise lasted."""

REPORT_SECONDS, BETWEEN_READINGS = 0.1, 1 / 6
"""The standard deviation of a report's delay, and the variance, in copies a copy per second, of what was sent until an
instant between two readings a second apart."""

FIRST_REPORTS = 2
"""A subscriber's first report may have waited for a coordinator; counting begins with the second."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The values that counts leave possible, and the most likely one."""

    low: float
    value: float
    high: float


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
    """A port that has left its band."""

    port: str
    decision: Decision

    def __str__(self) -> str:
        what = self.decision.kind.removesuffix("_measured").replace("_", " ")
        return f"measured {what} of port {self.port} from {self.decision.before} to {self.decision.after}"


def share_interval(successes: float, trials: float, variance: float = 0.0) -> Interval:
    """A share from counts; `variance` is that of `successes` beyond chance.

    >>> share_interval(0, 1_000).high < 0.02, share_interval(1_000, 1_000).low > 0.98
    (True, True)
    """
    share = min(max(successes / trials, 0.0), 1.0)
    # One more trial keeps shares of 0 and 1 in doubt.
    deviation = math.sqrt(share * (1 - share) * trials + 1 + variance) / trials
    return Interval(max(share - DEVIATIONS * deviation, 0.0), share, share + DEVIATIONS * deviation)


class _Windows:
    """Sums of a window: of the current one, of the last one, and of all with exponentially falling weights."""

    def __init__(self, figures: int) -> None:
        self._nothing = np.zeros(figures)
        self.drop()
        self.last: Floats = self._nothing
        self.average: Floats = self._nothing

    def add(self, *more: float) -> None:
        self.current: Floats = self.current + more

    def drop(self) -> None:
        self.current = self._nothing

    def end(self) -> None:
        self.last = self.current
        self.average = DECAY * self.average + self.last
        self.drop()

    def restart(self) -> None:
        self.average = self.last


class _TwiceInARow:
    """A value leaves its band when its last window or its average is on the same side of it two times in a row.

    One window may have been disturbed, by a report that came late or a busy machine.
    """

    def __init__(self) -> None:
        self._sides: tuple[int, ...] = (0, 0)

    def find(self, *sides: int) -> int | None:
        """The index of the first side that stands out for the second time, None if there is none."""
        before, self._sides = self._sides, sides
        for index, (side, last) in enumerate(zip(sides, before, strict=True)):
            if side and side == last:
                self._sides = (0, 0)
                return index
        return None


def bandwidth_interval(drain: Sequence[float] | Floats) -> Interval:
    """From the bytes that left a port, in how many seconds, and at how many of the looks it had something to send.

    A port that sends whenever it has something uses its bandwidth for the share of time in which it is busy; looks at
    random moments sample that share. Infinite where the port was never seen busy.

    >>> bandwidth_interval((125_000, 10.0, 50, 50)).value
    100000.0
    """
    octets, seconds, looks, busy = map(float, drain)
    share, left_bps = share_interval(busy, looks), 8 * octets / seconds
    return Interval(
        *(left_bps / each if each > 0 else math.inf for each in (share.high, share.value, share.low))
    )


def _bandwidth_side(drain: Floats, planned_bps: float, most_bps: float) -> int:
    """-1 if the port has less than is planned with, 1 if it has more (up to `most_bps`), else 0."""
    found = bandwidth_interval(drain)
    if found.high < planned_bps and found.value < (1 - BAND) * planned_bps:
        return -1
    low, value = min(found.low, most_bps), min(found.value, most_bps)
    return int(low > planned_bps and value > (1 + BAND) * planned_bps)


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of events that left a port, in how many packets, and how many of them subscribers report.

    `expected` would arrive at the stated error rates. `variance` is that of `received`, because the sender and the
    subscriber do not count at the same instant.
    """

    sent: float = 0.0
    packets: float = 0.0
    received: float = 0.0
    expected: float = 0.0
    variance: float = 0.0

    @classmethod
    def total(cls, several: Sequence[Floats]) -> Copies:
        return cls(*sum(several, np.zeros(5)).tolist())

    def loss(self) -> Interval:
        return share_interval(self.sent - self.received, self.sent, self.variance)

    def planned_loss(self, survival: float) -> float:
        """The loss of copies if a packet survives by this ratio more often than stated."""
        return float(1 - self.expected * survival ** (self.packets / self.sent) / self.sent)

    def survival(self) -> float:
        """The ratio by which a packet survives more often than stated."""
        ratio = self.received / max(self.expected, 1e-9)
        return max(float(ratio ** (self.sent / max(self.packets, self.sent))), LEAST_SURVIVAL)

    def side(self, survival: float) -> int:
        """1 if more is lost than planned, -1 if less, 0 if the plan may be right or is near."""
        if self.sent <= 0:
            return 0
        planned, found = self.planned_loss(survival), self.loss()
        if abs(found.value - planned) <= max(LEAST_LOSS_CHANGE, BAND * planned):
            return 0
        return 1 if found.low > planned else -1 if found.high < planned else 0


class Loss:
    """Loss behind a port by the copies of each reporter.

    No single reporter decides: more is lost only if that holds without the one that lost most, and less only if it
    holds without the one that lost least. `alone` is a reporter that is the only subscriber of its port.
    """

    def __init__(self, reporters: Sequence[Floats], *, alone: bool) -> None:
        ranked = sorted(reporters, key=lambda copies: float(copies[3] - copies[2]))
        self.total = Copies.total(ranked)
        self.without_worst = self.total if alone else Copies.total(ranked[:-1])
        self.without_best = self.total if alone else Copies.total(ranked[1:])

    def interval(self) -> Interval:
        """The share of copies lost."""
        low = self.without_worst.loss().low if self.without_worst.sent > 0 else 0.0
        high = self.without_best.loss().high if self.without_best.sent > 0 else 1.0
        value = self.total.loss().value
        return Interval(min(low, value), value, min(max(high, value), 1.0))

    def side(self, survival: float) -> int:
        return max(self.without_worst.side(survival), 0) or min(self.without_best.side(survival), 0)

    def agreed(self, survival: float) -> Copies:
        """The copies to plan by where `side` is not 0."""
        return self.without_worst if self.side(survival) > 0 else self.without_best


class PortWatch:
    """Watches all ports; `restored` is what `to_store` gave before a restart. Times are seconds of one clock."""

    def __init__(
        self,
        bandwidth_bps: Mapping[str, float],
        error_rate: Mapping[str, float] | None = None,
        *,
        restored: Mapping[str, Any] | None = None,
    ) -> None:
        errors = error_rate or {}
        self._ports = {name: _Port(name, bps, errors.get(name, 0.0)) for name, bps in bandwidth_bps.items()}
        self._reports = _Reports()
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

    def planned(self, scenario: Scenario, survival: Mapping[str, float]) -> None:
        """A plan is in effect; `survival` is that of the PortsNow it was made with."""
        self._reports.plan(scenario, survival)

    def report(self, subscriber: str, count: int | None, at_seconds: float) -> None:
        """A subscriber received so many events since its last report; None: it does not report all of them."""
        self._reports.report(subscriber, count, at_seconds)

    def count(self, at_seconds: float, flows: Mapping[str, FlowCounters], epoch: str) -> None:
        """Counters of connections, about once a second."""
        self._reports.count(at_seconds, flows, epoch)

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
        self.stated_error_rate = stated_error_rate
        self.survival = 1.0
        self.error_rate: Interval | None = None
        self.decisions: dict[str, Decision] = {}
        self._loss_band = _TwiceInARow()
        self._left_before: int | None = None
        self._silent_seconds = 0.0
        self.state(stated_bps)

    def state(self, bandwidth_bps: float) -> None:
        self.stated_bps = self.planned_bps = bandwidth_bps
        self.decisions.pop("bandwidth", None)
        self._drain = _Windows(4)
        self._bandwidth_band = _TwiceInARow()
        self._stalled = False
        self._hold_seconds, self._held_until, self._rose_at = FIRST_HOLD_SECONDS, -math.inf, -math.inf

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
        return bandwidth_interval(self._drain.average) if self._drain.average[0] > 0 else None

    def drop_window(self, counters: PortCounters | None) -> None:
        self._drain.drop()
        self._left_before = None if counters is None else _left(counters)

    def look(self, counters: PortCounters, seconds: float) -> None:
        left, before = _left(counters), self._left_before
        self._left_before = left
        if before is None or left < before:
            self._drain.drop()
            return
        busy = _is_busy(counters)
        # A port that has something to send and does not is down, or its counters stand still: that is no bandwidth.
        self._silent_seconds = self._silent_seconds + seconds if busy and left == before else 0.0
        if self._silent_seconds > STOOD_STILL_SECONDS + LARGEST_PACKETS_BITS / self.planned_bps:
            self._stalled = True
        self._drain.add(left - before, seconds, 1, busy)

    def judge_bandwidth(self, at_seconds: float) -> PortChange | None:
        """End the window; the change if the planned bandwidth has left its band."""
        stalled, self._stalled = self._stalled, False
        if stalled or self._drain.current[0] == 0:
            self._drain.drop()
            self._bandwidth_band = _TwiceInARow()
            return None
        self._drain.end()
        seen = self._drain.last, self._drain.average
        sides = [_bandwidth_side(drain, self.planned_bps, self.stated_bps) for drain in seen]
        if at_seconds < self._held_until:
            sides = [min(side, 0) for side in sides]
        index = self._bandwidth_band.find(*sides)
        if index is None:
            return None
        self._drain.restart()
        return self._set_bandwidth(seen[index], at_seconds)

    def _set_bandwidth(self, drain: Floats, at_seconds: float) -> PortChange:
        found, before = bandwidth_interval(drain), self.planned_bps
        self.planned_bps = min(found.value, self.stated_bps)
        if self.planned_bps > before:
            self._rose_at = at_seconds
        else:
            trusted = (at_seconds - self._rose_at) / TRUSTED_AFTER
            longer = max(2 * self._hold_seconds - trusted, FIRST_HOLD_SECONDS)
            self._hold_seconds = min(longer, LONGEST_HOLD_SECONDS)
            self._held_until = at_seconds + self._hold_seconds
        high = min(found.high, self.stated_bps)
        octets, seconds, looks, busy = drain.tolist()
        return self._decide(
            "bandwidth",
            f"{before:.4g} bit/s",
            f"{self.planned_bps:.4g} bit/s",
            f"in {seconds:.0f} s it sent {8 * octets / seconds:.4g} bit/s and was busy {busy / looks:.0%} of the time, "
            f"so that it has {min(found.low, high):.4g} to {high:.4g} bit/s; stated are {self.stated_bps:.4g}",
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
        self.survival = agreed.survival()
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


@dataclass(slots=True)
class _Reporter:
    """A subscriber that reports. A pending report waits for the next reading.

    `sent` are the copies and packets until its last report. `surplus` are events that it reported before they were
    known to be sent: no reporter receives more than was sent to it. `copies` are sums of Copies' fields.
    """

    reports: int = 0
    pending_at: float | None = None
    pending: int | None = None
    sent: tuple[float, float] | None = None
    surplus: float = 0.0
    copies: _Windows = field(default_factory=lambda: _Windows(5))


class _Reports:
    """Losses by port: a report has the events since the one before, the counters around it what was sent until then."""

    def __init__(self) -> None:
        self._survival: Mapping[str, float] = {}
        # By subscriber, its port and its planned error rate; by port, how many are behind it.
        self._planned: dict[str, tuple[str, float]] = {}
        self._behind: dict[str, int] = {}
        self._reporters: dict[str, _Reporter] = {}
        self._flows: Mapping[str, FlowCounters] = {}
        self._counted_at = 0.0
        self._epoch = ""

    def plan(self, scenario: Scenario, survival: Mapping[str, float]) -> None:
        """Ports and error rates of subscribers from now on; `survival` is in the error rates by port."""
        people, ports = scenario.subscribers, scenario.ports.name
        self._survival = survival
        planned = zip(people.name, people.port.tolist(), people.error_rate.tolist(), strict=True)
        self._planned = {name: (ports[port], error_rate) for name, port, error_rate in planned}
        behind = np.bincount(people.port, minlength=len(ports)).tolist()
        self._behind = dict(zip(ports, behind, strict=True))
        self._reporters = {name: known for name, known in self._reporters.items() if name in self._planned}

    def planned_errors(self) -> dict[str, float]:
        """The mean planned error rate of each port's subscribers."""
        total = dict.fromkeys(self._behind, 0.0)
        for port, error_rate in self._planned.values():
            total[port] += error_rate
        return {port: error / self._behind[port] for port, error in total.items() if self._behind[port]}

    def report(self, subscriber: str, count: int | None, at_seconds: float) -> None:
        """A subscriber received so many events since its last report; 0 from a new reporter says nothing."""
        known = self._reporters.get(subscriber)
        if known is None:
            if not count or subscriber not in self._planned:
                return
            known = self._reporters[subscriber] = _Reporter()
        before = known.pending if known.pending_at is not None else 0
        known.reports += 1
        known.pending = None if count is None or before is None else count + before
        known.pending_at = at_seconds

    def count(self, at_seconds: float, flows: Mapping[str, FlowCounters], epoch: str) -> None:
        """A reading of all connections settles the reports since the one before."""
        restarted = epoch != self._epoch
        for name, known in self._reporters.items():
            if restarted:
                known.sent = None
            if known.pending_at is not None:
                share = (known.pending_at - self._counted_at) / max(at_seconds - self._counted_at, 1e-9)
                old, new = (each.get(client_id_of(name)) for each in (self._flows, flows))
                sent = None if restarted else _sent(old, new, min(max(share, 0.0), 1.0))
                self._settle(name, known, sent)
        self._flows, self._counted_at, self._epoch = flows, at_seconds, epoch

    def _settle(self, name: str, known: _Reporter, sent: tuple[float, float] | None) -> None:
        before, count, known.pending_at = known.sent, known.pending, None
        known.sent = None if known.reports < FIRST_REPORTS else sent
        if sent is None or before is None or count is None or sent[0] < before[0]:
            known.surplus = 0.0
            return
        copies, packets = sent[0] - before[0], sent[1] - before[1]
        received = min(count + known.surplus, copies)
        known.surplus += count - received
        port, error_rate = self._planned[name]
        survival = (1 - error_rate) / self._survival.get(port, 1.0)
        expected = copies * survival ** (packets / copies if copies > 0 else 1.0)
        known.copies.add(copies, packets, received, expected, 0.0)

    def drop_window(self) -> None:
        for known in self._reporters.values():
            known.copies.drop()

    def end_window(self, seconds: float) -> None:
        """The window lasted so long."""
        for known in self._reporters.values():
            rate = float(known.copies.current[0]) / seconds
            # Both ends of the window may be off.
            variance = 2 * ((rate * REPORT_SECONDS) ** 2 + rate * BETWEEN_READINGS)
            known.copies.add(0.0, 0.0, 0.0, 0.0, variance)
            known.copies.end()

    def losses(self) -> dict[str, tuple[Loss, Loss]]:
        """By port, the loss of the last window and the average; of ports with reports in that window."""
        reporters: dict[str, list[_Windows]] = {}
        for name, known in self._reporters.items():
            reporters.setdefault(self._planned[name][0], []).append(known.copies)
        return {
            port: (
                Loss([each.last for each in behind], alone=self._behind[port] == 1),
                Loss([each.average for each in behind], alone=self._behind[port] == 1),
            )
            for port, behind in reporters.items()
            if any(each.last[0] > 0 for each in behind)
        }

    def restart(self, port: str) -> None:
        """Forget everything before the last window of a port."""
        for name, known in self._reporters.items():
            if self._planned[name][0] == port:
                known.copies.restart()


def _sent(old: FlowCounters | None, new: FlowCounters | None, share: float) -> tuple[float, float] | None:
    """Copies and packets that have left at an instant between two readings; None if that is not known."""
    if old is None or new is None or new.packets_out < old.packets_out:
        return None
    return (
        old.copies_out + share * (new.copies_out - old.copies_out),
        old.packets_out + share * (new.packets_out - old.packets_out),
    )
