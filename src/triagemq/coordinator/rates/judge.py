"""Judging rates: which topics have left the band around what is planned with, which have stopped, what is learned.

Each topic is judged in a regime, which began at some time with some rate; a topic that left its band begins another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.rates.counts import RateCounts
from triagemq.coordinator.rates.horizons import SURPRISE, Seen, count_surprise, size_surprise
from triagemq.coordinator.rates.topics import Rows
from triagemq.scenario import Floats

BAND = 0.2
"""Rates and sizes within a fifth of those planned with are near enough, however well they are known."""

FIRST_LOOK_SECONDS, ENOUGH_SECONDS = 1.0, 64.0

HORIZON_SHOWN = 5
"""The horizon of which the index of dispersion is shown, and taken for silences: 64 windows."""

LEAST_SPREAD, UNKNOWN_SPREAD = 0.1, 5.0
"""What silences of evenly ticking topics, and of those about which nothing is known yet, are divided by."""


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


class RateJudge:
    """Judges what RateCounts has counted, up to the time `at`; what has changed gathers in `changes`."""

    def __init__(self, counts: RateCounts) -> None:
        self.at = 0.0
        self.changes: dict[tuple[int, str], RateChange] = {}
        self._counts = counts
        self._topics = counts.topics
        self._horizons = counts.horizons
        # When the next rate is to be looked at again, and the next silence of a topic at rest is news, at the earliest.
        self._next_review = self._next_silent = np.inf

    def take_changes(self) -> tuple[RateChange, ...]:
        """What has changed since the last call."""
        changes, self.changes = self.changes, {}
        return tuple(changes[key] for key in sorted(changes))

    def pass_over(self, until: float) -> None:
        """Let the time until then not have been."""
        topics, seconds = self._topics, until - self.at
        for column in (
            topics.since,
            topics.size_since,
            topics.last_event,
            topics.silent_at,
            topics.review_at,
            topics.came_at,
        ):
            column += seconds
        self._next_review, self._next_silent = self._next_review + seconds, self._next_silent + seconds
        self._horizons.start(until)
        self.at = until

    def begin(self, number: int, since: float) -> None:
        """A new regime from a time on; infinity waits for the first event."""
        topics = self._topics
        topics.since[number], topics.review_at[number] = since, np.inf
        topics.last_event[number] = since
        topics.returning[number] = False
        if topics.row[number] >= 0:
            self._horizons.forget_mean(topics.row[[number]])
        self.expect(np.array([number]))

    def expect(self, numbers: Rows) -> None:
        """Work out when the silence of topics at rest is longer than chance or their burstiness explains."""
        if len(numbers) == 0:
            return
        topics = self._topics
        spread = np.where(np.isnan(topics.spread[numbers]), UNKNOWN_SPREAD, topics.spread[numbers])
        rate = np.nan_to_num(topics.rate[numbers])
        with np.errstate(divide="ignore"):
            seconds = np.maximum(2 * topics.silence[numbers], SURPRISE * spread / rate)
        resting = (topics.row[numbers] < 0) & topics.heard[numbers]
        topics.silent_at[numbers] = np.where(resting, topics.last_event[numbers] + seconds, np.inf)
        self._next_silent = min(self._next_silent, float(topics.silent_at[numbers].min()))

    def judge_silence(self) -> None:
        """Which topics have stopped: no event for longer than chance or their burstiness explains."""
        topics, awake = self._topics, self._counts.awake
        stopped: list[int] = []
        if self.at >= self._next_silent:
            stopped += np.flatnonzero(topics.silent_at <= self.at).tolist()
        rate = topics.rate[awake]
        missing = rate * topics.heard[awake] * np.maximum(self.at - topics.last_event[awake], 0.0)
        rows = np.flatnonzero(missing > SURPRISE * LEAST_SPREAD)
        if len(rows):
            spread = self._horizons.dispersion(HORIZON_SHOWN)[rows]
            spread = np.where(np.isnan(spread), UNKNOWN_SPREAD, spread)
            bursts = 2 * topics.silence[awake[rows]] * rate[rows] / SURPRISE
            stopped += awake[rows[missing[rows] > SURPRISE * np.maximum(bursts, spread)]].tolist()
        for number in stopped:
            self._set_rate(number, 0.0)
            self.begin(number, np.inf)
        if self.at >= self._next_silent:
            self._next_silent = float(topics.silent_at.min(initial=np.inf))

    def judge(self, seen: Seen) -> None:
        """Which topics have left their band, by one horizon; a topic that a shorter one has shown is left alone."""
        topics, awake = self._topics, self._counts.awake
        if len(awake) == 0:
            return
        judged = (topics.since[awake] <= seen.started_at) & topics.heard[awake]
        expected = topics.rate[awake] * seen.seconds
        rows = np.flatnonzero(judged & (expected > 0) & (np.abs(seen.events - expected) > BAND * expected))
        for row in rows[self._surprising(seen, expected, rows)].tolist():
            number = int(awake[row])
            if (number, "rate") not in self.changes and topics.since[number] < np.inf:
                self._set_rate(number, float(seen.events[row]) / seen.seconds)
                self._begin_with(number, row, seen)
        octets = seen.events * topics.size[awake]
        judged = topics.size_since[awake] <= seen.started_at
        rows = np.flatnonzero(judged & (octets > 0) & (np.abs(seen.octets - octets) > BAND * octets))
        surprise = size_surprise(seen.events[rows], seen.octets[rows] / octets[rows])
        for row in rows[surprise > SURPRISE].tolist():
            number = int(awake[row])
            if (number, "size") not in self.changes:
                self._set_size(number, float(seen.octets[row] / seen.events[row]))
                topics.size_since[number] = self.at

    def _surprising(self, seen: Seen, expected: Floats, rows: Rows) -> NDArray[np.bool_]:
        """Which of the topics differ too much from what was expected for it to be chance."""
        topics, numbers = self._topics, self._counts.awake[rows]
        events, expected, spread = seen.events[rows], expected[rows], seen.dispersion[rows]
        # A silence up to twice the longest so far is no news: so many events may be missing.
        quiet = np.minimum(expected, 2 * topics.silence[numbers] * topics.rate[numbers]) / (0.99 * SURPRISE)
        spread = np.where(events < expected, np.maximum(spread, quiet), spread)
        return np.asarray(count_surprise(expected, events, spread) > SURPRISE)

    def _begin_with(self, number: int, row: int, seen: Seen) -> None:
        """A new regime that has begun where the horizon begins; after a silence, with the next event."""
        topics = self._topics
        self._horizons.forget_mean(np.array([row]))
        if seen.events[row] == 0:
            topics.since[number] = topics.review_at[number] = np.inf
            return
        topics.since[number] = seen.started_at
        topics.events_before[number] = topics.published[0, number] - seen.events[row]
        topics.bytes_before[number] = topics.published[1, number] - seen.octets[row]
        self.review(np.array([number]), self.at + 4 * max(seen.seconds, FIRST_LOOK_SECONDS))

    def review(self, numbers: Rows, at_seconds: float) -> None:
        """Have these rates looked at again then."""
        self._topics.review_at[numbers] = at_seconds
        self._next_review = min(self._next_review, at_seconds)

    def learn(self) -> None:
        """Look again at rates that rest on little: at one second, at four, at sixteen, at a minute."""
        if self.at < self._next_review:
            return
        topics = self._topics
        due = np.flatnonzero(topics.review_at <= self.at)
        for number in due.tolist():
            seconds = self.at - topics.since[number]
            events = topics.published[0, number] - topics.events_before[number]
            octets = topics.published[1, number] - topics.bytes_before[number]
            rate = events / seconds
            planned = np.nan_to_num(topics.rate[number])
            # Tighter than the band: the first look rested on little, and what is right now will be kept.
            if abs(rate - planned) > BAND / 2 * planned:
                self._set_rate(number, float(rate))
            if events > 0 and np.isnan(topics.size[number]):
                self._set_size(number, float(octets / events))
            more = 4 * seconds
            topics.review_at[number] = topics.since[number] + more if more <= ENOUGH_SECONDS else np.inf
        self.expect(due)
        self._next_review = float(topics.review_at.min(initial=np.inf))

    def _set_rate(self, number: int, rate: float) -> None:
        topics = self._topics
        before = float(np.nan_to_num(topics.rate[number]))
        self.changes[number, "rate"] = RateChange(topics.names[number], "rate", before, rate)
        topics.rate[number], topics.rate_measured[number] = rate, True

    def _set_size(self, number: int, size: float) -> None:
        topics = self._topics
        before = float(np.nan_to_num(topics.size[number]))
        if before > 0:
            self.changes[number, "size"] = RateChange(topics.names[number], "size", before, size)
        topics.size[number], topics.size_measured[number] = size, True
