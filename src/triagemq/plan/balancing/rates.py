"""Rates of the next interval, by exponential smoothing with a damped trend (Gardner and McKenzie, 1985)."""

from __future__ import annotations

import numpy as np

from triagemq.plan.campus import Flags
from triagemq.scenario import Floats

LEVEL, TREND, DAMPING = 0.8, 0.2, 0.5
"""How much of a new rate, and of its change, counts at once; and how much of a trend lasts for another interval. A
rate that jumps and stays is known after two intervals and overshot by little more than a hundredth; one that climbs is
followed without a lag."""


class SmoothedRates:
    """Levels and trends of many rates at once.

    >>> rates = SmoothedRates(1)
    >>> for measured in (100, 100, 200, 200, 200):
    ...     rates.add(np.array([measured]))
    >>> rates.expected().round(0)
    array([203.])
    """

    def __init__(self, count: int) -> None:
        self._level = np.full(count, np.nan)
        self._trend = np.zeros(count)

    def add(self, measured: Floats) -> None:
        """The rates of one more interval."""
        begun = np.isfinite(self._level)
        expected = self._level + DAMPING * self._trend
        level = np.where(begun, LEVEL * measured + (1 - LEVEL) * expected, measured)
        change = np.where(begun, level - self._level, 0.0)
        self._trend = TREND * change + (1 - TREND) * DAMPING * self._trend
        self._level = level

    def forget(self, which: Flags) -> None:
        """Begin anew where what was measured means nothing any more."""
        self._level = np.where(which, np.nan, self._level)
        self._trend = np.where(which, 0.0, self._trend)

    def expected(self) -> Floats:
        """The rates of the next interval; 0 where nothing was measured."""
        return np.maximum(np.nan_to_num(self._level + DAMPING * self._trend), 0.0)
