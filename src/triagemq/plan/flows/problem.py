"""What a flow algorithm is given: every subscription's owner and rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triagemq.scenario import Floats, Integers

__all__ = ["FlowAlgorithm", "FlowProblem"]


@dataclass(frozen=True, slots=True, eq=False)
class FlowProblem:
    """Columns over subscriptions in canonical order, and how many flows one subscriber can open."""

    subscriber: Integers
    rank: Floats
    flows_per_subscriber: int
    seed: int = 0


FlowAlgorithm = Callable[[FlowProblem], Integers]
"""Returns, per subscription, the place of its flow among its subscriber's flows, 0 first."""
