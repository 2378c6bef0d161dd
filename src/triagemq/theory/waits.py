"""Mean delays of one queue: M/M/1, the FIFO M/G/1 with several streams, and output ports with non-preemptive priority
classes and Poisson or batch arrivals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.theory.validate import broadcast, per_row, reals, scalar_or_array
from triagemq.theory.work_level import Work, check_batches, mean_waits


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
    rates = per_row("arrival_rates", arrival_rates)
    service = per_row("mean_service", mean_service, rates.size, positive=True)
    variability = per_row("scv", scv, rates.size)
    load = float(np.sum(rates * service))
    residual = 0.5 * float(np.sum(rates * (1.0 + variability) * service**2))
    return np.full(rates.size, residual / (1.0 - load) if load < 1.0 else np.inf)


def priority_waits(
    arrival_rates: ArrayLike,
    mean_service: ArrayLike,
    scv: ArrayLike,
    classes: ArrayLike,
    *,
    batch_topics: ArrayLike | None = None,
    keep: ArrayLike | None = None,
    queues: ArrayLike | None = None,
    random_order: bool = False,
) -> NDArray[np.float64]:
    """Mean wait before service of each subscription; class 0 first, not preempting; inf when unstable.

    Without `batch_topics` this is Cobham's W_k = R / ((1 - sigma_{k-1}) (1 - sigma_k)). PrioDeX eq. 39 takes
    R from class averages; it must be summed over subscriptions, because a class of unequal sizes is
    hyperexponential. PrioDeX eq. 43 prints L = Lq * lambda/mu; it is Lq + lambda/mu, so the time in system is
    this wait plus the mean service.

    With `batch_topics` (a topic id per subscription) one publication queues a copy per subscription of its
    topic at once: theory.md section 2, "Batches", in the closed form derived in work_level.py. PrioDeX and
    FireDeX 3.2 take Poisson arrivals there, too low by a factor that grows with the number of copies.

    `arrival_rates` are after drops; `keep` (default 1) is each copy's chance to pass its drop and only
    thins the batches. The copies of an event have its one size. `queues` solves many independent queues in one
    call. With `random_order` the copies of an event come in any order, and an idle server starts with the first,
    whatever its class; else they come in the order of their classes. Below a stable class, an unstable one blocks
    only with what is served.

    >>> priority_waits([0.25, 0.5], [1.0, 1.0], 1.0, [0, 1])
    array([1., 4.])
    >>> priority_waits([0.25, 0.25], [1.0, 1.0], 1.0, [0, 1], batch_topics=[3, 3])
    array([0.66666667, 4.        ])
    """
    work = Work.of_packets(arrival_rates, mean_service, scv)
    batches = check_batches(work.rates.size, classes, batch_topics, keep, queues, random_order=random_order)
    return mean_waits(work, batches)
