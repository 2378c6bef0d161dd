"""Events of a topic to one client, thinned by time: evenly, and always the newest of each interval."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")


@dataclass(slots=True)
class _Interval(Generic[Item]):
    ends_ns: int
    length_ns: int
    timer: Any
    newest: Item | None = None


class Thinning(Generic[Item]):
    """The intervals of one client, by topic: an event begins one, and at its end the newest that came in it passes.

    No I/O, and no client: `schedule` calls something at a time, and `cancel` calls that off; `release` gets what passes
    at the end of an interval, and returns how long the next one is, 0 for none. Beyond so many intervals at a time
    (`most`) further topics are not thinned: one client must not fill the memory with them.

    >>> calls, passed = [], []
    >>> def release(item):
    ...     passed.append(item)
    ...     return 500
    >>> thinning = Thinning(lambda due_ns, what: calls.append((due_ns, what)), lambda timer: None, release)
    >>> [thinning.passes("smoke", 500, now_ns) for now_ns in (0, 10, 20)]
    [True, False, False]
    >>> thinning.hold("smoke", "b"), thinning.hold("smoke", "c")
    (None, 'b')
    >>> due_ns, end = calls.pop()
    >>> end(due_ns), due_ns, passed, calls[0][0]
    (None, 500, ['c'], 1000)
    """

    __slots__ = ("_cancel", "_intervals", "_most", "_release", "_schedule")

    def __init__(
        self,
        schedule: Callable[[int, Callable[[int], None]], object],
        cancel: Callable[[Any], None],
        release: Callable[[Item], int],
        *,
        most: int = 10_000,
    ) -> None:
        self._most = most
        self._schedule, self._cancel, self._release = schedule, cancel, release
        self._intervals: dict[str, _Interval[Item]] = {}

    def __len__(self) -> int:
        return len(self._intervals)

    def __iter__(self) -> Iterator[Item]:
        """What waits for the end of an interval."""
        return (each.newest for each in self._intervals.values() if each.newest is not None)

    def passes(self, topic: str, length_ns: int, now_ns: int) -> bool:
        """Whether what comes now passes, and begins an interval; if not, `hold` it."""
        if topic in self._intervals:
            return False
        if len(self._intervals) < self._most:
            self._begin(topic, now_ns + length_ns, length_ns)
        return True

    def hold(self, topic: str, item: Item) -> Item | None:
        """The newest of an interval waits for its end. Returns what has waited in vain."""
        interval = self._intervals[topic]
        older, interval.newest = interval.newest, item
        return older

    def fit(self, length_of: Callable[[str], int], now_ns: int) -> None:
        """The lengths of intervals have changed: those that go on end sooner or later, some at once."""
        for topic, interval in list(self._intervals.items()):
            length_ns = length_of(topic)
            if length_ns != interval.length_ns:
                self._cancel(interval.timer)
                interval.ends_ns += length_ns - interval.length_ns
                interval.length_ns = length_ns
                interval.timer = self._schedule(max(interval.ends_ns, now_ns), partial(self._end, topic))

    def clear(self) -> list[Item]:
        """End all intervals; what waits is the caller's."""
        waiting = [*self]
        for interval in self._intervals.values():
            self._cancel(interval.timer)
        self._intervals.clear()
        return waiting

    def _begin(self, topic: str, ends_ns: int, length_ns: int) -> None:
        timer = self._schedule(ends_ns, partial(self._end, topic))
        self._intervals[topic] = _Interval(ends_ns, length_ns, timer)

    def _end(self, topic: str, now_ns: int) -> None:
        interval = self._intervals.pop(topic)
        if interval.newest is not None and (length_ns := self._release(interval.newest)) > 0:
            # Late calls must not add up to a lower rate, nor bring two events at once.
            self._begin(topic, max(interval.ends_ns + length_ns, now_ns + length_ns // 2), length_ns)
