"""idm: the incremental difference method with drops, held at zero or above, and reset when the queue is seen idle."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from triagemq.delay.estimators.contract import SMOOTHING, check_smoothing, drained_seconds
from triagemq.delay.increments import Increments
from triagemq.delay.samples import INTERVAL_SECONDS, Sample

IDLE_SECONDS = 1.0
"""Over which a queue is looked at: reads of different moments differ by much in 200 ms, and by little in this."""

IDLE_SHARE = 0.9
"""A queue that sent less of its width than this was empty at some moment. The rest is for packets that are not sent
whole yet, and for counters that are not read at the same moment."""


class _Window(NamedTuple):
    seconds: float
    more_bytes: float
    sent_bytes: float
    could_send_bytes: float


class IncrementalDifference:
    """qLen += dEnQ - dDeQ - dDrops, then smoothed and divided by the width.

    The printed form (`idm-paper`) adds up every loss and never forgets. Here losses are taken off as far as the
    switch counts them, a queue never holds less than nothing, and what could not be known (losses nobody counted,
    the queue before the first sample) is forgotten as soon as the queue is seen idle: nothing came and nothing
    went, or it sent for a second clearly less than its width, which a queue that holds something does not do.

    >>> estimator = IncrementalDifference(smoothing=1.0)
    >>> estimator.feed(Sample(0, 0, 0, 0, 0, drops=0, width_bps=40e3))
    >>> estimator.feed(Sample(200_000_000, 9000, 9, 1000, 1, drops=5, width_bps=40e3))
    >>> estimator.now_seconds  # 3000 bytes are left
    0.6
    >>> estimator.feed(Sample(400_000_000, 9000, 9, 1000, 1, drops=5, width_bps=40e3))
    >>> estimator.now_seconds
    0.0
    """

    def __init__(self, smoothing: float = SMOOTHING) -> None:
        self._smoothing = check_smoothing(smoothing)
        self._increments = Increments()
        self._recent: deque[_Window] = deque()
        self._queue_bytes = 0.0
        self._average_bytes = 0.0
        self._width_bps = float("inf")

    def feed(self, sample: Sample) -> None:
        width_bps, self._width_bps = self._width_bps, sample.width_bps
        gained = self._increments.after(sample)
        if gained is None:
            return
        if gained.restarted or gained.silent:
            self._queue_bytes = self._average_bytes = 0.0
            self._recent.clear()
        # The width of a window is the smaller of those at its ends: it may have changed at any moment between.
        could_send = min(width_bps, sample.width_bps) * gained.seconds / 8.0
        more = gained.bytes_in - gained.bytes_out - gained.dropped_bytes
        self._recent.append(_Window(gained.seconds, more, gained.bytes_out, could_send))
        while sum(window.seconds for window in self._recent) - self._recent[0].seconds >= IDLE_SECONDS - 1e-6:
            self._recent.popleft()
        if self._was_idle():
            # It was empty in one of these windows: what it holds has come since.
            self._queue_bytes = 0.0
            for window in self._recent:
                self._queue_bytes = max(0.0, self._queue_bytes + window.more_bytes)
        else:
            self._queue_bytes = max(0.0, self._queue_bytes + more)
        weight = 1.0 - (1.0 - self._smoothing) ** (gained.seconds / INTERVAL_SECONDS)
        self._average_bytes += weight * (self._queue_bytes - self._average_bytes)

    def _was_idle(self) -> bool:
        seconds, _, sent, could_send = (sum(column) for column in zip(*self._recent, strict=True))
        return bool(seconds >= IDLE_SECONDS - 1e-6 and sent < IDLE_SHARE * could_send)

    @property
    def now_seconds(self) -> float:
        return drained_seconds(self._average_bytes, self._width_bps)

    @property
    def next_seconds(self) -> float:
        return self.now_seconds
