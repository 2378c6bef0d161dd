"""No priorities: every flow in class 0, each port one first-come-first-served queue."""

from __future__ import annotations

import numpy as np

from triagemq.plan.priorities.problem import PriorityProblem
from triagemq.scenario import Integers

__all__ = ["none"]


def none(problem: PriorityProblem) -> Integers:
    """The papers' baseline without prioritisation (FireDeX 5.4).

    >>> none(PriorityProblem(np.array([2.0, 4.0]), np.zeros(2, dtype=np.int32), priority_classes=9)).tolist()
    [0, 0]
    """
    return np.zeros(len(problem.value), dtype=np.int32)
