"""Mean waits: M/M/1, FIFO M/G/1, and non-preemptive priority queues with batch arrivals, from the mean work found.

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

That is for copies that come in class order. Where they come in random order, an idle server (probability 1 - rho)
starts with the first of them, whatever its class. If that is a copy j below k, its first packet F_j raises U_k
together with B_v instead of alone, which adds F_j B_v to half the squares. And the work ahead of r gains F_j for j
below r, and loses a copy j above r that r came before, if r is one packet and so has started already. With r's rate
lambda_r, the share k_j of copy j that survives to the queue, and q_rj from below:

    E[U_k] (1 - sigma_k) gains (1 - rho) sum_{r <= k < j} lambda_r k_j q_rj E[F B]
    the work ahead of r gains  (1 - rho) (sum_{j below r} k_j q_rj E[F] - sum_{j above r} k_j q_rj E[B; one packet])

For the first copy of a batch (`first_copies`) place each at a uniform point of (0, 1): copy j at 1 - z is the first if
every other one that survives lies behind it, with probability z each. Copy i comes to the port with probability k_i, so

    q_rj = integral over z from 0 to 1 of z prod_{i != r, j} (1 - k_i + k_i z)

is the chance that j is the first, given that r and j are there; it is also that of r. The product is one per batch
divided by two factors, so at each node of a quadrature sums by class are enough, and no pair is ever visited.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.theory.ladder import Ladder, build_ladder, combine_keys
from triagemq.theory.overload import carried_share
from triagemq.theory.validate import broadcast, integers, per_row, reals, scalar_or_array

# Gauss-Legendre with n nodes is exact for 2n copies. Beyond 16 the integrand falls like exp(-m t) from t = 1 - z = 0
# with m copies expected: 12/m of the way holds all of it but 1e-5.
_NODES = 8
_DECAY = 12.0


@dataclass(frozen=True, slots=True)
class Work:
    """What each subscription brings to its queue, one element per subscription.

    `mean` and `second_moment` are those of one event's whole service time, `copy_product` is the mean
    product of two copies' service times, `blocking` is 1/2 packet rate times the second moment of one
    packet (what a lower class blocks with), `first_product` the mean product of an event's first packet and another
    copy's whole service, `packet_rates` are packets a second.

    The rest is of the events whose wait is asked for, which may be smaller than the others: `own_mean` of the whole
    event, `before_last` without its last packet, `first_mean` of its first packet, `single_mean` of the event where
    it is one packet, and 0 where it is several.
    """

    rates: NDArray[np.float64]
    mean: NDArray[np.float64]
    second_moment: NDArray[np.float64]
    copy_product: NDArray[np.float64]
    blocking: NDArray[np.float64]
    first_product: NDArray[np.float64]
    own_mean: NDArray[np.float64]
    before_last: NDArray[np.float64]
    first_mean: NDArray[np.float64]
    single_mean: NDArray[np.float64]
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
            copy_product=second_moment,
            blocking=0.5 * rates * second_moment,
            first_product=second_moment,
            own_mean=service,
            before_last=np.zeros(rates.size),
            first_mean=service,
            single_mean=service,
            packet_rates=rates,
        )


@dataclass(frozen=True)
class CopyBatches:
    """Where each subscription queues and which copies come with it; no `topics` means Poisson arrivals.

    With `random_order` the copies of an event come in any order, else in that of their classes.
    """

    classes: NDArray[np.int64]
    queues: NDArray[np.int64]
    topics: NDArray[np.int64] | None
    keep: NDArray[np.float64]
    random_order: bool = False

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

    @cached_property
    def first(self) -> FirstCopies | None:
        """Which copies come first out of turn; None where none does."""
        if self.together is None or not self.random_order:
            return None
        return first_copies(self.together, self.keep)


def check_batches(
    length: int,
    classes: ArrayLike,
    batch_topics: ArrayLike | None = None,
    keep: ArrayLike | None = None,
    queues: ArrayLike | None = None,
    *,
    random_order: bool = False,
) -> CopyBatches:
    """Check the arguments that priority_waits and fragmented_waits share.

    >>> check_batches(2, [0, 1]).keep
    array([1., 1.])
    """
    return CopyBatches(
        classes=integers("classes", classes, length),
        queues=np.zeros(length, dtype=np.int64) if queues is None else integers("queues", queues, length),
        topics=None if batch_topics is None else integers("batch_topics", batch_topics, length),
        keep=np.ones(length) if keep is None else per_row("keep", keep, length, high=1.0),
        random_order=random_order,
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
    jumps = work.rates * (0.5 * work.second_moment + ahead * work.copy_product)
    work_ahead = ahead * work.own_mean + work.before_last
    first = batches.first if together else None
    if first is not None:
        idle = np.maximum(1.0 - sigma - ladder.below(load), 0.0)[ladder.step_of_row]
        # A pair counts at every class from r's down to the one above j's: it comes with r and goes with j.
        jumps += idle * work.rates * work.first_product * (first.lower - first.higher)
        work_ahead += idle * (first.lower * work.first_mean - first.higher * work.single_mean)
    stable = sigma < 1.0
    level = np.full(sigma.size, np.inf)
    np.divide(
        ladder.through(ladder.total(jumps)) + ladder.below(blocking), 1.0 - sigma, out=level, where=stable
    )
    step = ladder.step_of_row
    waits = np.full(work.rates.size, np.inf)
    np.divide(level[step] + work_ahead, 1.0 - sigma_higher[step], out=waits, where=stable[step])
    return waits


@dataclass(frozen=True, slots=True)
class FirstCopies:
    """Per copy r: how many copies of lower classes come before all others, and how many of higher ones r comes before.

    `lower` is the sum of k_j q_rj over the copies below r, `higher` the same sum over those above it.
    """

    lower: NDArray[np.float64]
    higher: NDArray[np.float64]


def first_copies(batches: Ladder, keep: NDArray[np.float64]) -> FirstCopies:
    """The sums over pairs for every copy; a batch is a group of the ladder, `keep` each copy's chance to be there.

    Three copies, each first in a third of the cases:

    >>> first_copies(build_ladder(np.zeros(3, np.int64), np.array([0, 1, 1])), np.ones(3)).lower.round(3)
    array([0.667, 0.   , 0.   ])
    """
    lower, higher = np.zeros(keep.size), np.zeros(keep.size)
    # Only a batch of several classes has copies that come first out of turn.
    mixed = batches.steps_above + batches.steps_below > 0
    rows = np.flatnonzero(mixed[batches.step_of_row])
    if not rows.size:
        return FirstCopies(lower, higher)
    number = np.cumsum(mixed) - 1
    step = number[batches.step_of_row[rows]]
    ladder = Ladder(step, batches.steps_above[mixed], batches.steps_below[mixed])
    batch_of_step = np.cumsum(ladder.steps_above == 0) - 1
    chance, batch = keep[rows], batch_of_step[step]
    width = np.minimum(1.0, _DECAY / np.maximum(np.bincount(batch, chance), 1.0))
    points, weights = np.polynomial.legendre.leggauss(min(_NODES, (int(np.bincount(batch).max()) + 1) // 2))
    below, above = np.zeros(rows.size), np.zeros(rows.size)
    for point, weight in zip(points, weights, strict=True):
        distance = 0.5 * (1.0 + point) * width
        factor = 1.0 - chance * distance[batch]
        product = np.exp(np.bincount(batch, np.log(factor)))
        share = (0.5 * weight * width * (1.0 - distance) * product)[batch] / factor
        present = ladder.total(chance / factor)
        below += share * ladder.below(present)[step]
        above += share * ladder.above(present)[step]
    lower[rows], higher[rows] = below, above
    return FirstCopies(lower, higher)


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
    topic at once: theory.md section 2, "Batches", in the closed form derived at the top of this file. PrioDeX and
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
