"""Measured bandwidth and loss of ports.

Plans use the stated value (by the scenario, or an operator) until measurements leave its band twice in a row; then the
measured one. A port is always paced at its stated bandwidth: otherwise it could not show that it has more. A slower
link behind a port shows as loss, which is unknown if no subscriber reports, or one of several.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from statistics import median_high, median_low
from typing import Annotated, Any

import numpy as np
from pydantic import PlainSerializer

from triagemq.channel.orders import client_id_of
from triagemq.coordinator.decide.network import mean_error_rates
from triagemq.plan import Decision
from triagemq.plan.dataplane import FlowCounters, PortCounters
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
"""After a fall no rise is found for so long: twice as long after each failed rise, and shorter again by one second for
every so many seconds for which a rise lasted."""

COUNTING_SECONDS = 0.3
"""The standard deviation of the time between the sender's count and the subscriber's, from report to report."""

FIRST_REPORTS = 2
"""A subscriber's first report may have waited for a coordinator; counting begins with the second."""


Known = Annotated[float, PlainSerializer(lambda value: value if math.isfinite(value) else None, float | None)]
"""A number; in JSON null where it is infinite."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The values that counts leave possible, and the most likely one."""

    low: float
    value: Known
    high: Known


@dataclass(frozen=True, slots=True)
class PortsNow:
    """Measured values that overrule stated ones, and the decisions that say so.

    `survival` multiplies the share of packets that subscribers behind a port are stated to get.
    """

    bandwidth_bps: Mapping[str, float] = field(default_factory=dict)
    survival: Mapping[str, float] = field(default_factory=dict)
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class PortFacts:
    """A port's stated, planned and measured values (None while nothing is measured)."""

    bandwidth_bps: float
    planned_bandwidth_bps: float
    planned_error_rate: float | None
    measured_bandwidth_bps: Interval | None
    measured_error_rate: Interval | None


def share_interval(successes: float, trials: float) -> Interval:
    """A share from counts.

    >>> share_interval(0, 1_000).high < 0.02, share_interval(1_000, 1_000).low > 0.98
    (True, True)
    """
    share = min(max(successes / trials, 0.0), 1.0)
    # One more trial keeps shares of 0 and 1 in doubt.
    deviation = math.sqrt(share * (1 - share) * trials + 1) / trials
    return Interval(max(share - DEVIATIONS * deviation, 0.0), share, share + DEVIATIONS * deviation)


class _Windows:
    """Four sums: of the current window, of the last one, and of all with exponentially falling weights."""

    def __init__(self) -> None:
        self.current: Floats = np.zeros(4)
        self.last = self.average = self.current

    def add(self, *more: float) -> None:
        self.current = self.current + more

    def drop(self) -> None:
        self.current = np.zeros(4)

    def end(self) -> None:
        self.last, self.average = self.current, DECAY * self.average + self.current
        self.drop()


class _TwiceInARow:
    """A value leaves its band when its last window or its average is on the same side of it twice in a row.

    One window may have been disturbed, by a late report or a busy machine.
    """

    def __init__(self) -> None:
        self._sides: tuple[int, ...] = (0, 0)

    def find(self, *sides: int) -> int | None:
        """The index of the first side that stands out for the second time, None if there is none."""
        before, self._sides = self._sides, sides
        index = next((n for n, side in enumerate(sides) if side and side == before[n]), None)
        if index is not None:
            self._sides = (0, 0)
        return index


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
class Loss:
    """Copies that are lost behind a port, by the median of the reporters, which one false report cannot move.

    `excess` is the share of copies lost beyond the `planned` one, the middle that is nearest to it. `sent` copies went
    out in so many `packets` each; `chance` is what their number and different times of counting explain.
    """

    sent: float
    packets: float
    planned: float
    excess: float
    chance: float

    @classmethod
    def of(cls, reporters: Sequence[Floats], survival: float) -> Loss:
        """From sums of each one's copies, packets, received events and seconds; a packet survives with `survival`."""
        sent, packets, received, seconds = np.array(reporters).T
        planned = 1 - survival ** (packets / sent)
        excess = (1 - np.minimum(received / sent, 1) - planned).tolist()
        middle = min(max(0.0, median_low(excess)), median_high(excess))
        total, mean = float(sent.sum()), float(planned.mean())
        lost = min(max(mean + middle, 0.0), 1.0)
        deviation = math.sqrt(lost * (1 - lost) * total + 1) / total + COUNTING_SECONDS / float(seconds.max())
        return cls(total, float(packets.sum()) / total, mean, middle, DEVIATIONS * deviation)

    @property
    def lost(self) -> float:
        return min(max(self.planned + self.excess, 0.0), 1.0)

    def interval(self) -> Interval:
        """The share of copies lost."""
        return Interval(max(self.lost - self.chance, 0.0), self.lost, min(self.lost + self.chance, 1.0))

    def side(self) -> int:
        """1 if more is lost than planned, -1 if less, 0 if the plan may be right or is near."""
        least = max(LEAST_LOSS_CHANGE, BAND * self.planned, self.chance)
        return int(math.copysign(abs(self.excess) > least, self.excess))

    def factor(self) -> float:
        """How many times more often a packet survives than planned."""
        ratio = (1 - self.lost) / max(1 - self.planned, LEAST_SURVIVAL)
        return float(max(ratio, LEAST_SURVIVAL) ** (1 / self.packets))


@dataclass(slots=True)
class _Reporter:
    """A subscriber that reports. A pending report waits for the next reading.

    `sent` are the copies and packets until its last report; `sums` are of copies, packets, received events and seconds.
    """

    reports: int = 0
    reported_at: float = 0.0
    pending_at: float | None = None
    pending: int | None = None
    sent: tuple[float, float] | None = None
    sums: _Windows = field(default_factory=_Windows)


class PortWatch:
    """Watches all ports; `restored` is what `to_store` gave before a restart. Times are seconds of one clock.

    A subscriber's report has the events since the one before; the counters around it have what was sent until then.
    """

    def __init__(
        self,
        bandwidth_bps: Mapping[str, float],
        error_rate: Mapping[str, float] | None = None,
        *,
        restored: Mapping[str, Any] | None = None,
    ) -> None:
        errors = error_rate or {}
        self._ports = {name: _Port(name, bps, errors.get(name, 0.0)) for name, bps in bandwidth_bps.items()}
        # By subscriber its port.
        self._port: dict[str, str] = {}
        self._reporters: dict[str, _Reporter] = {}
        self._flows: Mapping[str, FlowCounters] = {}
        self._counted_at = 0.0
        self._flows_epoch = ""
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
        subscribers, ports, errors = scenario.subscribers, scenario.ports.name, mean_error_rates(scenario)
        of_port = zip(subscribers.name, subscribers.port.tolist(), strict=True)
        self._port = {name: ports[port] for name, port in of_port}
        behind = Counter(self._port.values())
        for name, each in self._ports.items():
            each.subscribers = behind[name]
            each.planned_error_rate = errors[name] if behind[name] else None
            each.stated_survival = (1 - errors.get(name, 0.0)) / survival.get(name, 1.0)
        self._reporters = {name: known for name, known in self._reporters.items() if name in self._port}

    def report(self, subscriber: str, count: int | None, at_seconds: float) -> None:
        """A subscriber received so many events since its last report; 0 from a new reporter says nothing."""
        known = self._reporters.get(subscriber)
        if known is None:
            if not count or subscriber not in self._port:
                return
            known = self._reporters[subscriber] = _Reporter()
        before = known.pending if known.pending_at is not None else 0
        known.reports += 1
        known.pending = None if count is None or before is None else count + before
        known.pending_at = at_seconds

    def count(self, at_seconds: float, flows: Mapping[str, FlowCounters], epoch: str) -> None:
        """Counters of connections, about once a second: a reading settles the reports since the one before."""
        restarted = epoch != self._flows_epoch
        for name, known in self._reporters.items():
            if known.pending_at is None and not restarted:
                continue
            at, count, before = known.pending_at, known.pending, known.sent
            known.pending_at, known.sent = None, None
            if at is None or restarted or known.reports < FIRST_REPORTS:
                continue
            share = (at - self._counted_at) / max(at_seconds - self._counted_at, 1e-9)
            old, new = (each.get(client_id_of(name)) for each in (self._flows, flows))
            known.sent = sent = _sent(old, new, min(max(share, 0.0), 1.0))
            if sent is not None and before is not None and count is not None and sent[0] >= before[0]:
                known.sums.add(sent[0] - before[0], sent[1] - before[1], count, at - known.reported_at)
            known.reported_at = at
        self._flows, self._counted_at, self._flows_epoch = flows, at_seconds, epoch

    def observe(
        self, at_seconds: float, ports: Mapping[str, PortCounters], epoch: str
    ) -> tuple[Decision, ...]:
        """Counters of ports, several times a second; returns what is decided of ports that have left their band."""
        seconds, self._looked_at = at_seconds - self._looked_at, at_seconds
        if self._window_from is None or epoch != self._epoch or seconds > STOOD_STILL_SECONDS:
            self._window_from, self._epoch = at_seconds, epoch
            for known in self._reporters.values():
                known.sums.drop()
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
        for known in self._reporters.values():
            known.sums.end()
        changes = []
        for name, port in self._ports.items():
            changes.append(port.judge_bandwidth(at_seconds))
            if (losses := self._losses(name)) is not None:
                changes.append(port.judge_loss(*losses))
                if changes[-1] is not None:
                    # What was before the last window is forgotten.
                    for known in self._of(name):
                        known.sums.average = known.sums.last
        return tuple(change for change in changes if change is not None)

    def now(self) -> PortsNow:
        """What to plan with."""
        ports = self._ports.values()
        return PortsNow(
            {port.name: port.planned_bps for port in ports if port.planned_bps != port.stated_bps},
            {port.name: port.survival for port in ports if port.survival != 1.0},
            tuple(decision for port in ports for decision in port.decisions.values()),
        )

    def facts(self) -> dict[str, PortFacts]:
        """Every port, for REST, the page and metrics."""
        return {name: port.facts() for name, port in self._ports.items()}

    def to_store(self) -> dict[str, dict[str, Any]]:
        """Measurements that overrule what is stated, as JSON."""
        return {port.name: port.to_store() for port in self._ports.values() if port.decisions}

    def _losses(self, port: str) -> tuple[Loss, Loss] | None:
        """The loss of the last window and the average; None without enough reporters in that window."""
        reporting = [known.sums for known in self._of(port) if known.sums.last[0] > 0]
        watched = self._ports[port]
        if not reporting or (len(reporting) == 1 and watched.subscribers > 1):
            return None
        survival = min(watched.stated_survival * watched.survival, 1.0)
        last, average = [sums.last for sums in reporting], [sums.average for sums in reporting]
        return Loss.of(last, survival), Loss.of(average, survival)

    def _of(self, port: str) -> Iterator[_Reporter]:
        return (known for name, known in self._reporters.items() if self._port[name] == port)


class _Port:
    """One port: stated, planned and measured values."""

    def __init__(self, name: str, stated_bps: float, stated_error_rate: float) -> None:
        self.name = name
        self.stated_error_rate = stated_error_rate
        self.survival = 1.0
        self.error_rate: Interval | None = None
        # By the plan in effect: the subscribers behind the port, their mean error rate, and the share that they get as
        # stated.
        self.subscribers, self.stated_survival = 0, 1.0
        self.planned_error_rate: float | None = None
        self.decisions: dict[str, Decision] = {}
        self._loss_band = _TwiceInARow()
        self._left_before: int | None = None
        self._silent_seconds = 0.0
        self.state(stated_bps)

    def state(self, bandwidth_bps: float) -> None:
        self.stated_bps = self.planned_bps = bandwidth_bps
        self.decisions.pop("bandwidth", None)
        self._drain = _Windows()
        self._bandwidth_band = _TwiceInARow()
        self._stalled = False
        self._hold_seconds, self._held_until, self._rose_at = FIRST_HOLD_SECONDS, -math.inf, -math.inf

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Values that were measured before a restart hold where the same is stated as then."""
        self.decisions = {name: Decision(*words) for name, words in stored["decisions"].items()}
        if stored["stated_bps"] == self.stated_bps:
            self.planned_bps = stored["bandwidth_bps"]
        else:
            self.decisions.pop("bandwidth", None)
        if stored["stated_error_rate"] == self.stated_error_rate:
            self.survival = stored["survival"]
        else:
            self.decisions.pop("error_rate", None)

    def to_store(self) -> dict[str, Any]:
        return {
            "stated_bps": self.stated_bps,
            "stated_error_rate": self.stated_error_rate,
            "bandwidth_bps": self.planned_bps,
            "survival": self.survival,
            "decisions": {name: list(astuple(each)) for name, each in self.decisions.items()},
        }

    def facts(self) -> PortFacts:
        drain, planned_bps = self._drain.average, self.planned_bps
        measured = bandwidth_interval(drain) if drain[0] > 0 else None
        return PortFacts(self.stated_bps, planned_bps, self.planned_error_rate, measured, self.error_rate)

    def drop_window(self, counters: PortCounters | None) -> None:
        self._drain.drop()
        self._left_before = None if counters is None else bytes_out(counters)

    def look(self, counters: PortCounters, seconds: float) -> None:
        left, before = bytes_out(counters), self._left_before
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

    def judge_bandwidth(self, at_seconds: float) -> Decision | None:
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
        self._drain.average = self._drain.last
        return self._set_bandwidth(seen[index], at_seconds)

    def _set_bandwidth(self, drain: Floats, at_seconds: float) -> Decision:
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

    def judge_loss(self, window: Loss, average: Loss) -> Decision | None:
        """The change if the planned loss has left its band."""
        self.error_rate = average.interval()
        index = self._loss_band.find(window.side(), average.side())
        if index is None:
            return None
        found = (window, average)[index]
        self.survival = max(self.survival * found.factor(), LEAST_SURVIVAL)
        interval = found.interval()
        return self._decide(
            "error_rate",
            f"{found.planned:.2%}",
            f"{interval.value:.2%}",
            f"of {found.sent:.0f} copies that left the port its subscribers report so many less, so that "
            f"{interval.low:.2%} to {interval.high:.2%} are lost behind it; a link there that is slower than the port "
            "would lose them, too",
        )

    def _decide(self, what: str, before: str, after: str, reason: str) -> Decision:
        decision = Decision(f"{what}_measured", self.name, before, after, reason)
        self.decisions[what] = decision
        return decision


def _is_busy(counters: PortCounters) -> bool:
    """Whether the port sends as fast as it can: something waits, or, where queues have rates, in every one of them."""
    port_bps = counters.control.width_bps or 0
    narrow = [queue for queue in counters.queues if (queue.width_bps or math.inf) < port_bps]
    if narrow:
        return all(queue.backlog_packets > 0 for queue in narrow)
    return any(queue.backlog_packets > 0 for queue in (*counters.queues, counters.control))


def bytes_out(counters: PortCounters) -> int:
    """What has left a port."""
    return counters.control.bytes_out + sum(queue.bytes_out for queue in counters.queues)


def _sent(old: FlowCounters | None, new: FlowCounters | None, share: float) -> tuple[float, float] | None:
    """Copies and packets that have left at an instant between two readings; None if that is not known."""
    if old is None or new is None or new.packets_out < old.packets_out:
        return None
    return (
        old.copies_out + share * (new.copies_out - old.copies_out),
        old.packets_out + share * (new.packets_out - old.packets_out),
    )
