"""What all planners share: what a subscription is ranked by (PrioDeX eq. 20, FireDeX 5.4), and how rows are put into
groups and sorted groups cut into nearly equal lists."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import compiled
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
