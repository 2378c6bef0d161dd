"""Mean waits: M/M/1, and non-preemptive priority queues with batch arrivals, from the mean work found.

Let U_k be the work of classes 0..k in the queue plus what is left of the packet in service, of any class.
It falls at rate 1 while positive and jumps in two ways: a publication on topic v adds B_v, the work of its
copies of classes 0..k; and a packet S of a lower class starts when U_k = 0. In equilibrium U_k^2 has no
drift, and Poisson publications find the time average (PASTA), so

    0 = -2 E[U_k] + sum_v lambda_v (2 E[U_k] E[B_v] + E[B_v^2]) + sum_{class > k} lambda_r E[S_r^2]
    E[U_k] (1 - sigma_k) = 1/2 sum_v lambda_v E[B_v^2] + 1/2 sum_{class > k} lambda_r E[S_r^2]

B_v^2 holds every copy's own square and each ordered pair of copies. Half the pairs' sum is, per copy r, the
whole of its pairs with higher classes and half of those within its class: lambda_r b_r E[S S'], with
E[S S'] = E[S^2], since the copies share the event's size. A copy then waits for U_k,
for the b_r copies of its own publication that go first, and for the higher classes that come meanwhile:

    W_r = (E[U_k] + b_r E[S_r]) / (1 - sigma_{k-1})

The copies of one topic on one queue are taken to have one size, as they do: it is the same event.

Copies come in the order of their classes, and those of one class in random order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.theory.ladder import Ladder, build_ladder, combine_keys
from triagemq.theory.overload import carried_share
from triagemq.theory.validate import broadcast, integers, per_row, reals, scalar_or_array


@dataclass(frozen=True, slots=True)
class Work:
    """What each subscription brings to its queue, one element per subscription.

    `mean` and `second_moment` are those of one event's whole service time, which its copies share, `blocking` is 1/2
    packet rate times the second moment of one packet (what a lower class blocks with), `packet_rates` are packets a
    second.

    `own_mean` and `before_last` (an event without its last packet) are of the events whose wait is asked for, which may
    be smaller than the others.
    """

    rates: NDArray[np.float64]
    mean: NDArray[np.float64]
    second_moment: NDArray[np.float64]
    blocking: NDArray[np.float64]
    own_mean: NDArray[np.float64]
    before_last: NDArray[np.float64]
    packet_rates: NDArray[np.float64]

    @classmethod
    def of_packets(cls, arrival_rates: ArrayLike, mean_service: ArrayLike, scv: ArrayLike) -> Work:
        """Where every event is one packet, and its copies have its one size."""
        rates = per_row("arrival_rates", arrival_rates)
        service = per_row("mean_service", mean_service, rates.size, positive=True)
        second_moment = (1.0 + per_row("scv", scv, rates.size)) * service**2
        return cls(
            rates=rates,
            mean=service,
            second_moment=second_moment,
            blocking=0.5 * rates * second_moment,
            own_mean=service,
            before_last=np.zeros(rates.size),
            packet_rates=rates,
        )


@dataclass(frozen=True)
class CopyBatches:
    """Where each subscription queues and which copies come with it; no `topics` means Poisson arrivals."""

    classes: NDArray[np.int64]
    queues: NDArray[np.int64]
    topics: NDArray[np.int64] | None
    keep: NDArray[np.float64]

    @cached_property
    def ladder(self) -> Ladder:
        """The classes of each queue, highest first."""
        return build_ladder(self.queues, self.classes)

    @cached_property
    def together(self) -> Ladder | None:
        """The classes of each batch, highest first; None for Poisson arrivals."""
        if self.topics is None:
            return None
        return build_ladder(combine_keys(self.queues, self.topics)[0], self.classes)


def check_batches(
    length: int,
    classes: ArrayLike,
    batch_topics: ArrayLike | None = None,
    keep: ArrayLike | None = None,
    queues: ArrayLike | None = None,
) -> CopyBatches:
    """Check where subscriptions queue, and what comes together.

    >>> check_batches(2, [0, 1]).keep
    array([1., 1.])
    """
    return CopyBatches(
        classes=integers("classes", classes, length),
        queues=np.zeros(length, dtype=np.int64) if queues is None else integers("queues", queues, length),
        topics=None if batch_topics is None else integers("batch_topics", batch_topics, length),
        keep=np.ones(length) if keep is None else per_row("keep", keep, length, high=1.0),
    )


def copies_ahead(batches: CopyBatches) -> NDArray[np.float64]:
    """b_r: mean number of copies of r's own publication that are served before r's copy.

    theory.md section 2: every other subscription of the topic on the queue counts its keep probability, whole
    if its class is higher, half if it is the same (copies of one class leave in random order), not at all if
    it is lower.

    >>> copies_ahead(check_batches(3, [0, 1, 1], [5, 5, 5], [0.5, 1.0, 0.8]))
    array([0. , 0.9, 1. ])
    """
    ladder = batches.together
    if ladder is None:
        return np.zeros(batches.classes.size)
    present = ladder.total(batches.keep)
    same_class = present[ladder.step_of_row] - batches.keep
    return ladder.above(present)[ladder.step_of_row] + 0.5 * np.maximum(same_class, 0.0)


def mean_waits(work: Work, batches: CopyBatches, *, together: bool = True) -> NDArray[np.float64]:
    """Mean time from an event's arrival to the start of its last packet, by the formula at the file's top.

    Without `together` as if every copy came by itself.

    >>> mean_waits(Work.of_packets([0.5], [1.0], 1.0), check_batches(1, [0]))
    array([1.])
    """
    ladder = batches.ladder
    ahead = copies_ahead(batches) if together else np.zeros(work.rates.size)
    load = ladder.total(work.rates * work.mean)
    sigma = ladder.through(load)
    sigma_higher = ladder.above(load)
    # A class that blocks is one that is served: past saturation only what the server has left over.
    blocking = ladder.total(work.blocking) * carried_share(load, sigma, sigma_higher)
    jumps = work.rates * (0.5 + ahead) * work.second_moment
    work_ahead = ahead * work.own_mean + work.before_last
    stable = sigma < 1.0
    level = np.full(sigma.size, np.inf)
    np.divide(
        ladder.through(ladder.total(jumps)) + ladder.below(blocking), 1.0 - sigma, out=level, where=stable
    )
    step = ladder.step_of_row
    waits = np.full(work.rates.size, np.inf)
    np.divide(level[step] + work_ahead, 1.0 - sigma_higher[step], out=waits, where=stable[step])
    return waits


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


def priority_waits(
    arrival_rates: ArrayLike,
    mean_service: ArrayLike,
    scv: ArrayLike,
    classes: ArrayLike,
    *,
    batch_topics: ArrayLike | None = None,
    keep: ArrayLike | None = None,
    queues: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Mean wait before service of each subscription; class 0 first, not preempting; inf when unstable.

    Without `batch_topics` this is Cobham's W_k = R / ((1 - sigma_{k-1}) (1 - sigma_k)). PrioDeX eq. 39 takes
    R from class averages; it must be summed over subscriptions, because a class of unequal sizes is
    hyperexponential. PrioDeX eq. 43 prints L = Lq * lambda/mu; it is Lq + lambda/mu, so the time in system is
    this wait plus the mean service.

    With `batch_topics` (a topic id per subscription) one publication queues a copy per subscription of its
    topic at once: theory.md section 2, "Batches", in the closed form derived at the top of this file. PrioDeX and
    FireDeX 3.2 take Poisson arrivals there, too low by a factor that grows with the number of copies.

    `arrival_rates` are after drops; `keep` (default 1) is each copy's chance to pass its drop and only
    thins the batches. The copies of an event have its one size. `queues` solves many independent queues in one
    call. Below a stable class, an unstable one blocks only with what is served.

    >>> priority_waits([0.25, 0.5], [1.0, 1.0], 1.0, [0, 1])
    array([1., 4.])
    >>> priority_waits([0.25, 0.25], [1.0, 1.0], 1.0, [0, 1], batch_topics=[3, 3])
    array([0.66666667, 4.        ])
    """
    work = Work.of_packets(arrival_rates, mean_service, scv)
    return mean_waits(work, check_batches(work.rates.size, classes, batch_topics, keep, queues))
