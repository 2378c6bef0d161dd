"""The least share of each flow: held before anything is given for worth, and where ports are too small for all minima,
reduced in the order of the roles."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.drops.by_class import flat
from triagemq.plan.drops.problem import FITS, DropPolicy, DropProblem, DropResult, overloads
from triagemq.scenario import Floats

SHORT = 1 - 1e-9
"""Who gets a smaller part of a minimum gets less than it."""


class Reduction(NamedTuple):
    """The minima of one rank at a port that is too small: bytes a second that they need, and that are left."""

    port: int
    rank: float
    needed: float
    left: float


def fitting_minima(
    problem: DropProblem, share: Floats, rank: Floats
) -> tuple[Floats | None, tuple[Reduction, ...]]:
    """The least share of every flow, with which all ports fit, and where minima had to be reduced for that.

    `share` and `rank` are those of subscriptions: a flow keeps the largest minimum that it carries. Lower ranks are
    given theirs first; those of one rank that do not fit a port get equal parts of what is left. None where no
    subscription has a minimum.

    >>> from triagemq.plan.drops.problem import one_port
    >>> problem = one_port(loads=[100.0, 100.0, 100.0], capacity=120.0)
    >>> floor, reduced = fitting_minima(problem, np.array([0.5, 0.9, 0.5]), np.array([1.0, 0.0, 1.0]))
    >>> floor.round(3).tolist(), [(each.rank, each.needed, each.left) for each in reduced]
    ([0.15, 0.9, 0.15], [(1.0, 100.0, 30.0)])
    """
    if not (share > 0).any():
        return None, ()
    success, flow = problem.subscription_success, problem.subscription_flow
    needed = np.divide(share, success, out=np.zeros_like(success), where=success > 0)
    needed = np.minimum(needed, 1.0)
    floor, wanted = np.zeros(len(problem.flow_class)), np.zeros(len(problem.flow_class))
    reduced: list[Reduction] = []
    for each in np.unique(rank[needed > 0]).tolist():
        rows = np.flatnonzero((rank == each) & (needed > 0))
        before = wanted.copy()
        np.maximum.at(wanted, flow[rows], needed[rows])
        more = wanted - before
        left = problem.left_above(floor)
        part = replace(
            problem,
            flow_load_bytes_per_second=problem.flow_load_bytes_per_second * more,
            port_capacity_bytes_per_second=left,
        )
        loads = part.port_loads()
        reduced += [
            Reduction(port, each, float(loads[port]), float(left[port]))
            for port in np.flatnonzero(loads > left * FITS).tolist()
        ]
        floor += more * (1.0 - flat(part).drop_rate)
    return np.minimum(floor, 1.0), tuple(reduced)


def with_minima(policy: DropPolicy, problem: DropProblem) -> DropResult:
    """A policy that knows no minima: flows that it would keep less of are held there, and the rest is solved again.

    >>> from triagemq.plan.drops.problem import one_port
    >>> problem = replace(one_port(loads=[100.0] * 3, capacity=150.0), flow_floor=np.array([0.0, 0.0, 0.8]))
    >>> with_minima(flat, problem).drop_rate.round(9).tolist()
    [0.65, 0.65, 0.2]
    """
    floor = problem.flow_floor
    if floor is None:
        return policy(problem)
    held: NDArray[np.bool_] = np.zeros(len(floor), dtype=np.bool_)
    while True:
        part = replace(
            problem,
            flow_load_bytes_per_second=np.where(held, 0.0, problem.flow_load_bytes_per_second),
            port_capacity_bytes_per_second=problem.left_above(np.where(held, floor, 0.0)),
            flow_floor=None,
        )
        result = policy(part)
        below = ~held & (1.0 - np.asarray(result.drop_rate) < floor)
        if not below.any():
            break
        held |= below
    if not held.any():
        return result
    drop_rate = np.where(held, 1.0 - floor, result.drop_rate)
    rules = {
        each.subject: f"{each.reason.partition('; ')[2]}, beside the minima"
        for each in result.decisions
        if each.kind == "port_overloaded"
    }
    others = tuple(each for each in result.decisions if each.kind != "port_overloaded")
    held_alone = "minima take all of it"
    exceeded = [rules.get(name, held_alone) for name in problem.port_names]
    return replace(result, drop_rate=drop_rate, decisions=(*overloads(problem, drop_rate, exceeded), *others))
