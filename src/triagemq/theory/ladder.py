"""The priority classes present in each group of rows, and sums up and down them, all groups at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DENSE = 8
"""Up to so many possible keys per row, those that occur are marked rather than sorted."""


@dataclass(frozen=True, slots=True)
class Ladder:
    """One step per (group, class) that occurs, sorted by group and then class, highest priority first.

    >>> ladder = build_ladder(np.array([7, 7, 7, 2]), np.array([5, 0, 5, 3]))
    >>> per_step = ladder.total(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> per_step
    array([4., 2., 4.])
    >>> ladder.through(per_step), ladder.above(per_step), ladder.below(per_step)
    (array([4., 2., 6.]), array([0., 0., 2.]), array([0., 4., 0.]))
    """

    step_of_row: NDArray[np.int64]
    steps_above: NDArray[np.int64]
    steps_below: NDArray[np.int64]

    def total(self, row_values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum the rows of each step."""
        sums = np.bincount(self.step_of_row, weights=row_values, minlength=self.steps_above.size)
        return sums.astype(np.float64, copy=False)

    def through(self, step_values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the step and all above it in its group."""
        return _running_sum(step_values, self.steps_above)

    def above(self, step_values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the steps above in the group, the step itself left out."""
        return _previous(self.through(step_values), self.steps_above)

    def below(self, step_values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the steps below in the group, the step itself left out."""
        from_bottom = self.steps_below[::-1]
        return _previous(_running_sum(step_values[::-1], from_bottom), from_bottom)[::-1]


def build_ladder(groups: NDArray[np.int64], classes: NDArray[np.int64]) -> Ladder:
    """Sort the distinct (group, class) pairs of the rows into a ladder.

    >>> build_ladder(np.array([1, 0, 1]), np.array([4, 9, 2])).steps_above
    array([0, 0, 1])
    """
    keys, extent = combine_keys(groups, classes)
    distinct, step_of_row = _numbered(keys)
    group_of_step = distinct // extent
    index = np.arange(distinct.size)
    changes = group_of_step[1:] != group_of_step[:-1]
    first = np.ones(distinct.size, dtype=np.bool_)
    first[1:] = changes
    last = np.ones(distinct.size, dtype=np.bool_)
    last[:-1] = changes
    start = np.maximum.accumulate(np.where(first, index, 0))
    end = np.minimum.accumulate(np.where(last, index, distinct.size)[::-1])[::-1]
    return Ladder(step_of_row, index - start, end - index)


def _numbered(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct keys in order, and the place of every key among them."""
    extent = int(keys.max(initial=-1)) + 1
    if extent > _DENSE * (keys.size + 1):
        distinct, place = np.unique(keys, return_inverse=True)
        return distinct, place.astype(np.int64)
    # Sorting a million keys takes ten times as long as marking which of a few million there are.
    present = np.zeros(extent, dtype=np.bool_)
    present[keys] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[keys]


def combine_keys(major: NDArray[np.int64], minor: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Return one integer per row that sorts as (major, minor) does, and the factor that major was given.

    >>> combine_keys(np.array([1, 0]), np.array([3, 2]))
    (array([7, 2]), 4)
    """
    extent = int(minor.max(initial=0)) + 1
    if (int(major.max(initial=0)) + 1) * extent >= 2**63:
        # Ranks are below the number of rows, so their product always fits.
        major = np.unique(major, return_inverse=True)[1].astype(np.int64)
        minor = np.unique(minor, return_inverse=True)[1].astype(np.int64)
        extent = int(minor.max(initial=0)) + 1
    return major * extent + minor, extent


def _running_sum(values: NDArray[np.float64], rank: NDArray[np.int64]) -> NDArray[np.float64]:
    # Doubling, because a plain cumulative sum less each group's start would carry one group's rounding into
    # the next: a queue must get the same figures alone and among a thousand others.
    total = values.copy()
    deepest = int(rank.max(initial=0))
    distance = 1
    while distance <= deepest:
        reaching = np.flatnonzero(rank >= distance)
        total[reaching] += total[reaching - distance]
        distance *= 2
    return total


def _previous(running: NDArray[np.float64], rank: NDArray[np.int64]) -> NDArray[np.float64]:
    previous = np.zeros_like(running)
    previous[1:] = running[:-1]
    previous[rank == 0] = 0.0
    return previous
