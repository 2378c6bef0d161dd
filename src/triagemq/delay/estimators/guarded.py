"""guarded: what was learned, as long as it holds; where it does not, idm, and the reason in words."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from triagemq.delay.estimators.idm import IncrementalDifference
from triagemq.delay.estimators.learned import Learned
from triagemq.delay.learning.features import SwitchConstants, feature_names
from triagemq.delay.learning.model_files import DelayModel
from triagemq.delay.samples import Sample

SPAN = 25
"""Windows that are looked back on: 5 s."""

OUTSIDE_SHARE, INSIDE_SHARE = 0.5, 0.1
"""A model is left when so many of these windows are unlike its training, and taken again when this few are."""

MARGIN = 0.05
"""Of what a feature ranged over in training, or of its size: so far beyond counts as inside."""

WORSE = 1.25
"""A model is left when it is off by so much more than idm, and taken again when it is off by no more."""

LEAST_SECONDS = 1e-3
"""Errors below this are none: both methods are right."""


class Guarded:
    """`Learned` with two watches, and `IncrementalDifference` beside it for when one of them rings.

    One looks at the inputs: trees know nothing of what is outside the ranges they were trained with. The other is told
    what deliveries really waited, as far as anybody measures it (`measured`), and compares. `fallen_back` says why idm
    is in force, None while the model is: it is what a decision tells.
    """

    def __init__(self, model: DelayModel, switch: SwitchConstants | None = None) -> None:
        buffer_bytes = (switch or SwitchConstants()).buffer_bytes
        self._learned = Learned(model, switch)
        self._idm = IncrementalDifference(buffer_bytes=math.inf if math.isnan(buffer_bytes) else buffer_bytes)
        self._names = feature_names(model.counters)
        ranges = np.array(model.ranges)
        # Of what hardly ranges, such as the time between two samples, its size: live ones are never quite the same.
        margin = MARGIN * np.maximum(ranges[:, 1] - ranges[:, 0], np.abs(ranges).max(axis=1))
        self._low, self._high = ranges[:, 0] - margin, ranges[:, 1] + margin
        self._outside: deque[bool] = deque(maxlen=SPAN)
        self._errors: deque[tuple[float, float]] = deque(maxlen=SPAN)
        # When, and what either said of the window that began then.
        self._said: deque[tuple[int, float, float]] = deque(maxlen=SPAN)
        self.fallen_back: str | None = None

    def feed(self, sample: Sample) -> None:
        self._learned.feed(sample)
        self._idm.feed(sample)
        self._said.append((sample.sampled_ns, self._learned.next_seconds, self._idm.next_seconds))
        row = self._learned.features
        outside = np.flatnonzero((row < self._low) | (row > self._high))
        self._outside.append(len(outside) > 0)
        self._decide(int(outside[0]) if len(outside) else None)

    def measured(self, came_ns: NDArray[np.int64], delay_seconds: NDArray[np.float64]) -> None:
        """Packets that came then waited so long; of each window the mean is compared with what was said of it."""
        windows = np.searchsorted([said[0] for said in self._said], came_ns, side="right") - 1
        for window in np.unique(windows[windows >= 0]).tolist():
            truth = float(delay_seconds[windows == window].mean())
            _, of_learned, of_idm = self._said[window]
            self._errors.append((abs(of_learned - truth), abs(of_idm - truth)))
        self._decide(None)

    def _decide(self, feature: int | None) -> None:
        strange = sum(self._outside) / SPAN
        learned, idm = np.mean(self._errors, axis=0) if len(self._errors) == SPAN else (0.0, 0.0)
        if self.fallen_back is None:
            if feature is not None and strange >= OUTSIDE_SHARE:
                self.fallen_back = (
                    f"idm instead of learned: {self._names[feature]} is {self._learned.features[feature]:.4g}, "
                    f"and was {self._low[feature]:.4g} to {self._high[feature]:.4g} in training"
                )
            elif learned > LEAST_SECONDS and learned > WORSE * idm:
                self.fallen_back = (
                    f"idm instead of learned: off by {1e3 * learned:.2f} ms in what was delivered, idm by "
                    f"{1e3 * idm:.2f} ms"
                )
        elif strange <= INSIDE_SHARE and learned <= max(idm, LEAST_SECONDS):
            self.fallen_back = None

    @property
    def now_seconds(self) -> float:
        return self._learned.now_seconds if self.fallen_back is None else self._idm.now_seconds

    @property
    def next_seconds(self) -> float:
        return self._learned.next_seconds if self.fallen_back is None else self._idm.next_seconds
