"""Publication rates as they are measured, and which topics have left the band around the rate they are planned with.

A rate is news when the events beyond the band of a fifth add up to more than chance explains (cumulative sums: Page,
Continuous Inspection Schemes, 1954); the new rate is that since they began to. The mean size of events is watched
alike. A false alarm is cheap: a plan that comes out the same sends nothing.

A topic has no rate before it has shown one: single events of a topic that was never seen say nothing about how often
it will publish. It is served as its filter is (`unseen_topics`) until three more events have come.

After a restart of the coordinator the stored rates hold until counts leave their band.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

BAND = 0.2
"""A rate or size within a fifth of the one planned with is near enough, however well it is known."""

LEAST_EXCESS = 30.0
"""Events beyond the band, as many times as those of the topic vary more than Poisson's, that chance hardly brings."""

FIRST_LOOK_SECONDS, FIRST_EVENTS = 1.0, 3
"""After so long and so many events beyond the first one a topic has a rate."""

SILENT_SECONDS, SILENT_EVENTS = 3.0, 8.0
"""A topic has stopped when nothing came for so long, and so many events should have come."""

GRACE_SECONDS = 10.0
"""How long publishers have to begin after they have announced a rate, or to begin again after an interruption."""

FORGET_SECONDS, MOST_TOPICS = 1200.0, 200_000
"""Topics without a rate are forgotten after so long, or earlier if there are more than so many."""

_LOOK_SECONDS, _UNFINISHED_SECONDS = 1.0, 60.0
"""How often time is taken to go on, and after which silence a topic without a rate has had only a few events."""


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
class TopicFacts:
    """A topic's rate and size; `measured` distinguishes counted from announced."""

    rate_per_second: float | None
    size_bytes: float | None
    measured: bool


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


class _Drift:
    """How far counts have left the band around what is expected, upwards and downwards, since they began to."""

    def __init__(self) -> None:
        # By direction the excess, and what was seen and expected since it began.
        self._sums = dict.fromkeys((1, -1), (0.0, 0.0, 0.0))

    def add(self, seen: float, expected: float, *, most: float, least: float) -> float | None:
        """How many times what is expected was seen of late, if its excess is above `most`.

        Only where at least so much was expected meanwhile, and when something is seen: silences are examined apart.
        """
        for sign, (before, seen_before, expected_before) in self._sums.items():
            excess = before + sign * (seen - (1 + sign * BAND) * expected)
            if excess <= 0:
                self._sums[sign] = 0.0, 0.0, 0.0
                continue
            total, of = seen_before + seen, expected_before + expected
            self._sums[sign] = excess, total, of
            if seen and excess > most and of >= least:
                self._sums = dict.fromkeys(self._sums, (0.0, 0.0, 0.0))
                return total / of
        return None


@dataclass(slots=True)
class _Topic:
    """`rate` and `size` are planned with, 0 where there is none; `measured` distinguishes them from declared ones.

    `counted_at` is the time up to which events were counted, None before the first; `heard_at` is when the last one
    came.
    """

    heard_at: float
    rate: float = 0.0
    measured: bool = False
    size: float = 0.0
    size_measured: bool = False
    publications: int = 0
    longest_silence: float = 0.0
    dispersion: float = 1.0
    counted_at: float | None = None
    events: float = 0.0
    octets: float = 0.0
    seconds: float = 0.0
    rate_drift: _Drift = field(default_factory=_Drift)
    size_drift: _Drift = field(default_factory=_Drift)

    def restart(self) -> None:
        """Count from the next event on."""
        self.counted_at, self.events, self.octets, self.seconds = None, 0.0, 0.0, 0.0
        self.rate_drift, self.size_drift = _Drift(), _Drift()

    def find_rate(self, seconds: float, events: float) -> float | None:
        """The rate, where it is another than the one planned with."""
        if self.rate > 0:
            expected, most = self.rate * seconds, LEAST_EXCESS * self.dispersion
            ratio = self.rate_drift.add(events, expected, most=most, least=self.rate * FIRST_LOOK_SECONDS)
            return None if ratio is None else ratio * self.rate
        is_known = self.events >= FIRST_EVENTS and self.seconds >= FIRST_LOOK_SECONDS
        return self.events / self.seconds if is_known else None

    def find_size(self, events: float, octets: float) -> float | None:
        """The same of the mean size, which varies no more than that of exponential sizes."""
        if self.size > 0:
            ratio = self.size_drift.add(octets / self.size, events, most=LEAST_EXCESS, least=0.0)
            return None if ratio is None else ratio * self.size
        return self.octets / self.events if self.events >= FIRST_EVENTS and self.octets else None


class RateWatch:
    """Feeds on counts of events; says which topics left the band around the rate they are planned with.

    `restored` is what `to_store` gave before a restart.

    >>> watch = RateWatch()
    >>> for window in range(1, 11):
    ...     changes = watch.observe(window * 0.2, {"smoke": (4, 200)})
    >>> round(watch.rates().per_second["smoke"], 9)
    20.0
    """

    def __init__(self, restored: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self._topics: dict[str, _Topic] = {}
        # Those with a rate, and those that are being measured: all others cost nothing.
        self._active: dict[str, None] = {}
        self._arrived: dict[str, tuple[float, float]] = {}
        self._changes: list[RateChange] = []
        self._declared: Mapping[str, DeclaredRate] = {}
        self._subscribed: Collection[str] | None = None
        self._at: float | None = None
        # How long everything that was published was counted: an interruption is no silence of anyone.
        self._now = 0.0
        self._looked_at = self._forgot_at = 0.0
        self._is_interrupted = False
        self._judges_from = -math.inf
        for name, row in (restored or {}).items():
            topic = self._topics[name] = _Topic(GRACE_SECONDS, row["rate_per_second"], measured=True)
            if "size_bytes" in row:
                topic.size, topic.size_measured = row["size_bytes"], True
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
                topic.heard_at = self._now + GRACE_SECONDS
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
                topic.heard_at = max(topic.heard_at, self._now + GRACE_SECONDS)

    def observe(
        self, at_seconds: float, counts: Mapping[str, tuple[int, int]], *, complete: bool = True
    ) -> tuple[RateChange, ...]:
        """Publications and bytes by topic since the last call, at a time of one clock.

        `complete`: whether all gateways have counted everything that their brokers had for them. If not, the rest comes
        with a later call, or never: until publishers had time to begin again, either would look like another rate.
        """
        before = at_seconds if self._at is None else self._at
        self._at = max(at_seconds, before)
        if complete:
            self._now += self._at - before
            if self._is_interrupted:
                self._judges_from = self._now + GRACE_SECONDS
        self._is_interrupted = not complete
        for name, (events, octets) in counts.items():
            if events > 0:
                self._count(name, events, octets)
        if complete and self._now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = self._now
            self._look()
        changes, self._changes = self._changes, []
        return tuple(changes)

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

    def to_store(self) -> dict[str, dict[str, float]]:
        """The rates that were measured: a topic that is silent now has none when it comes back."""
        return {
            name: {"rate_per_second": topic.rate}
            | ({"size_bytes": topic.size} if topic.size_measured else {})
            for name, topic in self._topics.items()
            if topic.measured and topic.rate > 0
        }

    def counted(self) -> dict[str, TopicFacts]:
        """The topics of which events were counted."""
        return {
            name: TopicFacts(topic.rate, topic.size or None, True)
            for name, topic in self._topics.items()
            if topic.publications
        }

    def publications(self, name: str) -> int:
        """Events of a topic that were counted."""
        topic = self._topics.get(name)
        return 0 if topic is None else topic.publications

    def take_arrived(self) -> dict[str, tuple[float, float]]:
        """Events and bytes of topics since the last call; of those that had any."""
        found, self._arrived = self._arrived, {}
        return found

    def _topic(self, name: str) -> _Topic:
        if name not in self._topics:
            self._topics[name] = _Topic(self._now)
        return self._topics[name]

    def _count(self, name: str, events: int, octets: int) -> None:
        topic = self._topic(name)
        if topic.publications:
            topic.longest_silence = max(topic.longest_silence, self._now - topic.heard_at)
        topic.heard_at = self._now
        topic.publications += events
        events_before, octets_before = self._arrived.get(name, (0.0, 0.0))
        self._arrived[name] = events_before + events, octets_before + octets
        self._active[name] = None
        self._advance(name, events, octets)

    def _advance(self, name: str, events: int, octets: int) -> None:
        """So many came in the time since this was called last; the first event ever only starts the clock."""
        topic = self._topics[name]
        if self._is_interrupted or self._now < self._judges_from:
            topic.restart()
            return
        if topic.counted_at is None:
            topic.counted_at = self._now if events else None
            return
        seconds, topic.counted_at = self._now - topic.counted_at, self._now
        topic.seconds += seconds
        topic.events += events
        topic.octets += octets
        if (rate := topic.find_rate(seconds, events)) is not None:
            self._set_rate(name, rate)
        if (size := topic.find_size(events, octets)) is not None:
            if topic.size > 0:
                self._changes.append(RateChange(name, "size", topic.size, size))
            topic.size, topic.size_measured = size, True

    def _look(self) -> None:
        """Let the time go on for topics of which nothing has come, too."""
        for name in list(self._active):
            topic = self._topics[name]
            self._advance(name, 0, 0)
            silence = self._now - topic.heard_at
            # A silence is examined as a whole: plans need not follow a falling rate.
            patience = _UNFINISHED_SECONDS
            if topic.rate > 0:
                is_subscribed = self._subscribed is None or name in self._subscribed
                judges = is_subscribed and self._now >= self._judges_from
                patience = max(SILENT_SECONDS, SILENT_EVENTS / topic.rate, 2 * topic.longest_silence)
                patience = patience if judges else math.inf
            if silence > patience:
                if topic.rate > 0:
                    self._set_rate(name, 0.0)
                topic.restart()
                del self._active[name]
        is_full = len(self._topics) > MOST_TOPICS
        if is_full or self._now - self._forgot_at > _UNFINISHED_SECONDS:
            self._forgot_at = self._now
            self._forget(SILENT_SECONDS if is_full else FORGET_SECONDS)

    def _set_rate(self, name: str, rate: float) -> None:
        topic = self._topics[name]
        self._changes.append(RateChange(name, "rate", topic.rate, rate))
        topic.rate, topic.measured = rate, True

    def _forget(self, seconds: float) -> None:
        """Forget topics that have no rate, are not announced and have been silent for so long."""
        self._topics = {
            name: topic
            for name, topic in self._topics.items()
            if name in self._active or name in self._declared or self._now - topic.heard_at <= seconds
        }
