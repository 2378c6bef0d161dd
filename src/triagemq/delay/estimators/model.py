"""model: what queueing theory says of the rate, sizes and burstiness that are measured, and of overload that lasts.

It needs no counter of what goes out but to see that a queue borrows, so that reads of different moments do not matter.
"""

from __future__ import annotations

import math
from collections import deque

from triagemq.delay.estimators.counted import drained_seconds
from triagemq.delay.samples import INTERVAL_SECONDS, Increment, Increments, Sample
from triagemq.theory import fifo_waits, gg1_factor

SPAN = 25
"""Windows that rate, sizes and burstiness are taken from: 5 s."""


class QueueingModel:
    """The larger of two delays: that of chance, and that of overload.

    Chance: the G/G/1 wait (docs/background/theory.md), at the width's service rate. The variability of arrivals is the
    index of dispersion of packets per window, that of sizes what bytes per window vary by beyond their packets. Near
    full load this wait takes forever to build up. In a window of t seconds chance builds up sqrt(2 v t / pi), with v
    the variance of work that comes per second (Brownian motion held above zero), and no more is assumed: what takes
    longer than a window is seen, and is overload.

    Overload: bytes that came, without those dropped, less what the width can send, never below zero.

    >>> model = QueueingModel()
    >>> for second in range(30):  # 1.5 times the width for a second, then 0.75 times
    ...     packets = 150 * min(second, 1) + 75 * max(second - 1, 0)
    ...     model.feed(Sample(10**9 * second, 1000 * packets, packets, 0, 0, 0, width_bps=800e3))
    ...     if second == 1:
    ...         print(round(model.now_seconds, 3))
    0.5
    >>> model.now_seconds < 0.01
    True
    """

    def __init__(self, buffer_bytes: float = math.inf) -> None:
        self._buffer_bytes = buffer_bytes
        self._increments = Increments()
        self._recent: deque[Increment] = deque(maxlen=SPAN)
        self._overload_bytes = 0.0
        self._chance_seconds = 0.0
        self._width_bps = math.inf

    def feed(self, sample: Sample) -> None:
        self._width_bps = sample.width_bps
        gained = self._increments.after(sample)
        if gained is None:
            return
        if gained.restarted:
            self._recent.clear()
            self._overload_bytes = 0.0
        self._recent.append(gained)
        # A queue that sends more than its width has borrowed it.
        sent = max(sample.width_bps * gained.seconds / 8.0, gained.bytes_out)
        left = self._overload_bytes + gained.bytes_in - gained.dropped_bytes - sent
        self._overload_bytes = min(max(0.0, left), self._buffer_bytes)
        self._chance_seconds = 0.0 if gained.silent else _chance_seconds(self._recent, sample.width_bps)

    @property
    def now_seconds(self) -> float:
        delay = max(drained_seconds(self._overload_bytes, self._width_bps), self._chance_seconds)
        return min(delay, drained_seconds(self._buffer_bytes, self._width_bps))

    @property
    def next_seconds(self) -> float:
        return self.now_seconds


def _chance_seconds(windows: deque[Increment], width_bps: float) -> float:
    seconds = sum(window.seconds for window in windows)
    packets = sum(window.packets_in for window in windows)
    size_bytes = sum(window.bytes_in for window in windows)
    if packets == 0 or size_bytes == 0 or math.isinf(width_bps):
        return 0.0
    rate, mean_bytes = packets / seconds, size_bytes / packets
    service = 8.0 * mean_bytes / width_bps
    # One degree of freedom goes to each mean. A window of several intervals (lost samples) counts as what it is.
    freedom = max(len(windows) - 1, 1)
    ca2 = sum((w.packets_in - rate * w.seconds) ** 2 / (rate * w.seconds) for w in windows) / freedom
    cs2 = sum((w.bytes_in - mean_bytes * w.packets_in) ** 2 / w.packets_in for w in windows if w.packets_in)
    cs2 /= freedom * mean_bytes**2
    wait = float(fifo_waits([rate], service, cs2)[0]) * float(gg1_factor(ca2, cs2))
    built_up = math.sqrt(2.0 * rate * service**2 * (ca2 + cs2) * INTERVAL_SECONDS / math.pi)
    return min(wait, built_up)
