"""Which of several changes cannot be planned with: found by halving, so that one of them does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Change = TypeVar("Change")


def faulty_changes(
    changes: Sequence[Change], works: Callable[[Sequence[Change]], bool]
) -> list[Change] | None:
    """The changes to leave out so that the rest works; None if it does not work without all of them.

    Changes are tried in halves on top of those that are known to work: few faulty ones among many cost few tries.

    >>> faulty_changes([1, 2, 3, 4, 5], lambda chosen: 3 not in chosen)
    [3]
    >>> faulty_changes([1, 2], lambda chosen: False) is None
    True
    """
    if not works(()):
        return None
    good: list[Change] = []
    faulty: list[Change] = []

    def search(some: Sequence[Change]) -> None:
        if works([*good, *some]):
            good.extend(some)
        elif len(some) == 1:
            faulty.extend(some)
        else:
            search(some[: len(some) // 2])
            search(some[len(some) // 2 :])

    if changes:
        search(changes)
    return faulty
