"""Classes for flows with deadlines at one port: as few as they need, after Audsley.

Levels are filled from the lowest up. All flows that have none yet begin in it; those that would miss their deadline
there move up, and so on until the rest stands. A flow that misses with others beside it misses with them above it too,
so no flow is moved up that could stay; and a flow moved down only helps those above it, which wait for one packet of it
instead of a message. So each level keeps as many as it can, and no assignment has fewer levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from triagemq.errors import ParameterError
from triagemq.theory.busy_period import Floats, Integers
from triagemq.theory.validate import per_row
from triagemq.theory.worst_case import Method, blocking_seconds, bounds_of_class, port_flows


@dataclass(frozen=True, slots=True)
class ClassAssignment:
    """The class and the bound of every flow; if they do not fit, one flow that would miss its deadline.

    `classes` begin at 0, with -1 for flows that stay above. If the flows do not fit, those that found no level share
    class 0, `missed` is the one of them that misses by most, and `bound` what it has there.
    """

    classes: Integers
    bounds: Floats
    missed: int | None = None
    bound: float | None = None
    deadline: float | None = None

    @property
    def fits(self) -> bool:
        return self.missed is None


def assign_classes(
    transmission: ArrayLike,
    separation: ArrayLike,
    jitter: ArrayLike,
    deadline: ArrayLike,
    levels: int,
    *,
    packet: ArrayLike | None = None,
    spread: ArrayLike | None = None,
    bucket: ArrayLike = False,
    passing: ArrayLike = False,
    above: ArrayLike | None = None,
    lower_priority_blocking: float = 0.0,
    method: Method = "exact",
) -> ClassAssignment:
    """As few classes as let every flow's bound be within its `deadline`, and no more than `levels`.

    The arguments are those of `delay_bounds`. Flows that are marked in `above` (control traffic) stay above all others
    in class -1, which is no level; their deadlines do not count.

    >>> assign_classes([1.0, 1.0, 1.0], 10.0, 0.0, [2.5, 3.0, 3.0], levels=2)
    ClassAssignment(classes=array([0, 1, 1]), bounds=array([2., 3., 3.]), missed=None, bound=None, deadline=None)
    >>> refused = assign_classes([1.0, 1.0, 1.0], 10.0, 0.0, [2.5, 2.5, 2.5], levels=2)
    >>> refused.fits, refused.missed, refused.bound, refused.deadline
    (False, 0, 3.0, 2.5)
    """
    flows = port_flows(transmission, separation, jitter, packet, spread, bucket, passing)
    count = flows.transmission.size
    within = per_row("deadline", deadline, count, infinite=True)
    fixed = np.zeros(count, dtype=np.bool_) if above is None else np.asarray(above)
    if fixed.dtype != np.bool_ or fixed.shape != (count,):
        raise ParameterError("above", f"must hold true or false for each of {count} flows")
    if isinstance(levels, bool) or not isinstance(levels, int | np.integer) or levels < 1:
        raise ParameterError("levels", f"is {levels!r}; must be a whole number above 0")
    blocking = blocking_seconds(lower_priority_blocking)
    highest = np.flatnonzero(fixed)
    bounds = np.full(count, np.inf)
    depth = np.zeros(count, dtype=np.int64)
    waiting = np.flatnonzero(~fixed)
    level = 0
    while waiting.size:
        level += 1
        members, higher = waiting, highest
        while True:
            deadlines = within[members]
            misses = bounds_of_class(members, higher, blocking, flows, method, deadlines) > deadlines
            if not misses.any() or misses.all():
                break
            higher = np.concatenate((higher, members[misses]))
            members = members[~misses]
        if misses.any() or (level == levels and members.size < waiting.size):
            members, higher = waiting, highest
        bounds[members] = bounds_of_class(members, higher, blocking, flows, method)
        depth[members] = level
        blocking = flows.packet[members].max(initial=blocking)
        waiting = np.setdiff1d(waiting, members)
    bounds[highest] = bounds_of_class(highest, waiting, blocking, flows, method)
    classes = np.where(fixed, -1, level - depth)
    misses = ~fixed & (bounds > within)
    if not misses.any():
        return ClassAssignment(classes, bounds)
    missed = int(np.argmax(np.subtract(bounds, within, out=np.full(count, -np.inf), where=misses)))
    return ClassAssignment(classes, bounds, missed, float(bounds[missed]), float(within[missed]))
