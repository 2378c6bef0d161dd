"""Flows without meaning: each subscriber's subscriptions shuffled and cut into nearly equal lists."""

from __future__ import annotations

import numpy as np

from triagemq.plan.flows.problem import FlowProblem
from triagemq.plan.grouping import cut_evenly
from triagemq.scenario import Integers

__all__ = ["random"]


def random(problem: FlowProblem) -> Integers:
    """The papers' random baseline (FireDeX 5.4): the same sizes as `greedy`, the members drawn by the seed.

    >>> owner = np.zeros(5, dtype=np.int32)
    >>> np.bincount(random(FlowProblem(owner, np.ones(5), flows_per_subscriber=2, seed=7))).tolist()
    [3, 2]
    """
    drawn = np.random.default_rng(problem.seed).random(len(problem.subscriber))
    return cut_evenly(problem.subscriber, drawn, problem.most_flows)
