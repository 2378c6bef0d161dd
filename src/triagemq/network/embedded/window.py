"""A sliding window, without a clock: how much of a flow may still pass."""

from __future__ import annotations

import math
from collections import deque

from triagemq.plan import LIMITER_PACKETS, SetLimiter

# Sums of rounded numbers may lack so much of what is exactly enough.
_ROUNDED_BYTES = 1e-6


class Window:
    """Every octet takes the place of the one that passed as many octets before it as a message has: a window after that
    one did or was due to, whichever is later. It may come sooner by the jitter, but then its place is due no sooner.

    >>> from triagemq.plan import FlowKey
    >>> window = Window(SetLimiter(FlowKey("10.0.0.1", 1), 200.0, 1000.0))
    >>> [window.take(100, 0), window.take(100, 150_000_000), window.take(100, 199_000_000)]
    [True, True, False]
    >>> window.take(100, 200_000_000), window.take(100, 300_000_000), window.take(100, 350_000_000)
    (True, False, True)
    """

    __slots__ = ("_jitter_ns", "_most_bytes", "_passed", "_passed_bytes", "_window_ns")

    def __init__(self, limiter: SetLimiter) -> None:
        # Of packets that have passed: when their places are due again, and how many bytes had passed with each.
        self._passed: deque[tuple[int, int]] = deque(maxlen=LIMITER_PACKETS)
        self._passed_bytes = 0
        self.configure(limiter)

    def configure(self, limiter: SetLimiter) -> None:
        """What has passed stays so."""
        self._most_bytes = limiter.burst_bytes + _ROUNDED_BYTES
        # Never longer than was said: who sends as often as it may is not cut after a million messages.
        self._window_ns = int(limiter.window_seconds * 1e9)
        self._jitter_ns = math.ceil(limiter.jitter_seconds * 1e9)

    def take(self, wire_bytes: int, now_ns: int) -> bool:
        """Whether a packet passes."""
        if wire_bytes > self._most_bytes:
            return False
        passed, due_ns = self._passed, now_ns
        up_to_bytes = self._passed_bytes + wire_bytes
        needed_bytes = up_to_bytes - self._most_bytes
        if needed_bytes > 0:
            # The newest has them: the packet itself is no longer than a message.
            while passed[0][1] < needed_bytes:
                passed.popleft()
            due_ns = max(passed[0][0], now_ns)
            if due_ns > now_ns + self._jitter_ns:
                return False
        self._passed_bytes = up_to_bytes
        passed.append((due_ns + self._window_ns, up_to_bytes))
        return True
