"""Which subscriptions of one subscriber share a flow: those of like rank, or any.

Each subscriber's subscriptions are sorted, or shuffled, and cut into nearly equal lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from triagemq.plan.ranking import cut_evenly
from triagemq.scenario import Floats, Integers


@dataclass(frozen=True, slots=True, eq=False)
class FlowProblem:
    """Columns over subscriptions in canonical order, and how many flows one subscriber can open.

    `flow_limits` has one entry per subscriber, where some can open fewer flows than the others.
    """

    subscriber: Integers
    rank: Floats
    flows_per_subscriber: int
    seed: int = 0
    flow_limits: Integers | None = None

    @property
    def most_flows(self) -> int | Integers:
        """How many flows a subscriber may have: one number for all, or one for each."""
        return self.flows_per_subscriber if self.flow_limits is None else self.flow_limits


FlowAlgorithm = Callable[[FlowProblem], Integers]
"""Returns, per subscription, the place of its flow among its subscriber's flows, 0 first."""


def greedy(problem: FlowProblem) -> Integers:
    """Steps (1) to (3) of PrioDeX's greedy split (section 4.2); ties go by canonical order.

    >>> rank = np.array([5.0, 1.0, 3.0, 2.0])
    >>> greedy(FlowProblem(np.array([0, 0, 0, 1], dtype=np.int32), rank, flows_per_subscriber=2)).tolist()
    [0, 1, 0, 0]
    """
    return cut_evenly(problem.subscriber, problem.rank, problem.most_flows)


def random(problem: FlowProblem) -> Integers:
    """The papers' random baseline (FireDeX 5.4): the same sizes as `greedy`, the members drawn by the seed.

    >>> owner = np.zeros(5, dtype=np.int32)
    >>> np.bincount(random(FlowProblem(owner, np.ones(5), flows_per_subscriber=2, seed=7))).tolist()
    [3, 2]
    """
    drawn = np.random.default_rng(problem.seed).random(len(problem.subscriber))
    return cut_evenly(problem.subscriber, drawn, problem.most_flows)


FLOW_ALGORITHMS: dict[str, FlowAlgorithm] = {"greedy": greedy, "random": random}
