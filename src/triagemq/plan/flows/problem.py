"""What a flow algorithm is given: every subscription's owner and rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triagemq.scenario import Floats, Integers

__all__ = ["FlowAlgorithm", "FlowProblem"]


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
