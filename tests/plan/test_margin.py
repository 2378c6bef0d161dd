"""Steps are planned a margin above their thresholds, so that counts that scatter reach them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from triagemq.lab.generators import table2
from triagemq.plan import demand, explain, make_plan
from triagemq.plan.demands import step_targets, success_needed, with_margin
from triagemq.scenario import Scenario, UtilityShape


def stepped(seed: int, *, seconds: float = 30.0, error_rate: float = 0.0) -> Scenario:
    """Overloaded, every subscription a step at a threshold of its own."""
    draw = np.random.default_rng(seed)
    full = table2(seed=seed, subscribers=3, subscriptions=(20, 10))
    wanted = full.subscriptions
    return replace(
        full,
        ports=replace(full.ports, bandwidth_bps=full.ports.bandwidth_bps * 0.15),
        subscribers=replace(full.subscribers, error_rate=np.full(3, error_rate)),
        planning=replace(full.planning, judged_over_seconds=seconds),
        subscriptions=replace(
            wanted,
            utility_shape=np.full(len(wanted), UtilityShape.STEP, dtype=np.int8),
            utility_threshold=draw.uniform(0.3, 0.95, len(wanted)).round(2),
        ),
    )


@pytest.mark.parametrize("events", [20, 300, 5000])
def test_nearly_every_period_reaches_the_threshold(events):
    threshold = np.linspace(0.05, 0.95, 91)
    chance = binom.sf(np.ceil(threshold * events) - 1, events, success_needed(threshold, events))
    assert chance.mean() == pytest.approx(0.95, abs=0.02)
    assert chance.min() > 0.85
    assert np.all(success_needed(threshold, events) > threshold)


def test_thresholds_that_are_planned_as_met_are_met_in_at_least_nine_of_ten_periods():
    chances, without = [], []
    for seed in range(2):
        scenario = stepped(seed)
        asked, threshold = demand(scenario), scenario.subscriptions.utility_threshold
        events = np.round(asked.published_rate * 30.0)
        plan = make_plan(scenario)
        success = asked.ideal_success * plan.subscription_keep
        dropped = (success < 1) & (success >= step_targets(scenario, asked) * (1 - 1e-9))
        chances += binom.sf(np.ceil(threshold * events) - 1, events, success)[dropped].tolist()
        without += binom.sf(np.ceil(threshold * events) - 1, events, threshold)[dropped].tolist()
    assert len(chances) > 10
    assert np.mean(chances) >= 0.9
    assert np.mean(without) < 0.6


def test_a_longer_period_needs_less_of_a_margin_and_other_shapes_none():
    short, long = (stepped(1, seconds=seconds) for seconds in (10.0, 10_000.0))
    threshold = short.subscriptions.utility_threshold
    margins = [step_targets(scenario, demand(scenario)) - threshold for scenario in (short, long)]
    assert (margins[0] > margins[1]).all()
    assert (margins[1] > 0).all()
    plain = table2(seed=1, subscribers=2, subscriptions=(5, 5))
    assert with_margin(plain, demand(plain)) is plain.subscriptions


def test_a_step_that_the_links_reach_only_sometimes_is_worth_its_share_of_the_periods():
    scenario = stepped(1, error_rate=0.1)
    wanted = scenario.subscriptions
    at_the_edge = replace(wanted, utility_threshold=np.full(len(wanted), 0.9))
    scenario = replace(scenario, subscriptions=at_the_edge)
    planned = with_margin(scenario, demand(scenario))
    np.testing.assert_allclose(planned.utility_threshold, 0.9)
    beyond = replace(wanted, utility_threshold=np.full(len(wanted), 0.899))
    scenario = replace(scenario, subscriptions=beyond)
    planned = with_margin(scenario, demand(scenario))
    np.testing.assert_allclose(planned.utility_threshold, 0.9)
    assert (planned.utility_weight < wanted.utility_weight * 0.7).all()
    assert (planned.utility_weight > wanted.utility_weight * 0.5).all()


def test_explain_says_what_a_step_is_planned_for():
    scenario = stepped(1)
    wanted = scenario.subscriptions
    who, what = scenario.subscribers.name[wanted.subscriber[0]], scenario.topics.name[wanted.topic[0]]
    target = step_targets(scenario, demand(scenario))[0]
    assert f"planned for {target:.4g}, so that nearly every period of 30 s" in explain(
        scenario, make_plan(scenario), who, what
    )


def test_steps_that_still_fit_are_kept_when_rates_waver():
    moved, moved_anew = 0, 0
    scenario, draw = stepped(3), np.random.default_rng(3)
    plan = anew = make_plan(scenario)
    now = scenario
    for _ in range(3):
        rate = scenario.publications.rate_per_second
        rate = rate * (1 + draw.choice([-0.01, 0.01], len(rate)))
        wavered = replace(scenario, publications=replace(scenario.publications, rate_per_second=rate))
        after, fresh = make_plan(wavered, previous=plan, before=now), make_plan(wavered)
        moved += int((np.abs(after.subscription_keep - plan.subscription_keep) > 0.1).sum())
        moved_anew += int((np.abs(fresh.subscription_keep - anew.subscription_keep) > 0.1).sum())
        plan, now, anew = after, wavered, fresh
    assert moved < moved_anew / 2
