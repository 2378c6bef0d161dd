"""The naive information value: `greedy` with subscriptions ranked by worth alone."""

from __future__ import annotations

from triagemq.plan.priorities.greedy import greedy
from triagemq.plan.priorities.problem import PriorityProblem
from triagemq.scenario import Integers

__all__ = ["info"]


def info(problem: PriorityProblem) -> Integers:
    """Cut as `greedy` does (FireDeX 5.4: ranks *subscriptions* by maximum utility, bandwidth left out).

    What sets it apart is the ranking: a plan made with `info` ranks by `ranking.value`, which drives the cut
    into flows as well and arrives here inside the flows' values.

    >>> import numpy as np
    >>> info(PriorityProblem(np.array([2.0, 4.0]), np.zeros(2, dtype=np.int32), priority_classes=2)).tolist()
    [1, 0]
    """
    return greedy(problem)
