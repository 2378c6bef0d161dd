"""Drop rates that follow the class, with one parameter per port: flat, linear and exponential; and none at all.

What they share is which ports they relieve, and in which order (`by_class`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triagemq.plan.drops.problem import FITS, DropProblem, DropResult, overloads
from triagemq.plan.model import Decision
from triagemq.scenario import Floats

ITERATIONS = 80
"""Of bisection: to the last digit, also of numbers that differ by hundreds of orders of magnitude."""

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
        share = np.ones((count, classes))
        share[exceeded], parameter[exceeded] = rule(loads[exceeded], capacity)
        keep[flows] *= share.reshape(-1)[cell]
        zero_load = problem.arriving(loads[:, 0])
        arriving = problem.arriving(problem.port_capacity_bytes_per_second)
        for which, of_port in enumerate(exceeded):
            # Flat treats all classes alike, so class 0 losing packets there is no news.
            if name != "flat" and loads[of_port, 0] > capacity[which] * FITS:
                zero_dropped.append(
                    Decision(
                        kind="class_zero_dropped",
                        subject=problem.port_names[of_port],
                        before="drop 0",
                        after=f"drop {1 - share[of_port, 0]:.6g}",
                        reason=f"class 0 alone brings {zero_load[of_port]:.6g} bytes/s, the port may carry "
                        f"{arriving[of_port]:.6g}; all other classes are dropped whole",
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


def none(problem: DropProblem) -> DropResult:
    """Every drop rate 0, whatever the load (FireDeX 5.4's baseline without preemptive drops).

    >>> from triagemq.plan.drops.problem import one_port
    >>> none(one_port(loads=[50.0, 80.0], capacity=100.0)).drop_rate.tolist()
    [0.0, 0.0]
    """
    return DropResult(np.zeros(len(problem.flow_class)))


def flat(problem: DropProblem) -> DropResult:
    """drop = beta, PrioDeX eq. (25) and (47), one bandwidth per port.

    >>> from triagemq.plan.drops.problem import one_port
    >>> flat(one_port(loads=[50.0, 150.0], capacity=100.0)).drop_rate.tolist()
    [0.5, 0.5]
    """
    return by_class(problem, _flat_rule, "flat", "drop = {:.6g}")


def _flat_rule(loads: Floats, capacity: Floats) -> tuple[Floats, Floats]:
    keep = capacity / loads.sum(axis=1)
    return np.repeat(keep[:, None], loads.shape[1], axis=1), 1.0 - keep


def linear(problem: DropProblem) -> DropResult:
    """drop = min(1, beta * class), PrioDeX eq. (26), solved with the clamp inside (eq. 48 forgets it).

    >>> from triagemq.plan.drops.problem import one_port
    >>> linear(one_port(loads=[100.0, 100.0, 100.0], capacity=150.0)).drop_rate.tolist()
    [0.0, 0.5, 1.0]
    """
    return by_class(problem, _linear_rule, "linear", "drop = min(1, {:.6g} * class)")


def _linear_rule(loads: Floats, capacity: Floats) -> tuple[Floats, Floats]:
    # The parameter is 1 - beta, so that loads grow with it.
    keep, parameter = _filled(
        loads, capacity, lambda parameter, number: np.maximum(0.0, 1.0 - (1.0 - parameter) * number), np.mean
    )
    return keep, 1.0 - parameter


def exponential(problem: DropProblem) -> DropResult:
    """drop = 1 - a^class with 0 <= a <= 1, PrioDeX eq. (27) and (54) with a = 1/beta and 0^0 = 1.

    >>> from triagemq.plan.drops.problem import one_port
    >>> exponential(one_port(loads=[100.0, 100.0, 100.0], capacity=175.0)).drop_rate.round(12).tolist()
    [0.0, 0.5, 0.75]
    """
    return by_class(problem, _exponential_rule, "exponential", "drop = 1 - {:.6g}^class")


def _exponential_rule(loads: Floats, capacity: Floats) -> tuple[Floats, Floats]:
    return _filled(loads, capacity, lambda a, number: a**number, _geometric_mean)


def _geometric_mean(ends: Floats, axis: int) -> Floats:
    """Of numbers from 0 to 1, which may be hundreds of orders of magnitude apart."""
    return np.asarray(np.sqrt(np.maximum(ends, 1e-300)).prod(axis=axis))


def _filled(
    loads: Floats,
    capacity: Floats,
    keep_at: Callable[[Floats, Floats], Floats],
    middle: Callable[..., Floats],
) -> tuple[Floats, Floats]:
    """The keep of all classes with which exceeded ports are just filled, and the parameter of it, by bisection."""
    others, number = loads[:, 1:], np.arange(1.0, loads.shape[1])
    keep_zero, left = split_class_zero(loads, capacity)
    fits, exceeds = np.zeros(len(loads)), np.ones(len(loads))
    for _ in range(ITERATIONS):
        between = middle(np.stack([fits, exceeds]), axis=0)
        fitting = (keep_at(between[:, None], number) * others).sum(axis=1) <= left
        fits, exceeds = np.where(fitting, between, fits), np.where(fitting, exceeds, between)
    keep = keep_at(fits[:, None], number)
    # What the last digit of the parameter leaves of the port: one scaling fills it.
    sent = (keep * others).sum(axis=1)
    keep = keep * np.divide(left, sent, out=np.ones_like(sent), where=sent > 0)[:, None]
    return np.concatenate([keep_zero[:, None], np.minimum(keep, 1.0)], axis=1), fits
