"""The contract of estimators, and the two that read counters: `backlog` (the length shown) and `idm`, over the width.

An estimator depends on nothing but its feed: no clock, no chance, no other queue. It takes whatever a switch may show
(lost samples, counters that start again, reads of different moments), and what it says is never negative and
never unknown: before the first samples it is zero. A queue without a limit of bandwidth has no delay.
"""

from __future__ import annotations

import math
from typing import Protocol

from triagemq.delay.queue_length import SMOOTHING, QueueLength
from triagemq.delay.samples import INTERVAL_SECONDS, Increments, Sample
from triagemq.errors import ParameterError


class Estimator(Protocol):
    """Feed it every sample of one queue, then ask."""

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
    """The time in which what is there has left.

    In the window that ended, the mean of what its two ends hold; in the next, what the last one holds. It sees nothing
    between two samples, and takes the width as what the queue gets: where queues borrow from others it says too much.

    >>> backlog = Backlog()
    >>> backlog.feed(Sample(0, 9000, 9, 5000, 5, 0, 8e6, backlog_bytes=4000, backlog_packets=4))
    >>> backlog.feed(Sample(200_000_000, 9000, 9, 9000, 9, 0, 8e6, backlog_bytes=0, backlog_packets=0))
    >>> backlog.now_seconds, backlog.next_seconds
    (0.002, 0.0)
    """

    def __init__(self) -> None:
        self._before_seconds = 0.0
        self._seconds = 0.0

    def feed(self, sample: Sample) -> None:
        if sample.backlog_bytes is None:
            raise ParameterError(
                "backlog", "this switch does not show what its queues hold; take idm or learned"
            )
        self._before_seconds = self._seconds
        self._seconds = drained_seconds(sample.backlog_bytes, sample.width_bps)

    @property
    def now_seconds(self) -> float:
        return 0.5 * (self._before_seconds + self._seconds)

    @property
    def next_seconds(self) -> float:
        return self._seconds


class IncrementalDifference:
    """The length of the queue by `QueueLength`, smoothed, over the width: (4), (6) and what (7) was meant to be.

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
        self._width_bps = math.inf

    def feed(self, sample: Sample) -> None:
        self._width_bps = sample.width_bps
        gained = self._increments.after(sample)
        if gained is None:
            return
        self._queue.add(gained, sample.width_bps)
        if gained.restarted or gained.silent:
            self._average_bytes = 0.0
        weight = 1.0 - (1.0 - SMOOTHING) ** (gained.seconds / INTERVAL_SECONDS)
        self._average_bytes += weight * (self._queue.bytes - self._average_bytes)

    @property
    def now_seconds(self) -> float:
        return drained_seconds(self._average_bytes, self._width_bps)

    @property
    def next_seconds(self) -> float:
        return self.now_seconds
