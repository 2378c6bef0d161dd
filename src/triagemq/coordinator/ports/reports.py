"""Subscribers' reports beside what was sent to them: copies that left each port, and those that arrived.

A report says how many events have come since the one before. The counters of the subscriber's flows, between the two
readings around the report, say what was sent until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from triagemq.coordinator.decide.orders import Orders, flows_of
from triagemq.coordinator.ports.tallies import Copies, Loss, MovingAverage
from triagemq.plan import FlowCounters
from triagemq.scenario import Scenario

REPORT_SECONDS = 0.1
"""The standard deviation of a report's delay."""

BETWEEN_READINGS = 1 / 6
"""The variance, in copies a copy per second, of what was sent until an instant between two readings a second apart."""

FIRST_REPORTS = 2
"""A subscriber's first report may have waited for a coordinator; counting begins with the second."""


@dataclass(slots=True)
class _Reporter:
    """A subscriber that reports. A pending report waits for the next reading.

    `sent` are the copies and packets until its last report. `surplus` are events that it reported before they were
    known to be sent: no reporter receives more than was sent to it.
    """

    reports: int = 0
    pending_at: float | None = None
    pending: int | None = None
    flows: tuple[int, ...] = ()
    sent: tuple[float, float] | None = None
    surplus: float = 0.0
    copies: MovingAverage[Copies] = field(default_factory=lambda: MovingAverage(Copies()))


class PortReports:
    """Losses by port. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._orders = Orders()
        self._scenario: Scenario | None = None
        self._survival: Mapping[str, float] = {}
        self._row: dict[str, int] = {}
        self._behind: dict[str, int] = {}
        self._reporters: dict[str, _Reporter] = {}
        self._flows: Mapping[int, FlowCounters] = {}
        self._counted_at = 0.0
        self._epoch = ""

    def plan(self, scenario: Scenario, orders: Orders, survival: Mapping[str, float]) -> None:
        """Ports, flows and error rates of subscribers from now on; `survival` is in the error rates by port."""
        self._scenario, self._orders, self._survival = scenario, orders, survival
        self._row = {name: row for row, name in enumerate(scenario.subscribers.name)}
        behind = np.bincount(scenario.subscribers.port, minlength=len(scenario.ports)).tolist()
        self._behind = dict(zip(scenario.ports.name, behind, strict=True))
        self._reporters = {name: known for name, known in self._reporters.items() if name in self._row}

    def planned_errors(self) -> dict[str, float]:
        """The mean planned error rate of each port's subscribers."""
        if self._scenario is None:
            return {}
        subscribers, ports = self._scenario.subscribers, self._scenario.ports
        total = np.bincount(subscribers.port, subscribers.error_rate, len(ports)).tolist()
        return {
            name: error / self._behind[name]
            for name, error in zip(ports.name, total, strict=True)
            if self._behind[name]
        }

    def report(self, subscriber: str, count: int | None, at_seconds: float) -> None:
        """A subscriber received so many events since its last report; 0 from a new reporter says nothing."""
        known = self._reporters.get(subscriber)
        if known is None:
            if not count or subscriber not in self._row:
                return
            known = self._reporters[subscriber] = _Reporter()
        before = known.pending if known.pending_at is not None else 0
        known.reports += 1
        known.pending = None if count is None or before is None else count + before
        known.pending_at = at_seconds

    def count(self, at_seconds: float, flows: Mapping[int, FlowCounters], epoch: str) -> None:
        """A reading of all flows settles the reports since the one before."""
        restarted = epoch != self._epoch
        for name, known in self._reporters.items():
            if restarted:
                known.sent = None
            if known.pending_at is not None:
                share = (known.pending_at - self._counted_at) / max(at_seconds - self._counted_at, 1e-9)
                self._settle(name, known, min(max(share, 0.0), 1.0), {} if restarted else flows)
        self._flows, self._counted_at, self._epoch = flows, at_seconds, epoch

    def drop_window(self) -> None:
        for known in self._reporters.values():
            known.copies.drop_window()

    def end_window(self, seconds: float) -> None:
        """The window lasted so long."""
        for known in self._reporters.values():
            copies = known.copies
            rate = copies.current.sent / seconds
            # Both ends of the window may be off.
            variance = 2 * ((rate * REPORT_SECONDS) ** 2 + rate * BETWEEN_READINGS)
            copies.add(Copies(variance=variance))
            copies.end_window()

    def losses(self) -> dict[str, tuple[Loss, Loss]]:
        """By port, the loss of the last window and the average; of ports with reports in that window."""
        reporters: dict[str, list[MovingAverage[Copies]]] = {}
        for name, known in self._reporters.items():
            reporters.setdefault(self._port(name), []).append(known.copies)
        return {
            port: (
                Loss([each.window for each in behind], alone=self._behind[port] == 1),
                Loss([each.average for each in behind], alone=self._behind[port] == 1),
            )
            for port, behind in reporters.items()
            if any(each.window.sent > 0 for each in behind)
        }

    def restart(self, port: str) -> None:
        """Forget everything before the last window of a port."""
        for name, known in self._reporters.items():
            if self._port(name) == port:
                known.copies.restart()

    def _port(self, subscriber: str) -> str:
        assert self._scenario is not None
        return self._scenario.ports.name[int(self._scenario.subscribers.port[self._row[subscriber]])]

    def _settle(self, name: str, known: _Reporter, share: float, flows: Mapping[int, FlowCounters]) -> None:
        assert self._scenario is not None
        ordered = (flow.flow_id for flow in flows_of(self._orders, name).values())
        # A flow that is not connected is sent nothing; slot 0 carries its topics.
        ids = tuple(number for number in ordered if number in flows)
        sent = _sent(ids, self._flows, flows, share)
        before = known.sent if ids == known.flows else None
        count, known.pending_at = known.pending, None
        known.flows, known.sent = ids, None if known.reports < FIRST_REPORTS else sent
        if sent is None or before is None or count is None or sent[0] < before[0]:
            known.surplus = 0.0
            return
        copies, packets = sent[0] - before[0], sent[1] - before[1]
        received = min(count + known.surplus, copies)
        known.surplus += count - received
        error_rate = float(self._scenario.subscribers.error_rate[self._row[name]])
        survival = (1 - error_rate) / self._survival.get(self._port(name), 1.0)
        expected = copies * survival ** (packets / copies if copies > 0 else 1.0)
        known.copies.add(Copies(copies, packets, received, expected))


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
