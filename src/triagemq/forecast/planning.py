"""Plans that know what they forecast: plan, forecast, and plan again by what the latency costs.

The one function by which every command, sweep and coordinator plans. It stands here and not in `plan`, because what a
latency costs is known only once a plan has been forecast.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from triagemq.forecast.forecast import forecast
from triagemq.forecast.model import Forecast
from triagemq.plan import Decision, LatencyFactors, Plan, make_plan
from triagemq.scenario import Scenario

__all__ = [
    "LEAST_GAIN",
    "MOST_ROUNDS",
    "LatencyFactors",
    "judged_by_latency",
    "latency_factors",
    "plan_ahead",
]

MOST_ROUNDS = 4
"""Plans made after the first one, each from the forecast of the one before; later ones hardly ever gain."""

LEAST_GAIN = 0.005
"""A plan that another is to replace is worth this share less by the forecast: what the forecast itself may be off."""

CONVERGED = 1e-4
"""A round that changes the utility by a smaller share is the last."""


def judged_by_latency(scenario: Scenario) -> bool:
    """Whether the latency of any subscription changes what it is worth; if not, one plan is all there is to make."""
    return bool(np.isfinite(scenario.subscriptions.freshness_seconds).any())


def latency_factors(
    scenario: Scenario, predicted: Forecast, before: LatencyFactors | None = None
) -> LatencyFactors:
    """The factors under a forecast: everything that latency does to worth reaches the planner through here.

    Freshness is exp(-T/tau), falling by 1/tau of itself a second. A further way to judge by latency multiplies its own
    factor in, adds its own fall, and says so in `judged_by_latency` and in the forecast's utility; `make_plan` lowers a
    subscription's worth by the factor when it sets drops, and cuts flows and classes by worth per byte times urgency
    (the c-mu rule: what loses most per byte and second of waiting goes first).

    Where nothing arrives there is no latency. What was known `before` stands then, so that nothing is left out only
    because it has been left out once; at first it is worth all it can be, and not urgent.
    """
    tau = scenario.subscriptions.freshness_seconds
    arriving = predicted.received_rate > 0
    late = np.where(np.isnan(predicted.latency_seconds), np.inf, predicted.latency_seconds)
    factor = np.exp(-np.where(arriving & np.isfinite(tau), late, 0.0) / tau)
    urgency = np.where(arriving, factor / tau, 0.0)
    if before is not None:
        factor = np.where(arriving, factor, before.factor)
        urgency = np.where(arriving, urgency, before.urgency)
    return LatencyFactors(factor, urgency)


def plan_ahead(scenario: Scenario, **options: Any) -> Plan:
    """The plan of greatest utility by the forecast, among a first one and those made from forecasts; see `make_plan`.

    Where no worth depends on latency that is `make_plan`, and nothing is forecast. Else every round plans by the
    `latency_factors` of the round before, until the utility stands still or MOST_ROUNDS are made. The first plan stays
    unless another gains LEAST_GAIN; a decision of the plan says how many rounds there were and what they gained.

    >>> from triagemq.scenario.generators import table2
    >>> scenario = table2(seed=1, freshness_seconds=0.02)
    >>> plan = plan_ahead(scenario)
    >>> [each.kind for each in plan.decisions][-1]
    'planned_by_forecast'
    >>> by_forecast, at_first = (forecast(scenario, made).utility.sum() for made in (plan, make_plan(scenario)))
    >>> bool(by_forecast >= at_first)
    True
    """
    first = make_plan(scenario, **options)
    if not judged_by_latency(scenario) or not len(scenario.subscriptions):
        return first
    predicted = forecast(scenario, first)
    utilities = [float(predicted.utility.sum())]
    best, chosen = first, 0
    factors: LatencyFactors | None = None
    for this in range(1, MOST_ROUNDS + 1):
        factors = latency_factors(scenario, predicted, factors)
        plan = make_plan(scenario, **options, latency=factors)
        predicted = forecast(scenario, plan)
        utilities.append(float(predicted.utility.sum()))
        if utilities[this] > max(utilities[chosen], utilities[0] * (1 + LEAST_GAIN)):
            best, chosen = plan, this
        if abs(utilities[this] - utilities[this - 1]) <= CONVERGED * utilities[this]:
            break
    return replace(best, decisions=(*best.decisions, _decision(scenario.name, utilities, chosen)))


def _decision(name: str, utilities: list[float], chosen: int) -> Decision:
    rounds = len(utilities) - 1
    still = abs(utilities[-1] - utilities[-2]) <= CONVERGED * utilities[-1]
    ended = "the last changed nothing more" if still else "all that are made"
    best = max(utilities[1:])
    gain = best / utilities[0] - 1 if utilities[0] > 0 else 0.0
    if chosen:
        outcome = f"round {chosen} is the best and gains {gain:.2%}"
    else:
        outcome = f"the best of them would gain {gain:.2%}, a change is made from {LEAST_GAIN:.1%} on"
    return Decision(
        kind="planned_by_forecast",
        subject=name,
        before=f"utility {utilities[0]:.6g}",
        after=f"utility {utilities[chosen]:.6g}",
        reason=f"worth depends on latency, so it was forecast and planned again {rounds} times ({ended}): {outcome}",
    )
