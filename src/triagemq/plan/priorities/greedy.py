"""Classes of equal size: the flows of a group sorted by value and cut into nearly equal lists."""

from __future__ import annotations

from triagemq.plan.grouping import cut_evenly
from triagemq.plan.priorities.problem import PriorityProblem
from triagemq.scenario import Integers

__all__ = ["greedy"]


def greedy(problem: PriorityProblem) -> Integers:
    """Steps (4) and (5) of PrioDeX's greedy split (section 4.2); ties go by flow.

    >>> import numpy as np
    >>> value = np.array([1.0, 9.0, 5.0])
    >>> greedy(PriorityProblem(value, np.zeros(3, dtype=np.int32), priority_classes=2)).tolist()
    [1, 0, 0]
    """
    return cut_evenly(problem.group, problem.value, problem.priority_classes)
