"""Publication rates as they are measured: estimates, and which topics have left the band their plan was made for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from triagemq.coordinator.rates.burstiness import Arrivals, dispersion, longest_silence_seconds
from triagemq.coordinator.rates.counts import RateCounts
from triagemq.coordinator.rates.horizons import HORIZONS, SURPRISE
from triagemq.coordinator.rates.judge import (
    FIRST_LOOK_SECONDS,
    HORIZON_SHOWN,
    LEAST_SPREAD,
    UNKNOWN_SPREAD,
    RateChange,
    RateJudge,
)
from triagemq.coordinator.rates.topics import Rows
from triagemq.scenario import Floats

__all__ = ["DeclaredRate", "RateChange", "RateWatch", "Rates", "TopicEstimate"]


GRACE_SECONDS = 10.0
"""How long publishers have to begin after they have announced a rate, or to begin again after a pause."""

LEAST_WINDOW_SECONDS = 0.02
LONGEST_PAUSE_SECONDS, LEAST_EXPECTED = 3.0, 10.0
STOOD_STILL_SECONDS = 1.0
"""Who was not asked for so long stood still, or whoever asks did."""

LATELY_SECONDS = 2.0
USUAL_SECONDS: Floats = np.array([0.2 * 2**level for level in range(1, HORIZONS + 1)])


REST_SECONDS, REST_EVERY_WINDOWS, RESTED_BLOCKS = 60.0, 64, 60.0
"""When topics that are silent go to rest, how often that is looked at, and what was known of them is worth after it."""

FORGET_SECONDS = 1200.0
"""Longer than the gateway remembers a count."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates (events per second) and mean sizes to plan with where measurements overrule what was announced."""

    per_second: Mapping[str, float] = field(default_factory=dict)
    size_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeclaredRate:
    """What a topic's publishers announce, None where they leave it to be measured; `arrivals` empty if unknown."""

    rate_per_second: float | None = None
    size_bytes: float | None = None
    arrivals: tuple[Arrivals, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicEstimate:
    """What is measured of a topic: its rate, mean size (None before the first event) and index of dispersion."""

    rate_per_second: float
    size_bytes: float | None
    index_of_dispersion: float
    publications: int


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

    Topics that are silent for a minute are at rest: all that can still be judged of them is how long they are silent,
    and that needs one number and no work. Topics that stopped and that nobody announces are forgotten after a while.
    """

    def __init__(self) -> None:
        self._counts = RateCounts()
        self._topics = self._counts.topics
        self._horizons = self._counts.horizons
        self._judge = RateJudge(self._counts)
        self._declared: dict[str, DeclaredRate] = {}
        self._epoch: str | None = None
        self._looked_at = 0.0
        self._windows = 0
        self._hear_new = True

    def declare(self, declared: Mapping[str, DeclaredRate]) -> None:
        """Take over what publishers announce of all topics; news about a topic overrules what was measured of it."""
        before, self._declared = self._declared, dict(declared)
        topics = self._topics
        numbers = topics.know(declared, heard=self._hear_new)
        topics.declared[:] = False
        topics.declared[numbers] = True
        for topic, news in declared.items():
            if before.get(topic) != news:
                self._declare(topics.number[topic], news)
        for topic in before.keys() - declared.keys():
            self._undeclare(topics.number[topic])

    def listen(self, heard: Collection[str]) -> None:
        """The topics that somebody is subscribed to: of others no event reaches the counter, whatever is published.

        They are not judged while nobody listens. Before the first call all topics are taken to be listened to.
        """
        topics = self._topics
        numbers = topics.know(heard, heard=False)
        before = topics.heard.copy()
        topics.heard[:] = False
        topics.heard[numbers] = True
        self._hear_new = False
        lately = (self._judge.at - topics.came_at < LATELY_SECONDS) | (topics.review_at < np.inf)
        for number in np.flatnonzero(topics.heard & ~before & ~lately & ~np.isnan(topics.rate)).tolist():
            self._judge.begin(number, self._judge.at + GRACE_SECONDS)
        self._judge.expect(np.flatnonzero(topics.heard != before))

    def observe(
        self,
        at_seconds: float,
        counts: Mapping[str, tuple[int, int]],
        epoch: str = "",
        *,
        begun: Collection[str] = (),
        heard_since: float | None = -np.inf,
    ) -> tuple[RateChange, ...]:
        """Cumulative (publications, bytes) at a time of topics that may have changed; the others are as they were.

        `epoch` changes when the counter starts from 0 again, with everything; `begun` are topics that did by
        themselves. `heard_since`: from when on the counter has heard of all that was published at once; None while it
        does not. Times are seconds of one clock. While nearly everything seems to pause, the machine is taken to be
        busy and the count goes on, for a few seconds at most.
        """
        first, anew = self._epoch is None, epoch != self._epoch
        self._counts.take(at_seconds, counts, begun, base=first, anew=anew, heard=self._hear_new)
        unseen, self._looked_at = at_seconds - self._looked_at, at_seconds
        self._epoch = epoch
        if first:
            self._judge.pass_over(at_seconds)
            if heard_since is not None:
                self._counts.settle(heard_since)
            return ()
        if heard_since is None:
            return ()
        if anew or heard_since > self._judge.at or unseen > STOOD_STILL_SECONDS:
            self._pause(min(heard_since if heard_since > self._judge.at else at_seconds, at_seconds))
        seconds = at_seconds - self._judge.at
        if seconds < LEAST_WINDOW_SECONDS or (
            seconds < LONGEST_PAUSE_SECONDS and self._everything_pauses(seconds)
        ):
            return ()
        return self._count_window(self._judge.at, at_seconds)

    def _count_window(self, started: float, at_seconds: float) -> tuple[RateChange, ...]:
        self._judge.at = at_seconds
        self._windows += 1
        numbers = self._counts.came()
        self._note_events(started, numbers)
        horizons = self._counts.advance(started, at_seconds, numbers)
        self._judge.judge_silence()
        for seen in horizons:
            self._judge.judge(seen)
        self._judge.learn()
        if self._windows % REST_EVERY_WINDOWS == 0:
            self._let_rest()
        return self._judge.take_changes()

    def rates(self) -> Rates:
        """What to plan with: measured rates and sizes where they overrule or complete what is declared."""
        topics = self._topics
        known = np.flatnonzero(topics.rate_measured & ((topics.rate > 0) | topics.declared)).tolist()
        sized = np.flatnonzero(topics.size_measured).tolist()
        return Rates(
            per_second={topics.names[number]: float(topics.rate[number]) for number in known},
            size_bytes={topics.names[number]: float(topics.size[number]) for number in sized},
        )

    def estimates(self) -> dict[str, TopicEstimate]:
        """What is known of every topic, for people and metrics: the rate and size it is planned with, and its I."""
        topics, shown = self._topics, self._horizons.dispersion(HORIZON_SHOWN)
        return {
            topic: TopicEstimate(
                rate_per_second=float(np.nan_to_num(topics.rate[number])),
                size_bytes=None if np.isnan(topics.size[number]) else float(topics.size[number]),
                index_of_dispersion=float(
                    shown[topics.row[number]] if topics.row[number] >= 0 else topics.spread[number]
                ),
                publications=int(topics.published[0, number]),
            )
            for topic, number in topics.number.items()
        }

    def counted(self) -> set[str]:
        """The topics of which events were counted."""
        topics = self._topics
        return {topics.names[number] for number in np.flatnonzero(topics.published[0] > 0).tolist()}

    def take_arrived(self) -> dict[str, tuple[float, float]]:
        """Events and bytes of topics since the last call; of those that had any."""
        return self._counts.take_arrived()

    def arrived(self, topic: str) -> float:
        """Events of a topic since `take_arrived` was last called."""
        number = self._topics.number.get(topic)
        return 0.0 if number is None else float(self._topics.arrived[0, number])

    # What is announced.

    def _declare(self, number: int, news: DeclaredRate) -> None:
        topics = self._topics
        if news.arrivals:
            usual = dispersion(news.arrivals, USUAL_SECONDS)
            topics.spread[number] = max(float(usual[HORIZON_SHOWN]), LEAST_SPREAD)
            topics.silence[number] = longest_silence_seconds(news.arrivals, SURPRISE) / 2
            if topics.row[number] >= 0:
                self._horizons.set_prior(int(topics.row[number]), usual)
        if news.rate_per_second is not None:
            topics.rate[number], topics.rate_measured[number] = news.rate_per_second, False
            self._judge.begin(number, self._judge.at + GRACE_SECONDS)
        elif not topics.rate_measured[number]:
            topics.rate[number] = np.nan
            self._judge.begin(number, np.inf)
        if news.size_bytes is not None:
            topics.size[number], topics.size_measured[number] = news.size_bytes, False
            topics.size_since[number] = self._judge.at

    def _undeclare(self, number: int) -> None:
        """Nobody publishes it any more, they say; if events still come, they are measured like those of a new topic."""
        topics = self._topics
        if not topics.rate_measured[number]:
            topics.rate[number] = np.nan
            self._judge.begin(number, np.inf)
        if not topics.size_measured[number]:
            topics.size[number] = np.nan

    # Pauses.

    def _pause(self, until: float) -> None:
        """Nobody counted for a while: events of that time come late, or never.

        That time does not exist for the rates, nor do events that make up for it (see RateCounts); and whoever
        published may take a while to be back.
        """
        topics, awake = self._topics, self._counts.awake
        seconds = until - self._judge.at
        self._judge.pass_over(until)
        self._counts.pause(until, seconds)
        learning = topics.review_at[awake] < np.inf
        begun = awake[(topics.since[awake] <= until) & ~learning & (topics.rate[awake] > 0)]
        topics.since[begun] = topics.last_event[begun] = until + GRACE_SECONDS
        topics.returning[begun] = True
        for number in np.flatnonzero((topics.since <= until) & np.isnan(topics.rate)).tolist():
            self._judge.begin(number, np.inf)

    def _everything_pauses(self, seconds: float) -> bool:
        topics, awake = self._topics, self._counts.awake
        judged = awake[
            (topics.since[awake] <= self._judge.at) & (topics.rate[awake] > 0) & topics.heard[awake]
        ]
        expected = float(topics.rate[judged].sum()) * seconds
        return expected >= LEAST_EXPECTED and float(topics.new[0, judged].sum()) < expected / 2

    # Events.

    def _note_events(self, started: float, numbers: Rows) -> None:
        """Remember the longest silence that ended, and where a topic that was waited for has begun."""
        topics = self._topics
        topics.published[:, numbers] += topics.new[:, numbers]
        if self._counts.is_settled(started):
            begun = numbers[np.isinf(topics.since[numbers])]
            topics.since[begun] = topics.last_event[begun] = started
            topics.size_since[begun] = started
            topics.events_before[begun], topics.bytes_before[begun] = (
                topics.published[:, begun] - topics.new[:, begun]
            )
            self._judge.review(begun, self._judge.at + FIRST_LOOK_SECONDS)
        back = numbers[topics.returning[numbers]]
        topics.since[back] = topics.last_event[back] = self._judge.at
        topics.returning[back] = False
        over = numbers[topics.last_event[numbers] <= started]
        topics.silence[over] = np.maximum(topics.silence[over], self._judge.at - topics.last_event[over])
        topics.last_event[numbers[topics.last_event[numbers] < self._judge.at]] = self._judge.at
        # A single event is no reason to count closely.
        resting = topics.row[numbers] < 0
        waking = resting & (started - topics.came_at[numbers] < REST_SECONDS)
        topics.came_at[numbers] = self._judge.at
        self._wake(numbers[waking], started)
        self._judge.expect(numbers[resting & ~waking])

    def _wake(self, numbers: Rows, started: float) -> None:
        """Count these topics closely. What was judged of them at rest was their silence: rates are judged from now."""
        if len(numbers) == 0:
            return
        topics = self._topics
        self._counts.wake(numbers)
        topics.silent_at[numbers] = np.inf
        known = numbers[(topics.since[numbers] <= started) & np.isinf(topics.review_at[numbers])]
        topics.since[known] = started
        for number in numbers.tolist():
            row, declared = int(topics.row[number]), self._declared.get(topics.names[number])
            if declared is not None and declared.arrivals:
                self._horizons.set_prior(row, dispersion(declared.arrivals, USUAL_SECONDS))
            elif not np.isnan(topics.spread[number]):
                usual = np.full(HORIZONS, topics.spread[number])
                self._horizons.set_prior(row, usual, RESTED_BLOCKS)

    def _let_rest(self) -> None:
        """Topics of which nothing came for a while need no closer look; those that stopped are forgotten later."""
        topics, awake = self._topics, self._counts.awake
        idle = self._judge.at - topics.came_at[awake] > REST_SECONDS
        if idle.any():
            spread = self._horizons.dispersion(HORIZON_SHOWN)[idle]
            topics.spread[awake[idle]] = np.where(np.isnan(spread), UNKNOWN_SPREAD, spread)
            self._counts.rest(idle)
            self._judge.expect(awake[idle])
        quiet = self._judge.at - np.maximum(topics.came_at, topics.told_at) > FORGET_SECONDS
        idle = topics.in_use & (topics.row < 0) & ~topics.declared & ~(topics.rate > 0)
        topics.forget(np.flatnonzero(quiet & idle))
