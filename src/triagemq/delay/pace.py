"""How a publisher slows down when it is asked to, and how it comes back: halves at most, then tenths and hundredths."""

from __future__ import annotations

LEAST_STEP = 0.5
"""The least part of its rate that one request leaves: delays measured in a full queue ask for more than is needed."""

LEAST = 0.05
"""The least part of its own rate that a publisher is slowed down to: it is never silenced."""

HOLD_SECONDS = 5.0
"""How long it stays where it is after the last request: queues empty, and their delays are means over a second."""

RETURN_PER_SECOND = 0.1
"""How much of its own rate it takes back every second after that."""

BEYOND, PROBE_PER_SECOND = 1.1, 0.01
"""From halfway back to the rate that it was asked at last to so much more than that, it takes back no more than this: a
queue that is offered a hundredth too much fills so slowly that requests come before it is full."""


class Pace:
    """The part of its own rate that a publisher publishes at; times are seconds of any clock.

    >>> pace = Pace()
    >>> pace.asked(0.8, at_seconds=1.0)
    >>> pace.asked(0.1, at_seconds=2.0)
    >>> [round(pace.share(seconds), 2) for seconds in (2.0, 7.0, 9.0, 20.0, 60.0)]
    [0.4, 0.4, 0.6, 0.8, 1.0]
    """

    def __init__(self) -> None:
        self._share = 1.0
        self._too_much = 1.0
        self._asked_seconds = -HOLD_SECONDS

    def asked(self, share: float, at_seconds: float) -> None:
        """A request to publish only this part of what it publishes now."""
        now = self.share(at_seconds)
        if at_seconds - self._asked_seconds >= HOLD_SECONDS:
            self._too_much = now
        self._share = max(LEAST, now * min(max(share, LEAST_STEP), 1.0))
        self._asked_seconds = at_seconds

    def share(self, at_seconds: float) -> float:
        """The part of its own rate at a time that is not before the last request."""
        returning = max(0.0, at_seconds - self._asked_seconds - HOLD_SECONDS)
        low = 0.5 * (self._share + self._too_much)
        high = max(low, BEYOND * self._too_much)
        quick, slow = (low - self._share) / RETURN_PER_SECOND, (high - low) / PROBE_PER_SECOND
        probing = min(max(0.0, returning - quick), slow)
        return min(1.0, self._share + RETURN_PER_SECOND * (returning - probing) + PROBE_PER_SECOND * probing)
