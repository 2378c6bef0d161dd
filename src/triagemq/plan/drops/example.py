"""The smallest drop problem: some flows, one subscription each, one port. For doctests and documentation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triagemq.plan.drops.problem import DropProblem, subscription_columns

__all__ = ["one_port"]


def one_port(
    *,
    loads: Sequence[float],
    capacity: float,
    classes: Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
    shape: str = "log",
    threshold: float = 0.5,
) -> DropProblem:
    """Flow i has class i and weight 1 unless stated; every link is free of errors.

    >>> one_port(loads=[50.0, 80.0], capacity=100.0).port_loads().tolist()
    [130.0]
    """
    count = len(loads)
    return DropProblem(
        flow_load_bytes_per_second=np.array(loads, dtype=np.float64),
        flow_class=np.array(range(count) if classes is None else classes, dtype=np.int32),
        flow_ports=np.zeros((count, 1), dtype=np.int32),
        port_names=("port",),
        port_capacity_bytes_per_second=np.array([capacity]),
        subscription_flow=np.arange(count, dtype=np.int32),
        subscription_success=np.ones(count),
        subscription_freshness=np.ones(count),
        subscriptions=subscription_columns(
            weight=[1.0] * count if weights is None else weights, shape=shape, threshold=threshold
        ),
    )
