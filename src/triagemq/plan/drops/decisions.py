"""What every policy says about a port it had to relieve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triagemq.plan.drops.problem import FITS, DropProblem
from triagemq.plan.model import Decision
from triagemq.scenario import Floats

__all__ = ["overloads"]


def overloads(problem: DropProblem, drop_rate: Floats, rules: Sequence[str | None]) -> tuple[Decision, ...]:
    """One decision per port that is offered more than its capacity: loads before and after, and the rule.

    `rules` has one text per port, None where drops for other ports were enough.
    """
    loads = (
        problem.port_loads(),
        problem.port_loads(1.0 - drop_rate),
        problem.port_capacity_bytes_per_second,
    )
    exceeded = np.flatnonzero(loads[0] > loads[2] * FITS)
    offered, planned, capacity = map(problem.arriving, loads)
    return tuple(
        Decision(
            kind="port_overloaded",
            subject=problem.port_names[port],
            before=f"{offered[port]:.6g} bytes/s",
            after=f"{planned[port]:.6g} bytes/s",
            reason=f"the port may carry {capacity[port]:.6g} bytes/s; "
            + (rules[port] or "drops for other ports on the way relieve it"),
        )
        for port in exceeded.tolist()
    )
