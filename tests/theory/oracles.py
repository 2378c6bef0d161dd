"""What the formulas are compared with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.theory import fragmented_work, mean_waits

__all__ = ["fifo_waits", "fragmented_waits"]


def fifo_waits(arrival_rates: ArrayLike, mean_service: ArrayLike, scv: ArrayLike) -> NDArray[np.float64]:
    """Pollaczek and Khinchine's mean wait before service, for several Poisson streams in one FIFO queue.

    >>> fifo_waits([0.25, 0.25], [1.0, 1.0], 1.0)
    array([1., 1.])
    """
    rates, service, variability = (np.asarray(each) for each in (arrival_rates, mean_service, scv))
    load = float(np.sum(rates * service))
    residual = 0.5 * float(np.sum(rates * (1.0 + variability) * service**2))
    return np.full(rates.size, residual / (1.0 - load) if load < 1.0 else np.inf)


def fragmented_waits(*arguments: ArrayLike, **options: Any) -> NDArray[np.float64]:
    """Mean time from an event's arrival until its last packet starts, of what `fragmented_work` takes."""
    return mean_waits(*fragmented_work(*arguments, **options))
