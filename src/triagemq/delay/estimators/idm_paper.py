"""idm-paper: the incremental difference method as it is printed (Shi et al., section 3.4)."""

from __future__ import annotations

from triagemq.delay.estimators.contract import check_smoothing, drained_seconds
from triagemq.delay.increments import Increments
from triagemq.delay.queue_length import SMOOTHING
from triagemq.delay.samples import Sample


class PaperIncrementalDifference:
    """qLen = dEnQ - dDeQ + qLen, then as `red`: (7) with (4) and (6).

    The sum of increments is what `red` has, less what both counters showed in the first sample: losses still add up. It
    is kept for the comparison; `idm` is what the method should be. A switch that was restarted is
    the one thing that is treated better than in print: its queue is empty then.

    >>> printed = PaperIncrementalDifference(smoothing=1.0)
    >>> printed.feed(Sample(0, 5000, 5, 1000, 1, drops=3, width_bps=8e6))
    >>> printed.now_seconds
    0.0
    >>> printed.feed(Sample(200_000_000, 9000, 9, 3000, 3, drops=4, width_bps=8e6))
    >>> printed.now_seconds  # 2000 bytes more, of which the buffer dropped 1000
    0.002
    """

    def __init__(self, smoothing: float = SMOOTHING) -> None:
        self._smoothing = check_smoothing(smoothing)
        self._increments = Increments()
        self._queue_bytes = 0.0
        self._average_bytes = 0.0
        self._width_bps = float("inf")

    def feed(self, sample: Sample) -> None:
        self._width_bps = sample.width_bps
        gained = self._increments.after(sample)
        if gained is None:
            return
        if gained.restarted:
            self._queue_bytes = 0.0
        self._queue_bytes += gained.bytes_in - gained.bytes_out
        self._average_bytes += self._smoothing * (self._queue_bytes - self._average_bytes)

    @property
    def now_seconds(self) -> float:
        return drained_seconds(self._average_bytes, self._width_bps)

    @property
    def next_seconds(self) -> float:
        return self.now_seconds
