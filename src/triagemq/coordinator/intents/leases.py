"""Leases: who is there until when. Pure: the caller brings the clock, which must never go backwards."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

_SPARE_ENTRIES = 64

Key = TypeVar("Key", bound=Hashable)


class Leases(Generic[Key]):
    """Leases by key. Renewing costs nothing but a number: the queue is put right when a lease comes up.

    The queue holds no more than twice as many entries as there are leases, whatever is granted and dropped.

    >>> leases = Leases[str]()
    >>> leases.grant("ff-7", 10.0, now=0.0)
    >>> leases.renew("ff-7", now=8.0), leases.renew("nobody", now=8.0)
    (True, False)
    >>> leases.ended(now=17.0), leases.ended(now=18.0), len(leases)
    ([], ['ff-7'], 0)
    """

    def __init__(self) -> None:
        self._seconds: dict[Key, float] = {}
        self._until: dict[Key, float] = {}
        self._queue: list[tuple[float, int, Key]] = []
        # Of each key, the entry of the queue that counts: when it comes up, and its ticket.
        self._queued: dict[Key, tuple[float, int]] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._until)

    def grant(self, key: Key, seconds: float, now: float) -> None:
        """Begin a lease, or change its length."""
        self._seconds[key] = seconds
        self._until[key] = now + seconds
        queued = self._queued.get(key)
        if queued is None or queued[0] > self._until[key]:
            self._push(key)

    def renew(self, key: Key, now: float) -> bool:
        """Begin the lease anew; False if there is none."""
        if key not in self._until:
            return False
        self._until[key] = max(self._until[key], now + self._seconds[key])
        return True

    def drop(self, key: Key) -> None:
        """End a lease without a word."""
        self._until.pop(key, None)
        self._seconds.pop(key, None)
        self._queued.pop(key, None)

    def ended(self, now: float) -> list[Key]:
        """The leases that have ended by now; they are forgotten."""
        gone: list[Key] = []
        while self._queue and self._queue[0][0] <= now:
            at, ticket, key = heapq.heappop(self._queue)
            if self._queued.get(key) != (at, ticket):
                continue
            if self._until[key] > now:
                self._push(key)
            else:
                gone.append(key)
                self.drop(key)
        return gone

    def forgive(self, seconds: float) -> None:
        """Make all leases longer: the coordinator itself stood still, and nobody could be heard."""
        self._until = {key: until + seconds for key, until in self._until.items()}

    def _push(self, key: Key) -> None:
        self._tickets += 1
        self._queued[key] = self._until[key], self._tickets
        heapq.heappush(self._queue, (self._until[key], self._tickets, key))
        if len(self._queue) > 2 * len(self._until) + _SPARE_ENTRIES:
            self._queue = [(at, ticket, each) for each, (at, ticket) in self._queued.items()]
            heapq.heapify(self._queue)
