"""Publication rates as they are measured: moving averages, and which topics have left the band of their plan.

Each topic has two exponentially weighted moving averages of its events and bytes. The short one notices a change within
seconds, the long one makes the estimate precise. A rate is news when an average differs from the planned rate by more
than a fifth and by more than chance explains: an average with the time constant T that stands for W seconds has the
variance I rate (1 / W - 1 / (2 T)), with I the index of dispersion of the events, 1 unless the scenario says otherwise.
A false alarm is cheap: a plan that comes out the same sends nothing.

A topic has no rate before it has shown one: single events of a topic that was never seen say nothing about how often
it will publish. It is served as its filter is (decide/unseen.py) until three more events have come.

The gateways' counts go first. What the store has is where they go on after a restart; what the streaming pipeline
counted is for topics that do not pass through any gateway.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from triagemq.coordinator.channel.messages import Measured
from triagemq.mqttsn import valid_topic_name

SHORT_SECONDS, LONG_SECONDS = 2.0, 60.0
"""Time constants of the two averages."""

SHORT_DEVIATIONS, LONG_DEVIATIONS = 4.0, 3.0
"""Standard deviations that chance may explain: the short average is looked at more often than it is renewed."""

BAND = 0.2
"""A rate or size within a fifth of the one planned with is near enough, however well it is known."""

FIRST_LOOK_SECONDS, FIRST_EVENTS = 1.0, 3
"""After so long and so many events beyond the first one a topic has a rate."""

SIZE_EVENTS = 5
"""Events that a change of size is judged by."""

SILENT_SECONDS, SILENT_EVENTS = 3.0, 8.0
"""A topic has stopped when nothing came for so long, and so many events should have come."""

GRACE_SECONDS = 10.0
"""How long publishers have to begin after they have announced a rate, or to begin again after an interruption."""

FORGET_SECONDS, MOST_TOPICS = 1200.0, 200_000
"""Topics without a rate are forgotten after so long, or earlier if there are more than so many."""

_LOOK_SECONDS = 1.0

_PIPELINE_SECONDS, _SHORTEST_WINDOW_SECONDS, _NOTABLE_FACTOR = 120.0, 5.0, 1.25
"""How long a window of the pipeline counts, how long it must be, and by how much a rate must differ to be news."""

_LARGEST_MESSAGE_BYTES = 1 << 28
"""That MQTT allows."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates (events per second) and mean sizes to plan with where measurements overrule what was announced."""

    per_second: Mapping[str, float] = field(default_factory=dict)
    size_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeclaredRate:
    """What a topic's publishers announce, None where they leave it to be measured.

    `dispersion` is variance / mean of its counts over a long time (1 for Poisson events), `silence_seconds` the longest
    silence that is usual for it.
    """

    rate_per_second: float | None = None
    size_bytes: float | None = None
    dispersion: float = 1.0
    silence_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TopicEstimate:
    """What is measured of a topic: its rate, and its mean size (None before the first event)."""

    rate_per_second: float
    size_bytes: float | None
    publications: int


@dataclass(frozen=True, slots=True)
class RateChange:
    """A topic that has left its band. `what` is rate or size; `str()` says it in words."""

    topic: str
    what: str
    before: float
    after: float

    def __str__(self) -> str:
        unit = "events/s" if self.what == "rate" else "bytes"
        return f"{self.what} of topic {self.topic} from {self.before:.4g} to {self.after:.4g} {unit}"


@dataclass(slots=True)
class _Average:
    """Events and bytes, each weighted by exp(-age / `constant`); `weight` is the time that they stand for."""

    constant: float
    events: float = 0.0
    octets: float = 0.0
    weight: float = 0.0

    def add(self, seconds: float, events: float, octets: float) -> None:
        """So many in the last seconds, spread evenly over them."""
        decay = math.exp(-seconds / self.constant)
        gain = self.constant * (1.0 - decay)
        share = gain / seconds if seconds > 0 else 1.0
        self.events = self.events * decay + events * share
        self.octets = self.octets * decay + octets * share
        self.weight = self.weight * decay + gain

    def differs(self, planned: float, dispersion: float, deviations: float) -> bool:
        """Is the rate further from the planned one than the band and chance allow?"""
        variance = dispersion * planned * (1.0 / self.weight - 0.5 / self.constant)
        chance = deviations * math.sqrt(variance)
        return abs(self.rate - planned) > BAND * planned + chance

    @property
    def rate(self) -> float:
        return self.events / self.weight if self.weight > 0 else 0.0


@dataclass(slots=True)
class _Topic:
    """`rate` and `size` are planned with, 0 where there is none; `measured` tells them from declared ones.

    `counted_at` is the time up to which events were counted, None before the first; `heard_at` is when the last one
    came, by the time that the watch has listened.
    """

    rate: float = 0.0
    measured: bool = False
    size: float = 0.0
    size_measured: bool = False
    publications: int = 0
    new_events: float = 0.0
    new_octets: float = 0.0
    first_events: float = 0.0
    counted_at: float | None = None
    heard_at: float = 0.0
    longest_silence: float = 0.0
    dispersion: float = 1.0
    short: _Average = field(default_factory=lambda: _Average(SHORT_SECONDS))
    long: _Average = field(default_factory=lambda: _Average(LONG_SECONDS))

    def advance(self, at_seconds: float, events: float, octets: float) -> None:
        """The time goes on to `at_seconds`; the first event ever only starts the clock."""
        if self.counted_at is None:
            if events:
                self.counted_at = at_seconds
            return
        seconds = max(at_seconds - self.counted_at, 0.0)
        self.counted_at = max(at_seconds, self.counted_at)
        self.first_events += events
        for average in (self.short, self.long):
            average.add(seconds, events, octets)

    def restart(self) -> None:
        """Count from the next event on."""
        self.counted_at, self.first_events = None, 0.0
        self.short, self.long = _Average(SHORT_SECONDS), _Average(LONG_SECONDS)


class RateWatch:
    """Feeds on counts of events; says which topics left the band around the rate they are planned with.

    `restored` are rates that were measured before a restart.

    >>> watch = RateWatch()
    >>> for window in range(1, 11):
    ...     changes = watch.observe(window * 0.2, {"smoke": (4, 200)})
    >>> round(watch.rates().per_second["smoke"], 9)
    20.0
    """

    def __init__(self, restored: Rates | None = None) -> None:
        self._topics: dict[str, _Topic] = {}
        # Those with a rate, and those that are being measured: all others cost nothing.
        self._active: dict[str, None] = {}
        self._arrived: dict[str, None] = {}
        self._declared: Mapping[str, DeclaredRate] = {}
        self._subscribed: Collection[str] | None = None
        self._at: float | None = None
        self._looked_at = self._forgot_at = -math.inf
        # How long everything that was published was counted: an interruption is no silence of anyone.
        self._listened = 0.0
        self._interrupted_at: float | None = None
        self._recovered_at = -math.inf
        self._grace_until = -math.inf
        if restored is not None:
            for name, rate in restored.per_second.items():
                if rate > 0:
                    topic = self._topic(name)
                    topic.rate, topic.measured = rate, True
                    topic.heard_at = GRACE_SECONDS
                    if name in restored.size_bytes:
                        topic.size, topic.size_measured = restored.size_bytes[name], True
                    self._active[name] = None

    def declare(self, declared: Mapping[str, DeclaredRate]) -> None:
        """Take over what publishers announce of all topics; news about a topic overrules what was measured of it."""
        before, self._declared = self._declared, dict(declared)
        for name, news in declared.items():
            if before.get(name) == news:
                continue
            topic = self._topic(name)
            topic.dispersion, topic.longest_silence = news.dispersion, news.silence_seconds
            if news.rate_per_second is not None:
                topic.rate, topic.measured = news.rate_per_second, False
                topic.heard_at = self._listened + GRACE_SECONDS
                topic.restart()
                self._active[name] = None
            elif not topic.measured:
                topic.rate = 0.0
            if news.size_bytes is not None:
                topic.size, topic.size_measured = news.size_bytes, False
        for name in before.keys() - declared.keys():
            # If events still come they are measured like those of a new topic.
            topic = self._topic(name)
            if not topic.measured:
                topic.rate = 0.0
            if not topic.size_measured:
                topic.size = 0.0

    def listen(self, subscribed: Collection[str]) -> None:
        """The topics with a subscription: of others no event is counted, and their silence says nothing."""
        before, self._subscribed = self._subscribed, frozenset(subscribed)
        if before is not None:
            for name in self._subscribed.difference(before):
                topic = self._topic(name)
                topic.heard_at = max(topic.heard_at, self._listened + GRACE_SECONDS)

    def observe(
        self, at_seconds: float, counts: Mapping[str, tuple[int, int]], *, complete: bool = True
    ) -> tuple[RateChange, ...]:
        """Publications and bytes by topic since the last call, at a time of one clock.

        `complete`: whether all gateways have counted everything that their brokers had for them. If not, the rest comes
        with a later call.
        """
        if self._at is None:
            self._at = self._looked_at = at_seconds
        elif complete:
            self._listened += max(at_seconds - self._at, 0.0)
        self._at = max(at_seconds, self._at)
        if not complete:
            self._interrupted_at = self._at if self._interrupted_at is None else self._interrupted_at
        elif self._interrupted_at is not None:
            if self._at - self._interrupted_at > SILENT_SECONDS:
                # What was published meanwhile comes now or never: either would look like another rate.
                self._grace_until = self._at + GRACE_SECONDS
                for name in self._active:
                    self._topics[name].restart()
            self._interrupted_at = None
            self._recovered_at = self._at
        changes: dict[tuple[str, str], RateChange] = {}
        for name, (events, octets) in counts.items():
            if events > 0:
                self._count(name, events, octets)
                self._judge(name, changes)
        if complete and self._at - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = self._at
            self._look(changes)
        return tuple(changes[key] for key in sorted(changes))

    def rates(self) -> Rates:
        """What to plan with: measured rates and sizes where they overrule or complete what is declared."""
        return Rates(
            per_second={
                name: topic.rate
                for name, topic in self._topics.items()
                if topic.measured and (topic.rate > 0 or name in self._declared)
            },
            size_bytes={name: topic.size for name, topic in self._topics.items() if topic.size_measured},
        )

    def estimates(self) -> dict[str, TopicEstimate]:
        """What is known of every topic, for people and metrics."""
        return {
            name: TopicEstimate(topic.rate, topic.size if topic.publications else None, topic.publications)
            for name, topic in self._topics.items()
        }

    def counted(self) -> set[str]:
        """The topics of which events were counted."""
        return {name for name, topic in self._topics.items() if topic.publications}

    def take_arrived(self) -> dict[str, tuple[float, float]]:
        """Events and bytes of topics since the last call; of those that had any."""
        found = {}
        for name in self._arrived:
            if (topic := self._topics.get(name)) is not None:
                found[name] = topic.new_events, topic.new_octets
                topic.new_events = topic.new_octets = 0.0
        self._arrived = {}
        return found

    def arrived(self, name: str) -> float:
        """Events of a topic since `take_arrived` was last called."""
        topic = self._topics.get(name)
        return 0.0 if topic is None else topic.new_events

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic()
            topic.heard_at = self._listened
        return topic

    def _count(self, name: str, events: int, octets: int) -> None:
        assert self._at is not None
        topic = self._topic(name)
        silence = self._listened - topic.heard_at
        if topic.publications:
            topic.longest_silence = max(topic.longest_silence, silence)
        topic.heard_at = self._listened
        topic.publications += events
        topic.new_events += events
        topic.new_octets += octets
        topic.advance(self._at, events, octets)
        self._arrived[name] = self._active[name] = None

    def _look(self, changes: dict[tuple[str, str], RateChange]) -> None:
        """Let the time go on for topics of which nothing has come, too."""
        assert self._at is not None
        for name in list(self._active):
            topic = self._topics[name]
            topic.advance(self._at, 0, 0)
            silence = self._listened - topic.heard_at
            is_subscribed = self._subscribed is None or name in self._subscribed
            if topic.rate <= 0:
                if silence > LONG_SECONDS:
                    # It was no more than a few events.
                    topic.restart()
                    del self._active[name]
                else:
                    self._judge(name, changes)
            elif self._at >= self._grace_until and is_subscribed:
                # A silence is judged as a whole: plans need not follow an average on its way down.
                patience = max(SILENT_SECONDS, SILENT_EVENTS / topic.rate, 2 * topic.longest_silence)
                if silence > patience:
                    self._set_rate(name, 0.0, changes)
                    topic.restart()
                    del self._active[name]
        if len(self._topics) > MOST_TOPICS:
            self._forget(SILENT_SECONDS)
        elif self._at - self._forgot_at > LONG_SECONDS:
            self._forgot_at = self._at
            self._forget(FORGET_SECONDS)

    def _judge(self, name: str, changes: dict[tuple[str, str], RateChange]) -> None:
        topic = self._topics[name]
        if topic.long.weight < FIRST_LOOK_SECONDS or topic.first_events < FIRST_EVENTS:
            return
        if topic.rate <= 0:
            self._set_rate(name, topic.long.rate, changes)
        else:
            self._judge_rate(name, changes)
        self._judge_size(name, changes)

    def _judge_rate(self, name: str, changes: dict[tuple[str, str], RateChange]) -> None:
        topic, at = self._topics[name], self._at or 0.0
        # Events of a short interruption may be lost: the short average forgets that soon.
        interrupted = at < max(self._grace_until, self._recovered_at + 2 * SHORT_SECONDS)
        for average, deviations in ((topic.short, SHORT_DEVIATIONS), (topic.long, LONG_DEVIATIONS)):
            if not average.differs(topic.rate, topic.dispersion, deviations) or (
                interrupted and average.rate < topic.rate
            ):
                continue
            if average is topic.short:
                # A new regime: what came before says nothing about it.
                topic.long = replace(topic.short, constant=LONG_SECONDS)
            self._set_rate(name, average.rate, changes)
            return

    def _judge_size(self, name: str, changes: dict[tuple[str, str], RateChange]) -> None:
        """Sizes vary no more than exponential ones: n of them have a mean with a relative variance of 1 / n."""
        topic = self._topics[name]
        for average, deviations in ((topic.short, SHORT_DEVIATIONS), (topic.long, LONG_DEVIATIONS)):
            if average.events < (SIZE_EVENTS if topic.size > 0 else 1):
                continue
            size, band = average.octets / average.events, BAND + deviations / math.sqrt(2 * average.events)
            if abs(size - topic.size) <= band * topic.size:
                continue
            if average is topic.short:
                topic.long = replace(topic.short, constant=LONG_SECONDS)
            if topic.size > 0:
                changes[name, "size"] = RateChange(name, "size", topic.size, size)
            topic.size, topic.size_measured = size, True
            return

    def _set_rate(self, name: str, rate: float, changes: dict[tuple[str, str], RateChange]) -> None:
        topic = self._topics[name]
        changes[name, "rate"] = RateChange(name, "rate", topic.rate, rate)
        topic.rate, topic.measured = rate, True

    def _forget(self, seconds: float) -> None:
        """Forget topics that have no rate, are not announced and have been silent for so long."""
        kept: Iterable[str] = (
            name
            for name, topic in self._topics.items()
            if name in self._active
            or name in self._declared
            or topic.new_events
            or self._listened - topic.heard_at <= seconds
        )
        self._topics = {name: self._topics[name] for name in kept}


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
            if mean_size is not None and mean_size > _LARGEST_MESSAGE_BYTES:
                mean_size = None
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
