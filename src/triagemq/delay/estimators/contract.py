"""What every estimator does: it is fed the samples of one queue, and says how long packets wait there.

An estimator depends on nothing but its feed: no clock, no chance, no other queue. It takes whatever a switch may show
(lost samples, counters that start again, reads of different moments), and what it says is never negative and
never unknown: before the first samples it is zero. A queue without a limit of bandwidth has no delay.
"""

from __future__ import annotations

import math
from typing import Protocol

from triagemq.delay.samples import Sample
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


def check_smoothing(smoothing: float) -> float:
    """A weight in (0, 1], for which the papers' (4) is a mean."""
    if not 0 < smoothing <= 1:
        raise ParameterError("smoothing", f"is {smoothing:g}; must be above 0 and at most 1")
    return smoothing


def drained_seconds(queue_bytes: float, width_bps: float) -> float:
    """How long a queue of that many bytes takes to leave at a width: (6) of Shi et al., zero for less than nothing.

    >>> drained_seconds(1000, 8e6), drained_seconds(-5, 8e6), drained_seconds(1000, float("inf"))
    (0.001, 0.0, 0.0)
    """
    return 8.0 * max(0.0, queue_bytes) / width_bps if math.isfinite(width_bps) else 0.0
