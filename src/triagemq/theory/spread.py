"""How the time in a queue with priorities and batches spreads around its mean.

As waits.py does for the mean, let U_k be the work of classes 0..k in the queue plus what is left of the packet in
service. U_k falls at rate 1, jumps by B_v with every publication and by a packet S of a lower class whenever it is 0.
In equilibrium U_k^2, U_k^3 and U_k^4 have no drift:

    E[U_k]   (1 - sigma_k) = 1/2 (J2 + L2)                  Jn = sum_v lambda_v E[B_v^n]
    E[U_k^2] (1 - sigma_k) = E[U_k] J2 + 1/3 (J3 + L3)      Ln = sum over packets of lower classes of S^n, a second
    E[U_k^3] (1 - sigma_k) = 3/2 E[U_k^2] J2 + E[U_k] J3 + 1/4 (J4 + L4)

B_v = N B: N is the number of copies of classes 0..k that survive to the queue, B the event's transmission time, which
all of them share. A copy waits for X = U_k + M B, M the copies of its own event that go first, and for the higher
classes that come until it starts: a busy period, whose cumulants are X times c1, c2 and c3,

    c1 = 1 / (1 - a)     c2 = H2 / (1 - a)^3     c3 = H3 / (1 - a)^4 + 3 H2^2 / (1 - a)^5     a = sigma_{k-1}

with Hn as Jn of the higher classes. Without batches this is Kesten and Runnenburg's second moment (Takagi, Queueing
Analysis, vol. 1, section 3.2). Approximate are: what an event sends before its last packet, taken as a fixed share of
it; sizes, taken to vary as exponential ones do, or not at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.theory.cumulants import Cumulants
from triagemq.theory.overload import carried_share
from triagemq.theory.percentiles import LatencyDistribution
from triagemq.theory.waits import CopyBatches, Work, check_batches

Floats = NDArray[np.float64]
Moments = tuple[Floats, Floats, Floats]


def queue_times(
    arrival_rates: ArrayLike,
    mean_service: ArrayLike,
    scv: ArrayLike,
    classes: ArrayLike,
    *,
    queues: ArrayLike | None = None,
) -> LatencyDistribution:
    """The law of wait and service together in the queues of priority_waits, without batches.

    >>> queue_times([0.5], [1.0], 1.0, [0]).overall.variance
    array([4.])
    """
    work = Work.of_packets(arrival_rates, mean_service, scv)
    return sojourn_times(work, check_batches(work.rates.size, classes, queues=queues))


def sojourn_times(work: Work, batches: CopyBatches) -> LatencyDistribution:
    """The law of the time from an event's arrival to the end of its last packet; infinite in an unstable class.

    The copies of an event are taken to share its size.

    >>> found = queue_times([0.5], [1.0], 1.0, [0]).overall
    >>> found.mean, found.variance, found.third
    (array([2.]), array([4.]), array([16.]))
    """
    ladder = batches.ladder
    step = ladder.step_of_row
    event = Cumulants.service(work.mean, np.maximum(work.second_moment / work.mean**2 - 1.0, 0.0))
    before = work.before_last / work.mean
    brought, ahead = _copies(work, event, batches)
    load = ladder.total(work.rates * work.mean)
    sigma, above = ladder.through(load), ladder.above(load)
    busy = np.minimum(sigma + ladder.below(load), 1.0)
    jumps = [ladder.total(each) for each in brought]
    carried = carried_share(load, sigma, above)
    coming = [ladder.through(each) for each in jumps]
    drawn = [
        each + ladder.below(ladder.total(blocking) * carried)
        for each, blocking in zip(coming, _blocking(work), strict=True)
    ]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        level = 0.5 * drawn[0] / (1 - sigma)
        square = (level * coming[0] + drawn[1] / 3) / (1 - sigma)
        cube = (1.5 * square * coming[0] + level * coming[1] + drawn[2] / 4) / (1 - sigma)
        found = Cumulants.of_moments(level / busy, square / busy, cube / busy)
        found = Cumulants(*(np.where(busy > 0, each, 0.0) for each in found.columns))
        higher_two, higher_three = ladder.above(jumps[0]), ladder.above(jumps[1])
        c1 = 1 / (1 - above)
        factors = (c1, higher_two * c1**3, higher_three * c1**4 + 3 * higher_two**2 * c1**5)
        stretched = (factors[0][step], factors[1][step], factors[2][step])
        nothing = Cumulants.constant(np.zeros(step.size))
        quiet = _through_busy_period(event, before, nothing, ahead, stretched)
        delayed = _through_busy_period(event, before, found[step], ahead, stretched)
    stable = (sigma < 1)[step]
    return LatencyDistribution(
        quiet=quiet,
        busy=Cumulants(*(np.where(stable, each, np.inf) for each in delayed.columns)),
        busy_share=np.where(stable, busy[step], 1.0),
    )


def _through_busy_period(
    event: Cumulants,
    before: Floats,
    work: Cumulants,
    ahead: Moments,
    factors: Moments,
) -> Cumulants:
    """Wait and own transmission: the work found, the copies ahead, the higher classes that come meanwhile.

    The copies ahead are as large as the own one, so that their wait and the own transmission are one product: the
    number ahead, stretched by c1, plus the own, times the size.
    """
    c1, c2, c3 = factors
    first, second, third = ahead
    own = c1 * before + 1 - before
    one, two, three = event.moments
    mean = (c1 * first + own) * one
    c1_square, own_square = c1 * c1, own * own
    square = (c1_square * second + 2 * c1 * own * first + own_square) * two
    cube = (c1 * (c1_square * third + 3 * own * (c1 * second + own * first)) + own * own_square) * three
    product = Cumulants.of_moments(mean, square, cube)
    waited = (first + before) * one
    together = (c1 * second + (own + c1 * before) * first + before * own) * two - waited * mean
    found = work.mean + waited
    return Cumulants(
        c1 * work.mean + mean,
        c1_square * work.variance + product.variance + c2 * found,
        c1 * c1_square * work.third + product.third + 3 * c2 * (c1 * work.variance + together) + c3 * found,
    )


def _copies(work: Work, event: Cumulants, batches: CopyBatches) -> tuple[Moments, Moments]:
    """What each row's batch adds to J2, J3 and J4 of its class and those below, and moments of the copies ahead of it.

    The n-th factorial moment of a number of copies that survive is the sum over ordered n-tuples of the product of
    their keep probabilities, which power sums give. Copies of one class leave in random order: of n others all go first
    with probability 1/(n + 1).
    """
    two, three, four = _higher_moments(event)
    jumps = (work.rates * two, work.rates * three, work.rates * four)
    ladder = batches.together
    if ladder is None:
        nothing = np.zeros(work.rates.size)
        return jumps, (nothing, nothing, nothing)
    keep, step = batches.keep, ladder.step_of_row
    square = keep * keep
    powers = (keep, square, keep * square, square * square)
    sums = [ladder.total(each) for each in powers]
    above = _factorial(*(ladder.above(each) for each in sums))
    through = _factorial(*(ladder.through(each) for each in sums))
    # What comes with a step is counted at one of its rows; the rows of a step and topic are events of one law.
    counted = np.zeros(len(sums[0]), dtype=np.int64)
    counted[step] = np.arange(step.size)
    rate = _ratio(ladder.through(ladder.total(work.rates)), ladder.through(sums[0]))
    pairs, triples, fours = (rate * (through[power] - above[power]) for power in (1, 2, 3))
    jumps[0][counted] += pairs * two[counted]
    jumps[1][counted] += (3 * pairs + triples) * three[counted]
    jumps[2][counted] += (7 * pairs + 6 * triples + fours) * four[counted]
    same = _factorial(*(np.maximum(each[step] - own, 0.0) for own, each in zip(powers, sums, strict=True)))
    high = tuple(each[step] for each in above)
    shared = (same[0] / 2, same[1] / 3, same[2] / 4)
    first = high[0] + shared[0]
    second = high[1] + 2 * high[0] * shared[0] + shared[1]
    third = high[2] + 3 * high[1] * shared[0] + 3 * high[0] * shared[1] + shared[2]
    # From factorial to raw moments.
    return jumps, (first, second + first, third + 3 * second + first)


def _blocking(work: Work) -> Moments:
    """What packets bring a second in squares, cubes and fourth powers of their transmission times."""
    rate = np.where(work.packet_rates > 0, work.packet_rates, 1.0)
    mean = np.where(work.packet_rates > 0, work.rates * work.mean / rate, work.mean)
    scv = np.maximum(2 * work.blocking / rate / mean**2 - 1.0, 0.0)
    two, three, four = _higher_moments(Cumulants.service(mean, scv))
    return work.packet_rates * two, work.packet_rates * three, work.packet_rates * four


def _higher_moments(service: Cumulants) -> Moments:
    """The means of the square, the cube and the fourth power of a time that varies as exponential ones do."""
    mean, second, third = service.moments
    square = mean * mean
    fourth = square * (square + 6 * service.variance) + 4 * mean * service.third + 9 * service.variance**2
    return second, third, fourth


def _factorial(
    one: Floats, two: Floats, three: Floats, four: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Factorial moments of a number of independent survivors, from power sums of their probabilities."""
    square = one * one
    return (
        one,
        np.maximum(square - two, 0.0),
        np.maximum(one * (square - 3 * two) + 2 * three, 0.0),
        np.maximum(square * (square - 6 * two) + 3 * two * two + 8 * one * three - 6 * four, 0.0),
    )


def _ratio(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
