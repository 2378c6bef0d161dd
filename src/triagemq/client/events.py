"""An event as a subscriber gets it, and the bounded queue in which events wait for it."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from typing import NamedTuple

from triagemq.errors import ParameterError

__all__ = ["Event", "EventQueue", "Overflow"]


class Event(NamedTuple):
    """What was published. `published_ns` is known if the publisher put it in; both times are Unix time."""

    topic: str
    payload: bytes
    published_ns: int | None
    received_ns: int
    qos: int = 0
    slot: int = 0
    """Number of the flow it came by."""
    retained: bool = False

    @property
    def latency_seconds(self) -> float | None:
        """From publication to arrival here, as far as the two clocks agree."""
        return None if self.published_ns is None else (self.received_ns - self.published_ns) / 1e9


class Overflow(StrEnum):
    """What happens to events that the program does not take in time; either way they are counted."""

    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"


class EventQueue:
    """Events in order of arrival, for any number of takers in one event loop."""

    def __init__(self, limit: int = 10_000, overflow: Overflow = Overflow.DROP_OLDEST) -> None:
        if limit < 1:
            raise ParameterError("queue_events", f"must be at least 1, is {limit}")
        self._events: deque[Event] = deque()
        self._limit = limit
        self._overflow = overflow
        self._arrived = asyncio.Event()
        self._ended = False
        self.overflowed = 0
        """Events dropped because nobody took them."""

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Event) -> None:
        """An event has arrived."""
        if len(self._events) >= self._limit:
            self.overflowed += 1
            if self._overflow is Overflow.DROP_NEWEST:
                return
            self._events.popleft()
        self._events.append(event)
        self._arrived.set()

    def end(self) -> None:
        """No more will come; what is here can still be taken."""
        self._ended = True
        self._arrived.set()

    async def take(self) -> Event | None:
        """The next event; None when there will be no more."""
        while not self._events:
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()

    async def take_all(self) -> list[Event]:
        """All that are here, at least one; none when there will be no more."""
        first = await self.take()
        if first is None:
            return []
        events = [first, *self._events]
        self._events.clear()
        return events
