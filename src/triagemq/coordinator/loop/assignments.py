"""What the orders in force mean for one client, and who waits for that to change.

A client's generation is that of the orders which last changed something for it: topics or classes of a subscriber, or
what a publisher sends without a broker. A plan that does not wakes no client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from triagemq.client.coordinator import Assignment, Direction
from triagemq.coordinator.decide.orders import Orders
from triagemq.coordinator.decide.promised import publication_name


class Generations:
    """When something last changed for whom, and who waits for the next time."""

    def __init__(self) -> None:
        self._generations: dict[str, int] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def of(self, name: str) -> int:
        return self._generations.get(name, 0)

    def changed(self, names: Iterable[str], generation: int, present: Collection[str] | None = None) -> None:
        """Something is different for some of those who are `present`; not by new orders, if these are not named."""
        for name in names:
            # A number of its own, if it has the one of these orders already.
            self._generations[name] = max(generation, self._generations.get(name, 0) + 1)
            self._wake(name)
        if present is not None and len(self._generations) > 2 * len(present) + 100:
            # Some were gone before the plan that knew them was in force.
            self._generations = {name: self._generations.get(name, 0) for name in present}

    def forget(self, name: str) -> None:
        self._generations.pop(name, None)
        self._wake(name)

    def _wake(self, name: str) -> None:
        for waiting in self._waiting.pop(name, ()):
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, name: str, after: int, seconds: float) -> None:
        """Until the generation is above `after`, the client is gone, or time is up."""
        if self.of(name) > after or seconds <= 0:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, set()).add(woken)
        try:
            await asyncio.wait([woken], timeout=seconds)
        finally:
            others = self._waiting.get(name)
            if others is not None:
                others.discard(woken)
                if not others:
                    del self._waiting[name]


class Assignments:
    """The orders in force, seen by subscriber and by publisher."""

    def __init__(self) -> None:
        self.orders = Orders()
        self.subscribers, self.publishers = Generations(), Generations()
        # By publisher and topic, where to and since which generation for whom.
        self._directions: dict[str, dict[str, tuple[str, dict[str, int]]]] = {}

    def of(self, name: str) -> Assignment:
        planned = self.orders.topics.get(name, {})
        return Assignment(
            generation=self.subscribers.of(name),
            classes={topic: priority_class for topic, (priority_class, _) in planned.items()},
            drop_rates={topic: drop_rate for topic, (_, drop_rate) in planned.items()},
        )

    def direction(self, publisher: str) -> Direction:
        """Which of its topics subscribers take without a broker, and at which addresses."""
        topics = {topic: address for topic, (address, _) in self._directions.get(publisher, {}).items()}
        return Direction(self.publishers.of(publisher), topics)

    def put_in_force(self, orders: Orders, changed: Iterable[str]) -> None:
        """New orders, and the subscribers for which they change something."""
        before, self.orders = self.orders, orders
        self.subscribers.changed(changed, orders.generation, orders.topics)
        if orders.direct != before.direct or not before.generation:
            was, self._directions = self._directions, _directions(orders)
            differs = [
                name for name in {**was, **self._directions} if was.get(name) != self._directions.get(name)
            ]
            self.publishers.changed(differs, orders.generation, {**was, **self._directions})


def _directions(orders: Orders) -> dict[str, dict[str, tuple[str, dict[str, int]]]]:
    found: dict[str, dict[str, tuple[str, dict[str, int]]]] = {}
    for subscriber, topics in orders.direct.items():
        for topic, publishers in topics.items():
            for name, since in publishers.items():
                address = str(orders.promised.addresses[publication_name(name, topic)])
                found.setdefault(name, {}).setdefault(topic, (address, {}))[1][subscriber] = since
    return found
