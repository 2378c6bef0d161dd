"""The contract holds for every algorithm that comes along, and each of its checks catches a broken one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.plan.lists import check_lists

from triagemq.plan import (
    DROP_POLICIES,
    FLOW_ALGORITHMS,
    PRIORITY_ALGORITHMS,
    ContractError,
    DropProblem,
    DropResult,
    FlowProblem,
    PriorityProblem,
    check_policy,
)

PROMISES = {
    (FlowProblem, "random"): ("equal_lists",),
    (PriorityProblem, "cluster"): ("ordered",),
    (PriorityProblem, "random"): ("equal_lists",),
    (PriorityProblem, "none"): ("ordered",),
}
LISTS = [
    (kind, name, algorithm)
    for kind, registry in ((FlowProblem, FLOW_ALGORITHMS), (PriorityProblem, PRIORITY_ALGORITHMS))
    for name, algorithm in registry.items()
]


@pytest.mark.parametrize("name", DROP_POLICIES)
def test_every_registered_drop_policy_keeps_the_contract(name):
    check_policy(DROP_POLICIES[name], capacity=name != "none")


@pytest.mark.parametrize(("kind", "name", "algorithm"), LISTS)
def test_every_registered_algorithm_of_lists_keeps_the_contract(kind, name, algorithm):
    check_lists(algorithm, kind, PROMISES.get((kind, name), ("equal_lists", "ordered")))


flat = DROP_POLICIES["flat"]
calls = iter(range(10**9))


def rates(change):
    """The flat policy with its drop rates changed."""
    return lambda problem: DropResult(change(problem, flat(problem).drop_rate))


def by_weight_in_units(problem: DropProblem) -> DropResult:
    """Drops depend on the absolute size of weights, yet ports are met: a mixture of two exact answers."""
    mixed = 0.5 if problem.subscriptions.utility_weight.mean() > 4 else 0.1
    return _mixture(problem, mixed)


def by_load_in_units(problem: DropProblem) -> DropResult:
    return _mixture(problem, 0.5 if problem.flow_load_bytes_per_second.mean() > 1e5 else 0.1)


def by_position(problem: DropProblem) -> DropResult:
    first, *_, last = problem.flow_load_bytes_per_second
    return _mixture(problem, 0.5 if first > last else 0.1)


def _mixture(problem: DropProblem, share: float) -> DropResult:
    linear = DROP_POLICIES["linear"](problem).drop_rate
    return DropResult(share * linear + (1 - share) * flat(problem).drop_rate)


def less_when_roomy(problem: DropProblem) -> DropResult:
    """Keeps within every capacity but the more there is the less is used."""
    keep = 1 - flat(problem).drop_rate
    room = problem.port_capacity_bytes_per_second.sum() / problem.port_loads().sum()
    return DropResult(1 - keep / (1 + 10 * room))


def wasteful_when_roomy(problem: DropProblem) -> DropResult:
    """Fills ports exactly, with the worst flows as soon as there is a little more room."""
    room = problem.port_capacity_bytes_per_second.sum() / problem.port_loads().sum()
    wanted = problem.subscriptions
    upside_down = replace(wanted, utility_weight=1 / wanted.utility_weight)
    tight = DROP_POLICIES["optimal"](problem)
    return (
        tight if int(room * 37) % 2 else DROP_POLICIES["optimal"](replace(problem, subscriptions=upside_down))
    )


BROKEN_DROPS = {
    "result": lambda problem: flat(problem).drop_rate,
    "range": rates(lambda problem, rate: rate + 1),
    "deterministic": rates(lambda problem, rate: np.clip(rate + 1e-3 * next(calls), 0, 1)),
    "capacity": rates(lambda problem, rate: rate * 0.99),
    "exact": rates(lambda problem, rate: 1 - (1 - rate) * 0.99),
    "order": by_position,
    "units": by_load_in_units,
    "weights": by_weight_in_units,
    "monotone_utility": wasteful_when_roomy,
}


@pytest.mark.parametrize("check", BROKEN_DROPS)
def test_a_broken_drop_policy_fails_the_check_it_breaks(check):
    with pytest.raises(ContractError) as caught:
        check_policy(BROKEN_DROPS[check])
    assert caught.value.check == check


def test_a_policy_that_uses_less_of_more_fails_monotone_load():
    with pytest.raises(ContractError) as caught:
        check_policy(less_when_roomy, capacity=False)
    assert caught.value.check == "monotone_load"


greedy = PRIORITY_ALGORITHMS["greedy"]
BROKEN_PRIORITIES = {
    "result": lambda problem: greedy(problem).astype(float),
    "range": lambda problem: greedy(problem) + 1,
    "deterministic": lambda problem: (greedy(problem) + next(calls)) % problem.priority_classes,
    "equal_lists": lambda problem: np.zeros(len(problem.value), dtype=np.int32),
    "ordered": lambda problem: greedy(replace(problem, value=1 / problem.value)),
    "order": None,
    "units": lambda problem: (
        greedy(problem) if problem.value.max() < 1e3 else np.zeros(len(problem.value), dtype=np.int32)
    ),
}


def later_rows_first(problem):
    """Lists of the right sizes, filled by row: whoever is listed first is served first."""
    return greedy(replace(problem, value=-np.arange(len(problem.value), dtype=np.float64)))


@pytest.mark.parametrize("check", BROKEN_PRIORITIES)
def test_a_broken_priority_algorithm_fails_the_check_it_breaks(check):
    algorithm = BROKEN_PRIORITIES[check] or later_rows_first
    promises = {"order": ("equal_lists",), "units": ()}.get(check, ("equal_lists", "ordered"))
    with pytest.raises(ContractError) as caught:
        check_lists(algorithm, PriorityProblem, promises)
    assert caught.value.check == check
