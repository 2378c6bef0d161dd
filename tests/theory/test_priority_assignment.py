"""Classes for flows with deadlines, beside every assignment there is."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from triagemq.errors import ParameterError
from triagemq.theory import assign_classes, delay_bounds


def random_flows(draw: np.random.Generator) -> tuple[dict[str, Any], Any]:
    count = int(draw.integers(1, 7))
    separation = draw.choice([5.0, 8.0, 10.0, 20.0, 50.0], count)
    share = draw.exponential(size=count)
    transmission = separation * share / share.sum() * draw.uniform(0.3, 0.95)
    flows = {
        "transmission": transmission,
        "separation": separation,
        "jitter": separation * draw.random(count) * draw.integers(0, 2, count),
        "packet": transmission / draw.integers(1, 5, count),
        "lower_priority_blocking": float(draw.choice([0.0, 1.0])),
    }
    # Around what flows have in some three classes.
    return flows, delay_bounds(**flows, classes=draw.integers(0, 3, count)) * draw.uniform(0.9, 1.4, count)


def fewest_levels(flows: dict[str, Any], deadline: Any, levels: int) -> int | None:
    for fewest in range(1, levels + 1):
        for classes in product(range(fewest), repeat=deadline.size):
            if len({*classes}) == fewest and (delay_bounds(**flows, classes=classes) <= deadline).all():
                return fewest
    return None


def compare_with_search(seeds: range) -> set[int | None]:
    seen = set()
    for seed in seeds:
        flows, deadline = random_flows(np.random.default_rng([16, seed]))
        found = assign_classes(**flows, deadline=deadline, levels=3)
        fewest = fewest_levels(flows, deadline, 3)
        seen.add(fewest)
        assert found.fits == (fewest is not None), seed
        assert found.bounds == pytest.approx(delay_bounds(**flows, classes=found.classes)), seed
        if found.fits:
            assert found.classes.max() + 1 == fewest, seed
            assert (found.bounds <= deadline).all(), seed
    return seen


def test_an_assignment_is_found_whenever_there_is_one_with_as_few_levels() -> None:
    assert compare_with_search(range(20)) == {1, 2, 3, None}


@pytest.mark.slow
def test_an_assignment_is_found_for_five_hundred_sets_whenever_there_is_one() -> None:
    assert compare_with_search(range(500)) == {1, 2, 3, None}


def test_one_level_is_enough_where_deadlines_are_long() -> None:
    found = assign_classes([1, 1, 1], 10.0, 0.0, 3.0, levels=8)
    assert found.fits
    assert found.classes.tolist() == [0, 0, 0]


def test_a_refusal_names_the_flow_that_misses_by_most_and_what_it_would_have() -> None:
    refused = assign_classes([1, 1, 1], 10.0, 0.0, [2.5, 2.0, 9.0], levels=8)
    assert not refused.fits
    assert (refused.missed, refused.bound, refused.deadline) == (1, 3.0, 2.0)
    # The one that has a level keeps it; the others were tried together above it.
    assert refused.classes.tolist() == [0, 0, 1]


def test_levels_run_out() -> None:
    flows: dict[str, Any] = {"transmission": [1, 1, 1], "separation": 10.0, "jitter": 0.0}
    deadline = [2.0, 3.0, 3.0]
    assert assign_classes(**flows, deadline=deadline, levels=2).classes.tolist() == [0, 1, 1]
    assert not assign_classes(**flows, deadline=deadline, levels=1).fits


def test_control_traffic_stays_above_and_takes_no_level() -> None:
    found = assign_classes([1, 1, 2], 20.0, 0.0, [9.0, 9.0, 0.0], levels=1, above=[False, False, True])
    assert found.fits
    assert found.classes.tolist() == [0, 0, -1]
    assert found.bounds.tolist() == [4.0, 4.0, 3.0]


def test_an_overloaded_port_has_no_bound() -> None:
    refused = assign_classes([3, 3], 5.0, 0.0, 100.0, levels=4)
    assert not refused.fits
    assert refused.bound == np.inf


def test_no_flows_fit() -> None:
    assert assign_classes([], [], [], [], levels=1).fits


@pytest.mark.parametrize("method", ["calculus", "paper"])
def test_other_methods_assign_by_their_own_bounds(method: Any) -> None:
    found = assign_classes([1, 1], 10.0, 0.0, [2.2, 2.3], levels=2, method=method)
    assert found.fits
    assert found.bounds.tolist() == delay_bounds([1, 1], 10.0, 0.0, found.classes, method=method).tolist()


@pytest.mark.parametrize(
    ("changes", "parameter"),
    [
        ({"levels": 0}, "levels"),
        ({"levels": 1.5}, "levels"),
        ({"deadline": [1.0, np.nan]}, "deadline"),
        ({"deadline": -1.0}, "deadline"),
        ({"above": [0, 1]}, "above"),
        ({"above": [True]}, "above"),
        ({"separation": 0.0}, "separation"),
        ({"method": "guess"}, "method"),
    ],
)
def test_impossible_arguments_are_refused_by_name(changes: dict[str, Any], parameter: str) -> None:
    arguments: dict[str, Any] = {
        "transmission": [1.0, 2.0],
        "separation": 9.0,
        "jitter": 0.0,
        "deadline": 5.0,
        "levels": 2,
    }
    with pytest.raises(ParameterError, match=f"^{parameter}: "):
        assign_classes(**(arguments | changes))
