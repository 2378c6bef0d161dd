"""Thinning to a rate: a copy passes if at least 1 / rate has gone by since the last one did; else it takes the place of
the one that is held back, which passes when that time is over."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def thinned_rate(arrivals: Floats, most: Floats) -> Floats:
    """What passes of Poisson arrivals: an interval of 1 / most, and without an arrival in it the wait for the next.

    >>> thinned_rate(np.array([1.0, 1.0, 100.0]), np.array([np.inf, 1.0, 2.0])).round(4).tolist()
    [1.0, 0.7311, 2.0]
    """
    interval = 1.0 / most
    gap = np.divide(1.0, arrivals, out=np.full(arrivals.shape, np.inf), where=arrivals > 0)
    with np.errstate(over="ignore", invalid="ignore"):
        cycle = interval + np.exp(-arrivals * interval) * gap
    return np.asarray(1.0 / cycle)


def held_back_seconds(arrivals: Floats, most: Floats) -> Floats:
    """How long what passes is held back in the mean: the age of the newest arrival when the interval ends, 0 without.

    >>> held_back_seconds(np.array([1.0, 100.0]), np.array([np.inf, 2.0])).round(4).tolist()
    [0.0, 0.01]
    """
    events = arrivals / most
    gap = np.divide(1.0, arrivals, out=np.zeros(arrivals.shape), where=arrivals > 0)
    return np.asarray(gap * (1.0 - np.exp(-events) * (1.0 + events)))
