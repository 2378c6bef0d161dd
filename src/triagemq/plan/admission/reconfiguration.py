"""Levels are changed flow by flow, and every state in between has to keep every promise.

MIDAS moves the flows of the lowest new priority first. That is tried first, and then other orders; every state is
checked before the first step is taken. A flow that is new or gone sends nothing meanwhile: it comes last, or goes
first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]

MOST_FURTHER_STATES = 40
"""States that are checked, beyond one for each move, before no safe order is taken to exist."""


@dataclass(frozen=True, slots=True)
class Move:
    """A publication's flow changes its level at one port."""

    publication: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class LevelStep:
    """One step of a reconfiguration: a publication's flow has another level at a port; -1 is none, new or gone."""

    publication: int
    port: int
    before: int
    after: int


def safe_order(
    keeps: Callable[[Rows], bool], publication: Rows, before: Rows, after: Rows
) -> tuple[Move, ...] | None:
    """An order of moving flows from their levels to others in which every state is kept; None if none is found.

    Here no two may share a level, so the lower one makes room first:

    >>> safe_order(lambda level: len(set(level.tolist())) == 2, np.array([7, 8]), np.array([0, 1]), np.array([1, 2]))
    (Move(publication=8, before=1, after=2), Move(publication=7, before=0, after=1))
    """
    moving = np.flatnonzero(before != after)
    lowest_first = moving[np.lexsort((moving, -before[moving], -after[moving]))].tolist()
    seen: set[tuple[int, ...]] = set()
    most = len(lowest_first) + MOST_FURTHER_STATES

    def search(level: Rows, left: list[int]) -> list[int] | None:
        if not left:
            return []
        for row in left:
            moved = level.copy()
            moved[row] = after[row]
            state = tuple(moved.tolist())
            if state in seen or len(seen) >= most:
                continue
            seen.add(state)
            if keeps(moved):
                rest = search(moved, [each for each in left if each != row])
                if rest is not None:
                    return [row, *rest]
        return None

    order = search(before, lowest_first)
    if order is None:
        return None
    return tuple(Move(int(publication[row]), int(before[row]), int(after[row])) for row in order)
