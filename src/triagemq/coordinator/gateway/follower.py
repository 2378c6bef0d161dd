"""A data plane that follows a gateway: its orders, and where its clients are.

The gateway keeps the orders in force, so that whoever carries them out elsewhere (in the kernel, on switches) may come
later, or come back, and needs nobody but the gateway to catch up.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import ParamSpec

from triagemq.coordinator.channel.link import GatewayLink
from triagemq.coordinator.channel.messages import ControlError, SessionEvent
from triagemq.coordinator.gateway.binder import FlowBinder
from triagemq.errors import TriageError

_LOG = logging.getLogger("triagemq.follower")

_PAUSE_SECONDS = 0.2
_LOOK_SECONDS = 1.0

_Arguments = ParamSpec("_Arguments")


class Follower:
    """`run` until it is cancelled. `applied` is the generation carried out, `problem` why the last change was not.

    Those who follow one gateway have each a `name` of their own.
    """

    def __init__(
        self, link: GatewayLink, binder: FlowBinder, *, name: str = "queues", in_thread: bool = False
    ) -> None:
        self._name = name
        self.applied = 0
        self.problem = ""
        self._link = link
        self.binder = binder
        self._in_thread = in_thread
        self._turn = asyncio.Lock()
        # What orders call the flow of each client that is there.
        self._flow: dict[str, str] = {}

    @property
    def complete(self) -> int:
        """The generation carried out for all its flows; 0 while some of their clients have not been seen."""
        return 0 if self.problem or self.binder.missing() else self.applied

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
        async with self._turn:
            if event.kind in ("connected", "subscribes"):
                await self._came(event)
            elif event.kind == "gone":
                await self._gone(event.client_id)
            if event.kind == "orders" or not self.applied:
                await self._catch_up()

    async def _look(self) -> None:
        """Orders and departures of a moment without connection, and what failed before, are not told again."""
        epoch = ""
        while True:
            with contextlib.suppress(ControlError):
                measured = await self._link.measure(flows=False, topics=False)
                async with self._turn:
                    if epoch not in ("", measured.epoch):
                        present = await self._link.sessions()
                        for client_id in self._flow.keys() - present.keys():
                            await self._gone(client_id)
                    if measured.generation != self.applied:
                        await self._catch_up()
                    elif epoch != measured.epoch:
                        await self._link.carried(self._name, self.applied)
                epoch = measured.epoch
            await asyncio.sleep(_LOOK_SECONDS)

    async def _came(self, event: SessionEvent) -> None:
        if event.endpoint is not None:
            flow = self._flow[event.client_id] = event.flow or event.client_id
            await self._do(self.binder.connected, flow, event.endpoint, subscribes=event.subscribes)

    async def _gone(self, client_id: str) -> None:
        flow = self._flow.pop(client_id, None)
        if flow is not None:
            await self._do(self.binder.gone, flow)

    async def _catch_up(self) -> None:
        orders = await self._link.current()
        if orders.generation != self.applied:
            if not self.applied:
                # Everyone first: a data plane that finds what an earlier process left changes only what differs.
                for event in await self._link.present():
                    await self._came(event)
            await self._do(self.binder.order, orders)
            self.applied = self.binder.orders.generation
            await self._link.carried(self._name, self.applied)

    async def _do(
        self, change: Callable[_Arguments, object], *arguments: _Arguments.args, **named: _Arguments.kwargs
    ) -> None:
        try:
            if self._in_thread:
                await asyncio.to_thread(change, *arguments, **named)
            else:
                change(*arguments, **named)
            self.problem = ""
        except TriageError as error:
            if self.problem != str(error):
                _LOG.warning("the plan is not carried out: %s", error)
            self.problem = str(error)
