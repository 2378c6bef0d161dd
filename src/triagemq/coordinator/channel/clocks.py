"""How far the clock of another machine is from ours, by questions that it answers with its time.

The time of an answer lies between question and answer: the mean of both is wrong by half of the round trip at most, so
that the quickest of the last answers is believed (as NTP does; Mills, RFC 5905).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_REMEMBERED = 300
"""Answers: a minute of them, in which clocks drift by less than a millisecond or two."""


class ClockReading(NamedTuple):
    """How much their clock is ahead, and how much that may be wrong."""

    offset_seconds: float
    error_seconds: float


class ClockOffset:
    """
    >>> clock = ClockOffset()
    >>> clock.answered(asked_ns=0, theirs_ns=7_000_000_000, answered_ns=4_000_000_000)
    >>> clock.answered(asked_ns=5_000_000_000, theirs_ns=10_500_000_000, answered_ns=6_000_000_000)
    >>> clock.best
    ClockReading(offset_seconds=5.0, error_seconds=0.5)
    """

    def __init__(self) -> None:
        self._readings: deque[ClockReading] = deque(maxlen=_REMEMBERED)

    def answered(self, asked_ns: int, theirs_ns: int, answered_ns: int) -> None:
        """They have said what time it is."""
        offset_ns = theirs_ns - (asked_ns + answered_ns) / 2
        self._readings.append(ClockReading(offset_ns / 1e9, (answered_ns - asked_ns) / 2e9))

    @property
    def best(self) -> ClockReading | None:
        """The reading that may be wrong by least; None before the first."""
        return min(self._readings, key=lambda each: each.error_seconds, default=None)
