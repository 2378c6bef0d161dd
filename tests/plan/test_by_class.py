"""Flat, linear and exponential drop rates: formulas, edges, trees, and exact capacities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.plan.drops import DROP_POLICIES
from triagemq.plan.drops.problem import one_port

BY_CLASS = ["flat", "linear", "exponential"]

flows_of_a_port = st.lists(
    st.tuples(st.floats(1e-3, 1e6), st.integers(0, 8)),
    min_size=1,
    max_size=30,
)


@pytest.mark.parametrize("policy", BY_CLASS)
@given(flows=flows_of_a_port, share=st.floats(1e-3, 1.5))
@settings(max_examples=150, deadline=None)
def test_port_is_met_exactly_when_exceeded_and_untouched_when_not(policy, flows, share):
    loads, classes = [load for load, _ in flows], [number for _, number in flows]
    problem = one_port(loads=loads, capacity=sum(loads) * share, classes=classes)
    drop_rate = DROP_POLICIES[policy](problem).drop_rate
    load, capacity = problem.port_loads(1 - drop_rate)[0], problem.port_capacity_bytes_per_second[0]
    if problem.port_loads()[0] > capacity * (1 + 1e-12):
        assert load == pytest.approx(capacity, rel=1e-12)
    else:
        assert (drop_rate < 1e-12).all()
    assert ((drop_rate >= 0) & (drop_rate <= 1)).all()
    # A better class is never dropped more.
    order = np.argsort(classes, kind="stable")
    assert (np.diff(drop_rate[order]) >= -1e-12).all()


def test_linear_is_proportional_to_the_class_below_the_clamp():
    drop_rate = DROP_POLICIES["linear"](one_port(loads=[100.0] * 4, capacity=340.0)).drop_rate
    np.testing.assert_allclose(drop_rate, 0.1 * np.arange(4), atol=1e-14)


def test_exponential_keeps_powers_of_one_number():
    keep = 1 - DROP_POLICIES["exponential"](one_port(loads=[100.0] * 4, capacity=200.0)).drop_rate
    np.testing.assert_allclose(keep, keep[1] ** np.arange(4), rtol=1e-12)


@pytest.mark.parametrize("policy", ["linear", "exponential"])
def test_class_zero_is_cut_and_reported_when_it_alone_does_not_fit(policy):
    result = DROP_POLICIES[policy](one_port(loads=[200.0, 50.0, 0.0], capacity=100.0))
    np.testing.assert_allclose(result.drop_rate[:2], [0.5, 1.0])
    (told,) = [decision for decision in result.decisions if decision.kind == "class_zero_dropped"]
    assert told.subject == "port"
    assert told.after == "drop 0.5"


@pytest.mark.parametrize("policy", ["linear", "exponential"])
def test_class_zero_that_fits_exactly_is_kept_whole(policy):
    result = DROP_POLICIES[policy](one_port(loads=[100.0, 50.0, 50.0], capacity=100.0))
    np.testing.assert_array_equal(result.drop_rate, [0.0, 1.0, 1.0])
    assert not [decision for decision in result.decisions if decision.kind == "class_zero_dropped"]


@pytest.mark.parametrize("policy", BY_CLASS)
def test_a_port_without_class_zero_is_met_as_well(policy):
    problem = one_port(loads=[100.0, 100.0], classes=[3, 5], capacity=1.0)
    drop_rate = DROP_POLICIES[policy](problem).drop_rate
    assert problem.port_loads(1 - drop_rate)[0] == pytest.approx(1.0, rel=1e-12)
    assert drop_rate[0] <= drop_rate[1]


@pytest.mark.parametrize("policy", BY_CLASS)
def test_in_a_tree_no_port_is_exceeded_and_no_drop_is_needless(policy, random_problem):
    for seed in range(60):
        problem = random_problem(seed, tree=True)
        drop_rate = DROP_POLICIES[policy](problem).drop_rate
        loads, capacity = problem.port_loads(1 - drop_rate), problem.port_capacity_bytes_per_second
        assert (loads <= capacity * (1 + 1e-12)).all()
        full = np.append(loads >= capacity * (1 - 1e-12), False)
        crossed = full[problem.flow_ports] & (problem.flow_ports >= 0)
        loaded = problem.flow_load_bytes_per_second > 0
        assert crossed.any(axis=1)[(drop_rate > 1e-12) & loaded].all()


def test_every_overloaded_port_is_told_with_the_rule_used_there():
    (told,) = DROP_POLICIES["linear"](one_port(loads=[100.0, 100.0], capacity=150.0)).decisions
    assert told.kind == "port_overloaded"
    assert "drop = min(1, 0.5 * class)" in told.reason


def test_none_drops_nothing():
    assert (DROP_POLICIES["none"](one_port(loads=[9.0], capacity=1.0)).drop_rate == 0).all()
