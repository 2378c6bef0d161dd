"""red: the smoothed difference of all that ever came in and went out, over the width (Shi et al., section 3.3)."""

from __future__ import annotations

from triagemq.delay.estimators.contract import check_smoothing, drained_seconds
from triagemq.delay.queue_length import SMOOTHING
from triagemq.delay.samples import Sample


class Red:
    """avgQ = (1 - w) avgQ + w (enQ - deQ), delay = avgQ / width: (4) to (6).

    Its errors are the point of comparing it: what the buffer ever dropped counts as queued for good, and so does what
    the two counters differ by since they were read at different moments.

    >>> red = Red(smoothing=1.0)
    >>> red.feed(Sample(0, bytes_in=5000, packets_in=5, bytes_out=1000, packets_out=1, drops=3, width_bps=8e6))
    >>> red.now_seconds  # of the 4000 bytes that did not go out, the buffer dropped 3000
    0.004
    """

    def __init__(self, smoothing: float = SMOOTHING) -> None:
        self._smoothing = check_smoothing(smoothing)
        self._average_bytes = 0.0
        self._width_bps = float("inf")

    def feed(self, sample: Sample) -> None:
        queue_bytes = sample.bytes_in - sample.bytes_out
        self._average_bytes += self._smoothing * (queue_bytes - self._average_bytes)
        self._width_bps = sample.width_bps

    @property
    def now_seconds(self) -> float:
        return drained_seconds(self._average_bytes, self._width_bps)

    @property
    def next_seconds(self) -> float:
        return self.now_seconds
