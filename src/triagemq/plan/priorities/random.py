"""Classes without meaning: the flows of a group shuffled and cut into nearly equal lists."""

from __future__ import annotations

import numpy as np

from triagemq.plan.grouping import cut_evenly
from triagemq.plan.priorities.problem import PriorityProblem
from triagemq.scenario import Integers

__all__ = ["random"]


def random(problem: PriorityProblem) -> Integers:
    """The papers' random baseline (FireDeX 5.4), balanced: the same sizes as `greedy`, drawn by the seed.

    >>> flows = PriorityProblem(np.ones(7), np.zeros(7, dtype=np.int32), priority_classes=3, seed=1)
    >>> np.bincount(random(flows)).tolist()
    [3, 2, 2]
    """
    drawn = np.random.default_rng(problem.seed).random(len(problem.value))
    return cut_evenly(problem.group, drawn, problem.priority_classes)
