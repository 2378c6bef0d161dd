"""Minimum shares: held by every policy whenever they fit together, else reduced in the order of the roles, and said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.cli.terminal import print_starved
from triagemq.forecast import starved
from triagemq.plan import make_plan
from triagemq.plan.demands import demand, minimum_shares
from triagemq.plan.drops import DROP_POLICIES, DropProblem, DropResult
from triagemq.plan.drops.minima import fitting_minima, with_minima
from triagemq.plan.drops.optimal import optimal
from triagemq.plan.drops.problem import one_port
from triagemq.plan.explaining import explain
from triagemq.scenario import Scenario, UtilityShape, loads

POLICIES = ("flat", "linear", "exponential", "optimal")
STEPS = (UtilityShape.STEP, UtilityShape.LOG, UtilityShape.LINEAR)

EXACT = 1e-12
"""What sums of many loads leave of a port."""


def kept(policy: str, problem: DropProblem) -> np.ndarray:
    """The share of each flow that a policy keeps, as planners call it."""
    if policy == "optimal":
        return 1 - optimal(problem).drop_rate
    return 1 - with_minima(DROP_POLICIES[policy], problem).drop_rate


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**31), policy=st.sampled_from(POLICIES), steps=st.booleans())
def test_minima_hold_whenever_they_fit_together(random_problem, seed: int, policy: str, steps: bool) -> None:
    shapes = STEPS if steps else (UtilityShape.LOG, UtilityShape.LINEAR)
    problem = random_problem(seed, shapes=shapes, flows=int(seed % 40) + 1)
    draw = np.random.default_rng(seed)
    subscriptions = len(problem.subscription_flow)
    share = np.where(draw.random(subscriptions) < 0.5, draw.random(subscriptions) ** 2, 0.0)
    rank = draw.integers(0, 3, subscriptions).astype(np.float64)
    floor, reduced = fitting_minima(problem, share, rank)
    if floor is None:
        return
    capacity = problem.port_capacity_bytes_per_second
    assert (problem.port_loads(floor) <= capacity * (1 + EXACT)).all()
    success = problem.subscription_success
    wanted = np.minimum(np.divide(share, success, out=np.zeros_like(share), where=success > 0), 1)
    if not reduced:
        assert (floor[problem.subscription_flow] >= wanted * (1 - EXACT)).all()
    keep = kept(policy, replace(problem, flow_floor=floor))
    assert (keep >= floor * (1 - EXACT) - EXACT).all()
    assert (problem.port_loads(keep) <= capacity * (1 + 1e-11)).all()


@pytest.mark.parametrize("policy", ["flat", "linear", "exponential"])
def test_a_rule_by_class_holds_for_all_that_no_minimum_lifts(random_problem, policy: str) -> None:
    for seed in range(30):
        problem = random_problem(seed, tree=False, ports=1, flows=30)
        draw = np.random.default_rng(seed)
        floor = draw.random(30) * draw.integers(0, 2, 30)
        floor *= min(1, 0.9 * problem.port_capacity_bytes_per_second[0] / problem.port_loads(floor)[0])
        keep = kept(policy, replace(problem, flow_floor=floor))
        free = keep > floor * (1 + 1e-9)
        # One parameter for all of them: flows of a class keep the same, and a lifted one would keep less.
        for each in np.unique(problem.flow_class):
            own = (problem.flow_class == each) & (problem.flow_load_bytes_per_second > 0)
            if (own & free).any():
                assert np.ptp(keep[own & free]) < 1e-9
                assert (keep[own & ~free] >= keep[own & free].max() - 1e-9).all()
        if problem.port_loads()[0] > problem.port_capacity_bytes_per_second[0]:
            assert problem.port_loads(keep)[0] == pytest.approx(
                problem.port_capacity_bytes_per_second[0], rel=1e-9
            )


def test_steps_with_minima_stay_below_their_bound_and_above_the_flat_rule(random_problem) -> None:
    for seed in range(40):
        problem = random_problem(seed, shapes=STEPS, flows=25)
        share = np.random.default_rng(seed).random(len(problem.subscription_flow)) ** 4
        floor, _ = fitting_minima(problem, share, np.zeros(len(share)))
        bounded = replace(problem, flow_floor=floor)
        found = optimal(bounded)
        assert found.bound is None or problem.utility(found.drop_rate) <= found.bound * (1 + 1e-9)
        flat = with_minima(DROP_POLICIES["flat"], bounded)
        assert problem.utility(found.drop_rate) >= problem.utility(flat.drop_rate) * (1 - 1e-9)


def test_minima_that_do_not_fit_are_reduced_from_the_last_role_on() -> None:
    problem = one_port(loads=[100.0] * 4, capacity=150.0)
    floor, reduced = fitting_minima(problem, np.array([0.8, 0.5, 0.5, 0.5]), np.array([0.0, 1.0, 1.0, 2.0]))
    np.testing.assert_allclose(floor, [0.8, 0.35, 0.35, 0.0], atol=1e-12)
    assert [each.rank for each in reduced] == [1.0, 2.0]
    np.testing.assert_allclose([each.left for each in reduced], [70, 0], atol=1e-9)


def test_a_policy_of_the_users_own_keeps_minima_too() -> None:
    def last_first(problem: DropProblem) -> DropResult:
        left = float(problem.port_capacity_bytes_per_second[0])
        drop = np.ones(len(problem.flow_class))
        for flow, load in enumerate(problem.flow_load_bytes_per_second):
            drop[flow] = 1 - min(1.0, left / load) if load else 0.0
            left -= load * (1 - drop[flow])
        return DropResult(drop)

    problem = replace(one_port(loads=[100.0] * 3, capacity=150.0), flow_floor=np.array([0.0, 0.0, 0.25]))
    np.testing.assert_allclose(with_minima(last_first, problem).drop_rate, [0.0, 0.75, 0.75])


FIRE = """
brokers: {{hall: }}
switches: {{core: }}
ports: {{radio: {{switch: core, bandwidth_bps: 16000}}}}
publishers:
  room:
    publishes:
      smoke: {{rate_per_second: 10, size_bytes: 100, sizes: constant}}
      video: {{rate_per_second: 40, size_bytes: 100, sizes: constant, arrivals: periodic}}
      notes: {{rate_per_second: 10, size_bytes: 100, sizes: constant}}
subscribers:
  chief: {{port: radio, subscribes: {{smoke: log:1000}}}}
  clerk: {{port: radio, subscribes: {{video: {{utility: log:1{video}}}, notes: {{utility: log:0.001{notes}}}}}}}
"""


@pytest.fixture(scope="module")
def fire() -> Callable[..., Scenario]:
    def make(video: str = "", notes: str = "") -> Scenario:
        return loads(FIRE.format(video=video, notes=notes))

    return make


def row(scenario: Scenario, topic: str) -> int:
    return int(scenario.subscriptions.topic.tolist().index(scenario.topics.name.index(topic)))


@pytest.mark.parametrize("drops", POLICIES)
def test_a_worthless_topic_gets_its_minimum_on_an_overloaded_port(fire, drops: str) -> None:
    scenario = fire(notes=", min_share: 0.3")
    plan = make_plan(scenario, drops=drops)
    assert plan.subscription_keep[row(scenario, "notes")] >= 0.3 - 1e-9
    assert plan.ports.rho_planned.max() <= 0.9 + 1e-9


def test_one_event_in_max_separation_is_a_minimum(fire) -> None:
    scenario = fire(notes=", max_separation_seconds: 0.5")
    assert minimum_shares(scenario, demand(scenario))[row(scenario, "notes")] == pytest.approx(0.2)
    assert make_plan(scenario).subscription_keep[row(scenario, "notes")] >= 0.2 - 1e-9


def test_what_is_thinned_costs_no_bandwidth(fire) -> None:
    before, after = (make_plan(each) for each in (fire(), fire(video=", max_rate_per_second: 5")))
    # 40 a second at even times become 5, and then everything fits.
    assert before.ports.rho_offered[0] - after.ports.rho_offered[0] == pytest.approx(35 * 800 / 16000)
    assert (after.subscription_keep < 1).sum() < (before.subscription_keep < 1).sum()


def test_a_plan_says_who_lost_how_much_of_which_minimum(fire, capsys) -> None:
    scenario = fire(video=", min_share: 0.5, role_rank: 1", notes=", min_share: 1")
    plan = make_plan(scenario)
    (decision,) = [each for each in plan.decisions if each.kind == "minima_reduced"]
    assert decision.subject == "radio"
    assert "rank 1: 40.00% of each is left for clerk video" in decision.reason
    assert plan.subscription_keep[row(scenario, "notes")] == pytest.approx(1)
    assert decision.reason in explain(scenario, plan, "clerk", "video")
    (short,) = [each for each in starved(scenario, plan) if each["min_share"] > 0]
    assert (short["subscriber"], short["topic"], round(short["share"], 9)) == ("clerk", "video", 0.2)
    assert "the minima of rank 1 do not fit" in short["reason"]
    print_starved([short])
    printed = capsys.readouterr().out
    assert printed.startswith("1 subscription gets less than the minimum; port radio is offered 3.0 times")
    assert "\n  clerk: video (20.0% of 50.0%)\n" in printed


def test_who_gets_less_than_the_minimum_because_of_the_links_is_named(fire) -> None:
    text = FIRE.format(video="", notes=", min_share: 1").replace("clerk: {", "clerk: {error_rate: 0.25, ")
    scenario = loads(text)
    named = {each["topic"]: each["reason"] for each in starved(scenario, make_plan(scenario))}
    assert named["notes"] == "the links alone let 75.00% arrive"
