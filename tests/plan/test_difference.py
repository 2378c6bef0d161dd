"""Plans after plans: what has hardly changed stays where it is, what has changed moves, small steps add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.errors import PlanError
from triagemq.lab.generators import table2
from triagemq.plan import make_plan
from triagemq.plan.difference import RANK_BAND, carry
from triagemq.scenario import Scenario
from triagemq.scenario.model import take


def at_rates(scenario: Scenario, factors: np.ndarray) -> Scenario:
    """The scenario with the rate of every publication times a factor."""
    published = scenario.publications
    return replace(
        scenario, publications=replace(published, rate_per_second=published.rate_per_second * factors)
    )


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Overloaded, and with neighbours in rank: half of the topics are of the same rate and size as another."""
    full = table2(seed=4, subscribers=3, subscriptions=(30, 20))
    published = full.publications
    half = len(published) // 2
    rate, size = published.rate_per_second.copy(), published.size_bytes.copy()
    rate[half : 2 * half], size[half : 2 * half] = rate[:half], size[:half]
    ports = replace(full.ports, bandwidth_bps=full.ports.bandwidth_bps * 0.2)
    return replace(full, ports=ports, publications=replace(published, rate_per_second=rate, size_bytes=size))


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6), priorities=st.sampled_from(["greedy", "cluster"]))
def test_rates_that_waver_by_one_per_cent_never_change_a_class(scenario, seed, priorities):
    draw = np.random.default_rng(seed)
    plan, now = make_plan(scenario, priorities=priorities), scenario
    first, flipped = plan, 0
    for _ in range(12):
        wavered = at_rates(scenario, 1 + draw.choice([-0.01, 0.01], len(scenario.publications)))
        plan, now = make_plan(wavered, priorities=priorities, previous=plan, before=now), wavered
        np.testing.assert_array_equal(plan.flow, first.flow)
        np.testing.assert_array_equal(plan.subscription_class, first.subscription_class)
        np.testing.assert_allclose(plan.subscription_keep, first.subscription_keep, atol=0.1)
        flipped += int((make_plan(wavered, priorities=priorities).flow != first.flow).sum())
    # Without the plan before, the same rates move subscriptions to and fro.
    assert flipped > 0


def test_a_rate_that_changes_much_changes_flows_and_classes(scenario):
    plan = make_plan(scenario)
    factors = np.where(np.arange(len(scenario.publications)) % 2, 3.0, 1.0)
    changed = at_rates(scenario, factors)
    after = make_plan(changed, previous=plan, before=scenario)
    assert (after.subscription_class != plan.subscription_class).any()
    np.testing.assert_array_equal(after.flow, make_plan(changed).flow)


def test_small_steps_add_up(scenario):
    plan, now = make_plan(scenario), scenario
    for step in range(1, 31):
        crept = at_rates(scenario, np.where(np.arange(len(scenario.publications)) % 2, 1.01**step, 1.0))
        plan, now = make_plan(crept, previous=plan, before=now), crept
    np.testing.assert_allclose(plan.rank, make_plan(now).rank, rtol=RANK_BAND / (1 - RANK_BAND))


def test_whoever_is_new_is_ranked_by_what_is_known_now(scenario):
    there = np.arange(0, len(scenario.subscriptions), 2)
    fewer = replace(scenario, subscriptions=take(scenario.subscriptions, there))
    carried = carry(make_plan(fewer), fewer, scenario)
    assert np.isfinite(carried.rank[there]).all()
    assert np.isnan(np.delete(carried.rank, there)).all()
    plan = make_plan(scenario, previous=make_plan(fewer), before=fewer)
    np.testing.assert_array_equal(plan.rank, make_plan(scenario).rank)


def test_an_earlier_plan_without_its_scenario_is_refused(scenario):
    other = at_rates(scenario, np.full(len(scenario.publications), 2.0))
    with pytest.raises(PlanError, match="another scenario"):
        make_plan(scenario, previous=make_plan(other))
