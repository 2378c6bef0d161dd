"""idm: the incremental difference method with drops, held at zero or above, and reset when the queue is seen idle."""

from __future__ import annotations

import math

from triagemq.delay.estimators.contract import check_smoothing, drained_seconds
from triagemq.delay.increments import Increments
from triagemq.delay.queue_length import SMOOTHING, QueueLength
from triagemq.delay.samples import INTERVAL_SECONDS, Sample


class IncrementalDifference:
    """The length of the queue by `QueueLength`, smoothed, over the width: (4), (6) and what (7) was meant to be.

    Where samples are missing, one counts for as many as it stands for. `buffer_bytes` is the most the queue can hold,
    where that is known.

    >>> estimator = IncrementalDifference(smoothing=1.0)
    >>> estimator.feed(Sample(0, 0, 0, 0, 0, drops=0, width_bps=40e3))
    >>> estimator.feed(Sample(200_000_000, 9000, 9, 1000, 1, drops=5, width_bps=40e3))
    >>> estimator.now_seconds  # 3000 bytes are left
    0.6
    >>> estimator.feed(Sample(400_000_000, 9000, 9, 1000, 1, drops=5, width_bps=40e3))
    >>> estimator.now_seconds
    0.0
    """

    def __init__(self, smoothing: float = SMOOTHING, buffer_bytes: float = math.inf) -> None:
        self._smoothing = check_smoothing(smoothing)
        self._increments = Increments()
        self._queue = QueueLength(buffer_bytes)
        self._average_bytes = 0.0
        self._width_bps = math.inf

    def feed(self, sample: Sample) -> None:
        self._width_bps = sample.width_bps
        gained = self._increments.after(sample)
        if gained is None:
            return
        self._queue.add(gained, sample.width_bps)
        if gained.restarted or gained.silent:
            self._average_bytes = 0.0
        weight = 1.0 - (1.0 - self._smoothing) ** (gained.seconds / INTERVAL_SECONDS)
        self._average_bytes += weight * (self._queue.bytes - self._average_bytes)

    @property
    def now_seconds(self) -> float:
        return drained_seconds(self._average_bytes, self._width_bps)

    @property
    def next_seconds(self) -> float:
        return self.now_seconds
