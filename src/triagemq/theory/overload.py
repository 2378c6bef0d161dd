"""What a strict-priority server carries of each class when it is offered more than it can serve, and what a finite
buffer loses and delays: M/M/1/K, class by class for a push-out priority buffer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError
from triagemq.theory.validate import broadcast, reals, scalar_or_array

_SMALLEST_LOAD = 1e-300

NEAR_ONE = 1e-3
"""Two terms 1/(e^y - 1) lose their digits where y goes to 0: below this their difference is taken from its series."""


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


def finite_buffer_loss(loads_by_class: ArrayLike, buffer_packets: ArrayLike) -> NDArray[np.float64]:
    """Share of each class's packets lost by a push-out buffer of K packets, the one in service included.

    theory.md section 2: classes 0..k together lose P(sigma_k), the M/M/1/K loss at their load, and class k
    loses (sigma_k P(sigma_k) - sigma_{k-1} P(sigma_{k-1})) / rho_k. Fair for equal exponential sizes,
    poor for others. This is p_block of PrioDeX 3.1. The last axis of the loads is the class, highest
    first; leading axes are queues, with a buffer each or one for all. An infinite buffer loses
    1 - served_share. A class without load gets the limit: what its first packet would meet.

    >>> finite_buffer_loss([0.5, 0.5], 2).round(4)
    array([0.1429, 0.5238])
    >>> finite_buffer_loss([0.5, 1.5], 2000)
    array([0.        , 0.66666667])
    """
    loads = class_loads(loads_by_class)
    buffers = reals("buffer_packets", buffer_packets, low=1.0, infinite=True)
    _, buffer = broadcast(loads_by_class=np.zeros(loads.shape[:-1]), buffer_packets=buffers)
    loads = np.broadcast_to(loads, (*buffer.shape, loads.shape[-1]))
    buffer = buffer[..., np.newaxis]
    sigma = np.cumsum(loads, axis=-1)
    above = sigma_above(sigma)
    unlimited = np.isinf(buffer)
    size = np.where(unlimited, 1.0, buffer)
    # The difference of two nearly equal losses is noise for a tiny class; a load this small is still
    # its limit, because the loss changes over loads of about 1/K.
    width = np.maximum(loads, np.maximum(1e-6 / (size + 1.0), 1e-9 * above))
    lost = (_lost_load(above + width, size) - _lost_load(above, size)) / width
    lost = np.where(sigma > 0.0, np.clip(lost, 0.0, 1.0), 0.0)
    return np.where(unlimited, 1.0 - carried_share(loads, sigma, above), lost)


def finite_buffer_sojourn(
    load: ArrayLike, buffer_packets: ArrayLike, mean_service: ArrayLike
) -> NDArray[np.float64]:
    """Mean time in an M/M/1/K system of the packets it accepts, by Little's law with the effective rate.

    T = L / (lambda (1 - P_K)), L = sum n p_n, p_n proportional to load^n (Kleinrock vol. 1, section 3.6).
    PrioDeX eq. 43 prints L = Lq * lambda/mu; L = Lq + lambda/mu. With an infinite buffer it is
    mean_service/(1 - load), inf when load >= 1. Arguments broadcast; scalars give a scalar.

    >>> finite_buffer_sojourn([0.5, 1.0, 3.0], 2, 1.0)
    array([1.33333333, 1.5 , 1.75 ])
    """
    offered, buffer, service = broadcast(
        load=reals("load", load),
        buffer_packets=reals("buffer_packets", buffer_packets, low=1.0, infinite=True),
        mean_service=reals("mean_service", mean_service, positive=True),
    )
    unlimited = np.isinf(buffer)
    infinite_sojourn = np.full(offered.shape, np.inf)
    np.divide(service, 1.0 - offered, out=infinite_sojourn, where=offered < 1.0)
    # An accepted packet finds n of 0..K-1 with weight load^n, so Little's quotient is 1 + E[n] services.
    found = _truncated_geometric_mean(offered, np.where(unlimited, 1.0, buffer))
    return scalar_or_array(np.where(unlimited, infinite_sojourn, service * (1.0 + found)))


def _lost_load(load: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    # load * P, P = (1 - load) load^K / (1 - load^(K+1)), divided through by load^(K+1) above 1.
    logarithm = np.log(np.maximum(load, _SMALLEST_LOAD))
    distance = np.abs(logarithm)
    loss = np.broadcast_to(1.0 / (size + 1.0), distance.shape).copy()
    np.divide(np.expm1(-distance), np.expm1(-(size + 1.0) * distance), out=loss, where=distance > 0.0)
    result: NDArray[np.float64] = load * loss * np.exp(size * np.minimum(logarithm, 0.0))
    return result


def _truncated_geometric_mean(ratio: NDArray[np.float64], count: NDArray[np.float64]) -> NDArray[np.float64]:
    # Mean of n in 0..count-1 with weights ratio^n. Turning n round gives ratios above 1 from those below.
    logarithm = np.log(np.maximum(ratio, _SMALLEST_LOAD))
    distance = np.abs(logarithm)
    span = count * distance
    near = span <= NEAR_ONE
    close = np.where(near, distance, 0.0)
    near_one = 0.5 * (count - 1.0) + (1.0 - count**2) * close / 12
    apart = np.where(near, 1.0, distance)
    apart_span = count * apart
    apart_mean = np.exp(-apart) / -np.expm1(-apart) - count * np.exp(-apart_span) / -np.expm1(-apart_span)
    mean = np.where(near, near_one, apart_mean)
    return np.where(logarithm > 0.0, count - 1.0 - mean, mean)
