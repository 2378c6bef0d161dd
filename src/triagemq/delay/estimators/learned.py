"""learned: trees trained on samples and the delays that followed (Shi et al., section 5); guarded: with a fallback."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.estimators.counted import Backlog, Estimator, IncrementalDifference
from triagemq.delay.learning.features import FeatureHistory, SwitchConstants, feature_names, windows_looked_at
from triagemq.delay.learning.models import DelayModel
from triagemq.delay.samples import COUNTER_SETS, Sample
from triagemq.errors import ParameterError


class Learned:
    """What the trees of a model say of the features of the samples so far.

    They are trained for the window that comes next; for the one that ended they say the same. A queue that
    was silent for a window holds nothing, whatever trees say.
    """

    def __init__(self, model: DelayModel, switch: SwitchConstants | None = None) -> None:
        self._model = model
        self._history = FeatureHistory(model.counters, switch)
        self.features = np.full(len(feature_names(model.counters)), np.nan, np.float32)
        """Those of the last sample."""
        self._seconds = 0.0

    def feed(self, sample: Sample) -> None:
        if "backlog_bytes" in COUNTER_SETS[self._model.counters] and sample.backlog_bytes is None:
            raise ParameterError(
                "learned", "the model is for switches that show the backlog; this one does not"
            )
        self.features = self._history.add(sample)
        gained = self._history.gained
        if gained is None:
            return
        idle = gained.silent or math.isinf(sample.width_bps)
        self._seconds = 0.0 if idle else self._model.delay_seconds(self.features)

    @property
    def silent(self) -> bool:
        """Whether nothing came and nothing went in the last window."""
        gained = self._history.gained
        return gained is not None and gained.silent

    @property
    def now_seconds(self) -> float:
        return self._seconds

    @property
    def next_seconds(self) -> float:
        return self._seconds


SPAN = 25
"""Windows that are looked back on: 5 s."""

OUTSIDE_SHARE, INSIDE_SHARE = 0.5, 0.1
"""A model is left when so many of these windows are unlike its training, and taken again when this few are."""

MARGIN = 0.05
"""Of what a feature ranged over in training, or of its size: so far beyond counts as inside."""

WORSE = 1.25
"""A model is left when it is off by so much more than its fallback, and taken again when it is off by no more."""

LEAST_SECONDS = 1e-3
"""Errors below this are none: both methods are right."""


def fallback_for(counters: str) -> str:
    """The estimator in place of a model: the length of a queue is better read than worked out.

    >>> fallback_for("linux"), fallback_for("openflow")
    ('backlog', 'idm')
    """
    return "backlog" if "backlog_bytes" in COUNTER_SETS[counters] else "idm"


class Guarded:
    """`Learned` with two watches, and `fallback` (backlog where it is shown, else idm) for when one of them rings.

    One looks at the inputs: trees know nothing of what is outside the ranges they were trained with. An idle queue is
    not drift: windows in which it was silent are not judged, nor features that look back on them. The other watch is
    given what deliveries really waited, where that is measured (`measured`), and compares. `fallen_back` says why
    the fallback is in force, None while the model is: it is what a decision says.
    """

    def __init__(self, model: DelayModel, switch: SwitchConstants | None = None) -> None:
        buffer_bytes = (switch or SwitchConstants()).buffer_bytes
        self._learned = Learned(model, switch)
        self.fallback = fallback_for(model.counters)
        self._other: Estimator = (
            Backlog()
            if self.fallback == "backlog"
            else IncrementalDifference(buffer_bytes=math.inf if math.isnan(buffer_bytes) else buffer_bytes)
        )
        self._looked_at = np.array(windows_looked_at(model.counters))
        # Windows since the queue was silent; before the first sample it was not.
        self._busy = math.inf
        self._names = feature_names(model.counters)
        ranges = np.array(model.ranges)
        # Of what hardly ranges, such as a width, its size: live ones are never quite the same.
        margin = MARGIN * np.maximum(ranges[:, 1] - ranges[:, 0], np.abs(ranges).max(axis=1))
        self._low, self._high = ranges[:, 0] - margin, ranges[:, 1] + margin
        # When samples are read says nothing of the queue: live readings come at random moments.
        self._low[self._names.index("window_seconds")] = -math.inf
        self._high[self._names.index("window_seconds")] = math.inf
        self._outside: deque[bool] = deque(maxlen=SPAN)
        self._errors: deque[tuple[float, float]] = deque(maxlen=SPAN)
        # When, and what either estimated of the window that began then.
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

    def measured(self, came_ns: NDArray[np.int64], delay_seconds: NDArray[np.float64]) -> None:
        """Packets that came then waited so long; of each window the mean is compared with what was estimated."""
        windows = np.searchsorted([estimate[0] for estimate in self._estimates], came_ns, side="right") - 1
        for window in np.unique(windows[windows >= 0]).tolist():
            truth = float(delay_seconds[windows == window].mean())
            _, of_learned, of_other = self._estimates[window]
            self._errors.append((abs(of_learned - truth), abs(of_other - truth)))
        self._decide(None)

    def _decide(self, feature: int | None) -> None:
        strange = sum(self._outside) / SPAN
        learned, other = np.mean(self._errors, axis=0) if len(self._errors) == SPAN else (0.0, 0.0)
        if self.fallen_back is None:
            if feature is not None and strange >= OUTSIDE_SHARE:
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
        elif strange <= INSIDE_SHARE and learned <= max(other, LEAST_SECONDS):
            self.fallen_back = None

    @property
    def now_seconds(self) -> float:
        return self._learned.now_seconds if self.fallen_back is None else self._other.now_seconds

    @property
    def next_seconds(self) -> float:
        return self._learned.next_seconds if self.fallen_back is None else self._other.next_seconds
