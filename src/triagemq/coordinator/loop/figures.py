"""Live figures: what happened in the last second per class, port and topic, and what each subscription gets of late."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol

from triagemq.client import Assignment
from triagemq.client.events import percentile_seconds
from triagemq.coordinator.channel.messages import Measured
from triagemq.coordinator.decide.orders import Orders, Promised
from triagemq.plan import Decision, FlowCounters, PortCounters, QueueCounters

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


MOST_WATCHED = 20_000
"""Subscriptions that are watched; of those that come later nothing is known."""

WINDOW_SECONDS = 60.0
_LEAST_SECONDS = 0.75
"""Publications are counted five times a second: of a shorter time the share that came is unknown."""
RECENT_REPORTS = 40


@dataclass(frozen=True, slots=True)
class SubscriptionFigures:
    """What was measured of a subscription over `seconds` in a class; `recent` are events a second, by report."""

    priority_class: int
    seconds: float
    delivered_per_second: float
    success_rate: float | None
    mean_latency_seconds: float | None
    p50_seconds: float | None
    p95_seconds: float | None
    recent: Sequence[float]


@dataclass(slots=True)
class _Window:
    """From an instant on: how many of its topic had been published by then, and what came since."""

    begun: float
    published: float
    delivered: int = 0
    latency_seconds: float = 0.0
    bins: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Watched:
    treated: tuple[int, float]
    windows: list[_Window]
    reported: float
    published: float
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_REPORTS))


class SubscriptionWatch:
    """Takes reports and counts of publications, gives figures; by subscriber and topic.

    `arrived` is how many events of a topic were published since `published` was last called.
    """

    def __init__(self, arrived: Callable[[str], float] = lambda topic: 0.0) -> None:
        self._arrived = arrived
        self._published: dict[str, float] = {}
        self._watched: dict[str, dict[str, _Watched]] = {}
        self._count = 0

    def published(self, arrived: Mapping[str, tuple[float, float]]) -> None:
        """Publications and bytes of topics since the last call."""
        for topic, (events, _) in arrived.items():
            self._published[topic] = self._published.get(topic, 0.0) + events

    def report(
        self,
        subscriber: str,
        assigned: Assignment,
        reports: Mapping[str, Report],
        now: float | None = None,
    ) -> None:
        """A subscriber says what it received since its last report; nothing of a topic of which nothing came."""
        now = time.monotonic() if now is None else now
        known = self._watched.setdefault(subscriber, {})
        for topic, level in assigned.classes.items():
            treated = level, assigned.drop_rates[topic]
            published = self._published.get(topic, 0.0) + self._arrived(topic)
            watched = known.get(topic)
            if watched is None:
                if self._count >= MOST_WATCHED:
                    continue
                self._count += 1
                known[topic] = _Watched(treated, [_Window(now, published)], now, published)
                continue
            came = reports.get(topic)
            seconds = max(now - watched.reported, 1e-3)
            watched.recent.append(0.0 if came is None else came.count / seconds)
            if watched.treated != treated:
                # Of what is reported now a part came before the change.
                watched.treated, watched.windows = treated, [_Window(now, published)]
            else:
                _add(watched, came, now)
            watched.reported, watched.published = now, published
        for topic in [topic for topic in known if topic not in assigned.classes]:
            self._count -= 1
            del known[topic]

    def keep(self, subscribers: Collection[str]) -> None:
        """Only these are there any more."""
        for name in [name for name in self._watched if name not in subscribers]:
            self._count -= len(self._watched.pop(name))

    def figures(self, subscriber: str, topic: str) -> SubscriptionFigures | None:
        """None before there is a report of what it gets now."""
        watched = self._watched.get(subscriber, {}).get(topic)
        if watched is None:
            return None
        first, windows = watched.windows[0], watched.windows
        seconds = watched.reported - first.begun
        if seconds <= 0:
            return None
        published = watched.published - first.published
        delivered = sum(each.delivered for each in windows)
        bins: dict[int, int] = {}
        for each in windows:
            for number, count in each.bins.items():
                bins[number] = bins.get(number, 0) + count
        timed = sum(bins.values())
        return SubscriptionFigures(
            priority_class=watched.treated[0],
            seconds=seconds,
            delivered_per_second=delivered / seconds,
            success_rate=min(delivered / published, 1.0)
            if published > 0 and seconds >= _LEAST_SECONDS
            else None,
            mean_latency_seconds=sum(each.latency_seconds for each in windows) / timed if timed else None,
            p50_seconds=percentile_seconds(bins, 0.5),
            p95_seconds=percentile_seconds(bins, 0.95),
            recent=tuple(watched.recent),
        )


def _add(watched: _Watched, came: Report | None, now: float) -> None:
    if watched.reported - watched.windows[-1].begun >= WINDOW_SECONDS:
        watched.windows = [watched.windows[-1], _Window(watched.reported, watched.published)]
    if came is not None:
        window = watched.windows[-1]
        window.delivered += came.count
        window.latency_seconds += came.latency_seconds_sum
        for number, count in came.latency_bins.items():
            window.bins[number] = window.bins.get(number, 0) + count


QUIET_MEASUREMENTS = 10
"""After so many measurements in which nothing was cut it is news again."""


class Babbling:
    """Takes two measurements, one after the other, and gives decisions about publications that are newly cut."""

    def __init__(self) -> None:
        self._quiet: dict[tuple[str, str], int] = {}

    def news(self, before: Measured, now: Measured, promised: Promised) -> list[Decision]:
        """What was cut or foreign between the measurements and is not known to be."""
        found: list[Decision] = []
        if before.epoch != now.epoch:
            # A gateway has come, gone or begun anew: what differs was not counted in this second.
            return found
        self._quiet = {each: count for each, count in self._quiet.items() if each[1] in promised.addresses}
        for name, key in promised.addresses.items():
            none = FlowCounters(0)
            flow = now.flows.get(str(key), none)
            earlier = before.flows.get(str(key), none)
            cut, foreign = flow.limited - earlier.limited, flow.foreign - earlier.foreign
            if self._is_news("limited", name, cut):
                words = "it publishes larger messages or more often than it declared; nobody else is touched"
                found.append(Decision("limited", name, "as declared", f"{cut} packets cut", words))
            if self._is_news("foreign", name, foreign):
                words = (
                    f"another host sends to {key}; its packets go last or nowhere, and the promise is kept"
                )
                found.append(Decision("foreign", name, "", f"{foreign} packets of others", words))
        return found

    def _is_news(self, kind: str, name: str, packets: int) -> bool:
        quiet = self._quiet.get((kind, name))
        if packets > 0:
            self._quiet[kind, name] = 0
        elif quiet is not None:
            self._quiet[kind, name] = quiet + 1
            if quiet + 1 >= QUIET_MEASUREMENTS:
                del self._quiet[kind, name]
        return packets > 0 and quiet is None
