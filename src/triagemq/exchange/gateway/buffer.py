"""What waits for one client, in order of priority class and within a class in order of arrival."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["PriorityBuffer"]


class _Ranked(Protocol):
    @property
    def priority_class(self) -> int: ...


Item = TypeVar("Item", bound=_Ranked)


class PriorityBuffer(Generic[Item]):
    """A queue per priority class. Into a full buffer an item comes only by pushing out a less important one.

    >>> from types import SimpleNamespace
    >>> smoke, pump = SimpleNamespace(priority_class=0), SimpleNamespace(priority_class=3)
    >>> buffer = PriorityBuffer()
    >>> buffer.push(pump, limit=1) is None, buffer.push(smoke, limit=1) is pump, buffer.pop() is smoke
    (True, True, True)
    """

    __slots__ = ("_queues", "_size")

    def __init__(self) -> None:
        self._queues: dict[int, deque[Item]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Item]:
        for priority_class in sorted(self._queues):
            yield from self._queues[priority_class]

    def push(self, item: Item, limit: int) -> Item | None:
        """Append; what had to go instead (perhaps the item itself), or None if there was room."""
        pushed_out = None
        if self._size >= limit:
            lowest = max(self._queues, default=item.priority_class)
            if lowest <= item.priority_class:
                return item
            pushed_out = self._take(lowest, newest=True)
        self._queue(item.priority_class).append(item)
        self._size += 1
        return pushed_out

    def push_back(self, item: Item) -> None:
        """Append without a limit: what was accepted before a restart."""
        self._queue(item.priority_class).append(item)
        self._size += 1

    def push_front(self, items: Iterable[Item]) -> None:
        """Put back what was taken, in the order in which it was."""
        for item in reversed(list(items)):
            self._queue(item.priority_class).appendleft(item)
            self._size += 1

    def pop(self) -> Item:
        """The oldest of the most important class."""
        return self._take(min(self._queues), newest=False)

    def peek(self) -> Item:
        """What `pop` would take."""
        return self._queues[min(self._queues)][0]

    def clear(self) -> list[Item]:
        """Take everything."""
        items = list(self)
        self._queues.clear()
        self._size = 0
        return items

    def _queue(self, priority_class: int) -> deque[Item]:
        queue = self._queues.get(priority_class)
        if queue is None:
            queue = self._queues[priority_class] = deque()
        return queue

    def _take(self, priority_class: int, *, newest: bool) -> Item:
        queue = self._queues[priority_class]
        item = queue.pop() if newest else queue.popleft()
        if not queue:
            del self._queues[priority_class]
        self._size -= 1
        return item
