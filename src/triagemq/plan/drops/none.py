"""No drops: what does not fit waits and is lost in full buffers. The baseline that meets no capacity."""

from __future__ import annotations

import numpy as np

from triagemq.plan.drops.problem import DropProblem, DropResult

__all__ = ["none"]


def none(problem: DropProblem) -> DropResult:
    """Every drop rate 0, whatever the load (FireDeX 5.4's baseline without preemptive drops).

    >>> from triagemq.plan.drops.example import one_port
    >>> none(one_port(loads=[50.0, 80.0], capacity=100.0)).drop_rate.tolist()
    [0.0, 0.0]
    """
    return DropResult(np.zeros(len(problem.flow_class)))
