"""Flows and classes: nearly equal lists, exact clusters, determinism, and speed at scale."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plan.variance import within_class_variance

from triagemq.errors import ParameterError
from triagemq.plan import (
    FLOW_ALGORITHMS,
    PRIORITY_ALGORITHMS,
    FlowProblem,
    PriorityProblem,
)


def cluster_classes(values: np.ndarray, classes: int) -> np.ndarray:
    """The classes of flows with these values at one port."""
    return PRIORITY_ALGORITHMS["cluster"](
        PriorityProblem(values, np.zeros(len(values), dtype=np.int32), classes)
    )


def exhaustive(values: np.ndarray, classes: int) -> float:
    """The least variance over every way to cut the sorted values."""
    ordered = np.sort(values)
    best = np.inf
    for cuts in itertools.combinations(range(1, len(values)), min(classes, len(values)) - 1):
        labels = np.searchsorted(np.array(cuts), np.arange(len(values)), side="right")
        best = min(best, within_class_variance(ordered, labels.astype(np.int32)))
    return best


def lloyd(values: np.ndarray, classes: int, draw: np.random.Generator) -> float:
    """One run of Lloyd's iterations from a random start."""
    centres = np.sort(draw.choice(values, classes, replace=False))
    for _ in range(100):
        labels = np.searchsorted((centres[1:] + centres[:-1]) / 2, values)
        sums, sizes = np.bincount(labels, values, classes), np.bincount(labels, minlength=classes)
        moved = np.sort(np.where(sizes > 0, sums / np.maximum(sizes, 1), centres))
        if np.array_equal(moved, centres):
            break
        centres = moved
    return within_class_variance(values, labels.astype(np.int32))


@given(
    values=st.lists(st.floats(0, 1e6) | st.integers(0, 5).map(float), min_size=1, max_size=9),
    classes=st.integers(1, 5),
    shift=st.sampled_from([0.0, 1e9]),
)
@settings(max_examples=300, deadline=None)
def test_clusters_have_the_least_variance_of_all_cuts(values, classes, shift):
    numbers = np.array(values) + shift
    labels = cluster_classes(numbers, classes)
    rounding = 1e-13 * within_class_variance(numbers, np.zeros(len(numbers), dtype=np.int32))
    assert within_class_variance(numbers, labels) <= exhaustive(numbers, classes) * (1 + 1e-9) + rounding
    assert labels.min() == 0
    assert labels.max() == min(classes, len(set(numbers))) - 1
    # Higher values never stand in a worse class, equal ones never apart.
    order = np.argsort(-numbers, kind="stable")
    assert (np.diff(labels[order]) >= 0).all()
    assert len({(value, label) for value, label in zip(numbers, labels, strict=True)}) == len(set(numbers))


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_a_thousand_restarts_of_lloyd_never_beat_the_clusters(spread):
    draw = np.random.default_rng(0)
    values = draw.lognormal(0, spread, 90)
    ours = within_class_variance(values, cluster_classes(values, 9))
    assert ours <= min(lloyd(values, 9, draw) for _ in range(1000)) * (1 + 1e-12)


def test_cluster_refuses_what_has_no_distance():
    with pytest.raises(ParameterError, match="values"):
        cluster_classes(np.array([1.0, np.inf]), 2)
    with pytest.raises(ParameterError, match="priority_classes"):
        cluster_classes(np.array([1.0]), 0)


def test_greedy_cuts_each_port_on_its_own():
    value = np.array([9.0, 8.0, 1.0, 2.0])
    port = np.array([0, 0, 1, 1], dtype=np.int32)
    greedy = PRIORITY_ALGORITHMS["greedy"]
    assert greedy(PriorityProblem(value, port, 2)).tolist() == [0, 1, 1, 0]
    assert greedy(PriorityProblem(value, np.zeros(4, dtype=np.int32), 2)).tolist() == [0, 0, 1, 1]


def test_fewer_flows_than_classes_use_the_first_classes():
    problem = PriorityProblem(np.array([1.0, 2.0]), np.zeros(2, dtype=np.int32), 9)
    assert PRIORITY_ALGORITHMS["greedy"](problem).tolist() == [1, 0]


def test_ties_go_by_canonical_order():
    problem = FlowProblem(np.zeros(4, dtype=np.int32), np.ones(4), 2)
    assert FLOW_ALGORITHMS["greedy"](problem).tolist() == [0, 0, 1, 1]


def test_random_lists_depend_on_the_seed_only():
    subscriber, rank = np.zeros(50, dtype=np.int32), np.arange(50.0)
    random = FLOW_ALGORITHMS["random"]
    first = random(FlowProblem(subscriber, rank, 5, seed=1))
    np.testing.assert_array_equal(first, random(FlowProblem(subscriber, rank[::-1].copy(), 5, seed=1)))
    assert (first != random(FlowProblem(subscriber, rank, 5, seed=2))).any()
