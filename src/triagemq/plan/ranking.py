"""What subscriptions are ranked by (PrioDeX eq. 20, FireDeX 5.4), their flows, and the classes of flows.

Rows are put into groups, and sorted groups are cut into nearly equal lists: subscriptions by rank or at random, flows
by value or at random. Classes of like value are one-dimensional k-means over values: the optimum, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import compiled, inlined
from triagemq.errors import ParameterError
from triagemq.scenario import Floats, Integers, Subscriptions, maximum_utility

Rows = NDArray[np.int64]

Ranking = Callable[[Subscriptions, Floats], Floats]
"""(subscriptions, load in bytes per second of each) -> rank of each, higher is better."""


def value_per_byte(subscriptions: Subscriptions, load_bytes_per_second: Floats) -> Floats:
    """Worth of all events over the bandwidth they take: U_r(1) / (size * notify rate), PrioDeX eq. (20).

    A subscription that no event reaches takes no bandwidth and gains nothing from any class: it ranks 0, so
    that sums of ranks stay finite.

    >>> from triagemq.plan.drops.problem import subscription_columns
    >>> wanted = subscription_columns(weight=[1.0, 1.0, 1.0], shape="linear")
    >>> value_per_byte(wanted, np.array([10.0, 1000.0, 0.0])).tolist()
    [0.1, 0.001, 0.0]
    """
    worth = maximum_utility(subscriptions)
    loaded = load_bytes_per_second > 0
    return np.divide(worth, load_bytes_per_second, out=np.zeros_like(worth), where=loaded)


def value(subscriptions: Subscriptions, load_bytes_per_second: Floats) -> Floats:
    """Worth of everything, U_r(1), whatever bandwidth it takes: the naive rank of `info` (FireDeX 5.4).

    >>> from triagemq.plan.drops.problem import subscription_columns
    >>> value(subscription_columns(weight=[1.0, 3.0], shape="linear"), np.array([10.0, 0.0])).tolist()
    [1.0, 3.0]
    """
    return maximum_utility(subscriptions)


def group_rows(group: Integers, count: int) -> tuple[Rows, Rows]:
    """Offsets and rows so that `rows[offsets[g]:offsets[g + 1]]` are the rows of group g, in their order.

    Rows of a negative group are left out.

    >>> offsets, rows = group_rows(np.array([1, 0, 1, -1], dtype=np.int32), 3)
    >>> offsets.tolist(), rows.tolist()
    ([0, 1, 3, 3], [1, 0, 2])
    """
    return _counting_sort(np.ascontiguousarray(group, dtype=np.int64), count)


@compiled
def _counting_sort(group: Rows, count: int) -> tuple[Rows, Rows]:
    offsets = np.zeros(count + 1, dtype=np.int64)
    for row in range(len(group)):
        if group[row] >= 0:
            offsets[group[row] + 1] += 1
    for which in range(count):
        offsets[which + 1] += offsets[which]
    rows = np.empty(offsets[count], dtype=np.int64)
    filled = offsets[:-1].copy()
    for row in range(len(group)):
        which = group[row]
        if which >= 0:
            rows[filled[which]] = row
            filled[which] += 1
    return offsets, rows


@compiled
def _sort_groups(offsets: Rows, rows: Rows, preference: Floats) -> None:
    """Sort every group's rows by preference, highest first, ties as they stand. Small sorts beat one of everything."""
    for which in range(len(offsets) - 1):
        own = rows[offsets[which] : offsets[which + 1]]
        own[:] = own[np.argsort(-preference[own], kind="mergesort")]


def cut_evenly(group: Integers, preference: Floats, lists: int) -> Integers:
    """The list of every row when each group is sorted and cut into `lists` nearly equal lists.

    Rows are sorted by preference, highest first, ties by row. The larger lists come first (PrioDeX 4.2:
    "preferring higher priorities first"); a group with fewer rows than lists gets one list per row.

    >>> cut_evenly(np.zeros(5, dtype=np.int32), np.array([1.0, 5.0, 3.0, 2.0, 4.0]), 2).tolist()
    [1, 0, 0, 1, 0]
    """
    if not np.isfinite(preference).all():
        raise ParameterError("preference", "holds NaN or infinity; rows cannot be sorted by it")
    count = int(group.max(initial=-1)) + 1
    offsets, rows = group_rows(group, count)
    _sort_groups(offsets, rows, np.ascontiguousarray(preference))
    sizes = np.diff(offsets)
    position = np.arange(len(rows)) - np.repeat(offsets[:-1], sizes)
    small, larger_lists = np.divmod(sizes, lists)
    small = np.repeat(small, sizes)
    larger_lists = np.repeat(larger_lists, sizes)
    in_larger = larger_lists * (small + 1)
    label = np.empty(len(group), dtype=np.int32)
    label[rows] = np.where(
        position < in_larger,
        position // (small + 1),
        larger_lists + (position - in_larger) // np.maximum(small, 1),
    )
    return label


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
    """PrioDeX's cluster split (section 4.2, eq. 21), with the optimum in place of Lloyd's iterations.

    >>> value = np.array([1.0, 1.1, 9.0, 5.0, 5.2])
    >>> cluster(PriorityProblem(value, np.zeros(5, dtype=np.int32), priority_classes=3)).tolist()
    [2, 2, 0, 1, 1]
    """
    values, group, classes = problem.value, problem.group, problem.priority_classes
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
    for k in range(1, classes):
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
    for k in range(classes - 1, -1, -1):
        start = first_of_last[k, j] if k > 0 else 0
        for point in range(start, j + 1):
            labels[point] = k
        j = start - 1
    return labels


@compiled
def _prefix_sums(points: Floats, weights: Floats) -> Floats:
    """Running sums of weights, of points and of their squares."""
    sums = np.zeros((len(points) + 1, 3))
    for row in range(len(points)):
        sums[row + 1, 0] = sums[row, 0] + weights[row]
        sums[row + 1, 1] = sums[row, 1] + weights[row] * points[row]
        sums[row + 1, 2] = sums[row, 2] + weights[row] * points[row] * points[row]
    return sums


@inlined
def _cost(sums: Floats, first: int, last: int) -> float:
    """Weighted sum of squares around the mean of points first..last, to the rounding of the sums over all points."""
    weight = sums[last + 1, 0] - sums[first, 0]
    total = sums[last + 1, 1] - sums[first, 1]
    square = sums[last + 1, 2] - sums[first, 2]
    cost: float = square - total * total / weight
    return max(cost, 0.0)


PRIORITY_ALGORITHMS: dict[str, PriorityAlgorithm] = {
    "greedy": greedy,
    "cluster": cluster,
    # FireDeX 5.4 ranks subscriptions by maximum utility, bandwidth left out: the ranking differs, the cut does not.
    "info": greedy,
    "random": random,
    "none": none,
}
