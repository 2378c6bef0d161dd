"""Why a plan treats one subscription as it does, and what that comes to, in words."""

from __future__ import annotations

import math

from triagemq.forecast.doubts import REASONS
from triagemq.forecast.forecast import forecast
from triagemq.forecast.model import Forecast
from triagemq.plan import Plan, explain, subscription_row
from triagemq.scenario import Scenario
from triagemq.theory import percentile

__all__ = ["explain_with_forecast"]


def explain_with_forecast(
    scenario: Scenario, plan: Plan, subscriber: str, topic: str, predicted: Forecast | None = None
) -> str:
    """What `plan.explain` says, and a line on what the subscription will get, how late it comes and how sure that is.

    That is `predicted`, or else what formulas say.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.scenario.generators import table2
    >>> scenario = table2(seed=1)
    >>> wanted = scenario.subscriptions
    >>> who, what = scenario.subscribers.name[wanted.subscriber[0]], scenario.topics.name[wanted.topic[0]]
    >>> explain_with_forecast(scenario, make_plan(scenario), who, what).splitlines()[-1].split(":")[0]
    'Forecast'
    """
    words = explain(scenario, plan, subscriber, topic)
    row = subscription_row(scenario, subscriber, topic)
    return f"{words}\nForecast: {_foreseen(predicted or forecast(scenario, plan), row)}"


def _foreseen(predicted: Forecast, row: int) -> str:
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
    return f"{arriving}, after {mean:.3g} s in the mean, {tail}{sure}."
