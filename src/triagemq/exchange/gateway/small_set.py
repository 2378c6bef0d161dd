"""A set that takes next to nothing while it is empty: there may be a hundred thousand sessions that do nothing."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import TypeVar

__all__ = ["SmallSet"]

Item = TypeVar("Item", bound=Hashable)


class SmallSet(Collection[Item]):
    """What a session needs of a set.

    >>> numbers = SmallSet()
    >>> 1 in numbers, len(numbers), list(numbers)
    (False, 0, [])
    >>> numbers.add(1)
    >>> 1 in numbers, len(numbers), list(numbers)
    (True, 1, [1])
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: set[Item] | None = None

    def __contains__(self, item: object) -> bool:
        return self._items is not None and item in self._items

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items or ())

    def __len__(self) -> int:
        return 0 if self._items is None else len(self._items)

    def add(self, item: Item) -> None:
        """Have it in the set."""
        if self._items is None:
            self._items = {item}
        else:
            self._items.add(item)

    def discard(self, item: Item) -> None:
        """Have it no longer."""
        if self._items is not None:
            self._items.discard(item)
            if not self._items:
                self._items = None

    def clear(self) -> None:
        """Have nothing."""
        self._items = None
