"""Predict what a plan does to every subscription: PrioDeX eq. 10, corrected (theory.md sections 1 and 2).

Exact by formula, or else by a sample: where a formula is approximate (queues in a row, finite buffers, arrivals that
are not Poisson) a sample of events is simulated for a second or two, until its figures are surer than the formula's.
Sampled figures are marked; what remains uncertain keeps its flag, with the error that is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.downstream import cross_network
from triagemq.forecast.model import CLAIMED, ErrorEstimate, Forecast, Reason
from triagemq.forecast.promised import promised_load, with_promised, without_promised
from triagemq.forecast.terms import Thinned, leave_unsent
from triagemq.forecast.upstream import topic_arrivals
from triagemq.plan.demands import copy_rate, demand
from triagemq.plan.model import Plan
from triagemq.scenario import Floats, Integers, Scenario, achieved_utility, maximum_utility
from triagemq.theory import LatencyDistribution, share_within
from triagemq.theory.interval import t_quantile

if TYPE_CHECKING:
    from triagemq.simulate import SubscriptionResults

MOST_COPIES = 16_000_000
"""Followed at most; about two seconds on one core."""

_DOUBTED = 0.005
"""Where formulas may be off by more than this a sample is taken."""
_NEAR_DOUBTED, _SPREADS = 0.01, 0.2
"""So much may be wrong with whatever shares its port with something doubtful, and such a part of what is there."""
_PRECISE = 0.005
"""A standard error, as a share of the figure, that is small enough."""
_SURE = 0.95
"""The share of the doubtful figures that have to be as precise."""
_FIRST_COPIES, _FIRST_REPLICATIONS = 500_000, 8
_REPLICATIONS = 32
"""Many, since streams that go by the clock keep their phases throughout each."""
_MOST_SUBSCRIPTIONS = 5_000
"""Of more, a second's sample would say too little of each; and 16 KB of counts for each are enough."""
_TOO_MANY = (
    f"formulas alone, though approximate: too many subscriptions to sample (over {_MOST_SUBSCRIPTIONS:,})"
)
_FEWEST_EVENTS = 100
_NONE_OF = 3.0
"""Copies expected, and none seen: that is so once in twenty times."""
_ENDLESS = 0.05
"""With a larger share of copies under way at the ends of runs, there is no mean latency."""
_UNDER_WAY = 500
"""Runs are longer than the longest mean latency by this factor, if there are copies enough."""
_SEED = 1_618_033_988

Truths = NDArray[np.bool_]


def forecast(
    scenario: Scenario,
    plan: Plan,
    *,
    formulas: bool = False,
    most_copies: float = MOST_COPIES,
    progress: Callable[[float], None] | None = None,
) -> Forecast:
    """Success, mean latency and utility per subscription, over the whole path from publisher to subscriber.

    By formulas, and by a sample of events, of `most_copies` at most, where formulas are approximate; the same at every
    call. With `formulas` by these alone. The forecast's `basis` says what was done.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.scenario.building import building
    >>> scenario = building()
    >>> predicted = forecast(scenario, make_plan(scenario, drops="exponential"))
    >>> float(predicted.success.max()), bool((predicted.latency_seconds > 0).all()), predicted.basis[:23]
    (1.0, True, 'formulas, and a sample ')
    """
    plan.require(scenario)
    if formulas:
        return _of_formulas(scenario, plan, CLAIMED)
    if len(scenario.subscriptions) > _MOST_SUBSCRIPTIONS:
        predicted = _of_formulas(scenario, plan, CLAIMED)
        approximate = (predicted.latency_error > 0) | (predicted.success_error > 0)
        return replace(predicted, basis=_TOO_MANY) if approximate.any() else predicted
    predicted = _of_formulas(scenario, plan, _DOUBTED)
    predicted = _spread(
        predicted, scenario.subscribers.port[scenario.subscriptions.subscriber], plan.flow >= 0
    )
    doubtful = (predicted.reason > 0) & ~np.isinf(predicted.latency_seconds) & (plan.flow >= 0)
    if doubtful.any():
        predicted = _sampled(scenario, plan, predicted, doubtful, most_copies, progress)
    return _claiming(predicted)


def _of_formulas(scenario: Scenario, plan: Plan, claimed: float) -> Forecast:
    """By formulas alone; what may be off by more than the share `claimed` is flagged."""
    if (plan.flow >= 0).all():
        nothing = np.zeros(len(scenario.ports))
        return _by_formulas(scenario, plan, claimed, (nothing, nothing))
    rest, reduced, left = without_promised(scenario, plan)
    found = _by_formulas(rest, reduced, claimed, promised_load(scenario, plan))
    return with_promised(scenario, plan, found, left, demand(scenario).published_rate)


def _by_formulas(scenario: Scenario, plan: Plan, claimed: float, promised: tuple[Floats, Floats]) -> Forecast:
    """The forecast of subscriptions that get everything through brokers, below a promised load of ports."""
    demanded = demand(scenario)
    arrivals = topic_arrivals(scenario)
    subscriptions = scenario.subscriptions
    errors = ErrorEstimate(len(subscriptions))
    cell = (scenario.subscribers.broker[subscriptions.subscriber], subscriptions.topic)
    thinned = Thinned.of(scenario, demanded, arrivals.rate[cell])
    copies = cross_network(scenario, plan, demanded, arrivals, thinned, errors, promised)
    received = arrivals.rate[cell] * copies.survival
    latency = np.where(received > 0, arrivals.delay.mean[cell] + copies.seconds, np.nan)
    times = copies.times.moved_to(latency)
    received, latency = leave_unsent(
        scenario, plan.subscription_class, demanded, errors, thinned, copies.seconds, received, latency, times
    )
    success = np.divide(
        received, demanded.published_rate, out=np.zeros_like(received), where=demanded.published_rate > 0
    )
    success = np.minimum(success, 1.0)
    # What never arrives has no latency, and is worth nothing whatever its freshness.
    known = np.where(np.isnan(latency), np.inf, latency)
    times = times.moved_to(latency)
    timely = _share_within(times, subscriptions.max_latency_seconds)
    reason, latency_error, success_error = errors.flag(latency, success, claimed)
    return Forecast(
        published_rate=demanded.published_rate,
        received_rate=received,
        success=success,
        latency_seconds=latency,
        times=times,
        share_within=timely,
        utility=achieved_utility(subscriptions, success, known, timely),
        maximum_utility=maximum_utility(subscriptions),
        reason=reason,
        latency_error=latency_error,
        success_error=success_error,
        sampled=np.zeros(len(subscriptions), dtype=np.bool_),
    )


def _share_within(times: LatencyDistribution, limit: Floats) -> Floats:
    """The share of each subscription's times within its limit; NaN where it has none."""
    found = np.full(len(limit), np.nan)
    limited = np.flatnonzero(np.isfinite(limit))
    if limited.size:
        found[limited] = share_within(times[limited], limit[limited])
    return found


def _spread(predicted: Forecast, port: Integers, brokered: Truths) -> Forecast:
    """Errors propagate to flows that share the port, but for promises, which nothing `brokered` can delay."""
    latency_error, reason = predicted.latency_error.copy(), predicted.reason.copy()
    expected_error = np.fmax(latency_error, predicted.success_error)
    for each in np.unique(port[(reason > 0) & brokered]):
        there = np.flatnonzero((port == each) & brokered)
        worst = there[np.argmax(expected_error[there])]
        latency_error[there] = np.fmax(
            latency_error[there], np.fmax(_NEAR_DOUBTED, _SPREADS * expected_error[worst])
        )
        reason[there] = np.where(reason[there] > 0, reason[there], reason[worst])
    return replace(predicted, latency_error=latency_error, reason=reason)


def _sampled(
    scenario: Scenario,
    plan: Plan,
    predicted: Forecast,
    doubtful: Truths,
    most_copies: float,
    progress: Callable[[float], None] | None,
) -> Forecast:
    """Sampled figures of what is doubtful, where they are surer than the formulas'."""
    copies = min(_FIRST_COPIES, most_copies)
    sample = _follow(scenario, plan, copies, _FIRST_REPLICATIONS, progress)
    unsure = float(np.quantile(np.minimum(sample.error[doubtful], 1.0), _SURE))
    # What is under way when a run ends has to be a small part of all.
    longest = float(np.nanmax(sample.found.mean_latency_seconds[doubtful], initial=0.0))
    short = _UNDER_WAY * longest / sample.seconds
    short *= _REPLICATIONS / _FIRST_REPLICATIONS
    wanted = min(copies * max((unsure / _PRECISE) ** 2, short), most_copies)
    if wanted > copies:
        sample = _follow(scenario, plan, wanted, _REPLICATIONS, progress)
    found = sample.found
    expected_error = np.fmax(predicted.latency_error, predicted.success_error)
    # What has no latency by formula has no error of it either: anything that is known of it is more.
    expected_error[np.isnan(predicted.latency_seconds)] = np.inf
    # Where none of n copies arrives, less than 3 / n does: by far the most likely.
    refuted = found.count * predicted.success > _NONE_OF
    nothing = (found.success_rate == 0) & (refuted | (predicted.success < CLAIMED))
    surer = doubtful & ((sample.error < expected_error) | nothing)
    # Too few to know their share well, and yet by far too few for the formula, its error included.
    few = found.count * found.success_rate
    most = few + 2 * np.sqrt(few) + _NONE_OF
    least = found.count * predicted.success * (1 - np.minimum(predicted.success_error, 1.0))
    too_few = doubtful & ~surer & (most < least)
    # Where so much is still under way at the ends of runs, queues grow without end.
    endless = doubtful & np.isnan(predicted.latency_seconds) & (found.in_flight > _ENDLESS * found.count)
    success = np.where(surer | too_few | endless, found.success_rate, predicted.success)
    latency = np.where(surer, found.mean_latency_seconds, predicted.latency_seconds)
    latency[endless] = np.inf
    within = np.where(surer, found.share_within_max_latency, predicted.share_within)
    times, rows = predicted.times[np.arange(len(surer))], np.flatnonzero(surer)
    times[rows] = LatencyDistribution.through(
        found.mean_latency_seconds, found.p95_seconds, found.p99_seconds
    )[rows]
    # What gives its place to a newer event is not wanted any more, and no formula knows how much that is.
    passed = found.count - found.thinned
    kept = np.divide(passed - found.superseded, passed, out=np.ones(len(surer)), where=passed > 0)
    published_rate = predicted.published_rate * np.where(surer, kept, 1.0)
    return replace(
        predicted,
        published_rate=published_rate,
        received_rate=published_rate * success,
        success=success,
        latency_seconds=latency,
        times=times,
        share_within=within,
        utility=achieved_utility(
            scenario.subscriptions, success, np.where(np.isnan(latency), np.inf, latency), within
        ),
        latency_error=np.where(surer, np.nan_to_num(sample.latency_error), predicted.latency_error),
        success_error=np.select(
            [surer | endless, too_few],
            [sample.success_error, 2 / np.sqrt(np.maximum(few, 1.0))],
            predicted.success_error,
        ),
        sampled=surer | endless,
        basis=f"formulas, and a sample of {max(copies, wanted):,.0f} copies where they are approximate",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Sample:
    """What a sample says of each subscription, and its standard errors as shares of that.

    `seconds` is how long each replication was.
    """

    found: SubscriptionResults
    latency_error: Floats
    success_error: Floats
    seconds: float

    @property
    def error(self) -> Floats:
        """The larger of the two; infinite where no two replications had a delivery."""
        return np.where(np.isnan(self.latency_error), np.inf, np.fmax(self.latency_error, self.success_error))


def _follow(
    scenario: Scenario,
    plan: Plan,
    copies: float,
    replications: int,
    progress: Callable[[float], None] | None,
) -> _Sample:
    """Follow about so many copies, in independent replications; what is under way at their ends never arrives."""
    from triagemq.simulate import simulate  # compiled kernels, which formulas alone do not need

    event_rate = float(scenario.publications.rate_per_second.sum())
    result = simulate(
        scenario,
        plan,
        duration_seconds=max(copies / replications / copy_rate(scenario), _FEWEST_EVENTS / event_rate),
        replications=replications,
        seed=_SEED,
        percentiles=True,
        progress=progress,
    )
    found, quantile = result.subscriptions, float(t_quantile(replications))
    success, error = found.success_rate, found.success_ci95 / quantile
    return _Sample(
        found,
        latency_error=found.ci95_seconds / quantile / found.mean_latency_seconds,
        success_error=np.divide(error, success, out=np.zeros_like(success), where=success > 0),
        seconds=result.simulated_seconds / replications,
    )


def _claiming(predicted: Forecast) -> Forecast:
    """Without a flag where no error to expect is above what is claimed without one."""
    latency_error, success_error = (
        np.where(each > CLAIMED, each, 0.0) for each in (predicted.latency_error, predicted.success_error)
    )
    unknown = ~np.isfinite(predicted.latency_seconds) & (predicted.success > 0)
    doubtful = (latency_error > 0) | (success_error > 0) | unknown | (predicted.reason == Reason.PROMISED)
    return replace(
        predicted,
        latency_error=latency_error,
        success_error=success_error,
        reason=np.where(doubtful, predicted.reason, 0).astype(np.int8),
    )
