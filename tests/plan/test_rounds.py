"""Plans made from forecasts: what ages goes first, nothing gets worse, and who pays no age pays no round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from triagemq.forecast import Forecast, forecast
from triagemq.lab.generators import table2
from triagemq.plan import Plan, explain, make_plan, rounds
from triagemq.scenario import Scenario
from triagemq.simulate import simulate


def aging(seed: int) -> Scenario:
    """Table 2, small, of which two thirds lose worth by waiting, each at a pace of its own."""
    draw = np.random.default_rng(seed)
    plain = table2(seed=seed, subscribers=4, subscriptions=(20, 10))
    offered = make_plan(plain, drops="none").ports.rho_offered.mean()
    width = plain.ports.bandwidth_bps * offered / draw.uniform(0.5, 2.0)
    scenario = replace(plain, ports=replace(plain.ports, bandwidth_bps=width))
    usual = np.nanmean(forecast(scenario, make_plan(scenario), formulas=True).latency_seconds)
    freshness = usual * draw.lognormal(0.5, 1.0, len(plain.subscriptions))
    freshness[draw.random(len(freshness)) < 1 / 3] = np.inf
    return replace(scenario, subscriptions=replace(plain.subscriptions, freshness_seconds=freshness))


def utility(scenario: Scenario, plan: Plan) -> float:
    return float(forecast(scenario, plan, formulas=True).utility.sum())


def test_planning_by_the_forecast_gains_and_is_never_worse_than_the_first_plan() -> None:
    gains = []
    for seed in range(8):
        scenario = aging(seed)
        gains.append(utility(scenario, rounds.plan(scenario)) / utility(scenario, make_plan(scenario)) - 1)
    assert min(gains) >= 0.0
    assert np.mean(gains) > 0.01


def test_what_is_gained_by_the_forecast_is_gained_in_simulation() -> None:
    """The quick form of benchmarks/plan_quality.py: the same random numbers for both plans."""
    gains = []
    for seed in (1, 4):
        scenario = aging(seed)
        first, ahead = (
            simulate(scenario, plan, publications=20_000, seed=seed, threads=1).as_json()["utility"][
                "achieved"
            ]
            for plan in (make_plan(scenario), rounds.plan(scenario))
        )
        gains.append(ahead / first - 1)
    assert np.mean(gains) > 0.0


def test_what_loses_worth_by_waiting_goes_before_what_does_not() -> None:
    scenario = aging(1)
    plan = rounds.plan(scenario)
    ages = np.isfinite(scenario.subscriptions.freshness_seconds)
    assert plan.latency is not None
    assert plan.subscription_class[ages].mean() < plan.subscription_class[~ages].mean()
    first = make_plan(scenario)
    assert plan.subscription_class[ages].mean() < first.subscription_class[ages].mean()


def test_where_nothing_ages_there_is_one_plan_and_no_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "forecast", lambda *_: pytest.fail("nothing to forecast for"))
    scenario = table2(seed=1, subscribers=2, subscriptions=(5, 5))
    plan, plain = rounds.plan(scenario, priorities="cluster"), make_plan(scenario, priorities="cluster")
    assert (plan.subscription_class == plain.subscription_class).all()
    assert plan.decisions == plain.decisions


def test_rounds_and_gain_are_explained() -> None:
    scenario = aging(1)
    wanted = scenario.subscriptions
    who, what = (
        scenario.subscribers.name[wanted.subscriber[0]],
        scenario.topics.name[wanted.topic[0]],
    )
    words = explain(scenario, rounds.plan(scenario), who, what)
    assert "planned again" in words
    assert "gains" in words
    assert "as the most urgent" in words


def test_the_first_plan_stays_where_another_would_gain_next_to_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = aging(1)
    monkeypatch.setattr(rounds, "LEAST_GAIN", 10.0)
    kept = rounds.plan(scenario)
    assert kept.latency is None
    assert (kept.flows.drop_rate == make_plan(scenario).flows.drop_rate).all()
    assert "too little for a change" in kept.decisions[-1].reason


def test_what_is_left_out_keeps_the_factor_that_was_known_of_it() -> None:
    scenario = aging(2)
    plan = make_plan(scenario)
    drop_rate = plan.flows.drop_rate.copy()
    drop_rate[0] = 1.0
    silent = plan.flow == 0
    predicted = forecast(
        scenario, replace(plan, flows=replace(plan.flows, drop_rate=drop_rate)), formulas=True
    )
    at_first = rounds.latency_factors(scenario, predicted)
    assert (at_first.factor[silent] == 1.0).all()
    assert (at_first.urgency[silent] == 0.0).all()
    known = rounds.latency_factors(
        scenario,
        forecast(
            scenario, replace(plan, flows=replace(plan.flows, drop_rate=0.5 + 0 * drop_rate)), formulas=True
        ),
    )
    again = rounds.latency_factors(scenario, predicted, known)
    np.testing.assert_array_equal(again.factor[silent], known.factor[silent])
    np.testing.assert_array_equal(again.urgency[silent], known.urgency[silent])


def at_rates(scenario: Scenario, factor: float) -> Scenario:
    rate = scenario.publications.rate_per_second * factor
    return replace(scenario, publications=replace(scenario.publications, rate_per_second=rate))


def test_rates_that_waver_do_not_change_the_classes_of_a_plan_made_by_forecast() -> None:
    scenario = aging(1)
    plan, now = rounds.plan(scenario), scenario
    assert plan.latency is not None
    first = plan
    for step in range(6):
        wavered = at_rates(scenario, 0.99 if step % 2 else 1.01)
        plan, now = rounds.plan(wavered, previous=plan, before=now), wavered
        np.testing.assert_array_equal(plan.subscription_class, first.subscription_class)
    assert "the plan before stays" in plan.decisions[-1].reason
    same = rounds.plan(now, previous=plan, before=now)
    np.testing.assert_array_equal(same.flows.drop_rate, plan.flows.drop_rate)


def test_a_plan_made_by_forecast_is_given_up_when_another_is_worth_more() -> None:
    scenario = aging(1)
    slack = scenario.subscriptions.freshness_seconds
    urgent = replace(scenario, subscriptions=replace(scenario.subscriptions, freshness_seconds=slack[::-1]))
    after = rounds.plan(urgent, previous=rounds.plan(scenario), before=scenario)
    assert utility(urgent, after) == pytest.approx(utility(urgent, rounds.plan(urgent)), rel=0.01)


def test_a_gain_that_stated_errors_may_undo_changes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, first = aging(1), make_plan(aging(1))

    def less_sure_of_the_first(scenario: Scenario, plan: Plan, **_: Any) -> Forecast:
        predicted = forecast(scenario, plan, formulas=True)
        error = 0.4 if (plan.flow == first.flow).all() else 0.0
        return replace(predicted, latency_error=np.full(len(predicted.success), error))

    assert rounds.plan(scenario).latency is not None
    monkeypatch.setattr(rounds, "forecast", less_sure_of_the_first)
    plan = rounds.plan(scenario)
    assert plan.flow.tolist() == first.flow.tolist()
    assert "stated errors" in plan.decisions[-1].reason


def test_a_forecast_that_may_be_off_by_a_factor_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = aging(1)

    def doubtful(scenario: Scenario, plan: Plan, **_: Any) -> Forecast:
        predicted = forecast(scenario, plan, formulas=True)
        return replace(predicted, latency_error=np.full(len(predicted.success), 0.6))

    monkeypatch.setattr(rounds, "forecast", doubtful)
    plan = rounds.plan(scenario)
    assert [each.kind for each in plan.decisions][-1] == "not_planned_by_forecast"
    assert plan.flow.tolist() == make_plan(scenario).flow.tolist()
