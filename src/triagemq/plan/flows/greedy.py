"""Flows of like rank: each subscriber's subscriptions sorted by rank and cut into nearly equal lists."""

from __future__ import annotations

from triagemq.plan.flows.problem import FlowProblem
from triagemq.plan.grouping import cut_evenly
from triagemq.scenario import Integers

__all__ = ["greedy"]


def greedy(problem: FlowProblem) -> Integers:
    """Steps (1) to (3) of PrioDeX's greedy split (section 4.2); ties go by canonical order.

    >>> import numpy as np
    >>> rank = np.array([5.0, 1.0, 3.0, 2.0])
    >>> greedy(FlowProblem(np.array([0, 0, 0, 1], dtype=np.int32), rank, flows_per_subscriber=2)).tolist()
    [0, 1, 0, 0]
    """
    return cut_evenly(problem.subscriber, problem.rank, problem.most_flows)
