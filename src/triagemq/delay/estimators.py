"""Estimators of queueing delay, by one contract: samples in, mean delays out.

`idm` is the incremental difference method, `backlog` reads the length where there is one, `learned` is trained on what
followed, and `guarded` is that one as long as it holds, and `backlog` or `idm` otherwise. Those of the paper, and the
one of queueing theory, are in `lab.queue_delay`.

An estimator depends on nothing but its feed: no clock, no chance, no other queue. It takes whatever a switch may show
(lost samples, counters that start again, reads of different moments), and its estimates are never negative and never
unknown: before the first samples they are zero. A queue without a limit of bandwidth has no delay.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.learning.features import FeatureHistory, SwitchConstants, feature_names, windows_looked_at
from triagemq.delay.learning.models import DelayModel
from triagemq.delay.samples import (
    COUNTER_SETS,
    INTERVAL_SECONDS,
    SMOOTHING,
    Increments,
    QueueLength,
    Sample,
    check_counters,
)
from triagemq.errors import ParameterError


class Estimator(Protocol):
    """Feed it every sample of one queue, then read the estimates."""

    def feed(self, sample: Sample) -> None:
        """Take the next sample, in order of time."""

    @property
    def now_seconds(self) -> float:
        """Mean queueing delay in the window that ended with the last sample."""

    @property
    def next_seconds(self) -> float:
        """Mean queueing delay expected in the window that begins with the last sample."""


def drained_seconds(queue_bytes: float, width_bps: float) -> float:
    """How long a queue of that many bytes takes to leave at a width: (6) of Shi et al., zero for less than nothing.

    >>> drained_seconds(1000, 8e6), drained_seconds(-5, 8e6), drained_seconds(1000, float("inf"))
    (0.001, 0.0, 0.0)
    """
    return 8.0 * max(0.0, queue_bytes) / width_bps if math.isfinite(width_bps) else 0.0


class Backlog:
    """The time in which the backlog leaves.

    In the window that ended, the mean of the backlogs at its two ends; in the next, the last one. It sees nothing
    between two samples, and takes the width as what the queue gets: where queues borrow from others it estimates too
    much.

    >>> backlog = Backlog()
    >>> backlog.feed(Sample(0, 9000, 9, 5000, 5, 0, 8e6, backlog_bytes=4000, backlog_packets=4))
    >>> backlog.feed(Sample(200_000_000, 9000, 9, 9000, 9, 0, 8e6, backlog_bytes=0, backlog_packets=0))
    >>> backlog.now_seconds, backlog.next_seconds
    (0.002, 0.0)
    """

    def __init__(self) -> None:
        self.now_seconds = self.next_seconds = 0.0

    def feed(self, sample: Sample) -> None:
        if sample.backlog_bytes is None:
            raise ParameterError(
                "backlog", "this switch does not show what its queues hold; take idm or learned"
            )
        seconds = drained_seconds(sample.backlog_bytes, sample.width_bps)
        self.now_seconds, self.next_seconds = 0.5 * (self.next_seconds + seconds), seconds


class IncrementalDifference:
    """The length of the queue by `QueueLength`, smoothed, over the width: (4), (6) and (7) as it was meant.

    Where samples are missing, one counts for as many as it stands for. `buffer_bytes` is the most the queue can hold,
    where that is known.

    >>> estimator = IncrementalDifference()
    >>> estimator.feed(Sample(0, 0, 0, 0, 0, drops=0, width_bps=40e3))
    >>> estimator.feed(Sample(200_000_000, 9000, 9, 1000, 1, drops=5, width_bps=40e3))
    >>> estimator.now_seconds  # 3000 bytes are left, and half of them seen
    0.3
    >>> estimator.feed(Sample(400_000_000, 9000, 9, 1000, 1, drops=5, width_bps=40e3))
    >>> estimator.now_seconds
    0.0
    """

    def __init__(self, buffer_bytes: float = math.inf) -> None:
        self._increments = Increments()
        self._queue = QueueLength(buffer_bytes)
        self._average_bytes = 0.0
        self.now_seconds = self.next_seconds = 0.0

    def feed(self, sample: Sample) -> None:
        gained = self._increments.after(sample)
        if gained is not None:
            self._queue.add(gained, sample.width_bps)
            if gained.restarted or gained.silent:
                self._average_bytes = 0.0
            weight = 1.0 - (1.0 - SMOOTHING) ** (gained.seconds / INTERVAL_SECONDS)
            self._average_bytes += weight * (self._queue.bytes - self._average_bytes)
        self.now_seconds = self.next_seconds = drained_seconds(self._average_bytes, sample.width_bps)


class Learned:
    """The prediction of a model's trees for the features of the samples so far.

    They are trained for the window that comes next; the estimate for the one that ended is the same. A queue that
    was silent for a window holds nothing, whatever the prediction.
    """

    def __init__(self, model: DelayModel, switch: SwitchConstants | None = None) -> None:
        self._model = model
        self._history = FeatureHistory(model.counters, switch)
        self.features = np.full(len(feature_names(model.counters)), np.nan, np.float32)
        """The features of the last sample."""
        self.now_seconds = self.next_seconds = 0.0
        self.silent = False
        """Whether nothing came and nothing went in the last window."""

    def feed(self, sample: Sample) -> None:
        if "backlog_bytes" in COUNTER_SETS[self._model.counters] and sample.backlog_bytes is None:
            raise ParameterError(
                "learned", "the model is for switches that show the backlog; this one does not"
            )
        self.features = self._history.add(sample)
        gained = self._history.gained
        self.silent = gained is not None and gained.silent
        if gained is not None:
            idle = gained.silent or math.isinf(sample.width_bps)
            self.now_seconds = self.next_seconds = 0.0 if idle else self._model.delay_seconds(self.features)


SPAN = 25
"""Windows that checks look back on: 5 s."""

OUTSIDE_SHARE, INSIDE_SHARE = 0.5, 0.1
"""A model is left when so many of these windows are unlike its training, and in force again when so few are."""

MARGIN = 0.05
"""Of the range of a feature in training, or of its size: so far beyond counts as inside."""

WORSE = 1.25
"""A model is left when its error is so much larger than its fallback's, and in force again when it is no larger."""

LEAST_SECONDS = 1e-3
"""Smaller errors count as none: both methods are right."""


def fallback_for(counters: str) -> str:
    """The estimator in place of a model: a length that is read is better than one that is computed.

    >>> fallback_for("linux"), fallback_for("openflow")
    ('backlog', 'idm')
    """
    return "backlog" if "backlog_bytes" in COUNTER_SETS[counters] else "idm"


class Guarded:
    """`Learned` with two checks, and `fallback` (backlog where it is shown, else idm) while one of them fails.

    One checks the inputs: trees predict nothing of use outside the ranges they were trained with. An idle queue is
    not drift: windows in which it was silent do not count, nor features that look back on them. The other compares
    with the measured delays of deliveries, where there are any (`on_measurement`). `fallen_back` is the reason why the
    fallback is in force, None while the model is: decisions record it.
    """

    def __init__(self, model: DelayModel, switch: SwitchConstants | None = None) -> None:
        self._learned = Learned(model, switch)
        self.fallback = fallback_for(model.counters)
        self._other = make_estimator(self.fallback, model.counters, switch=switch)
        self._looked_at = np.array(windows_looked_at(model.counters))
        # Windows since the queue was silent; before the first sample it was not.
        self._busy = math.inf
        self._names = feature_names(model.counters)
        ranges = np.array(model.ranges)
        # Of a feature that hardly ranges, such as a width, its size: live ones are never quite the same.
        margin = MARGIN * np.maximum(ranges[:, 1] - ranges[:, 0], np.abs(ranges).max(axis=1))
        self._low, self._high = ranges[:, 0] - margin, ranges[:, 1] + margin
        # The time between samples depends on the reader, not on the queue: live readings come at random moments.
        self._low[self._names.index("window_seconds")] = -math.inf
        self._high[self._names.index("window_seconds")] = math.inf
        self._outside: deque[bool] = deque(maxlen=SPAN)
        self._errors: deque[tuple[float, float]] = deque(maxlen=SPAN)
        # Begin of a window, and both estimates of it.
        self._estimates: deque[tuple[int, float, float]] = deque(maxlen=SPAN)
        self.fallen_back: str | None = None

    def feed(self, sample: Sample) -> None:
        self._learned.feed(sample)
        self._other.feed(sample)
        self._estimates.append((sample.sampled_ns, self._learned.next_seconds, self._other.next_seconds))
        self._busy = 0 if self._learned.silent else self._busy + 1
        if not self._busy:
            return
        row = self._learned.features
        outside = np.flatnonzero(((row < self._low) | (row > self._high)) & (self._looked_at <= self._busy))
        self._outside.append(len(outside) > 0)
        self._decide(int(outside[0]) if len(outside) else None)

    def on_measurement(self, came_ns: NDArray[np.int64], delay_seconds: NDArray[np.float64]) -> None:
        """Compare the mean delay of the packets that came in each window with its estimates."""
        windows = np.searchsorted([estimate[0] for estimate in self._estimates], came_ns, side="right") - 1
        for window in np.unique(windows[windows >= 0]).tolist():
            truth = float(delay_seconds[windows == window].mean())
            _, of_learned, of_other = self._estimates[window]
            self._errors.append((abs(of_learned - truth), abs(of_other - truth)))
        self._decide(None)

    def _decide(self, feature: int | None) -> None:
        outside = sum(self._outside) / SPAN
        learned, other = np.mean(self._errors, axis=0) if len(self._errors) == SPAN else (0.0, 0.0)
        if self.fallen_back is None:
            if feature is not None and outside >= OUTSIDE_SHARE:
                name, value = self._names[feature], self._learned.features[feature]
                self.fallen_back = (
                    f"{self.fallback} instead of learned: {name} is {value:.4g}, "
                    f"and was {self._low[feature]:.4g} to {self._high[feature]:.4g} in training"
                )
            elif learned > LEAST_SECONDS and learned > WORSE * other:
                self.fallen_back = (
                    f"{self.fallback} instead of learned: off by {1e3 * learned:.2f} ms in what was delivered, "
                    f"{self.fallback} by {1e3 * other:.2f} ms"
                )
        elif outside <= INSIDE_SHARE and learned <= max(other, LEAST_SECONDS):
            self.fallen_back = None

    @property
    def now_seconds(self) -> float:
        return self._learned.now_seconds if self.fallen_back is None else self._other.now_seconds

    @property
    def next_seconds(self) -> float:
        return self._learned.next_seconds if self.fallen_back is None else self._other.next_seconds


ESTIMATORS: Mapping[str, Callable[..., Estimator]] = MappingProxyType(
    {"idm": IncrementalDifference, "backlog": Backlog}
)
"""Estimators that need nothing but samples, by name."""

LEARNED: Mapping[str, Callable[[DelayModel, SwitchConstants | None], Estimator]] = MappingProxyType(
    {"learned": Learned, "guarded": Guarded}
)
"""Estimators that take a model."""


def make_estimator(
    name: str,
    counters: str,
    *,
    model: DelayModel | None = None,
    switch: SwitchConstants | None = None,
    estimators: Mapping[str, Callable[..., Estimator]] = ESTIMATORS,
) -> Estimator:
    """An estimator for one queue of a switch with this set of counters.

    `learned` and `guarded` take a model; `estimators` are those that take none. The constants of the switch serve
    them, and `idm` and `model`, for which a queue never holds more than its buffer.

    >>> make_estimator("backlog", "openflow")
    Traceback (most recent call last):
    triagemq.errors.ParameterError: estimator: backlog needs the length of queues, which openflow does not show; ...
    """
    shown = check_counters(counters)
    if name in LEARNED:
        if model is None or model.counters != counters:
            has = "there is none" if model is None else f"this one is for {model.counters}"
            raise ParameterError("estimator", f"{name} needs a model for the counters of {counters}; {has}")
        return LEARNED[name](model, switch)
    if name not in estimators:
        known = ", ".join((*estimators, *LEARNED))
        raise ParameterError("estimator", f"{name!r} is none; there are {known}")
    if name == "backlog" and "backlog_bytes" not in shown:
        raise ParameterError(
            "estimator", f"backlog needs the length of queues, which {counters} does not show; take idm"
        )
    if name in ("idm", "model") and switch is not None:
        return estimators[name](switch.most_bytes)
    return estimators[name]()
