"""What each subscription gets: reports of subscribers beside what was published, as long as it is treated as it is now.

A report comes every few seconds with a subscriber's sign of life. Figures are of the last one to two minutes, and begin
anew when class or drop rate change: what was before says nothing about what is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from triagemq.client import Assignment
from triagemq.client.events import percentile_seconds
from triagemq.coordinator.loop.figures import Report

MOST_WATCHED = 20_000
"""Subscriptions that are watched; of those that come later nothing is known."""

WINDOW_SECONDS = 60.0
_LEAST_SECONDS = 0.75
"""Publications are counted five times a second: of a shorter time nobody can say which share of them came."""
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
