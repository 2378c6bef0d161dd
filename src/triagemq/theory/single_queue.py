"""Mean delay of a queue without priorities: M/M/1 and the FIFO M/G/1 with several streams."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.theory.validate import broadcast, per_row, reals, scalar_or_array

__all__ = ["fifo_waits", "mm1_sojourn"]


def mm1_sojourn(arrival_rate: ArrayLike, service_rate: ArrayLike) -> NDArray[np.float64]:
    """Mean time in an M/M/1 system, waiting and service: 1/(mu - lambda), inf when lambda >= mu.

    The broker terms of PrioDeX eq. 10. After its eq. 15 the paper puts one flow's rate here for the switch
    inbound delay; the rate must be the total through the switch. Arguments broadcast; scalars give a scalar.

    >>> mm1_sojourn([1.0, 3.0, 4.0], 4.0)
    array([0.33333333, 1.        ,        inf])
    """
    rate, service = broadcast(
        arrival_rate=reals("arrival_rate", arrival_rate),
        service_rate=reals("service_rate", service_rate, positive=True),
    )
    sojourn = np.full(rate.shape, np.inf)
    np.divide(1.0, service - rate, out=sojourn, where=rate < service)
    return scalar_or_array(sojourn)


def fifo_waits(arrival_rates: ArrayLike, mean_service: ArrayLike, scv: ArrayLike) -> NDArray[np.float64]:
    """Mean wait before service of each stream in one FIFO M/G/1: R/(1 - rho), inf when rho >= 1.

    R = 1/2 sum lambda E[S^2], E[S^2] = (1 + scv) E[S]^2 (Pollaczek-Khinchine). PrioDeX eq. 12 prints
    1/(mu_r (1 - rho)) for the time in a FIFO switch, which is processor sharing: in FIFO every stream waits
    the same, whatever its own size.

    >>> fifo_waits([0.25, 0.25], [1.0, 1.0], 1.0)
    array([1., 1.])
    """
    rates = per_row("arrival_rates", reals("arrival_rates", arrival_rates))
    service = per_row("mean_service", reals("mean_service", mean_service, positive=True), rates.size)
    variability = per_row("scv", reals("scv", scv), rates.size)
    load = float(np.sum(rates * service))
    residual = 0.5 * float(np.sum(rates * (1.0 + variability) * service**2))
    return np.full(rates.size, residual / (1.0 - load) if load < 1.0 else np.inf)
