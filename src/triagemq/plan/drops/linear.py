"""Drop rates that grow with the class in equal steps, up to 1."""

from __future__ import annotations

import numpy as np

from triagemq.plan.drops.by_class import by_class, split_class_zero
from triagemq.plan.drops.problem import DropProblem, DropResult
from triagemq.scenario import Floats

__all__ = ["linear"]


def linear(problem: DropProblem) -> DropResult:
    """drop = min(1, beta * class), PrioDeX eq. (26), solved with the clamp inside (eq. 48 forgets it).

    >>> from triagemq.plan.drops.example import one_port
    >>> linear(one_port(loads=[100.0, 100.0, 100.0], capacity=150.0)).drop_rate.tolist()
    [0.0, 0.5, 1.0]
    """
    return by_class(problem, _rule, "linear", "drop = min(1, {:.6g} * class)")


def _rule(loads: Floats, capacity: Floats) -> tuple[Floats, Floats]:
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
    # What the rounding of beta took or gave is a few ulps; one scaling puts the port onto its capacity.
    kept = (keep * others).sum(axis=1)
    keep *= np.divide(for_others, kept, out=np.ones(ports), where=kept > 0)[:, None]
    return np.concatenate([keep_zero[:, None], np.minimum(keep, 1.0)], axis=1), beta
