"""Which share of each flow is dropped before it reaches a port that cannot carry everything.

In comes a DropProblem, out goes a DropResult (`problem`). Policies are rules by class (`by_class`), or the optimum
(`optimal`), by the exact filling of ports with what flows are worth (`waterfilling`). Minima come first (`minima`).
"""

from triagemq.plan.drops.by_class import exponential, flat, linear, none
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
