"""Mean waits at output ports with non-preemptive priority classes, Poisson or batch arrivals."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.theory.validate import per_row, reals
from triagemq.theory.work_level import Work, check_batches, mean_waits

__all__ = ["priority_waits"]


def priority_waits(
    arrival_rates: ArrayLike,
    mean_service: ArrayLike,
    scv: ArrayLike,
    classes: ArrayLike,
    *,
    batch_topics: ArrayLike | None = None,
    keep: ArrayLike | None = None,
    shared_sizes: bool = True,
    queues: ArrayLike | None = None,
    copies_scale: ArrayLike | None = None,
    random_order: bool = False,
) -> NDArray[np.float64]:
    """Mean wait before service of each subscription; class 0 first, not preempting; inf when unstable.

    Without `batch_topics` this is Cobham's W_k = R / ((1 - sigma_{k-1}) (1 - sigma_k)). PrioDeX eq. 39 takes
    R from class averages; it must be summed over subscriptions, because a class of unequal sizes is
    hyperexponential. PrioDeX eq. 43 prints L = Lq * lambda/mu; it is Lq + lambda/mu, so the time in system is
    this wait plus the mean service.

    With `batch_topics` (a topic id per subscription) one publication queues a copy per subscription of its
    topic at once: theory.md section 2, "Batches", in the closed form derived in work_level.py. PrioDeX and
    FireDeX 3.2 take Poisson arrivals there, up to 6 times too low for the lowest class.

    `arrival_rates` are after drops; `keep` (default 1) is each copy's chance to pass its drop and only
    thins the batches. `shared_sizes` says that the copies of an event have its one size (the real case).
    `queues` solves many independent queues in one call. `copies_scale` multiplies the number of copies ahead,
    for copies that arrive spread out. With `random_order` the copies of an event come in any order, and an idle
    server starts with the first, whatever its class; else they come in the order of their classes. Below a stable
    class, an unstable one blocks only with what is served.

    >>> priority_waits([0.25, 0.5], [1.0, 1.0], 1.0, [0, 1])
    array([1., 4.])
    >>> priority_waits([0.25, 0.25], [1.0, 1.0], 1.0, [0, 1], batch_topics=[3, 3])
    array([0.66666667, 4.        ])
    """
    rates = per_row("arrival_rates", reals("arrival_rates", arrival_rates))
    service = per_row("mean_service", reals("mean_service", mean_service, positive=True), rates.size)
    variability = per_row("scv", reals("scv", scv), rates.size)
    batches = check_batches(
        rates.size, classes, batch_topics, keep, queues, copies_scale, random_order=random_order
    )
    second_moment = (1.0 + variability) * service**2
    copy_product = second_moment if shared_sizes else service**2
    work = Work(
        rates=rates,
        mean=service,
        second_moment=second_moment,
        copy_product=copy_product,
        blocking=0.5 * rates * second_moment,
        first_product=copy_product,
        own_mean=service,
        before_last=np.zeros(rates.size),
        first_mean=service,
        single_mean=service,
        packet_rates=rates,
    )
    return mean_waits(work, batches)
