"""Drop rates that approach 1 exponentially with the class."""

from __future__ import annotations

import numpy as np

from triagemq.plan.drops.by_class import by_class, split_class_zero
from triagemq.plan.drops.problem import DropProblem, DropResult
from triagemq.scenario import Floats

__all__ = ["exponential"]

ITERATIONS = 200
"""Newton needs about six; the rest is for loads that differ by hundreds of orders of magnitude."""


def exponential(problem: DropProblem) -> DropResult:
    """drop = 1 - a^class with 0 <= a <= 1, PrioDeX eq. (27) and (54) with a = 1/beta and 0^0 = 1.

    >>> from triagemq.plan.drops.example import one_port
    >>> exponential(one_port(loads=[100.0, 100.0, 100.0], capacity=175.0)).drop_rate.tolist()
    [0.0, 0.5, 0.75]
    """
    return by_class(problem, _rule, "exponential", "drop = 1 - {:.6g}^class")


def _rule(loads: Floats, capacity: Floats) -> tuple[Floats, Floats]:
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
    # What the rounding of a took or gave is a few ulps; one scaling puts the port onto its capacity.
    kept = (keep * others).sum(axis=1)
    keep *= np.divide(for_others, kept, out=np.ones(ports), where=kept > 0)[:, None]
    return np.concatenate([keep_zero[:, None], np.minimum(keep, 1.0)], axis=1), a
