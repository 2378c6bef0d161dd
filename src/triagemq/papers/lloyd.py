"""Lloyd's k-means, the clustering that PrioDeX 4.2 names: a baseline beside the exact cut of `plan.cluster`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import compiled
from triagemq.plan import PriorityProblem
from triagemq.plan.ranking import group_rows
from triagemq.scenario import Floats, Integers

__all__ = ["lloyd"]

MOST_ITERATIONS = 300
"""Where the iterations give up, as in scikit-learn."""


def lloyd(problem: PriorityProblem) -> Integers:
    """Classes by repeated assignment to the nearest mean, starting from values drawn at random by the seed.

    >>> value = np.array([1.0, 1.1, 9.0, 9.2])
    >>> lloyd(PriorityProblem(value, np.zeros(4, dtype=np.int32), priority_classes=2)).tolist()
    [1, 1, 0, 0]
    """
    drawn = np.random.default_rng(problem.seed).random(len(problem.value))
    offsets, rows = group_rows(problem.group, int(problem.group.max(initial=-1)) + 1)
    labels = np.empty(len(problem.value), dtype=np.int32)
    labels[rows] = _cut_groups(problem.value[rows], drawn[rows], offsets, problem.priority_classes)
    return labels


@compiled
def _cut_groups(values: Floats, drawn: Floats, offsets: NDArray[np.int64], classes: int) -> Integers:
    labels = np.empty(len(values), dtype=np.int32)
    for group in range(len(offsets) - 1):
        first, end = offsets[group], offsets[group + 1]
        chosen = np.argsort(drawn[first:end])[: min(classes, end - first)]
        means = np.sort(values[first:end][chosen])[::-1].copy()
        labels[first:end] = _iterate(values[first:end], means)
    return labels


@compiled
def _iterate(values: Floats, means: Floats) -> Integers:
    """Labels by the nearest of the means, highest mean first, once no label changes any more."""
    labels = np.full(len(values), -1, dtype=np.int32)
    for _ in range(MOST_ITERATIONS):
        changed = False
        for row in range(len(values)):
            nearest = 0
            for candidate in range(1, len(means)):
                if abs(values[row] - means[candidate]) < abs(values[row] - means[nearest]):
                    nearest = candidate
            if nearest != labels[row]:
                labels[row] = nearest
                changed = True
        if not changed:
            break
        total, count = np.zeros(len(means)), np.zeros(len(means))
        for row in range(len(values)):
            total[labels[row]] += values[row]
            count[labels[row]] += 1
        for candidate in range(len(means)):
            if count[candidate] > 0:
                means[candidate] = total[candidate] / count[candidate]
    return labels
