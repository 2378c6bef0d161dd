"""The mechanics shared by policies that decide per port and class: which ports, in which order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triagemq.plan.drops.decisions import overloads
from triagemq.plan.drops.problem import FITS, DropProblem, DropResult
from triagemq.plan.model import Decision
from triagemq.scenario import Floats

__all__ = ["ClassRule", "by_class", "split_class_zero"]

ClassRule = Callable[[Floats, Floats], tuple[Floats, Floats]]
"""(loads[ports, classes], capacity[ports]) of exceeded ports -> (keep[ports, classes], parameter[ports])."""


def by_class(problem: DropProblem, rule: ClassRule, name: str, formula: str) -> DropResult:
    """Apply a rule to every exceeded port, from the ports next to the subscribers up to those at the brokers.

    Each port sees what the ports below it left, and a flow's keep is the product along its path. An exceeded
    port so ends at its capacity exactly, unless drops decided further up take it below: what is dropped is
    dropped before the first port, so a drop for one port relieves all others on the path. `formula` describes
    the rule with its parameter, as in "drop = {:.6g}".
    """
    classes = int(problem.flow_class.max(initial=0)) + 1
    count = len(problem.port_names)
    keep = np.ones(len(problem.flow_class))
    parameter = np.full(count, np.nan)
    zero_dropped: list[Decision] = []
    for port in reversed(problem.ports_by_depth()):
        flows = np.flatnonzero(port >= 0)
        cell = port[flows].astype(np.int64) * classes + problem.flow_class[flows]
        remaining = problem.flow_load_bytes_per_second[flows] * keep[flows]
        loads = np.bincount(cell, remaining, minlength=count * classes).astype(np.float64)
        loads = loads.reshape(count, classes)
        exceeded = np.flatnonzero(loads.sum(axis=1) > problem.port_capacity_bytes_per_second * FITS)
        if len(exceeded) == 0:
            continue
        capacity = problem.port_capacity_bytes_per_second[exceeded]
        kept = np.ones((count, classes))
        kept[exceeded], parameter[exceeded] = rule(loads[exceeded], capacity)
        keep[flows] *= kept.reshape(-1)[cell]
        zero_load = problem.arriving(loads[:, 0])
        carried = problem.arriving(problem.port_capacity_bytes_per_second)
        for which, of_port in enumerate(exceeded):
            # Flat treats all classes alike, so class 0 losing packets there is no news.
            if name != "flat" and loads[of_port, 0] > capacity[which] * FITS:
                zero_dropped.append(
                    Decision(
                        kind="class_zero_dropped",
                        subject=problem.port_names[of_port],
                        before="drop 0",
                        after=f"drop {1 - kept[of_port, 0]:.6g}",
                        reason=f"class 0 alone brings {zero_load[of_port]:.6g} bytes/s, the port may carry "
                        f"{carried[of_port]:.6g}; all other classes are dropped whole",
                    )
                )
    drop_rate = np.clip(1.0 - keep, 0.0, 1.0)
    rules = [None if np.isnan(value) else f"{name}: {formula.format(value)}" for value in parameter]
    return DropResult(drop_rate, (*overloads(problem, drop_rate, rules), *zero_dropped))


def split_class_zero(loads: Floats, capacity: Floats) -> tuple[Floats, Floats]:
    """The keep of class 0, and the capacity left for the others (0 where class 0 alone does not fit).

    Linear and exponential never touch class 0 (PrioDeX eq. 26 and 27), so they have no answer where it alone
    passes the capacity; it is then cut to fit and the classes below get nothing (theory.md section 3).
    """
    class_zero = loads[:, 0]
    keep = np.divide(capacity, class_zero, out=np.ones_like(capacity), where=class_zero > capacity)
    return keep, np.maximum(capacity - class_zero, 0.0)
