"""Arrivals that are not Poisson: their squared coefficient of variation, what it does to a wait, and how sure it is."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError
from triagemq.theory.validate import broadcast, integers, per_row, reals, scalar_or_array

_LEAST_VALUES = 5
"""Of fewer the moments do not say how probable extremes are."""


def gg1_factor(ca2: ArrayLike, cs2: ArrayLike) -> NDArray[np.float64]:
    """Factor (ca2 + cs2)/(1 + cs2) on an M/G/1, Cobham or batch wait for input of variability `ca2`.

    Allen-Cunneen, theory.md section 2; an approximation, exact (1) for Poisson input. The usual
    (ca2 + cs2)/2 is the factor on the M/M/1 wait; the waits of this package contain cs2 already.
    PrioDeX and FireDeX 3.2 take Poisson arrivals. `ca2` is that of publications, never of copies.

    >>> gg1_factor([0.0, 1.0, 4.0], 1.0)
    array([0.5, 1. , 2.5])
    """
    arrival, service = broadcast(ca2=reals("ca2", ca2, infinite=True), cs2=reals("cs2", cs2))
    return scalar_or_array((arrival + service) / (1.0 + service))


def merged_ca2(
    arrival_rates: ArrayLike,
    ca2: ArrayLike,
    load: ArrayLike,
    queues: ArrayLike,
    *,
    streams: ArrayLike = 1.0,
) -> NDArray[np.float64]:
    """Variability of streams merged into one queue: w sum p_i ca2_i + 1 - w.

    Whitt, The Queueing Network Analyzer (1983), section 4.3: p_i is a stream's share of the rate,
    v = 1/sum p_i^2, w = 1/(1 + 4 (1 - rho)^2 (v - 1)); a load above 1 counts as 1. Poisson streams give
    exactly 1, as does a queue without input.

    `queues` has an id per stream, `load` and the result one value per queue. A stream may stand for several `streams`.

    >>> merged_ca2([1.0, 1.0, 2.0], [4.0, 0.0, 3.0], [1.0, 0.5], queues=[0, 0, 1])
    array([2., 3.])
    """
    rates = per_row("arrival_rates", arrival_rates)
    variability = per_row("ca2", ca2, rates.size, infinite=True)
    count = per_row("streams", streams, rates.size, positive=True)
    loads = per_row("load", load)
    ids = integers("queues", queues, rates.size)
    if ids.size and int(ids.max()) >= loads.size:
        row = int(np.argmax(ids >= loads.size))
        raise ParameterError("queues", f"element {row} is {ids[row]}; load is given for {loads.size} queues")
    total = np.bincount(ids, weights=rates, minlength=loads.size)
    share = np.zeros(rates.size)
    np.divide(rates, total[ids], out=share, where=rates > 0.0)
    squares = np.bincount(ids, weights=share**2 / count, minlength=loads.size)
    streams = np.ones(loads.size)
    np.divide(1.0, squares, out=streams, where=squares > 0.0)
    # Deviations from 1 are what is weighted, so that Poisson streams merge to 1 without rounding.
    deviation = np.bincount(ids, weights=_weighted(share, variability - 1.0), minlength=loads.size)
    idle = 1.0 - np.minimum(loads, 1.0)
    return 1.0 + deviation / (1.0 + 4.0 * idle**2 * np.maximum(streams - 1.0, 0.0))


def pareto_ca2(shape: ArrayLike) -> NDArray[np.float64]:
    """Variability of Pareto gaps: 1/(a (a - 2)), inf for a shape a <= 2.

    From the moments of the Pareto distribution, a m^i / (a - i).

    >>> pareto_ca2([2.0, 2.5, 4.0])
    array([ inf, 0.8 , 0.125])
    """
    exponent = reals("shape", shape, positive=True)
    variability = np.full(exponent.shape, np.inf)
    np.divide(1.0, exponent * (exponent - 2.0), out=variability, where=exponent > 2.0)
    return scalar_or_array(variability)


def on_off_ca2(
    rate_per_second: ArrayLike, on_seconds: ArrayLike, off_seconds: ArrayLike
) -> NDArray[np.float64]:
    """Variability of an interrupted Poisson process with exponential on and off times of these means.

    Kuczura (1973): 1 + 2 rate_on gamma/(gamma + omega)^2, gamma = 1/on, omega = 1/off. `rate_per_second` is
    the long-run mean, rate_on = rate (on + off)/on, which leaves 1 + 2 rate off^2/(on + off).

    >>> float(on_off_ca2(10.0, 1.0, 1.0))
    11.0
    """
    rate, active, silent = broadcast(
        rate_per_second=reals("rate_per_second", rate_per_second),
        on_seconds=reals("on_seconds", on_seconds, positive=True),
        off_seconds=reals("off_seconds", off_seconds),
    )
    return scalar_or_array(1.0 + 2.0 * rate * silent**2 / (active + silent))


def _weighted(weight: NDArray[np.float64], value: NDArray[np.float64]) -> NDArray[np.float64]:
    # An infinitely variable stream of weight zero counts for nothing; 0 * inf would be NaN.
    product = np.zeros(np.broadcast_shapes(weight.shape, value.shape))
    np.multiply(weight, value, out=product, where=weight > 0.0)
    return product


def chance_of_variability(scv: float, count: int) -> float:
    """How probably so many exponential values, such as gaps of a Poisson source, have so extreme a variability.

    1 + `scv` is Greenwood's statistic times `count`, whose moments are known (Moran 1947). As large it is with the
    probability of an inverse gamma variable of the same first three, as small with that of a gamma variable with two of
    `scv` itself; both sides count. Of sampled values the share that is improbable to a level is half to once the level,
    up to three times at 1 in 100,000 and six times at 1 in a million. Below five values nothing is improbable.

    >>> round(chance_of_variability(1.5, 40), 3), round(chance_of_variability(1.5, 400), 6)
    (0.094, 0.000148)
    """
    from scipy.special import gammainc

    if count < _LEAST_VALUES:
        return 1.0
    first = 2 / (count + 1)
    second = first * 2 * (count + 5) / ((count + 2) * (count + 3))
    third = first * 4 * (count * count + 15 * count + 74) / math.prod(range(count + 2, count + 6))
    variance = second - first * first
    skewness = (third - 3 * first * second + 2 * first**3) / variance**1.5
    deviation, mean = count * math.sqrt(variance), count * first - 1
    if scv < mean:
        shape = (mean / deviation) ** 2
        return min(1.0, 2 * float(gammainc(shape, shape * scv / mean)))
    root = (2 + math.sqrt(4 + skewness**2)) / skewness
    return min(1.0, 2 * float(gammainc(root**2 + 2, (root**2 + 1) / (1 + (scv - mean) / deviation / root))))
