"""Live figures: the last second per class, port and topic, and the recent deliveries of each subscription."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import ConfigDict, Field

from triagemq.channel.messages import Measured
from triagemq.channel.orders import Orders, Promised
from triagemq.client import Assignment
from triagemq.client.events import percentile_seconds
from triagemq.coordinator.ports import bytes_out
from triagemq.plan import Decision
from triagemq.plan.dataplane import FlowCounters, PortCounters, QueueCounters, Treatment
from triagemq.theory import thinned_rate

_MOST_WAITING = 5
_SHOWN_TOPICS = 50

TOGETHER_SECONDS = 5
"""Subscribers report every few seconds: figures of classes are of so many seconds together."""


Count = Annotated[int, Field(ge=0, le=2**53, strict=True)]
# JSON has names only as texts.
BinNumber = Annotated[int, Field(ge=0, le=250)]


@dataclass(slots=True)
class Received:
    """What subscribers received, as they report it. Events with a time stamp have a latency."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    count: Count = 0
    latency_seconds_sum: Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False, strict=True)] = 0.0
    latency_seconds_max: Annotated[float, Field(ge=-1e9, le=1e9, allow_inf_nan=False, strict=True)] = 0.0
    latency_bins: Annotated[dict[BinNumber, Count], Field(max_length=200)] = field(default_factory=dict)

    def add(self, report: Received) -> None:
        self.count += report.count
        self.latency_seconds_sum += report.latency_seconds_sum
        self.latency_seconds_max = max(self.latency_seconds_max, report.latency_seconds_max)
        for number, count in report.latency_bins.items():
            self.latency_bins[number] = self.latency_bins.get(number, 0) + count

    @property
    def timed(self) -> int:
        """Events with a time stamp; clients of the version before report no bins."""
        return sum(self.latency_bins.values()) or (self.count if self.latency_seconds_max else 0)

    @property
    def mean_latency_seconds(self) -> float | None:
        return self.latency_seconds_sum / self.timed if self.timed else None


Traffic = dict[int, Counter[str]]
"""By priority class the packets `offered`, `dropped_by_policy`, `dropped_by_buffer` and `sent`."""


def add_traffic(total: Traffic, more: Traffic) -> None:
    for level, row in more.items():
        total.setdefault(level, Counter()).update(row)


class Live:
    """The listeners, the reports since the last figures and since the start, and the traffic since the start."""

    def __init__(self) -> None:
        self._listeners: set[asyncio.Queue[Mapping[str, Any] | None]] = set()
        self._recent: dict[int, Received] = {}
        # The last seconds: their length, traffic and reports.
        self._seconds: deque[tuple[float, Traffic, Mapping[int, Received]]] = deque(maxlen=TOGETHER_SECONDS)
        self.total: dict[int, Received] = {}
        self.traffic: Traffic = {}
        self.latest: Mapping[str, Any] | None = None

    def received(self, assigned: Assignment, reports: Mapping[str, Received]) -> None:
        """Count a subscriber's report by the present classes of its topics."""
        for topic, report in reports.items():
            if (level := assigned.classes.get(topic)) is not None:
                for table in (self._recent, self.total):
                    table.setdefault(level, Received()).add(report)

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def listen(self) -> asyncio.Queue[Mapping[str, Any] | None]:
        """A queue of figures; None at its end: the listener is too slow."""
        queue: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue(_MOST_WAITING)
        self._listeners.add(queue)
        return queue

    def leave(self, queue: asyncio.Queue[Mapping[str, Any] | None]) -> None:
        self._listeners.discard(queue)

    def publish_second(
        self,
        before: Measured,
        now: Measured,
        orders: Orders,
        arrived: Mapping[str, tuple[float, float]],
        forecast: Mapping[str, Any],
        **more: Any,
    ) -> None:
        """What was measured in the last second, with a forecast; `arrived` are publications and bytes by topic."""
        seconds = max((now.at_ns - before.at_ns) / 1e9, 1e-9)
        traffic = class_traffic(before, now)
        add_traffic(self.traffic, traffic)
        recent, self._recent = self._recent, {}
        self._seconds.append((seconds, traffic, recent))
        lasted, passed, reported = 0.0, Traffic(), dict[int, Received]()
        for each_seconds, each_traffic, each_reported in self._seconds:
            lasted += each_seconds
            add_traffic(passed, each_traffic)
            for level, report in each_reported.items():
                reported.setdefault(level, Received()).add(report)
        published, topics = topic_figures(arrived, seconds)
        self.publish(
            {
                "at_ns": now.at_ns,
                "gateway_connected": True,
                "broker_connected": now.broker_connected,
                "sessions": now.sessions,
                "publications_per_second": published,
                "classes": class_figures(passed, lasted, reported, forecast),
                "ports": port_figures(before, now, orders),
                "topics": topics,
                **more,
            }
        )

    def publish(self, figures: Mapping[str, Any]) -> None:
        self.latest = figures
        for queue in tuple(self._listeners):
            if queue.full():
                self._listeners.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(figures)


def class_traffic(before: Measured, now: Measured) -> Traffic:
    """Packets per priority class between two measurements: those that the gateways dropped as planned, and the rest,
    which came to their output ports."""
    traffic: Traffic = {}
    if before.epoch != now.epoch:
        # A gateway that has just joined may have counted for hours.
        return traffic
    for level, count in now.planned_drops.items():
        dropped = max(count - before.planned_drops.get(level, 0), 0)
        add_traffic(traffic, {level: Counter(offered=dropped, dropped_by_policy=dropped)})
    for name, port in now.ports.items():
        old = before.ports.get(name)
        for level, queue in enumerate(port.queues):
            earlier = QueueCounters() if old is None or level >= len(old.queues) else old.queues[level]
            if earlier.packets_in > queue.packets_in:
                # A queue that was removed and made again counts from 0.
                earlier = QueueCounters()
            passed = Counter(offered=queue.packets_in, dropped_by_buffer=queue.drops, sent=queue.packets_out)
            # What is not above 0 goes.
            passed -= Counter(
                offered=earlier.packets_in, dropped_by_buffer=earlier.drops, sent=earlier.packets_out
            )
            if passed:
                add_traffic(traffic, {level: passed})
    return traffic


def class_figures(
    traffic: Traffic,
    seconds: float,
    received: Mapping[int, Received],
    forecast: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Per priority class: packets a second in, out and dropped, what arrived, and what was forecast."""
    forecasts = {row["priority_class"]: row for row in forecast.get("classes", ())}
    figures = []
    for level in sorted({*traffic, *received, *forecasts}):
        passed = traffic.get(level, Counter())
        reported, predicted = received.get(level, Received()), forecasts.get(level, {})
        figures.append(
            {
                "priority_class": level,
                "offered_per_second": passed["offered"] / seconds,
                "sent_per_second": passed["sent"] / seconds,
                "dropped_by_policy_per_second": passed["dropped_by_policy"] / seconds,
                "dropped_by_buffer_per_second": passed["dropped_by_buffer"] / seconds,
                "sent_share": min(passed["sent"] / passed["offered"], 1.0) if passed["offered"] else None,
                "received_per_second": reported.count / seconds,
                "mean_latency_seconds": reported.mean_latency_seconds,
                "max_latency_seconds": reported.latency_seconds_max if reported.timed else None,
                "p95_seconds": percentile_seconds(reported.latency_bins, 0.95),
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
        sent, drops = (_more(count, old, port) for count in (bytes_out, _drops))
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


def _more(count: Callable[[PortCounters], int], old: PortCounters | None, new: PortCounters) -> int:
    """What was counted since; a counter that went back has begun anew."""
    before, now = 0 if old is None else count(old), count(new)
    return now - before if now >= before else now


def _drops(port: PortCounters) -> int:
    return sum(queue.drops for queue in port.queues)


MOST_WATCHED = 20_000
"""Subscriptions that are watched; later ones have no figures."""

WINDOW_SECONDS = 60.0
_LEAST_SECONDS = 0.75
"""Publications are counted five times a second: over a shorter time the success rate is unknown."""
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
    """From an instant on: events of the topic published until then, and received since."""

    begun: float
    published: float
    received: Received = field(default_factory=Received)


@dataclass(slots=True)
class _Watched:
    treated: tuple[int, float]
    windows: list[_Window]
    reported: float
    published: float
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_REPORTS))


class SubscriptionWatch:
    """Takes reports, gives figures; by subscriber and topic.

    `publications` is how many events of a topic have been published, and `treatment` how they are treated by the orders
    in force: what its subscription's rate thins is not among those that could come, and where the newest alone is
    wanted it is unknown how many those are.
    """

    def __init__(
        self,
        publications: Callable[[str], float],
        treatment: Callable[[str, str], Treatment] = lambda subscriber, topic: Treatment(0),
    ) -> None:
        self._publications, self._treatment = publications, treatment
        self._watched: dict[str, dict[str, _Watched]] = {}
        self._count = 0

    def report(
        self,
        subscriber: str,
        assigned: Assignment,
        reports: Mapping[str, Received],
        now: float | None = None,
    ) -> None:
        """What a subscriber received since its last report; topics without an event are absent."""
        now = time.monotonic() if now is None else now
        known = self._watched.setdefault(subscriber, {})
        for topic, level in assigned.classes.items():
            treated = level, assigned.drop_rates[topic]
            published = self._publications(topic)
            watched = known.get(topic)
            if watched is None:
                if self._count < MOST_WATCHED:
                    self._count += 1
                    known[topic] = _Watched(treated, [_Window(now, published)], now, published)
                continue
            report = reports.get(topic)
            seconds = max(now - watched.reported, 1e-3)
            watched.recent.append(0.0 if report is None else report.count / seconds)
            if watched.treated != treated:
                # A part of this report is from before the change.
                watched.treated, watched.windows = treated, [_Window(now, published)]
            else:
                if watched.reported - watched.windows[-1].begun >= WINDOW_SECONDS:
                    watched.windows = [watched.windows[-1], _Window(watched.reported, watched.published)]
                if report is not None:
                    watched.windows[-1].received.add(report)
            watched.reported, watched.published = now, published
        for topic in [topic for topic in known if topic not in assigned.classes]:
            self._count -= 1
            del known[topic]

    def retain(self, subscribers: Collection[str]) -> None:
        """Forget all others."""
        for name in [name for name in self._watched if name not in subscribers]:
            self._count -= len(self._watched.pop(name))

    def figures(self, subscriber: str, topic: str) -> SubscriptionFigures | None:
        """None before the first report in its present class."""
        watched = self._watched.get(subscriber, {}).get(topic)
        if watched is None:
            return None
        first, received = watched.windows[0], Received()
        seconds = watched.reported - first.begun
        if seconds <= 0:
            return None
        published = watched.published - first.published
        for each in watched.windows:
            received.add(each.received)
        is_known = published > 0 and seconds >= _LEAST_SECONDS
        if (terms := self._treatment(subscriber, topic).terms) is not None:
            is_known = is_known and not terms.newest_only
            arrivals, most = np.array([published / seconds]), np.array([terms.max_rate_per_second])
            published = float(thinned_rate(arrivals, most)[0]) * seconds
        return SubscriptionFigures(
            priority_class=watched.treated[0],
            seconds=seconds,
            delivered_per_second=received.count / seconds,
            success_rate=min(received.count / published, 1.0) if is_known else None,
            mean_latency_seconds=received.mean_latency_seconds,
            p50_seconds=percentile_seconds(received.latency_bins, 0.5),
            p95_seconds=percentile_seconds(received.latency_bins, 0.95),
            recent=tuple(watched.recent),
        )


QUIET_MEASUREMENTS = 10
"""After so many measurements without cut packets a cut is reported again."""


class PromiseBreaches:
    """Finds publications that are newly cut, or have foreign senders, between two measurements."""

    def __init__(self) -> None:
        # Measurements, and at which of them packets were cut last, by kind and publication.
        self._count = 0
        self._last: dict[tuple[str, str], int] = {}

    def news(self, before: Measured, now: Measured, promised: Promised) -> list[Decision]:
        found: list[Decision] = []
        self._count += 1
        if before.epoch != now.epoch:
            # A gateway has joined, left or restarted: the difference was not counted in this second.
            return found
        self._last = {each: count for each, count in self._last.items() if each[1] in promised.addresses}
        for name, key in promised.addresses.items():
            flow, earlier = (each.flows.get(str(key), FlowCounters(0)) for each in (now, before))
            cut, foreign = flow.limited - earlier.limited, flow.foreign - earlier.foreign
            if self._is_news("limited", name, cut):
                words = (
                    "it publishes larger messages or more often than it declared; no other flow is touched"
                )
                found.append(Decision("limited", name, "as declared", f"{cut} packets cut", words))
            if self._is_news("foreign", name, foreign):
                words = (
                    f"another host sends to {key}; its packets go last or are dropped, and the promise holds"
                )
                found.append(Decision("foreign", name, "", f"{foreign} packets of others", words))
        return found

    def _is_news(self, kind: str, name: str, packets: int) -> bool:
        if packets <= 0:
            return False
        last, self._last[kind, name] = self._last.get((kind, name)), self._count
        return last is None or self._count - last > QUIET_MEASUREMENTS
