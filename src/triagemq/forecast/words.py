"""Why a plan treats one subscription as it does, and what that comes to, in words and figures."""

from __future__ import annotations

import math
from typing import Any

from triagemq.forecast.doubts import REASONS
from triagemq.forecast.forecast import forecast
from triagemq.forecast.model import Forecast
from triagemq.forecast.summary import subscription_rows
from triagemq.plan import Plan, explain, subscription_row
from triagemq.scenario import Scenario
from triagemq.theory import percentile

__all__ = ["explanation"]


def explanation(
    scenario: Scenario, plan: Plan, subscriber: str, topic: str, predicted: Forecast | None = None
) -> dict[str, Any]:
    """One subscription, as `triage plan --explain --json` and REST have it: words and figures.

    `explanation` is what `plan.explain` says and a line on what the subscription will get, how late it comes and how
    sure that is; `forecast` its row of `triage forecast --json --full`. Both are of `predicted`, or else of formulas.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.scenario.generators import table2
    >>> scenario = table2(seed=1)
    >>> wanted = scenario.subscriptions
    >>> who, what = scenario.subscribers.name[wanted.subscriber[0]], scenario.topics.name[wanted.topic[0]]
    >>> explanation(scenario, make_plan(scenario), who, what)["explanation"].splitlines()[-1].split(":")[0]
    'Forecast'
    """
    words = explain(scenario, plan, subscriber, topic)
    row = subscription_row(scenario, subscriber, topic)
    predicted = predicted or forecast(scenario, plan)
    return {
        "subscriber": subscriber,
        "topic": topic,
        "explanation": f"{words}\nForecast: {_foreseen(scenario, predicted, row)}",
        "forecast": subscription_rows(scenario, plan, predicted, [row])[0],
    }


def _foreseen(scenario: Scenario, predicted: Forecast, row: int) -> str:
    mean = float(predicted.latency_seconds[row])
    if predicted.received_rate[row] <= 0:
        return "nothing arrives."
    arriving = f"{predicted.success[row]:.2%} of all arrive"
    if not math.isfinite(mean):
        return f"{arriving}, later and later: a queue on the way is overloaded."
    times = predicted.times[[row]]
    p95, p99 = (float(percentile(times, share)[0]) for share in (0.95, 0.99))
    doubts = [REASONS[int(predicted.reason[row])]]
    doubts += [
        f"{name} ± {error[row]:.0%}"
        for name, error in (("latency", predicted.latency_error), ("success", predicted.success_error))
        if error[row] > 0
    ]
    sure = f"; approximate: {', '.join(doubts)}" if doubts[0] else ""
    sure += "; from a sample of events, since no formula is known" if predicted.sampled[row] else ""
    tail = f"95 % of them within {p95:.3g} s and 99 % within {p99:.3g} s"
    return f"{arriving}, after {mean:.3g} s in the mean, {tail}{_deadline(scenario, predicted, row)}{sure}."


def _deadline(scenario: Scenario, predicted: Forecast, row: int) -> str:
    """How much comes in time of a subscription that asks for a share within a latency."""
    asked, limit = (
        float(column[row])
        for column in (scenario.subscriptions.max_latency_share, scenario.subscriptions.max_latency_seconds)
    )
    if asked <= 0:
        return ""
    got = float(predicted.share_within[row])
    met = "as asked for" if got >= asked else f"where {asked:.4g} is asked for"
    return f"; {got:.1%} within {limit:.6g} s, {met}"
