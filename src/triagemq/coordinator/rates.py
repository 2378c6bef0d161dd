"""Publication rates as they are measured: estimates, and which topics have left the band their plan was made for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.burstiness import dispersion, longest_silence_seconds
from triagemq.coordinator.rate_facts import DeclaredRate, RateChange, Rates, TopicEstimate
from triagemq.coordinator.rate_horizons import HORIZONS, Horizons, Seen, count_surprise, size_surprise
from triagemq.scenario import Floats

__all__ = ["DeclaredRate", "RateChange", "RateWatch", "Rates", "TopicEstimate"]

SURPRISE = float(np.log(1e9))
"""In nats: the chance of a false alarm is at most 1e-9 per look."""

BAND = 0.2
"""Rates and sizes within a fifth of those planned with are near enough, however well they are known."""

GRACE_SECONDS = 10.0
"""How long publishers have to begin after they have announced a rate."""

FIRST_LOOK_SECONDS, ENOUGH_SECONDS = 1.0, 64.0
LEAST_WINDOW_SECONDS = 0.02
LONGEST_PAUSE_SECONDS, LEAST_EXPECTED = 3.0, 10.0
LATELY_SECONDS = 2.0
USUAL_SECONDS: Floats = np.array([0.2 * 2**level for level in range(1, HORIZONS + 1)])
HORIZON_SHOWN = 5
"""The horizon of which the index of dispersion is shown, and taken for silences: 64 windows."""

LEAST_SPREAD, UNKNOWN_SPREAD = 0.1, 5.0
"""What silences of evenly ticking topics, and of those about which nothing is known yet, are divided by."""


Rows = NDArray[np.intp]


_UNKNOWN = {
    "_rate": np.nan,
    "_size": np.nan,
    "_rate_measured": False,
    "_size_measured": False,
    "_since": np.inf,
    "_size_since": np.inf,
    "_events_before": 0.0,
    "_bytes_before": 0.0,
    "_review_at": np.inf,
    "_silence": 0.0,
    "_last_event": np.inf,
    "_came_at": -np.inf,
}
"""Columns over topics, and what stands in them of a topic that is new."""


class RateWatch:
    """Feeds on cumulative counts and says which topics left the band around the rate they are planned with.

    A topic leaves its band when a count over some horizon (rate_horizons.py) differs from the planned rate by more than
    a fifth and its surprise passes log(1e9): a false alarm has a probability of at most 1e-9 per look, for Poisson
    events as for any whose burstiness is known or has been seen. With I the index of dispersion, a doubling is noticed
    after about 54 I / rate seconds and a silence after 21 I / rate. Events by the clock have I <= 0.1, so that 5 a
    second are enough for 2 s; Poisson events have I = 1, and 64 a second are enough. No test that stays silent for
    a stationary hour can be much faster: events at the rates r and 2 r differ by 1.9 nats in 5 expected events.

    How bursty a topic is, its declaration says, or counting for some minutes; until then it takes longer to judge it.
    Long silences are no news if the process is known for them, or if one half as long has been seen before. A topic of
    which nobody announced a rate is measured from its first event on. An estimate from little data is looked at again
    when there is four times as much, until it rests on a minute.
    """

    def __init__(self) -> None:
        self._horizons = Horizons()
        self._number: dict[str, int] = {}
        self._names: list[str] = []
        self._declared: dict[str, DeclaredRate] = {}
        self._epoch: str | None = None
        self._at = 0.0
        self._last = np.zeros((2, 0))
        self._order: tuple[tuple[str, ...], Rows] = ((), np.empty(0, dtype=np.intp))
        # Per topic: what is planned with (NaN: unknown), whether it was measured, and the regime it is judged in.
        self._rate = np.zeros(0)
        self._size = np.zeros(0)
        self._rate_measured = np.zeros(0, dtype=bool)
        self._size_measured = np.zeros(0, dtype=bool)
        self._since = np.zeros(0)
        self._size_since = np.zeros(0)
        self._events_before = np.zeros(0)
        self._bytes_before = np.zeros(0)
        self._review_at = np.zeros(0)
        self._silence = np.zeros(0)
        self._last_event = np.zeros(0)
        self._came_at = np.zeros(0)
        # Whether somebody listens, and whether topics that are new are taken to be listened to.
        self._heard = np.zeros(0, dtype=bool)
        self._hear_new = True

    def declare(self, declared: Mapping[str, DeclaredRate]) -> None:
        """Take over what publishers announce of all topics; news about a topic overrules what was measured of it."""
        before, self._declared = self._declared, dict(declared)
        self._know(declared)
        for topic, news in declared.items():
            if before.get(topic) != news:
                self._declare(self._number[topic], news)
        for topic in before.keys() - declared.keys():
            self._undeclare(self._number[topic])

    def listen(self, topics: Collection[str]) -> None:
        """The topics that somebody is subscribed to: of others no event reaches the counter, whatever is published.

        They are not judged while nobody listens. Before the first call all topics are taken to be listened to.
        """
        self._know(topics)
        heard = np.zeros(len(self._names), dtype=bool)
        heard[[self._number[topic] for topic in topics]] = True
        lately = (self._at - self._came_at < LATELY_SECONDS) | (self._review_at < np.inf)
        for number in np.flatnonzero(heard & ~self._heard & ~lately & ~np.isnan(self._rate)).tolist():
            self._begin(number, self._at + GRACE_SECONDS)
        self._heard, self._hear_new = heard, False

    def observe(
        self, at_seconds: float, counts: Mapping[str, tuple[int, int]], epoch: str = ""
    ) -> tuple[RateChange, ...]:
        """Cumulative (publications, bytes) per topic at a time; `epoch` changes when the counter starts from 0 again.

        Times are seconds of one clock. While nearly everything seems to pause, the machine is taken to be busy and
        the count goes on, for a few seconds at most.
        """
        now = self._columns(counts)
        if epoch != self._epoch:
            # Nobody counted in between: that time does not exist for the rates.
            self._shift(at_seconds - self._at, at_seconds)
            self._epoch, self._at, self._last = epoch, at_seconds, now
            return ()
        seconds = at_seconds - self._at
        if seconds < LEAST_WINDOW_SECONDS:
            return ()
        new = np.maximum(now - self._last, 0.0)
        if seconds < LONGEST_PAUSE_SECONDS and self._everything_pauses(seconds, new[0]):
            return ()
        started, self._at, self._last = self._at, at_seconds, now
        self._note_events(started, new[0])
        changes: dict[tuple[int, str], RateChange] = {}
        horizons = self._horizons.advance(at_seconds, new[0], new[1])
        self._judge_silence(changes)
        for seen in horizons:
            self._judge(seen, changes)
        self._learn(changes)
        return tuple(changes[key] for key in sorted(changes))

    def rates(self) -> Rates:
        """What to plan with: measured rates and sizes where they overrule or complete what is declared."""
        known = [
            (topic, number)
            for topic, number in self._number.items()
            if self._rate_measured[number] and (self._rate[number] > 0 or topic in self._declared)
        ]
        sized = np.flatnonzero(self._size_measured).tolist()
        return Rates(
            per_second={topic: float(self._rate[number]) for topic, number in known},
            size_bytes={self._names[number]: float(self._size[number]) for number in sized},
        )

    def estimates(self) -> dict[str, TopicEstimate]:
        """What is known of every topic, for people and metrics: the rate and size it is planned with, and its I."""
        dispersion = self._horizons.dispersion(HORIZON_SHOWN)
        return {
            topic: TopicEstimate(
                rate_per_second=float(np.nan_to_num(self._rate[number])),
                size_bytes=None if np.isnan(self._size[number]) else float(self._size[number]),
                index_of_dispersion=float(dispersion[number]),
                publications=int(self._horizons.events[number]),
            )
            for topic, number in self._number.items()
        }

    def _know(self, topics: Iterable[str]) -> None:
        """Make room for topics that are new."""
        new = [topic for topic in topics if topic not in self._number]
        if not new:
            return
        for topic in new:
            self._number[topic] = len(self._names)
            self._names.append(topic)
        count, more = len(self._names), len(self._names) - len(self._rate)
        self._horizons.grow(count)
        self._last = np.append(self._last, np.zeros((2, more)), axis=1)
        for name, value in _UNKNOWN.items():
            column = getattr(self, name)
            setattr(self, name, np.append(column, np.full(more, value, dtype=column.dtype)))
        self._heard = np.append(self._heard, np.full(more, self._hear_new))

    def _declare(self, number: int, news: DeclaredRate) -> None:
        if news.arrivals:
            self._horizons.set_prior(number, dispersion(news.arrivals, USUAL_SECONDS))
            self._silence[number] = longest_silence_seconds(news.arrivals, SURPRISE) / 2
        if news.rate_per_second is not None:
            self._rate[number], self._rate_measured[number] = news.rate_per_second, False
            self._begin(number, self._at + GRACE_SECONDS)
        elif not self._rate_measured[number]:
            self._rate[number] = np.nan
            self._begin(number, np.inf)
        if news.size_bytes is not None:
            self._size[number], self._size_measured[number] = news.size_bytes, False
            self._size_since[number] = self._at

    def _undeclare(self, number: int) -> None:
        """Nobody publishes it any more, they say; if events still come, they are measured like those of a new topic."""
        if not self._rate_measured[number]:
            self._rate[number] = np.nan
            self._begin(number, np.inf)
        if not self._size_measured[number]:
            self._size[number] = np.nan

    def _begin(self, number: int, since: float) -> None:
        """A new regime from a time on; infinity waits for the first event."""
        self._since[number], self._review_at[number] = since, np.inf
        self._last_event[number] = since
        self._horizons.forget_mean(np.array([number]))

    def _columns(self, counts: Mapping[str, tuple[int, int]]) -> Floats:
        """The counts as columns over all topics; those that are not mentioned stay as they were."""
        names = tuple(counts)
        if names != self._order[0]:
            self._know(names)
            self._order = names, np.array([self._number[topic] for topic in names], dtype=np.intp)
        now = self._last.copy()
        if names:
            now[:, self._order[1]] = np.array(list(counts.values()), dtype=np.float64).T
        return now

    def _shift(self, seconds: float, at_seconds: float) -> None:
        """Let a stretch of time not have been."""
        for column in (self._since, self._size_since, self._last_event, self._review_at, self._came_at):
            column += seconds
        self._horizons.start(at_seconds)

    def _everything_pauses(self, seconds: float, new: Floats) -> bool:
        judged = (self._since <= self._at) & (self._rate > 0) & self._heard
        expected = float(self._rate[judged].sum()) * seconds
        return expected >= LEAST_EXPECTED and float(new[judged].sum()) < expected / 2

    def _note_events(self, started: float, new: Floats) -> None:
        """Remember the longest silence that ended, and where a topic that was waited for has begun."""
        came = new > 0
        begun = np.flatnonzero(came & np.isinf(self._since))
        self._since[begun] = self._last_event[begun] = started
        self._size_since[begun] = started
        self._events_before[begun] = self._horizons.events[begun]
        self._bytes_before[begun] = self._horizons.octets[begun]
        self._review_at[begun] = self._at + FIRST_LOOK_SECONDS
        self._came_at[came] = self._at
        over = came & (self._last_event <= started)
        self._silence[over] = np.maximum(self._silence[over], self._at - self._last_event[over])
        self._last_event[came & (self._last_event < self._at)] = self._at

    def _judge_silence(self, changes: dict[tuple[int, str], RateChange]) -> None:
        """Which topics have stopped: no event for longer than chance or their burstiness explains."""
        missing = self._rate * self._heard * np.maximum(self._at - self._last_event, 0.0)
        rows = np.flatnonzero(missing > SURPRISE * LEAST_SPREAD)
        if len(rows) == 0:
            return
        spread = self._horizons.dispersion(HORIZON_SHOWN)[rows]
        spread = np.where(np.isnan(spread), UNKNOWN_SPREAD, spread)
        bursts = 2 * self._silence[rows] * self._rate[rows] / SURPRISE
        for number in rows[missing[rows] > SURPRISE * np.maximum(bursts, spread)].tolist():
            self._set_rate(number, 0.0, changes)
            self._begin(number, np.inf)

    def _judge(self, seen: Seen, changes: dict[tuple[int, str], RateChange]) -> None:
        """Which topics have left their band, by one horizon; a topic that a shorter one has shown is left alone."""
        judged = (self._since <= seen.started_at) & self._heard
        expected = self._rate * seen.seconds
        rows = np.flatnonzero(judged & (expected > 0) & (np.abs(seen.events - expected) > BAND * expected))
        for number in rows[self._surprising(seen, expected, rows)].tolist():
            if (number, "rate") not in changes and self._since[number] < np.inf:
                self._set_rate(number, float(seen.events[number]) / seen.seconds, changes)
                self._begin_with(number, seen)
        octets = seen.events * self._size
        judged = self._size_since <= seen.started_at
        rows = np.flatnonzero(judged & (octets > 0) & (np.abs(seen.octets - octets) > BAND * octets))
        surprise = size_surprise(seen.events[rows], seen.octets[rows] / octets[rows])
        for number in rows[surprise > SURPRISE].tolist():
            if (number, "size") not in changes:
                self._set_size(number, float(seen.octets[number] / seen.events[number]), changes)
                self._size_since[number] = self._at

    def _surprising(self, seen: Seen, expected: Floats, rows: Rows) -> NDArray[np.bool_]:
        """Which of the topics differ too much from what was expected for it to be chance."""
        events, expected, spread = seen.events[rows], expected[rows], seen.dispersion[rows]
        # A silence up to twice the longest so far is no news: so many events may be missing.
        quiet = np.minimum(expected, 2 * self._silence[rows] * self._rate[rows]) / (0.99 * SURPRISE)
        spread = np.where(events < expected, np.maximum(spread, quiet), spread)
        return np.asarray(count_surprise(expected, events, spread) > SURPRISE)

    def _begin_with(self, number: int, seen: Seen) -> None:
        """A new regime that has begun where the horizon begins; after a silence, with the next event."""
        self._horizons.forget_mean(np.array([number]))
        if seen.events[number] == 0:
            self._since[number] = self._review_at[number] = np.inf
            return
        self._since[number] = seen.started_at
        self._events_before[number] = seen.events_at_start[number]
        self._bytes_before[number] = seen.bytes_at_start[number]
        self._review_at[number] = self._at + 4 * max(seen.seconds, FIRST_LOOK_SECONDS)

    def _learn(self, changes: dict[tuple[int, str], RateChange]) -> None:
        """Look again at rates that rest on little: at one second, at four, at sixteen, at a minute."""
        for number in np.flatnonzero(self._review_at <= self._at).tolist():
            seconds = self._at - self._since[number]
            events = self._horizons.events[number] - self._events_before[number]
            octets = self._horizons.octets[number] - self._bytes_before[number]
            rate = events / seconds
            planned = np.nan_to_num(self._rate[number])
            # Tighter than the band: the first look rested on little, and what is right now will be kept.
            if abs(rate - planned) > BAND / 2 * planned:
                self._set_rate(number, float(rate), changes)
            if events > 0 and np.isnan(self._size[number]):
                self._set_size(number, float(octets / events), changes)
            more = 4 * seconds
            self._review_at[number] = self._since[number] + more if more <= ENOUGH_SECONDS else np.inf

    def _set_rate(self, number: int, rate: float, changes: dict[tuple[int, str], RateChange]) -> None:
        before = float(np.nan_to_num(self._rate[number]))
        changes[number, "rate"] = RateChange(self._names[number], "rate", before, rate)
        self._rate[number], self._rate_measured[number] = rate, True

    def _set_size(self, number: int, size: float, changes: dict[tuple[int, str], RateChange]) -> None:
        before = float(np.nan_to_num(self._size[number]))
        if before > 0:
            changes[number, "size"] = RateChange(self._names[number], "size", before, size)
        self._size[number], self._size_measured[number] = size, True
