"""What the orders in force mean for one client, and long polls for a change of that.

A client's generation is that of the orders which last changed its topics or classes, its direct topics, or its gateway.
Other plans wake no client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from triagemq.channel.orders import Orders
from triagemq.client.coordinator import Assignment, Direction
from triagemq.coordinator.decide.promised import publication_name
from triagemq.coordinator.intents.registry import Key
from triagemq.intents import PUBLISHER, SUBSCRIBER


class Assignments:
    """The orders in force, by client, for those that are announced."""

    def __init__(self) -> None:
        self.orders = Orders()
        self._generations: dict[Key, int] = {}
        self._waiting: dict[Key, set[asyncio.Future[None]]] = {}
        # By publisher and topic, the address and since which generation for each subscriber.
        self._directions: dict[str, dict[str, tuple[str, dict[str, int]]]] = {}

    def announced(self, key: Key) -> None:
        self._generations.setdefault(key, 0)

    def forget(self, key: Key) -> None:
        self._generations.pop(key, None)
        self._wake(key)

    def of(self, name: str) -> Assignment:
        planned = self.orders.topics.get(name, {})
        return Assignment(
            generation=self._generations.get((SUBSCRIBER, name), 0),
            classes={topic: priority_class for topic, (priority_class, _) in planned.items()},
            drop_rates={topic: drop_rate for topic, (_, drop_rate) in planned.items()},
        )

    def direction(self, publisher: str) -> Direction:
        """Which of its topics subscribers take without a broker, and at which addresses."""
        topics = {topic: address for topic, (address, _) in self._directions.get(publisher, {}).items()}
        return Direction(self._generations.get((PUBLISHER, publisher), 0), topics)

    def put_in_force(self, orders: Orders, subscribers: Iterable[str]) -> None:
        """New orders, and the subscribers for which they change something."""
        before, self.orders = self.orders, orders
        self.changed(((SUBSCRIBER, name) for name in subscribers), orders.generation)
        if orders.direct != before.direct or not before.generation:
            was, self._directions = self._directions, _directions(orders)
            differs = [
                name for name in {**was, **self._directions} if was.get(name) != self._directions.get(name)
            ]
            self.changed(((PUBLISHER, name) for name in differs), orders.generation)

    def changed(self, keys: Iterable[Key], generation: int) -> None:
        """Something is different for these clients."""
        for key in keys:
            if key in self._generations:
                # A number of its own, if it has the one of these orders already.
                self._generations[key] = max(generation, self._generations[key] + 1)
                self._wake(key)

    async def wait(self, key: Key, after: int, seconds: float) -> None:
        """Until the client's generation is above `after`, the client is gone, or time is up."""
        if self._generations.get(key, 0) > after or seconds <= 0:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(woken)
        try:
            await asyncio.wait([woken], timeout=seconds)
        finally:
            if (others := self._waiting.get(key)) is not None:
                others.discard(woken)
                if not others:
                    del self._waiting[key]

    def _wake(self, key: Key) -> None:
        for waiting in self._waiting.pop(key, ()):
            if not waiting.done():
                waiting.set_result(None)


def _directions(orders: Orders) -> dict[str, dict[str, tuple[str, dict[str, int]]]]:
    found: dict[str, dict[str, tuple[str, dict[str, int]]]] = {}
    for subscriber, topics in orders.direct.items():
        for topic, publishers in topics.items():
            for name, since in publishers.items():
                address = str(orders.promised.addresses[publication_name(name, topic)])
                found.setdefault(name, {}).setdefault(topic, (address, {}))[1][subscriber] = since
    return found
