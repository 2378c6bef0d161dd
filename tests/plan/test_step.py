"""Step utilities: how near the search comes to the best, and what it promises in any case."""

from __future__ import annotations

import numpy as np
import pytest

from triagemq.plan.drops import DROP_POLICIES
from triagemq.plan.drops.problem import one_port
from triagemq.plan.drops.waterfilling import fill_ports
from triagemq.plan.drops.worth import concave_flows
from triagemq.scenario import UtilityShape

optimal, flat = DROP_POLICIES["optimal"], DROP_POLICIES["flat"]

STEP, LOG, LINEAR = UtilityShape.STEP, UtilityShape.LOG, UtilityShape.LINEAR
MIXES = [(STEP,), (STEP, LOG), (STEP, LINEAR), (STEP, STEP, LOG, LINEAR)]


@pytest.mark.parametrize("shapes", MIXES)
def test_search_is_near_brute_force_and_below_the_bound(shapes, random_problem, brute_force):
    reached = []
    for seed in range(60):
        problem = random_problem(
            seed, flows=2 + seed % 6, ports=1 + seed % 2, shapes=shapes, subscriptions_per_flow=2
        )
        result = optimal(problem)
        if result.bound is None:  # no step was drawn
            continue
        best = brute_force(problem)
        value = problem.utility(result.drop_rate)
        assert value >= 0.9 * best
        assert best <= result.bound * (1 + 1e-9)
        assert value <= result.bound
        reached.append(value / best if best > 0 else 1.0)
    assert np.mean(reached) > 0.999


def test_search_is_never_worse_than_ignoring_steps_or_dropping_evenly(random_problem):
    for seed in range(40):
        problem = random_problem(seed, flows=30 + seed, ports=1 + seed % 4, shapes=(STEP, LOG))
        result = optimal(problem)
        value = problem.utility(result.drop_rate)
        blind, _ = fill_ports(
            concave_flows(problem), problem.ports_by_depth(), problem.port_capacity_bytes_per_second
        )
        assert value >= problem.utility(1 - blind) * (1 - 1e-12)
        assert value >= problem.utility(flat(problem).drop_rate) * (1 - 1e-12)
        assert result.bound is not None
        assert value <= result.bound


def test_large_ports_come_within_a_few_percent_of_the_bound(random_problem):
    for seed in range(4):
        problem = random_problem(seed, flows=300, ports=2, shapes=(STEP, LOG), tree=False)
        result = optimal(problem)
        assert result.bound is not None
        assert problem.utility(result.drop_rate) > 0.97 * result.bound


def test_leftover_capacity_is_given_out(random_problem):
    for seed in range(30):
        problem = random_problem(seed, ports=2, flows=12, shapes=(STEP,), tree=False)
        loads = problem.port_loads(1 - optimal(problem).drop_rate)
        capacity = problem.port_capacity_bytes_per_second
        exceeded = problem.port_loads() > capacity
        np.testing.assert_allclose(loads[exceeded], capacity[exceeded], rtol=1e-12)


def test_a_threshold_that_the_links_cannot_reach_gets_nothing():
    problem = one_port(loads=[50.0, 50.0], capacity=50.0, shape="step", threshold=1.2)
    assert optimal(problem).bound == 0.0


def test_the_bound_is_told():
    result = optimal(one_port(loads=[60.0, 60.0], capacity=100.0, shape="step", threshold=1.0))
    told = [decision for decision in result.decisions if decision.kind == "utility_bound"]
    assert len(told) == 1
    assert "60.00% of it" in told[0].reason  # 1 of 1 + 40/60


def test_two_small_steps_are_preferred_to_one_that_is_denser_but_blocks_both():
    problem = one_port(
        loads=[60.0, 50.0, 50.0], capacity=100.0, weights=[1.3, 1.0, 1.0], shape="step", threshold=1.0
    )
    np.testing.assert_allclose(optimal(problem).drop_rate, [1.0, 0.0, 0.0], atol=1e-12)
