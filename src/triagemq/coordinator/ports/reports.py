"""What subscribers report beside what was sent to them: copies that left each port, and those that arrived.

A report says how many events have come since the one before; what was sent until then is read off the counters of the
subscriber's flows, between the two readings around it. Errors at the ends of a window do not add up over time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from triagemq.coordinator.decide.orders import Orders, flows_of
from triagemq.coordinator.ports.estimates import Loss, ReportedCopies
from triagemq.plan import FlowCounters
from triagemq.scenario import Scenario

REPORT_SECONDS = 0.1
"""The standard deviation of the time that a report is on its way."""

BETWEEN_READINGS = 1 / 6
"""The variance, in copies a copy per second, of what was sent until an instant between two readings a second apart."""

MOST_WAITING = 10
"""Reports of one subscriber that wait for a reading."""

FIRST_REPORTS = 2
"""The first report of a subscriber may have been waiting for somebody to take it; the second is the beginning."""


@dataclass(slots=True)
class _Subscriber:
    """One that reports: how many reports were heard, those that wait for a reading, and what was sent at the last.

    Since `begun` it has `claimed` so many events, of which `believed` were sent: nobody gets more than that. What is
    claimed too soon (a report is set against what was sent by about then) counts when it has been sent.
    """

    reports: int = 0
    waiting: list[tuple[float, int | None]] = field(default_factory=list)
    flows: tuple[int, ...] = ()
    sent: tuple[float, float] | None = None
    begun: float = 0.0
    claimed: float = 0.0
    believed: float = 0.0

    def believe(self, count: int, sent: float) -> float:
        """How many events more have arrived, by a report and what has been sent until then."""
        self.claimed += count
        before, self.believed = self.believed, max(self.believed, min(self.claimed, sent - self.begun))
        return self.believed - before

    def begin(self, sent: float) -> None:
        self.begun, self.claimed, self.believed = sent, 0.0, 0.0


class PortReports:
    """See the module's text. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._orders = Orders()
        self._scenario: Scenario | None = None
        self._row: dict[str, int] = {}
        self._behind: list[int] = []
        self._subscribers: dict[str, _Subscriber] = {}
        self._windows: dict[str, dict[str, ReportedCopies]] = {}
        self._flows: Mapping[int, FlowCounters] = {}
        self._counted_at = 0.0
        self._epoch = ""

    def planned(self, scenario: Scenario, orders: Orders) -> None:
        """Who is behind which port, with which flows, and what is expected to be lost; others are forgotten."""
        self._scenario, self._orders = scenario, orders
        self._row = {name: row for row, name in enumerate(scenario.subscribers.name)}
        self._behind = np.bincount(scenario.subscribers.port, minlength=len(scenario.ports)).tolist()
        self._subscribers = {name: known for name, known in self._subscribers.items() if name in self._row}

    def expected_anew(self, port: str) -> None:
        """Another share is expected to be lost behind a port: what was set against the old one does not count."""
        self._windows.pop(port, None)

    def planned_errors(self) -> dict[str, float]:
        """By port, the mean error rate of its subscribers that is planned with."""
        if self._scenario is None:
            return {}
        subscribers, ports = self._scenario.subscribers, self._scenario.ports
        total = np.bincount(subscribers.port, subscribers.error_rate, len(ports)).tolist()
        return {
            name: total[port] / behind
            for port, (name, behind) in enumerate(zip(ports.name, self._behind, strict=True))
            if behind
        }

    def report(self, subscriber: str, count: int | None, at_seconds: float) -> None:
        """So many events have come since the last report; 0 is news only of one that has reported before."""
        known = self._subscribers.get(subscriber)
        if known is None:
            if not count or subscriber not in self._row:
                return
            known = self._subscribers[subscriber] = _Subscriber()
        if len(known.waiting) >= MOST_WAITING:
            # The gateway is away; what was sent until then will not be known.
            known.waiting.clear()
            known.sent = None
        known.waiting.append((at_seconds, count))

    def count(self, at_seconds: float, flows: Mapping[int, FlowCounters], epoch: str) -> None:
        """A reading of all flows: reports since the one before are settled."""
        anew = epoch != self._epoch
        for name, known in self._subscribers.items():
            if anew:
                known.sent = None
            for reported_at, count in known.waiting:
                self._settle(name, known, reported_at, count, at_seconds, flows, anew)
            known.waiting.clear()
        self._flows, self._counted_at, self._epoch = flows, at_seconds, epoch

    def take(self, seconds: float) -> dict[str, Loss]:
        """By port, what was sent and reported since the last call, which was so long ago."""
        windows, self._windows = self._windows, {}
        return {
            port: self._loss(port, rows, seconds)
            for port, rows in windows.items()
            if any(row.sent > 0 for row in rows.values())
        }

    def _settle(
        self,
        name: str,
        known: _Subscriber,
        reported_at: float,
        count: int | None,
        at_seconds: float,
        flows: Mapping[int, FlowCounters],
        anew: bool,
    ) -> None:
        known.reports += 1
        ordered = (flow.flow_id for flow in flows_of(self._orders, name).values())
        # One that is not connected is sent nothing; slot 0 carries its topics.
        ids = tuple(number for number in ordered if number in flows)
        share = (reported_at - self._counted_at) / max(at_seconds - self._counted_at, 1e-9)
        sent = None if anew else _sent(ids, self._flows, flows, min(max(share, 0.0), 1.0))
        before = known.sent if ids == known.flows else None
        known.flows, known.sent = ids, None if known.reports < FIRST_REPORTS else sent
        if sent is None:
            return
        copies, packets = (0.0, 0.0) if before is None else (sent[0] - before[0], sent[1] - before[1])
        if before is None or copies < 0 or packets < 0 or count is None or self._scenario is None:
            known.begin(sent[0])
            return
        row = self._row[name]
        subscribers = self._scenario.subscribers
        survival = (1 - float(subscribers.error_rate[row])) ** (packets / copies if copies > 0 else 1.0)
        seen = ReportedCopies(copies, packets, known.believe(count, sent[0]), copies * survival)
        window = self._windows.setdefault(self._scenario.ports.name[int(subscribers.port[row])], {})
        window[name] = window.get(name, ReportedCopies()) + seen

    def _loss(self, port: str, rows: Mapping[str, ReportedCopies], seconds: float) -> Loss:
        assert self._scenario is not None
        each = [_with_variance(row, seconds) for row in rows.values()]
        everyone = sum(each, ReportedCopies())
        if self._behind[self._scenario.ports.name.index(port)] == 1:
            return Loss(everyone, everyone, everyone)
        each.sort(key=lambda copies: copies.expected - copies.received)
        return Loss(everyone, sum(each[:-1], ReportedCopies()), sum(each[1:], ReportedCopies()))


def _with_variance(row: ReportedCopies, seconds: float) -> ReportedCopies:
    """Its rate says how much the two ends of the window may be off."""
    rate = row.sent / seconds
    variance = 2 * ((rate * REPORT_SECONDS) ** 2 + rate * BETWEEN_READINGS)
    return row + ReportedCopies(variance=variance)


def _sent(
    ids: Sequence[int], before: Mapping[int, FlowCounters], now: Mapping[int, FlowCounters], share: float
) -> tuple[float, float] | None:
    """Copies and packets that have left by flows of these numbers at an instant between two readings."""
    copies = packets = 0.0
    for number in ids:
        old, new = before.get(number), now.get(number)
        if old is None or new is None or new.packets_out < old.packets_out:
            return None
        copies += old.copies_out + share * (new.copies_out - old.copies_out)
        packets += old.packets_out + share * (new.packets_out - old.packets_out)
    return (copies, packets) if ids else None
