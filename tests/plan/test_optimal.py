"""The optimal drop rates against a general convex solver, at their edges, and at scale; of step utilities, how near the
search comes to the best, and what it promises in any case."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from triagemq.plan.drops import DROP_POLICIES, DropProblem
from triagemq.plan.drops.problem import one_port, subscription_columns
from triagemq.plan.drops.waterfilling import concave_flows, fill_ports
from triagemq.scenario import UtilityShape

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import cvxpy

optimal, flat = DROP_POLICIES["optimal"], DROP_POLICIES["flat"]

STEP, LOG, LINEAR = UtilityShape.STEP, UtilityShape.LOG, UtilityShape.LINEAR
MIXES = [(STEP,), (STEP, LOG), (STEP, LINEAR), (STEP, STEP, LOG, LINEAR)]


def oracle(problem: DropProblem, crossing) -> float:
    """The same problem as anyone would write it down, solved by an interior-point method."""
    floor = np.zeros(len(problem.flow_class)) if problem.flow_floor is None else problem.flow_floor
    more = cvxpy.Variable(len(floor))
    keep = floor + more
    wanted, success = problem.subscriptions, problem.subscription_success
    worth = wanted.utility_weight * problem.subscription_freshness
    utility = 0
    logarithmic = wanted.utility_shape == UtilityShape.LOG
    if logarithmic.any():
        share = keep[problem.subscription_flow[logarithmic]]
        utility += worth[logarithmic] @ cvxpy.log1p(cvxpy.multiply(success[logarithmic], share))
    if (~logarithmic).any():
        utility += (worth * success)[~logarithmic] @ keep[problem.subscription_flow[~logarithmic]]
    loads = crossing(problem) * problem.flow_load_bytes_per_second
    relative = loads / problem.port_capacity_bytes_per_second[:, None]
    fits = [relative @ more <= 1 - relative @ floor, more >= 0, more <= 1 - floor]
    task = cvxpy.Problem(cvxpy.Maximize(utility / worth.sum()), fits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-9, max_step_fraction=0.9)
    return float(task.value * worth.sum())


@pytest.mark.parametrize("chunk", range(10))
def test_optimal_reaches_the_convex_solvers_objective_within_every_capacity(chunk, random_problem, crossing):
    for seed in range(25 * chunk, 25 * chunk + 25):
        problem = random_problem(seed, ties=seed % 4 == 0)
        drop_rate = optimal(problem).drop_rate
        best = oracle(problem, crossing)
        assert problem.utility(drop_rate) == pytest.approx(best, rel=1e-6), seed
        # The oracle may be inexact by its tolerance; ours may not be beaten by more than that.
        assert problem.utility(drop_rate) >= best * (1 - 1e-7), seed
        loads, capacity = problem.port_loads(1 - drop_rate), problem.port_capacity_bytes_per_second
        assert (loads <= capacity * (1 + 1e-12)).all(), seed


@pytest.mark.parametrize("chunk", range(8))
def test_with_minima_optimal_reaches_the_convex_solvers_objective(chunk, with_floors, crossing):
    for seed in range(25 * chunk, 25 * chunk + 25):
        problem = with_floors(seed, ties=seed % 4 == 0)
        drop_rate = optimal(problem).drop_rate
        assert (1 - drop_rate >= problem.flow_floor - 1e-15).all(), seed
        best = oracle(problem, crossing)
        assert problem.utility(drop_rate) == pytest.approx(best, rel=1e-6), seed
        assert problem.utility(drop_rate) >= best * (1 - 1e-7), seed
        loads, capacity = problem.port_loads(1 - drop_rate), problem.port_capacity_bytes_per_second
        assert (loads <= capacity * (1 + 1e-12)).all(), seed


def test_exceeded_ports_are_filled_exactly(random_problem):
    for seed in range(60):
        problem = random_problem(seed, tree=False, ties=seed % 3 == 0)
        drop_rate = optimal(problem).drop_rate
        capacity = problem.port_capacity_bytes_per_second
        exceeded = problem.port_loads() > capacity
        loads = problem.port_loads(1 - drop_rate)
        np.testing.assert_allclose(loads[exceeded], capacity[exceeded], rtol=1e-12)
        untouched = ~exceeded[problem.flow_ports[:, 0]]
        assert (drop_rate[untouched] == 0).all()


def test_the_price_of_a_byte_is_what_the_last_byte_of_every_partly_kept_flow_is_worth(random_problem):
    for seed in range(40):
        problem = random_problem(seed, tree=False, shapes=(UtilityShape.LOG,))
        flows = concave_flows(problem)
        keep, price = fill_ports(flows, problem.ports_by_depth(), problem.port_capacity_bytes_per_second)
        for flow in range(len(keep)):
            paid = price[problem.flow_ports[flow, 0]]
            if flows.load[flow] == 0 or np.isnan(paid):
                assert keep[flow] == 1
                continue
            terms = slice(flows.log_start[flow], flows.log_start[flow + 1])
            slope = flows.log_gain[terms] / (1 + flows.log_rate[terms] * keep[flow])
            worth = slope.sum() / flows.load[flow]
            if 0 < keep[flow] < 1:
                assert worth == pytest.approx(paid, rel=1e-9)
            else:
                assert (worth >= paid * (1 - 1e-9)) if keep[flow] == 1 else (worth <= paid * (1 + 1e-9))


def test_tied_linear_flows_are_filled_in_order_and_one_in_part():
    problem = one_port(loads=[40.0] * 4, capacity=100.0, shape="linear")
    np.testing.assert_allclose(optimal(problem).drop_rate, [0.0, 0.0, 0.5, 1.0], atol=1e-14)


def test_a_dearer_linear_flow_goes_before_an_earlier_one():
    problem = one_port(loads=[40.0] * 3, capacity=60.0, weights=[1.0, 3.0, 2.0], shape="linear")
    np.testing.assert_allclose(optimal(problem).drop_rate, [1.0, 0.0, 0.5], atol=1e-14)


def test_flows_without_load_are_kept_whole_and_worthless_ones_get_what_is_left():
    problem = one_port(loads=[0.0, 60.0, 60.0], capacity=80.0, weights=[1.0, 0.0, 1.0], shape="linear")
    np.testing.assert_allclose(optimal(problem).drop_rate, [0.0, 2 / 3, 0.0], atol=1e-14)


def test_worth_that_is_all_zero_still_fills_the_port():
    problem = one_port(loads=[60.0, 60.0], capacity=80.0, weights=[0.0, 0.0])
    assert problem.port_loads(1 - optimal(problem).drop_rate)[0] == pytest.approx(80, rel=1e-14)


def test_freshness_lowers_what_a_flow_keeps():
    problem = one_port(loads=[100.0, 100.0], capacity=120.0)
    stale = replace(problem, subscription_freshness=np.array([0.8, 1.0]))
    before, after = optimal(problem).drop_rate, optimal(stale).drop_rate
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_scales_that_differ_by_many_orders_of_magnitude_still_meet_the_capacity():
    draw = np.random.default_rng(0)
    for _ in range(50):
        loads, weights = 10 ** draw.uniform(-3, 9, 40), 10 ** draw.uniform(-12, 12, 40)
        capacity = float(loads.sum() * draw.uniform(0.01, 0.99))
        for shape in ("log", "linear"):
            problem = one_port(loads=loads.tolist(), capacity=capacity, weights=weights.tolist(), shape=shape)
            load = problem.port_loads(1 - optimal(problem).drop_rate)[0]
            assert load == pytest.approx(capacity, rel=1e-12)


def test_ninety_thousand_flows_of_a_million_subscriptions_fit_their_ports():
    draw = np.random.default_rng(0)
    ports, flows, count = 1_000, 90_000, 1_000_000
    owner = np.concatenate([np.arange(flows), draw.integers(0, flows, count - flows)]).astype(np.int32)
    load = np.bincount(owner, draw.lognormal(5, 1, count), minlength=flows)
    port = np.repeat(np.arange(ports, dtype=np.int32), flows // ports)
    problem = DropProblem(
        flow_load_bytes_per_second=load,
        flow_class=np.zeros(flows, dtype=np.int32),
        flow_ports=port[:, None],
        port_names=tuple(map(str, range(ports))),
        port_capacity_bytes_per_second=np.bincount(port, load) * draw.uniform(0.2, 1.1, ports),
        subscription_flow=owner,
        subscription_success=draw.uniform(0.5, 1, count),
        subscription_freshness=np.ones(count),
        subscriptions=subscription_columns(weight=draw.lognormal(0, 1, count)),
    )
    loads = problem.port_loads(1.0 - optimal(problem).drop_rate)
    assert (loads <= problem.port_capacity_bytes_per_second * (1 + 1e-12)).all()


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
