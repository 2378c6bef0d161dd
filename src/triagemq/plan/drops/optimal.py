"""The drop rates of greatest utility, flow by flow."""

from __future__ import annotations

import numpy as np

from triagemq.plan.drops.concave import concave_flows
from triagemq.plan.drops.decisions import overloads
from triagemq.plan.drops.problem import DropProblem, DropResult
from triagemq.plan.drops.step import solve_steps
from triagemq.plan.drops.waterfilling import fill_ports
from triagemq.plan.model import Decision
from triagemq.scenario import UtilityShape

__all__ = ["optimal"]


def optimal(problem: DropProblem) -> DropResult:
    """Maximise sum_r U_r(s_r x_f), x = 1 - drop, within every port's capacity (PrioDeX 4.3, "optimized").

    Exact for log and linear utilities (`waterfilling`, which holds the proof); for steps a search with an
    upper bound beside it (`step`). Freshness factors scale the utilities; they come from an earlier forecast,
    so the result is exact for those factors only.

    >>> from triagemq.plan.drops.example import one_port
    >>> drop_rate = optimal(one_port(loads=[100.0, 100.0], capacity=120.0, weights=[1.2, 1.0])).drop_rate
    >>> [round(float(rate), 4) for rate in drop_rate]
    [0.2545, 0.5455]
    """
    if bool((problem.subscriptions.utility_shape == UtilityShape.STEP).any()):
        solution = solve_steps(problem)
        keep, price, bound = solution.keep, solution.price, solution.bound
    else:
        keep, price = fill_ports(
            concave_flows(problem), problem.ports_by_depth(), problem.port_capacity_bytes_per_second
        )
        bound = None
    drop_rate = np.clip(1.0 - keep, 0.0, 1.0)
    rules = [
        None
        if np.isnan(nu)
        else f"optimal: a byte per second is worth {nu:.6g} here, flows keep what is worth more"
        for nu in price
    ]
    decisions = overloads(problem, drop_rate, rules)
    if bound is not None:
        value = problem.utility(drop_rate)
        share = f"{value / bound:.2%} of it" if bound > 0 else "all of it"
        decisions = (
            *decisions,
            Decision(
                kind="utility_bound",
                subject="all ports",
                before=f"at most {bound:.9g}",
                after=f"{value:.9g}",
                reason=f"step utilities are searched, not solved; the plan reaches {share}",
            ),
        )
    return DropResult(drop_rate, decisions, bound)
