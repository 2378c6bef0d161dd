"""What a strict-priority server carries of each class when it is offered more than it can serve."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError
from triagemq.theory.validate import reals

__all__ = ["carried_share", "class_loads", "served_share", "sigma_above"]


def served_share(loads_by_class: ArrayLike) -> NDArray[np.float64]:
    """Share of each class's offered load that an infinite-buffer strict-priority server carries.

    theory.md section 2: with sigma_k the load of classes 0..k, a class has 1 while sigma_k <= 1, the first
    unstable class has (1 - sigma_{k-1}) / rho_k, later ones have 0.
    The last axis is the class, highest first; leading axes are queues.

    >>> served_share([0.5, 1.0, 0.3])
    array([1. , 0.5, 0. ])
    """
    loads = class_loads(loads_by_class)
    sigma = np.cumsum(loads, axis=-1)
    return carried_share(loads, sigma, sigma_above(sigma))


def carried_share(
    load: NDArray[np.float64], sigma: NDArray[np.float64], above: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Share carried of a class with this load, load through it (`sigma`) and load `above` it.

    >>> float(carried_share(np.float64(1.0), np.float64(1.5), np.float64(0.5)))
    0.5
    """
    left = np.maximum(1.0 - above, 0.0)
    share = np.zeros_like(sigma)
    np.divide(left, load, out=share, where=(sigma > 1.0) & (load > 0.0) & (left > 0.0))
    return np.where(sigma <= 1.0, 1.0, np.minimum(share, 1.0))


def class_loads(loads_by_class: ArrayLike) -> NDArray[np.float64]:
    """Check loads whose last axis is the class.

    >>> class_loads([0.2, 0.3])
    array([0.2, 0.3])
    """
    loads = reals("loads_by_class", loads_by_class)
    if loads.ndim == 0:
        raise ParameterError("loads_by_class", "is a scalar; must have the class as its last axis")
    return loads


def sigma_above(sigma: NDArray[np.float64]) -> NDArray[np.float64]:
    """Load of the classes above each, from the cumulative load along the last axis.

    >>> sigma_above(np.array([0.5, 0.75]))
    array([0. , 0.5])
    """
    above = np.zeros_like(sigma)
    above[..., 1:] = sigma[..., :-1]
    return above
