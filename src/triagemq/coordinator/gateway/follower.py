"""A data plane that follows a gateway's orders: its ports, and what is promised.

The gateway stores the orders in force, so that a data plane elsewhere (in the kernel, on switches) may come later, or
come back, and needs nothing but the gateway to catch up. Which copy has which class its mark says: clients may come and
go without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import ControlError, SessionEvent
from triagemq.coordinator.decide.orders import Orders
from triagemq.coordinator.gateway.binder import check, port_instructions, promise_instructions
from triagemq.errors import TriageError
from triagemq.plan import Instructed, Instruction

_LOG = logging.getLogger("triagemq.follower")

_PAUSE_SECONDS = 0.2
_LOOK_SECONDS = 1.0


class Follower:
    """`run` until it is cancelled. `orders` are those in force at the plane, `problem` is why the last change is not.

    Those who follow one gateway have each a `name` of their own. Of several gateways' followers on one plane, one
    carries out what is `promised`.
    """

    def __init__(
        self,
        link: GatewayLink,
        plane: Instructed,
        *,
        name: str = "queues",
        promised: bool = True,
        in_thread: bool = False,
    ) -> None:
        self.orders = Orders()
        self.problem = ""
        self._link, self._plane, self._name = link, plane, name
        self._promised, self._in_thread = promised, in_thread
        self._turn = asyncio.Lock()

    @property
    def applied(self) -> int:
        """The generation of the orders that are carried out; 0 before the first."""
        return self.orders.generation

    async def run(self) -> None:
        """Follow all news, and look from time to time what they did not tell."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._hear())
            both.create_task(self._look())

    async def _hear(self) -> None:
        while True:
            with contextlib.suppress(ControlError):
                async for event in self._link.events():
                    if event.overrun:
                        break
                    await self._heard(event)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _heard(self, event: SessionEvent) -> None:
        if event.kind == "orders" or not self.applied:
            async with self._turn:
                await self._catch_up()

    async def _look(self) -> None:
        """Orders of a moment without connection, and what failed before, are not told again."""
        epoch = ""
        while True:
            with contextlib.suppress(ControlError):
                measured = await self._link.measure(flows=False, topics=False)
                async with self._turn:
                    if measured.generation != self.applied:
                        await self._catch_up()
                    elif epoch != measured.epoch:
                        await self._link.carried(self._name, self.applied)
                epoch = measured.epoch
            await asyncio.sleep(_LOOK_SECONDS)

    async def _catch_up(self) -> None:
        orders = await self._link.current()
        if orders.generation == self.applied:
            return
        try:
            instructions = self._instructions(orders)
            if self._in_thread:
                await asyncio.to_thread(self._plane.apply, instructions)
            else:
                self._plane.apply(instructions)
        except TriageError as error:
            if self.problem != str(error):
                _LOG.warning("the plan is not carried out: %s", error)
            self.problem = str(error)
        else:
            self.orders, self.problem = orders, ""
        await self._link.carried(self._name, self.applied)

    def _instructions(self, orders: Orders) -> Sequence[Instruction]:
        change = orders.since(self.orders)
        check(orders, change)
        made, gone = port_instructions(self.orders, orders)
        return [*made, *(promise_instructions(self.orders, change) if self._promised else ()), *gone]
