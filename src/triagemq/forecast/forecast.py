"""Predict what a plan does to every subscription: PrioDeX eq. 10, corrected (theory.md sections 1 and 2)."""

from __future__ import annotations

import numpy as np

from triagemq.forecast.doubts import CLAIMED, Doubts
from triagemq.forecast.downstream import cross_network
from triagemq.forecast.model import Forecast
from triagemq.forecast.upstream import topic_arrivals
from triagemq.plan import Plan, demand
from triagemq.scenario import Floats, Scenario, achieved_utility, maximum_utility
from triagemq.theory import Times, share_within

__all__ = ["forecast"]


def forecast(scenario: Scenario, plan: Plan, *, claimed: float = CLAIMED) -> Forecast:
    """Success, mean latency and utility per subscription, over the whole path from publisher to subscriber.

    By formulas alone. What may be off by more than the share `claimed` is flagged.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.scenario.generators import table2
    >>> scenario = table2(seed=1)
    >>> predicted = forecast(scenario, make_plan(scenario, drops="exponential"))
    >>> float(predicted.success.max()), bool(predicted.latency_seconds.max() < 0.1)
    (1.0, True)
    """
    plan.require(scenario)
    asked = demand(scenario)
    arrivals = topic_arrivals(scenario)
    subscriptions = scenario.subscriptions
    doubts = Doubts(len(subscriptions))
    copies = cross_network(scenario, plan, asked, arrivals, doubts)
    cell = (scenario.subscribers.broker[subscriptions.subscriber], subscriptions.topic)
    received = arrivals.rate[cell] * copies.survival
    success = np.divide(
        received, asked.published_rate, out=np.zeros_like(received), where=asked.published_rate > 0
    )
    success = np.minimum(success, 1.0)
    latency = np.where(received > 0, arrivals.delay_seconds[cell] + copies.seconds, np.nan)
    # What never arrives has no latency, and is worth nothing whatever its freshness.
    known = np.where(np.isnan(latency), np.inf, latency)
    times = copies.times.moved_to(latency)
    timely = _share_within(times, subscriptions.max_latency_seconds)
    reason, latency_error, success_error = doubts.judge(latency, success, claimed)
    return Forecast(
        published_rate=asked.published_rate,
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


def _share_within(times: Times, limit: Floats) -> Floats:
    """The share of each subscription's times within its limit; NaN where it has none."""
    found = np.full(len(limit), np.nan)
    limited = np.flatnonzero(np.isfinite(limit))
    if limited.size:
        found[limited] = share_within(times[limited], limit[limited])
    return found
