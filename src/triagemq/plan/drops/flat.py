"""The same drop rate for every flow of a port."""

from __future__ import annotations

import numpy as np

from triagemq.plan.drops.by_class import by_class
from triagemq.plan.drops.problem import DropProblem, DropResult
from triagemq.scenario import Floats

__all__ = ["flat"]


def flat(problem: DropProblem) -> DropResult:
    """drop = beta, PrioDeX eq. (25) and (47), one bandwidth per port.

    >>> from triagemq.plan.drops.example import one_port
    >>> flat(one_port(loads=[50.0, 150.0], capacity=100.0)).drop_rate.tolist()
    [0.5, 0.5]
    """
    return by_class(problem, _rule, "flat", "drop = {:.6g}")


def _rule(loads: Floats, capacity: Floats) -> tuple[Floats, Floats]:
    keep = capacity / loads.sum(axis=1)
    return np.repeat(keep[:, None], loads.shape[1], axis=1), 1.0 - keep
