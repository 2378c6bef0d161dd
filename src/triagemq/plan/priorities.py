"""Flows of a subscriber and classes of flows: nearly equal lists by rank or at random; for classes clusters, too.

Classes of like value are one-dimensional k-means over the flows' values, solved exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from triagemq.compiled import compiled, inlined
from triagemq.errors import ParameterError
from triagemq.plan.ranking import Rows, cut_evenly, group_rows
from triagemq.scenario import Floats, Integers


@dataclass(frozen=True, slots=True, eq=False)
class FlowProblem:
    """Columns over subscriptions in canonical order, and how many flows one subscriber can open."""

    subscriber: Integers
    rank: Floats
    flows_per_subscriber: int
    seed: int = 0


FlowAlgorithm = Callable[[FlowProblem], Integers]
"""Returns, per subscription, the place of its flow among its subscriber's flows, 0 first."""


def greedy_flows(problem: FlowProblem) -> Integers:
    """Steps (1) to (3) of PrioDeX's greedy split (section 4.2); ties go by canonical order.

    >>> rank = np.array([5.0, 1.0, 3.0, 2.0])
    >>> greedy_flows(FlowProblem(np.array([0, 0, 0, 1], dtype=np.int32), rank, flows_per_subscriber=2)).tolist()
    [0, 1, 0, 0]
    """
    return cut_evenly(problem.subscriber, problem.rank, problem.flows_per_subscriber)


def random_flows(problem: FlowProblem) -> Integers:
    """The papers' random baseline (FireDeX 5.4): the same sizes as `greedy`, the members drawn by the seed.

    >>> owner = np.zeros(5, dtype=np.int32)
    >>> np.bincount(random_flows(FlowProblem(owner, np.ones(5), flows_per_subscriber=2, seed=7))).tolist()
    [3, 2]
    """
    drawn = np.random.default_rng(problem.seed).random(len(problem.subscriber))
    return cut_evenly(problem.subscriber, drawn, problem.flows_per_subscriber)


FLOW_ALGORITHMS: dict[str, FlowAlgorithm] = {"greedy": greedy_flows, "random": random_flows}


SPLITTER = 134217729.0
"""2**27 + 1: cuts a double into two halves whose products are exact (Dekker 1971)."""


@dataclass(frozen=True, slots=True, eq=False)
class PriorityProblem:
    """Columns over flows in canonical order.

    `group` is the flow's output port (scope "port": what competes is ranked together) or 0 for all (scope
    "global", as the papers cut). `value` is alpha_f, the sum of the ranks of the flow's subscriptions
    (PrioDeX eq. 21).
    """

    value: Floats
    group: Integers
    priority_classes: int
    seed: int = 0


PriorityAlgorithm = Callable[[PriorityProblem], Integers]
"""Returns the class of every flow, 0 is served first."""


def greedy(problem: PriorityProblem) -> Integers:
    """Steps (4) and (5) of PrioDeX's greedy split (section 4.2); ties go by flow.

    >>> value = np.array([1.0, 9.0, 5.0])
    >>> greedy(PriorityProblem(value, np.zeros(3, dtype=np.int32), priority_classes=2)).tolist()
    [1, 0, 0]
    """
    return cut_evenly(problem.group, problem.value, problem.priority_classes)


def random(problem: PriorityProblem) -> Integers:
    """The papers' random baseline (FireDeX 5.4), balanced: the same sizes as `greedy`, drawn by the seed.

    >>> flows = PriorityProblem(np.ones(7), np.zeros(7, dtype=np.int32), priority_classes=3, seed=1)
    >>> np.bincount(random(flows)).tolist()
    [3, 2, 2]
    """
    drawn = np.random.default_rng(problem.seed).random(len(problem.value))
    return cut_evenly(problem.group, drawn, problem.priority_classes)


def none(problem: PriorityProblem) -> Integers:
    """The papers' baseline without prioritisation (FireDeX 5.4).

    >>> none(PriorityProblem(np.array([2.0, 4.0]), np.zeros(2, dtype=np.int32), priority_classes=9)).tolist()
    [0, 0]
    """
    return np.zeros(len(problem.value), dtype=np.int32)


def cluster(problem: PriorityProblem) -> Integers:
    """PrioDeX's cluster split (section 4.2, eq. 21), with the exact optimum in place of Lloyd's iterations.

    >>> value = np.array([1.0, 1.1, 9.0, 5.0, 5.2])
    >>> cluster(PriorityProblem(value, np.zeros(5, dtype=np.int32), priority_classes=3)).tolist()
    [2, 2, 0, 1, 1]
    """
    return _cluster(problem.value, problem.group, problem.priority_classes)


def cluster_classes(values: Floats, classes: int) -> Integers:
    """Labels of the split of `values` into at most `classes` classes with the least variance inside.

    Class 0 holds the highest values. Equal values share a class; there are no more classes than distinct
    values.

    >>> cluster_classes(np.array([0.0, 10.0, 11.0, 10.0]), 2).tolist()
    [1, 0, 0, 0]
    """
    values = np.asarray(values, dtype=np.float64)
    return _cluster(values, np.zeros(len(values), dtype=np.int32), classes)


def _cluster(values: Floats, group: Integers, classes: int) -> Integers:
    if classes < 1:
        raise ParameterError("priority_classes", f"is {classes}; at least one class is needed")
    if not np.isfinite(values).all():
        raise ParameterError("values", "hold NaN or infinity; distances to them mean nothing")
    descending = np.argsort(-values, kind="stable")
    offsets, places = group_rows(group[descending], int(group.max(initial=-1)) + 1)
    rows = descending[places]
    labels = np.empty(len(values), dtype=np.int32)
    labels[rows] = _cluster_groups(values[rows], offsets, classes)
    return labels


@compiled
def _cluster_groups(values: Floats, offsets: Rows, classes: int) -> Integers:
    """Labels of values that are sorted descending within every group."""
    labels = np.zeros(len(values), dtype=np.int32)
    for group in range(len(offsets) - 1):
        first, end = offsets[group], offsets[group + 1]
        if end == first:
            continue
        # Equal values become one weighted point, so that no class boundary can pass between them.
        points = np.empty(end - first)
        weights = np.empty(end - first)
        which = np.empty(end - first, dtype=np.int64)
        count = 0
        for row in range(first, end):
            if row == first or values[row] != values[row - 1]:
                points[count] = values[row]
                weights[count] = 0.0
                count += 1
            weights[count - 1] += 1.0
            which[row - first] = count - 1
        point_labels = _split(_scaled(points[:count]), weights[:count], classes)
        for row in range(first, end):
            labels[row] = point_labels[which[row - first]]
    return labels


@compiled
def _scaled(points: Floats) -> Floats:
    """Descending points brought near 1 without rounding, so that squares do not overflow.

    Dividing by a power of two is exact, and so is subtracting numbers within a factor of two of each other.
    """
    highest, lowest = points[0], points[-1]
    moved = points - lowest if lowest > 0.0 and highest <= 2.0 * lowest else points
    largest = max(abs(moved[0]), abs(moved[-1]))
    return moved / 2.0 ** np.floor(np.log2(largest)) if largest > 0.0 else moved.copy()


@compiled
def _split(points: Floats, weights: Floats, classes: int) -> Integers:
    """The optimal class of each of the sorted points, by dynamic programming over where classes begin.

    best[j] is the least cost of points 0..j in k + 1 classes. The best first point of the last class never
    moves left as j grows (the cost is a Monge array), so solving every j between two solved ones looks only
    between their answers: O(n log n) per class, as in Ckmeans.1d.dp (Song and Zhong 2020) without its
    recursion.
    """
    count = len(points)
    labels = np.empty(count, dtype=np.int32)
    if count <= classes:
        for point in range(count):
            labels[point] = point
        return labels
    sums = _prefix_sums(points, weights)
    first_of_last = np.zeros((classes, count), dtype=np.int64)
    best = np.empty(count)
    for j in range(count):
        best[j] = _cost(sums, 0, j)
    for k in range(1, classes - 1):
        previous = best.copy()
        starts = first_of_last[k]
        stride = 1
        while stride < count:
            stride *= 2
        while stride >= 1:
            for j in range(stride - 1, count, 2 * stride):
                if j < k:
                    continue
                low = starts[j - stride] if j - stride >= k else k
                high = starts[j + stride] if j + stride < count else j
                high = min(high, j)
                best[j] = np.inf
                for start in range(low, high + 1):
                    cost = previous[start - 1] + _cost(sums, start, j)
                    if cost < best[j]:
                        best[j] = cost
                        starts[j] = start
            stride //= 2
    j = count - 1
    if classes > 1:  # of the lowest class only the split of all points is needed
        least = np.inf
        for start in range(classes - 1, count):
            cost = best[start - 1] + _cost(sums, start, j)
            if cost < least:
                least = cost
                first_of_last[classes - 1, j] = start
    for k in range(classes - 1, -1, -1):
        start = first_of_last[k, j] if k > 0 else 0
        for point in range(start, j + 1):
            labels[point] = k
        j = start - 1
    return labels


@compiled
def _prefix_sums(points: Floats, weights: Floats) -> Floats:
    """Running sums of weights, of points and of their squares, the last two in double-double.

    The cost of a tight class is the small difference of two large sums; in plain doubles it would be noise.
    """
    sums = np.zeros((len(points) + 1, 5))
    for row in range(len(points)):
        weighted, weighted_low = _product(points[row], weights[row])
        square, square_low = _product(points[row], weighted)
        square_low += points[row] * weighted_low
        before = sums[row]
        after = sums[row + 1]
        after[0] = before[0] + weights[row]
        after[1], after[2] = _sum(before[1], before[2], weighted, weighted_low)
        after[3], after[4] = _sum(before[3], before[4], square, square_low)
    return sums


@inlined
def _cost(sums: Floats, first: int, last: int) -> float:
    """Weighted sum of squares around the mean of points first..last."""
    weight = sums[last + 1, 0] - sums[first, 0]
    total, total_low = _sum(sums[last + 1, 1], sums[last + 1, 2], -sums[first, 1], -sums[first, 2])
    square, square_low = _sum(sums[last + 1, 3], sums[last + 1, 4], -sums[first, 3], -sums[first, 4])
    mean = total / weight
    product, rest = _product(mean, weight)
    mean_low = ((total - product) - rest + total_low) / weight
    # square - total * mean, with total * mean in two parts as well
    between, between_low = _product(total, mean)
    between_low += total * mean_low + total_low * mean
    cost: float = (square - between) + (square_low - between_low)
    return max(cost, 0.0)


@inlined
def _sum(a: float, a_low: float, b: float, b_low: float) -> tuple[float, float]:
    """Knuth's exact sum of two numbers of two parts each."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part) + a_low + b_low
    high = total + error
    return high, error - (high - total)


@inlined
def _product(a: float, b: float) -> tuple[float, float]:
    """Dekker's exact product: the rounded product and its rounding error."""
    product = a * b
    split = SPLITTER * a
    a_high = split - (split - a)
    a_low = a - a_high
    split = SPLITTER * b
    b_high = split - (split - b)
    b_low = b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


PRIORITY_ALGORITHMS: dict[str, PriorityAlgorithm] = {
    "greedy": greedy,
    "cluster": cluster,
    # FireDeX 5.4 ranks subscriptions by maximum utility, bandwidth left out: the ranking differs, the cut does not.
    "info": greedy,
    "random": random,
    "none": none,
}
