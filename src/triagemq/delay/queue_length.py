"""How much a queue holds, from what its counters gained, or from what they are: with drops, and never below zero."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from triagemq.delay.samples import Increment, Sample

SMOOTHING = 0.5
"""w of the papers' (4), which they do not print: a change is half seen after one sample."""

IDLE_SECONDS = 1.0
"""Over which a queue is looked at: reads of different moments differ by much in 200 ms, and by little in this."""

IDLE_SHARE = 0.9
"""A queue that sent less of its width than this was empty at some moment. The rest is for packets that are not sent
whole yet, and for counters that are not read at the same moment."""

READ_SHARE = 0.2
"""A queue that was idle does not begin with less than this of what a window can send. Counters read 20 ms too early and
then too late differ by as much, and would make a queue of nothing wherever one is held at zero."""


class _Window(NamedTuple):
    seconds: float
    accepted_bytes: float
    sent_bytes: float
    could_send_bytes: float


class QueueLength:
    """qLen += dEnQ - dDeQ - dDrops: (7) of Shi et al. with what it lacks.

    Losses are taken off as far as the switch counts them, and a queue never holds less than nothing. What could not be
    known (uncounted losses, the queue before the first sample) is forgotten as soon as the queue is seen idle:
    nothing came and nothing went, or it sent for a second clearly less than its width, which a queue that holds
    something does not do. It never holds more than its buffer, where that is known.

    >>> from triagemq.delay.samples import Increments
    >>> from triagemq.delay.samples import Sample
    >>> increments, queue = Increments(), QueueLength()
    >>> for sample in (Sample(0, 0, 0, 0, 0, 0, 40e3), Sample(200_000_000, 9000, 9, 1000, 1, 5, 40e3)):
    ...     gained = increments.after(sample)
    ...     if gained:
    ...         queue.add(gained, sample.width_bps)
    >>> queue.bytes
    3000.0
    """

    def __init__(self, buffer_bytes: float = math.inf) -> None:
        self.bytes = 0.0
        self.was_idle = False
        """Whether it was empty at some moment of the last second."""
        self._buffer_bytes = buffer_bytes
        self._width_bps = math.inf
        self._recent: deque[_Window] = deque()

    def add(self, gained: Increment, width_bps: float) -> None:
        """Count a window, at the end of which the queue has this width."""
        if gained.restarted or gained.silent:
            self.bytes = 0.0
            self._recent.clear()
        # The width of a window is the smaller of those at its ends: it may have changed at any moment between.
        could_send = min(self._width_bps, width_bps) * gained.seconds / 8.0
        self._width_bps = width_bps
        accepted = gained.bytes_in - gained.dropped_bytes
        self._recent.append(_Window(gained.seconds, accepted, gained.bytes_out, could_send))
        while sum(window.seconds for window in self._recent) - self._recent[0].seconds >= IDLE_SECONDS - 1e-6:
            self._recent.popleft()
        self.was_idle = self._was_idle()
        if self.was_idle:
            # It was empty in one of these windows, and what it holds has come since.
            self.bytes = 0.0
            for window in self._recent:
                more = window.accepted_bytes - window.sent_bytes
                if self.bytes > 0.0 or more > READ_SHARE * window.could_send_bytes:
                    self._count(more)
        else:
            self._count(accepted - gained.bytes_out)

    def _count(self, more_bytes: float) -> None:
        self.bytes = min(max(0.0, self.bytes + more_bytes), self._buffer_bytes)

    def _was_idle(self) -> bool:
        seconds, _, sent, could_send = (sum(column) for column in zip(*self._recent, strict=True))
        return bool(seconds >= IDLE_SECONDS - 1e-6 and sent < IDLE_SHARE * could_send)


class QueueDifference:
    """All that came less all that went and was dropped: `red` with drops, freed of uncounted losses.

    Errors of reading do not add up in it as they do in `QueueLength`, and where nothing is lost it is exact. Losses
    that are not counted stay in it. There are such only where there are losses: after some, it begins anew with what
    `QueueLength` says as soon as the queue is seen idle, and it never holds more than its buffer, where that is known.

    >>> from triagemq.delay.samples import Increments
    >>> from triagemq.delay.samples import Sample
    >>> increments, queue, held = Increments(), QueueLength(), QueueDifference(buffer_bytes=4000.0)
    >>> for sample in (Sample(0, 0, 0, 0, 0, 0, 40e3), Sample(200_000_000, 9000, 9, 1000, 1, 2, 40e3)):
    ...     gained = increments.after(sample)
    ...     if gained:
    ...         queue.add(gained, sample.width_bps)
    ...         held.add(gained, sample, queue)
    >>> held.bytes
    4000.0
    """

    def __init__(self, buffer_bytes: float = math.inf) -> None:
        self.bytes = 0.0
        self.difference_bytes = 0.0
        """The same, but for what counters read at different moments put below zero: errors that means are free of."""
        self._buffer_bytes = buffer_bytes
        self._uncounted_bytes = 0.0
        self._in_doubt = True

    def add(self, gained: Increment, sample: Sample, queue: QueueLength) -> None:
        """Count a window that `queue` has counted already."""
        packet_bytes = sample.bytes_in / sample.packets_in if sample.packets_in else 0.0
        difference = sample.bytes_in - sample.bytes_out - sample.drops * packet_bytes
        self._in_doubt = (self._in_doubt and sample.drops > 0) or gained.drops > 0
        if gained.restarted:
            self._uncounted_bytes = 0.0
        if gained.silent or (self._in_doubt and queue.was_idle):
            self._uncounted_bytes = difference - queue.bytes
            self._in_doubt = False
        held = difference - self._uncounted_bytes
        self._uncounted_bytes += max(0.0, held - self._buffer_bytes)
        self.difference_bytes = min(held, self._buffer_bytes)
        self.bytes = max(0.0, self.difference_bytes)
