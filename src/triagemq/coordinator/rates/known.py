"""What is known of topics' rates, from all sources: the gateway's counts, the store, and the streaming pipeline.

The gateways' counts go first. What the store has is where they go on after a restart; what the pipeline counted is for
topics that do not pass through any gateway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from triagemq.coordinator.channel.messages import Measured
from triagemq.coordinator.rates.watch import RateChange, Rates, RateWatch
from triagemq.mqttsn import valid_topic_name

_PIPELINE_SECONDS = 120.0
_SHORTEST_WINDOW_SECONDS = 5.0
_NOTABLE_FACTOR = 1.25


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic's rate and size; `measured` tells counted from announced."""

    rate_per_second: float | None
    size_bytes: float | None
    measured: bool


@dataclass(frozen=True, slots=True)
class _Window:
    rate_per_second: float
    size_bytes: float | None
    until: float


class KnownRates:
    """Rates to plan with. The caller brings the clock."""

    def __init__(self, restored: Mapping[str, Any]) -> None:
        self.watch = RateWatch(_restored(restored))
        self._pipeline: dict[str, _Window] = {}

    def observe(self, measured: Measured, now: float) -> tuple[RateChange, ...]:
        """What gateways have counted since the last call; the changes that call for a plan."""
        return self.watch.observe(now, measured.topics, complete=measured.broker_since_ns is not None)

    def take_windows(self, rows: Iterable[Mapping[str, Any]], now: float) -> tuple[int, list[str]]:
        """Windows of the pipeline: how many were used, and what they say that calls for a plan."""
        used, news = 0, []
        counted = self.watch.counted()
        for row in rows:
            topic, rate, size = row.get("topic"), row.get("rate_per_second"), row.get("bytes_per_second")
            if not isinstance(topic, str) or not valid_topic_name(topic) or not _number(rate):
                continue
            if not _number(row.get("window_seconds")) or row["window_seconds"] < _SHORTEST_WINDOW_SECONDS:
                continue
            used += 1
            mean_size = size / rate if _number(size) and rate > 0 and size > 0 else None
            before = self._pipeline.get(topic)
            self._pipeline[topic] = _Window(float(rate), mean_size, now + _PIPELINE_SECONDS)
            if topic not in counted and (before is None or _apart(before.rate_per_second, rate)):
                news.append(f"topic {topic} has {rate:.4g} events/s, says the pipeline")
        return used, news

    def rates(self, now: float) -> Rates:
        """What to plan with where it overrules what publishers declare."""
        measured, counted = self.watch.rates(), self.watch.counted()
        per_second, size_bytes = {}, {}
        for topic, window in self._pipeline.items():
            if window.until > now and topic not in counted:
                per_second[topic], size = window.rate_per_second, window.size_bytes
                if size is not None:
                    size_bytes[topic] = size
        return Rates(per_second | dict(measured.per_second), size_bytes | dict(measured.size_bytes))

    def to_store(self) -> dict[str, dict[str, float]]:
        """The rates that were measured: a topic that is silent now has none when it comes back."""
        known = self.watch.rates()
        return {
            topic: {"rate_per_second": rate}
            | ({"size_bytes": known.size_bytes[topic]} if topic in known.size_bytes else {})
            for topic, rate in known.per_second.items()
            if rate > 0
        }


def _restored(stored: Mapping[str, Any]) -> Rates:
    """What `to_store` gave; rows that hold no numbers are left out."""
    return Rates(
        {topic: rate for topic, row in stored.items() if _number(rate := row.get("rate_per_second"))},
        {topic: size for topic, row in stored.items() if _number(size := row.get("size_bytes"))},
    )


def _number(value: Any) -> TypeGuard[float]:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and 0 <= value < 1e12
    )


def _apart(before: float, after: float) -> bool:
    low, high = sorted((before, after))
    return high > _NOTABLE_FACTOR * low
