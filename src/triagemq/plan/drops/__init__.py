"""Which share of each flow is dropped before it reaches a port that cannot carry everything."""

from triagemq.plan.drops.exponential import exponential
from triagemq.plan.drops.flat import flat
from triagemq.plan.drops.linear import linear
from triagemq.plan.drops.none import none
from triagemq.plan.drops.optimal import optimal
from triagemq.plan.drops.problem import DropPolicy, DropProblem, DropResult

DROP_POLICIES: dict[str, DropPolicy] = {
    "none": none,
    "flat": flat,
    "linear": linear,
    "exponential": exponential,
    "optimal": optimal,
}

__all__ = ["DROP_POLICIES", "DropPolicy", "DropProblem", "DropResult"]
