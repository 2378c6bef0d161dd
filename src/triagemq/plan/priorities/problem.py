"""What a priority algorithm is given: every flow's value, and which flows are cut into classes together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from triagemq.scenario import Floats, Integers

__all__ = ["PriorityAlgorithm", "PriorityProblem"]


@dataclass(frozen=True, slots=True, eq=False)
class PriorityProblem:
    """Columns over flows in canonical order.

    `group` is the flow's output port (scope "port": what competes is ranked together) or 0 for all (scope
    "global", as the papers cut). `value` is alpha_f, the sum of the ranks of the flow's subscriptions
    (PrioDeX eq. 21).
    """

    value: Floats
    group: Integers
    priority_classes: int
    seed: int = 0


PriorityAlgorithm = Callable[[PriorityProblem], Integers]
"""Returns the class of every flow, 0 is served first."""
