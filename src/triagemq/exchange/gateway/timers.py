"""What is to be called when its time has come, and can be called off."""

from __future__ import annotations

import heapq
from collections.abc import Callable

_FEW = 64


class Timer:
    """One call to come; `what` is None once it was called, or called off."""

    __slots__ = ("what",)

    def __init__(self, what: Callable[[], None]) -> None:
        self.what: Callable[[], None] | None = what


class Timers:
    """Calls in the order of their times. What is called off goes at once, its place in the queue a little later.

    >>> timers, called = Timers(), []
    >>> first, second = timers.add(10, lambda: called.append(1)), timers.add(20, lambda: called.append(2))
    >>> timers.cancel(first)
    >>> timers.next_due_ns
    20
    >>> timers.take_due(20)()
    >>> called, timers.take_due(20), timers.next_due_ns
    ([2], None, None)
    """

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, Timer]] = []
        self._number = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, due_ns: int, what: Callable[[], None]) -> Timer:
        """Have something called."""
        timer = Timer(what)
        self._number += 1
        heapq.heappush(self._queue, (due_ns, self._number, timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Call it off, if it is not over."""
        if timer is None or timer.what is None:
            return
        timer.what = None
        self._cancelled += 1
        if self._cancelled > _FEW + len(self._queue) // 4:
            # Places of timers that were called off must not add up.
            self._queue = [entry for entry in self._queue if entry[2].what is not None]
            heapq.heapify(self._queue)
            self._cancelled = 0

    @property
    def next_due_ns(self) -> int | None:
        """The time of the next call."""
        queue = self._queue
        while queue and queue[0][2].what is None:
            heapq.heappop(queue)
            self._cancelled -= 1
        return queue[0][0] if queue else None

    def take_due(self, now_ns: int) -> Callable[[], None] | None:
        """The next call whose time has come."""
        due_ns = self.next_due_ns
        if due_ns is None or due_ns > now_ns:
            return None
        timer = heapq.heappop(self._queue)[2]
        what, timer.what = timer.what, None
        return what
