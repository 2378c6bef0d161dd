"""The aggregates of a forecast, and that they hold together."""

from __future__ import annotations

import json

import numpy as np
import pytest

from triagemq.errors import PlanError
from triagemq.forecast import REASONS, Reason, forecast, subscription_rows, summary
from triagemq.lab.generators import table2
from triagemq.plan import make_plan


def test_class_success_and_latency_are_weighted_by_rates() -> None:
    scenario = table2(seed=3)
    plan = make_plan(scenario, drops="exponential")
    predicted = forecast(scenario, plan, formulas=True)
    result = summary(scenario, plan, predicted)
    for row in result["classes"]:
        members = plan.subscription_class == row["priority_class"]
        received = predicted.received_rate[members]
        assert row["success_rate"] == pytest.approx(received.sum() / predicted.published_rate[members].sum())
        assert row["mean_latency_seconds"] == pytest.approx(
            np.average(predicted.latency_seconds[members], weights=received)
        )
    assert sum(row["subscriptions"] for row in result["classes"]) == len(scenario.subscriptions)
    assert sum(row["flows"] for row in result["classes"]) == len(plan.flows)


def test_unknown_and_infinite_figures_are_null_in_json() -> None:
    scenario = table2(seed=3)
    plan = make_plan(scenario, drops="none")
    result = summary(scenario, plan, forecast(scenario, plan, formulas=True))
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["classes"][-1]["mean_latency_seconds"] is None
    assert result["classes"][0]["mean_latency_seconds"] is not None


def test_rows_name_every_subscription() -> None:
    scenario = table2(seed=3, subscribers=2)
    plan = make_plan(scenario)
    rows = subscription_rows(scenario, plan, forecast(scenario, plan, formulas=True))
    assert len({(row["subscriber"], row["topic"]) for row in rows}) == len(scenario.subscriptions)


def test_what_is_approximate_is_flagged_with_a_reason_and_an_error_and_nothing_else_is() -> None:
    scenario = table2(seed=3, buffer_packets=20.0)
    plan = make_plan(scenario, drops="none")
    predicted = forecast(scenario, plan, formulas=True)
    flagged = predicted.reason > 0
    assert flagged.any()
    assert not flagged.all()
    assert (predicted.latency_error[~flagged] == 0).all()
    assert (predicted.success_error[~flagged] == 0).all()
    rows = subscription_rows(scenario, plan, predicted)
    assert [row["flag"] is not None for row in rows] == flagged.tolist()
    classes = summary(scenario, plan, predicted)["classes"]
    assert sum(row["flagged"] for row in classes) == flagged.sum()
    assert {None, REASONS[Reason.BUFFER]} <= {row["flag"] for row in classes}
    without = forecast(table2(seed=3), make_plan(table2(seed=3)), formulas=True)
    assert not without.reason.any()


def test_a_plan_for_another_scenario_is_refused() -> None:
    with pytest.raises(PlanError, match="another scenario"):
        forecast(table2(seed=1), make_plan(table2(seed=2)), formulas=True)


@pytest.mark.parametrize("seed", range(20))
def test_achieved_utility_orders_the_policies_as_firedex_does(seed: int) -> None:
    """FireDeX 5.4: random < none < info < greedy with buffer drops; optimal above the other drop policies."""
    scenario = table2(seed=seed, buffer_packets=2000)

    def rate(priorities: str, drops: str) -> float:
        plan = make_plan(scenario, priorities=priorities, drops=drops, seed=seed)
        result = summary(scenario, plan, forecast(scenario, plan, formulas=True))
        return float(result["utility"]["rate"])

    by_priorities = [rate(each, "none") for each in ("random", "none", "info", "greedy")]
    assert by_priorities == sorted(by_priorities)
    assert all(rate("greedy", "optimal") > rate("greedy", each) for each in ("flat", "linear", "exponential"))
