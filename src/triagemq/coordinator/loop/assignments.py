"""Which flow, class and drop rate each topic of a subscriber has, and who waits for that to change.

A subscriber's generation is that of the orders which last gave it other connections, slots or classes: a plan that does
not wakes nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from triagemq.client.coordinator import Assignment
from triagemq.coordinator.decide.orders import Orders, flows_of


class Assignments:
    """The orders in force, seen by subscriber."""

    def __init__(self) -> None:
        self.orders = Orders()
        self._generations: dict[str, int] = {}
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}

    def of(self, name: str) -> Assignment:
        slots = self.orders.slots.get(name, {})
        flows = flows_of(self.orders, name)
        known = {topic: flows[slot] for topic, slot in slots.items() if slot in flows}
        return Assignment(
            generation=self._generations.get(name, 0),
            flows=1 + max(flows, default=0),
            slots=slots,
            classes={topic: flow.priority_class for topic, flow in known.items()},
            drop_rates={topic: flow.drop_rate for topic, flow in known.items()},
        )

    def put_in_force(self, orders: Orders, changed: Iterable[str]) -> None:
        """New orders, and the subscribers for which they change something."""
        self.orders = orders
        for name in changed:
            self._generations[name] = orders.generation
            self.wake(name)
        if len(self._generations) > 2 * len(orders.slots) + 100:
            # Some were gone before the plan that knew them was in force.
            self._generations = {name: self._generations.get(name, 0) for name in orders.slots}

    def forget(self, name: str) -> None:
        self._generations.pop(name, None)
        self.wake(name)

    def wake(self, name: str) -> None:
        for waiting in self._waiting.pop(name, ()):
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self, name: str, after: int, seconds: float) -> None:
        """Until the subscriber's generation is above `after`, the subscriber is gone, or time is up."""
        if self._generations.get(name, 0) > after or seconds <= 0:
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
