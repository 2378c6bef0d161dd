"""Plan, forecast, and plan again by what the latency costs: the one function by which commands and coordinator plan.

What a latency costs is known only once a plan has been forecast: this module alone of `plan` stands above `forecast`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from triagemq.forecast.model import Forecast
from triagemq.forecast.prediction import forecast
from triagemq.plan.difference import carry
from triagemq.plan.model import LEAST_GAIN, Decision, LatencyFactors, Plan
from triagemq.plan.planner import make_plan
from triagemq.scenario import Floats, Scenario, achieved_utility, deadline_factor, deadline_figures
from triagemq.theory import share_within

MOST_ROUNDS = 4
"""Plans made after the first one, each from the forecast of the one before; later ones hardly ever gain."""

_NEARBY = 0.05
"""The density of a latency at a limit is taken over this part of it."""

OFF_BY_A_FACTOR, MOST_DOUBTED = 0.5, 0.1
"""A latency that may be off by a larger share decides nothing: where more of the worth depends on such ones, the first
plan stays."""

NAMED_DEADLINES = 3
"""Subscriptions that a decision names, of those whose deadline is not met."""

CONVERGED = 1e-4
"""A round that changes the utility by a smaller share is the last."""


def judged_by_latency(scenario: Scenario) -> bool:
    """Whether the latency of any subscription changes what it is worth; if not, one plan is all there is to make."""
    wanted = scenario.subscriptions
    return bool(np.isfinite(wanted.freshness_seconds).any() or (wanted.max_latency_share > 0).any())


def latency_factors(
    scenario: Scenario, predicted: Forecast, before: LatencyFactors | None = None
) -> LatencyFactors:
    """The factors under a forecast: everything that latency does to worth reaches the planner through here.

    Freshness is exp(-T/tau), falling by 1/tau of itself a second. A deadline's factor is the part that is met of the
    share requested; it falls by the density of the latency there, met or not, so that what is met stays so. A further
    judgement by latency multiplies its own factor in, adds its own fall, and says so in `judged_by_latency` and in
    the forecast's utility; `make_plan` lowers a subscription's worth by the factor when it sets drops, and cuts flows
    and classes by worth per byte times urgency (the c-mu rule: what loses most per byte and second of waiting goes
    first).

    Where nothing arrives there is no latency. What was known `before` stands then, so that nothing is left out only
    because it has been left out once; at first it is worth all it can be, and not urgent.
    """
    tau = scenario.subscriptions.freshness_seconds
    arriving = predicted.received_rate > 0
    late = np.where(np.isnan(predicted.latency_seconds), np.inf, predicted.latency_seconds)
    factor = np.exp(-np.where(arriving & np.isfinite(tau), late, 0.0) / tau)
    timely, falling = _deadlines(scenario, predicted)
    urgency = np.where(arriving, timely * factor / tau + factor * falling, 0.0)
    factor = np.where(arriving, factor * timely, factor)
    if before is not None:
        factor = np.where(arriving, factor, before.factor)
        urgency = np.where(arriving, urgency, before.urgency)
    return LatencyFactors(factor, urgency)


def _deadlines(scenario: Scenario, predicted: Forecast) -> tuple[Floats, Floats]:
    """What lateness leaves of each worth by its deadline share, and how fast that falls by the second."""
    wanted = scenario.subscriptions
    falling = np.zeros(len(wanted))
    requested = np.flatnonzero(wanted.max_latency_share > 0)
    if requested.size:
        limit, share = wanted.max_latency_seconds[requested], wanted.max_latency_share[requested]
        earlier = share_within(predicted.times[requested], limit * (1 - _NEARBY))
        falling[requested] = (predicted.share_within[requested] - earlier) / (_NEARBY * limit) / share
    return deadline_factor(wanted, predicted.share_within), falling


def plan(
    scenario: Scenario, *, previous: Plan | None = None, before: Scenario | None = None, **options: Any
) -> Plan:
    """The plan of greatest utility by the forecast, among a first one and those made from forecasts; see `make_plan`.

    Where no worth depends on latency that is `make_plan`, and nothing is forecast. Else every round plans by the
    `latency_factors` of the round before, until the utility stands still or MOST_ROUNDS are made. The first plan stays
    unless another gains LEAST_GAIN, and gains too where latencies are off as far as their stated errors; so does, if
    there is one, the `previous` plan, made for the scenario `before`, with its flows and classes and with drops for
    the rates of now. A decision of the plan says what the rounds gained.

    >>> from triagemq.scenario.building import building
    >>> scenario = building()
    >>> made = plan(scenario)
    >>> [each.kind for each in made.decisions][-1]
    'planned_by_forecast'
    >>> ahead, first = (forecast(scenario, each).utility.sum() for each in (made, make_plan(scenario)))
    >>> bool(ahead >= first)
    True
    """
    first = make_plan(scenario, previous=previous, before=before, **options)
    if not judged_by_latency(scenario) or not len(scenario.subscriptions):
        return first
    tried = [_Tried.of(scenario, first)]
    if not tried[0].sure:
        return replace(first, decisions=(*first.decisions, _not_by_forecast(scenario.name)))
    factors: LatencyFactors | None = None
    if previous is not None and previous.latency is not None:
        factors = _still_known(scenario, carry(previous, before or scenario, scenario).latency)
        as_before = make_plan(scenario, previous=previous, before=before, latency=factors, **options)
        tried.append(_Tried.of(scenario, as_before))
    stays = len(tried) - 1
    if tried[0].utility >= tried[stays].utility:
        factors, last = None, tried[0]
    else:
        last = tried[stays]
    still = False
    for _ in range(MOST_ROUNDS):
        factors = latency_factors(scenario, last.predicted, factors)
        again = make_plan(scenario, previous=previous, before=before, latency=factors, **options)
        tried.append(_Tried.of(scenario, again))
        still = abs(tried[-1].utility - last.utility) <= CONVERGED * last.utility
        if still:
            break
        last = tried[-1]
    gaining = [which for which, each in enumerate(tried) if each.gains_over(tried[stays])]
    best = max(gaining, key=lambda which: tried[which].utility, default=stays)
    chosen = tried[best].plan
    added = (
        _decision(scenario.name, tried, stays, best, still=still),
        *_deadline_decisions(scenario, tried[best].predicted),
    )
    return replace(chosen, decisions=(*chosen.decisions, *added))


@dataclass(frozen=True, slots=True, eq=False)
class _Tried:
    plan: Plan
    predicted: Forecast
    utility: float
    sure: bool
    bounds: tuple[float, float]
    """The utility where every latency is shorter, or longer, by the error that the forecast states."""

    @classmethod
    def of(cls, scenario: Scenario, plan: Plan) -> _Tried:
        predicted = forecast(scenario, plan, formulas=True)
        wanted = scenario.subscriptions
        timed = np.isfinite(wanted.freshness_seconds) | (wanted.max_latency_share > 0)
        worth = np.where(timed & (predicted.received_rate > 0), predicted.maximum_utility, 0.0)
        doubted = np.isnan(predicted.latency_seconds) | (predicted.latency_error > OFF_BY_A_FACTOR)
        sure = bool(worth[doubted].sum() <= MOST_DOUBTED * worth.sum())
        late = np.where(np.isnan(predicted.latency_seconds), np.inf, predicted.latency_seconds)
        error = np.minimum(predicted.latency_error, OFF_BY_A_FACTOR)
        shorter, longer = (
            float(achieved_utility(wanted, predicted.success, each, predicted.share_within).sum())
            for each in (late * (1 - error), late * (1 + error))
        )
        return cls(plan, predicted, float(predicted.utility.sum()), sure, (shorter, longer))

    def gains_over(self, other: _Tried) -> bool:
        """Whether it is worth a change, and worth more even where the forecast is off as far as it says."""
        surely = all(own > its for own, its in zip(self.bounds, other.bounds, strict=True))
        return self.sure and surely and self.utility > other.utility * (1 + LEAST_GAIN)


def _still_known(scenario: Scenario, factors: LatencyFactors | None) -> LatencyFactors | None:
    """The factors of an earlier plan; what is new has those of no latency at all."""
    if factors is None:
        return None
    new = np.isnan(factors.factor)
    fall = 1 / scenario.subscriptions.freshness_seconds
    return LatencyFactors(np.where(new, 1.0, factors.factor), np.where(new, fall, factors.urgency))


def _not_by_forecast(name: str) -> Decision:
    return Decision(
        kind="not_planned_by_forecast",
        subject=name,
        before="",
        after="",
        reason=f"worth depends on latency, but for more than {MOST_DOUBTED:.0%} of it the forecast may be off by more "
        f"than {OFF_BY_A_FACTOR:.0%}: the first plan stays",
    )


def _decision(name: str, tried: list[_Tried], stays: int, best: int, *, still: bool) -> Decision:
    rounds = len(tried) - 1 - stays
    ended = "the last changed nothing more" if still else "all that are made"
    utility = tried[stays].utility
    largest = max(each.utility for each in tried)
    gain = f"{largest / utility - 1:.2%}" if utility > 0 else "all there is"
    if best != stays:
        which = f"round {best - stays}" if best else "the plan from nothing"
        outcome = f"{which} is the best and gains {gain}"
    else:
        outcome = f"the {'plan before' if stays else 'first plan'} stays"
        if largest > utility:
            outcome += (
                f", the best would gain {gain}, too little for a change or for the stated errors of latencies"
            )
    return Decision(
        kind="planned_by_forecast",
        subject=name,
        before=f"utility {utility:.6g}",
        after=f"utility {tried[best].utility:.6g}",
        reason=f"worth depends on latency, so it was forecast and planned again {rounds} times ({ended}): {outcome}",
    )


def _deadline_decisions(scenario: Scenario, predicted: Forecast) -> tuple[Decision, ...]:
    """How many get the share in time that they ask for, and some of those that do not; the same while these stay."""
    wanted = scenario.subscriptions
    requested = wanted.max_latency_share
    if not (requested > 0).any():
        return ()
    figures = deadline_figures(wanted, predicted.share_within)
    missed = np.flatnonzero((requested > 0) & ~(np.nan_to_num(predicted.share_within) >= requested))
    named = [
        f"{scenario.subscribers.name[wanted.subscriber[row]]} {scenario.topics.name[wanted.topic[row]]} "
        f"({requested[row]:.4g} within {wanted.max_latency_seconds[row]:.6g} s)"
        for row in missed[:NAMED_DEADLINES]
    ]
    more = f" and {len(missed) - len(named)} more" if len(missed) > len(named) else ""
    return (
        Decision(
            kind="deadlines",
            subject=scenario.name,
            before=f"{figures['judged']} subscriptions ask for a share in time",
            after=f"{figures['met']} of them get it",
            reason=f"by the forecast these do not: {', '.join(named)}{more}"
            if named
            else "by the forecast of the plan",
        ),
    )
