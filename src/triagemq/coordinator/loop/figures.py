"""Live figures: what happened in the last second per class, port and topic, beside what was forecast.

Everyone who listens gets the same object once a second; who does not take them in time is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol

from triagemq.client import Assignment
from triagemq.client.events import percentile_seconds
from triagemq.coordinator.channel.messages import Measured
from triagemq.coordinator.decide.orders import Orders
from triagemq.plan import PortCounters, QueueCounters

_MOST_WAITING = 5
_SHOWN_TOPICS = 50


class Report(Protocol):
    """What a subscriber says it received of a topic since its last report."""

    @property
    def count(self) -> int: ...

    @property
    def latency_seconds_sum(self) -> float: ...

    @property
    def latency_seconds_max(self) -> float: ...

    @property
    def latency_bins(self) -> Mapping[int, int]: ...


@dataclass(slots=True)
class ReportedEvents:
    """What subscribers of one class reported. `timed` events have a time stamp, and so a latency."""

    count: int = 0
    timed: int = 0
    latency_seconds_sum: float = 0.0
    latency_seconds_max: float = 0.0
    latency_bins: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Traffic:
    """Packets of one class at the output ports: what came, what was dropped there, what left."""

    offered: int = 0
    dropped_by_policy: int = 0
    dropped_by_buffer: int = 0
    sent: int = 0

    def add(self, offered: int, dropped_by_policy: int, dropped_by_buffer: int, sent: int) -> None:
        self.offered += offered
        self.dropped_by_policy += dropped_by_policy
        self.dropped_by_buffer += dropped_by_buffer
        self.sent += sent


class Live:
    """The listeners, the reports since the last figures and since the start, and the traffic since the start."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[Mapping[str, Any] | None]] = set()
        self._recent: dict[int, ReportedEvents] = {}
        self.total: dict[int, ReportedEvents] = {}
        self.traffic: dict[int, Traffic] = {}
        self.dropped_listeners = 0
        self.latest: Mapping[str, Any] | None = None

    def received(self, assigned: Assignment, reports: Mapping[str, Report]) -> None:
        """Count a subscriber's report by the classes its topics have now."""
        for topic, report in reports.items():
            level = assigned.classes.get(topic)
            if level is None:
                continue
            for table in (self._recent, self.total):
                row = table.setdefault(level, ReportedEvents())
                row.count += report.count
                row.timed += sum(report.latency_bins.values()) or (
                    report.count if report.latency_seconds_max else 0
                )
                row.latency_seconds_sum += report.latency_seconds_sum
                row.latency_seconds_max = max(row.latency_seconds_max, report.latency_seconds_max)
                for number, count in report.latency_bins.items():
                    row.latency_bins[number] = row.latency_bins.get(number, 0) + count

    def take_received(self) -> dict[int, ReportedEvents]:
        recent, self._recent = self._recent, {}
        return recent

    def count(self, traffic: Mapping[int, Traffic]) -> None:
        """Add the last second's traffic to that since the start."""
        for level, row in traffic.items():
            self.traffic.setdefault(level, Traffic()).add(*astuple(row))

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def listen(self) -> asyncio.Queue[Mapping[str, Any] | None]:
        """A queue of figures; None at its end means: too slow."""
        queue: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue(_MOST_WAITING)
        self._listeners.add(queue)
        return queue

    def leave(self, queue: asyncio.Queue[Mapping[str, Any] | None]) -> None:
        self._listeners.discard(queue)

    def tell(self, figures: Mapping[str, Any]) -> None:
        self.latest = figures
        for queue in tuple(self._listeners):
            if queue.full():
                self._listeners.discard(queue)
                self.dropped_listeners += 1
                queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(figures)


def class_traffic(before: Measured, now: Measured) -> dict[int, Traffic]:
    """Packets per priority class between two measurements: those that the gateways dropped as planned, and the rest,
    which came to their output ports."""
    traffic: dict[int, Traffic] = {}
    if before.epoch != now.epoch:
        # A gateway that has just joined may have counted for hours.
        return traffic
    for level, count in now.planned_drops.items():
        dropped = max(count - before.planned_drops.get(level, 0), 0)
        traffic.setdefault(level, Traffic()).add(dropped, dropped, 0, 0)
    for name, port in now.ports.items():
        old = before.ports.get(name)
        for level, queue in enumerate(port.queues):
            earlier = QueueCounters() if old is None or level >= len(old.queues) else old.queues[level]
            numbers = _since(earlier, queue)
            if any(numbers):
                traffic.setdefault(level, Traffic()).add(numbers[0], 0, *numbers[1:])
    return traffic


def class_figures(
    traffic: Mapping[int, Traffic],
    seconds: float,
    received: Mapping[int, ReportedEvents],
    forecast: Mapping[int, Any],
) -> list[dict[str, Any]]:
    """Per priority class: packets a second in, out and dropped, what arrived, and what was forecast."""
    figures = []
    for level in sorted({*traffic, *received, *forecast}):
        passed = traffic.get(level, Traffic())
        heard, predicted = received.get(level, ReportedEvents()), forecast.get(level, {})
        figures.append(
            {
                "priority_class": level,
                "offered_per_second": passed.offered / seconds,
                "sent_per_second": passed.sent / seconds,
                "dropped_by_policy_per_second": passed.dropped_by_policy / seconds,
                "dropped_by_buffer_per_second": passed.dropped_by_buffer / seconds,
                "sent_share": min(passed.sent / passed.offered, 1.0) if passed.offered else None,
                "received_per_second": heard.count / seconds,
                "mean_latency_seconds": heard.latency_seconds_sum / heard.timed if heard.timed else None,
                "max_latency_seconds": heard.latency_seconds_max if heard.timed else None,
                "p95_seconds": percentile_seconds(heard.latency_bins, 0.95),
                "forecast_success_rate": predicted.get("success_rate"),
                "forecast_latency_seconds": predicted.get("mean_latency_seconds"),
                **{
                    f"forecast_{name}": predicted.get(name)
                    for name in ("p95_seconds", "p99_seconds", "flag", "latency_error", "success_error")
                },
            }
        )
    return figures


def port_figures(before: Measured, now: Measured, orders: Orders) -> list[dict[str, Any]]:
    """Per output port: how full it is, what waits and what its buffer dropped."""
    seconds = max((now.at_ns - before.at_ns) / 1e9, 1e-9)
    figures = []
    for name, port in now.ports.items():
        old = before.ports.get(name)
        if old is None and before.epoch != now.epoch:
            old = port
        sent, drops = (_more(count, old, port) for count in (_sent, _drops))
        width = orders.ports[name].bandwidth_bps if name in orders.ports else None
        figures.append(
            {
                "port": name,
                "bandwidth_bps": width,
                "sent_bps": sent * 8 / seconds,
                "load": None if not width else sent * 8 / seconds / width,
                "backlog_packets": sum(queue.backlog_packets for queue in port.queues),
                "dropped_by_buffer_per_second": drops / seconds,
            }
        )
    return figures


def topic_figures(
    arrived: Mapping[str, tuple[float, float]], seconds: float
) -> tuple[float, list[dict[str, Any]]]:
    """Publications a second in all, and of the topics that have most; `arrived` are publications and bytes."""
    rates = [(count / seconds, size / seconds, topic) for topic, (count, size) in arrived.items()]
    rates.sort(key=lambda row: (-row[0], row[2]))
    shown = [
        {"topic": topic, "publications_per_second": rate, "bytes_per_second": size}
        for rate, size, topic in rates[:_SHOWN_TOPICS]
    ]
    return sum(rate for rate, _, _ in rates), shown


def _since(old: QueueCounters, new: QueueCounters) -> Sequence[int]:
    """Packets in, dropped and out since; a queue that was removed and made again counts from 0."""
    numbers = (new.packets_in, new.drops, new.packets_out)
    if old.packets_in > new.packets_in:
        return numbers
    earlier = (old.packets_in, old.drops, old.packets_out)
    return [max(now - then, 0) for now, then in zip(numbers, earlier, strict=True)]


def _more(count: Callable[[PortCounters], int], old: PortCounters | None, new: PortCounters) -> int:
    """What was counted since; a counter that went back has begun anew."""
    before, now = 0 if old is None else count(old), count(new)
    return now - before if now >= before else now


def _sent(port: PortCounters) -> int:
    return port.control.bytes_out + sum(queue.bytes_out for queue in port.queues)


def _drops(port: PortCounters) -> int:
    return sum(queue.drops for queue in port.queues)
