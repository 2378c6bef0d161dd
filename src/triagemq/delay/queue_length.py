"""How much a queue holds, from what its counters gained: with drops, never below zero, forgotten when it was idle."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from triagemq.delay.increments import Increment

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


class QueueLength:
    """qLen += dEnQ - dDeQ - dDrops: (7) of Shi et al. with what it lacks.

    Losses are taken off as far as the switch counts them, and a queue never holds less than nothing. What could not be
    known (losses nobody counted, the queue before the first sample) is forgotten as soon as the queue is seen idle:
    nothing came and nothing went, or it sent for a second clearly less than its width, which a queue that holds
    something does not do.

    >>> from triagemq.delay.increments import Increments
    >>> from triagemq.delay.samples import Sample
    >>> increments, queue = Increments(), QueueLength()
    >>> for sample in (Sample(0, 0, 0, 0, 0, 0, 40e3), Sample(200_000_000, 9000, 9, 1000, 1, 5, 40e3)):
    ...     gained = increments.after(sample)
    ...     if gained:
    ...         queue.add(gained, sample.width_bps)
    >>> queue.bytes
    3000.0
    """

    def __init__(self) -> None:
        self.bytes = 0.0
        self._width_bps = float("inf")
        self._recent: deque[_Window] = deque()

    def add(self, gained: Increment, width_bps: float) -> None:
        """Count a window, at the end of which the queue has this width."""
        if gained.restarted or gained.silent:
            self.bytes = 0.0
            self._recent.clear()
        # The width of a window is the smaller of those at its ends: it may have changed at any moment between.
        could_send = min(self._width_bps, width_bps) * gained.seconds / 8.0
        self._width_bps = width_bps
        more = gained.bytes_in - gained.bytes_out - gained.dropped_bytes
        self._recent.append(_Window(gained.seconds, more, gained.bytes_out, could_send))
        while sum(window.seconds for window in self._recent) - self._recent[0].seconds >= IDLE_SECONDS - 1e-6:
            self._recent.popleft()
        if self._was_idle():
            # It was empty in one of these windows: what it holds has come since.
            self.bytes = 0.0
            for window in self._recent:
                self.bytes = max(0.0, self.bytes + window.more_bytes)
        else:
            self.bytes = max(0.0, self.bytes + more)

    def _was_idle(self) -> bool:
        seconds, _, sent, could_send = (sum(column) for column in zip(*self._recent, strict=True))
        return bool(seconds >= IDLE_SECONDS - 1e-6 and sent < IDLE_SHARE * could_send)
