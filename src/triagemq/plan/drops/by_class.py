"""Drop rates that follow the class, with one parameter per port: flat, linear and exponential; and none at all.

What they share is which ports they relieve, and in which order (`by_class`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from triagemq.plan.drops.problem import FITS, DropProblem, DropResult, overloads
from triagemq.plan.model import Decision
from triagemq.scenario import Floats

ITERATIONS = 200
"""Newton needs about six; the rest is for loads that differ by hundreds of orders of magnitude."""

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
        carried = problem.arriving(problem.port_capacity_bytes_per_second)
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
    """Exact by breakpoints: the load falls with beta in straight pieces that meet where a class is gone.

    Between beta = 1/(m + 1) and 1/m the classes 0..m still get something, and
        load = sum_{y <= m} L_y  -  beta * sum_{y <= m} y L_y.
    The piece wanted is the first whose end, beta = 1/m, is down to the capacity.
    """
    ports, classes = loads.shape
    keep_zero, for_others = split_class_zero(loads, capacity)
    if classes == 1:
        return keep_zero[:, None], np.full(ports, np.inf)
    number = np.arange(1, classes)
    others = loads[:, 1:]
    sums = np.cumsum(others, axis=1)
    moments = np.cumsum(number * others, axis=1)
    at_end = sums - moments / number
    down = at_end <= for_others[:, None]
    # The end of piece m = 1 keeps none of these classes, so some piece always qualifies.
    down[:, 0] = True
    piece = classes - 2 - np.argmax(down[:, ::-1], axis=1)
    everyone = np.arange(ports)
    moment = moments[everyone, piece]
    end = 1.0 / number[piece]
    beta = np.divide(sums[everyone, piece] - for_others, moment, out=end.copy(), where=moment > 0)
    beta = np.where(for_others > 0, np.minimum(beta, end), 1.0)
    keep = np.maximum(0.0, 1.0 - beta[:, None] * number)
    return _filled(keep_zero, keep, others, for_others), beta


def exponential(problem: DropProblem) -> DropResult:
    """drop = 1 - a^class with 0 <= a <= 1, PrioDeX eq. (27) and (54) with a = 1/beta and 0^0 = 1.

    >>> from triagemq.plan.drops.problem import one_port
    >>> exponential(one_port(loads=[100.0, 100.0, 100.0], capacity=175.0)).drop_rate.tolist()
    [0.0, 0.5, 0.75]
    """
    return by_class(problem, _exponential_rule, "exponential", "drop = 1 - {:.6g}^class")


def _exponential_rule(loads: Floats, capacity: Floats) -> tuple[Floats, Floats]:
    """The root of sum_y L_y a^y = capacity in [0, 1] for every port.

    The sum is convex and grows with a, so Newton's iterates from the right of the root fall to it and never
    pass it. No single class may exceed what is left for all: that start is right of the root, and near it.
    """
    ports, classes = loads.shape
    keep_zero, for_others = split_class_zero(loads, capacity)
    others = loads[:, 1:]
    number = np.arange(1, classes)
    share = np.divide(
        for_others[:, None], others, out=np.ones_like(others), where=others > for_others[:, None]
    )
    a = np.min(share ** (1.0 / number), axis=1, initial=1.0)
    for _ in range(ITERATIONS):
        powers = a[:, None] ** (number - 1)
        excess = (others * powers).sum(axis=1) * a - for_others
        slope = (number * others * powers).sum(axis=1)
        step = np.divide(excess, slope, out=np.zeros(ports), where=(slope > 0) & (excess > 0))
        # A step below the last digit of a is rounding, also where `excess` keeps its sign.
        moving = step > 1e-16 * a
        if not moving.any():
            break
        a = np.where(moving, np.maximum(a - step, 0.0), a)
    keep = a[:, None] ** number
    return _filled(keep_zero, keep, others, for_others), a


def _filled(keep_zero: Floats, keep: Floats, others: Floats, for_others: Floats) -> Floats:
    """The keep of all classes. Rounding of the parameter takes or gives a few ulps: one scaling fills the port."""
    sent = (keep * others).sum(axis=1)
    keep = keep * np.divide(for_others, sent, out=np.ones_like(sent), where=sent > 0)[:, None]
    return np.concatenate([keep_zero[:, None], np.minimum(keep, 1.0)], axis=1)
