"""A data plane that follows a gateway: its orders, and where its clients are.

The gateway keeps the orders in force, so that whoever carries them out elsewhere (in the kernel, on switches) may come
later, or come back, and needs nobody but the gateway to catch up.
"""

from __future__ import annotations

import asyncio
import contextlib

from triagemq.coordinator.binder import FlowBinder
from triagemq.coordinator.control_lines import ControlError
from triagemq.coordinator.gateway_link import GatewayLink
from triagemq.coordinator.orders import FLOW_MARK
from triagemq.errors import TriageError

__all__ = ["Follower"]

_PAUSE_SECONDS = 0.2


class Follower:
    """`run` until it is cancelled. `applied` is the generation carried out, `problem` why the last change was not."""

    def __init__(self, link: GatewayLink, binder: FlowBinder, *, in_thread: bool = False) -> None:
        self.applied = 0
        self.problem = ""
        self._link = link
        self.binder = binder
        self._in_thread = in_thread

    async def run(self) -> None:
        """Follow all news; after a pause of the gateway, everything from the start."""
        while True:
            with contextlib.suppress(ControlError):
                async for event in self._link.events():
                    if event.overrun:
                        break
                    if (
                        event.kind == "connected"
                        and event.endpoint is not None
                        and FLOW_MARK in event.client_id
                    ):
                        await self._do(self.binder.connected, event.client_id, event.endpoint)
                    elif event.kind == "gone":
                        await self._do(self.binder.gone, event.client_id)
                    if event.kind == "orders" or not self.applied:
                        await self._catch_up()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _catch_up(self) -> None:
        orders = await self._link.current()
        if orders.generation != self.applied:
            await self._do(self.binder.order, orders)
            self.applied = self.binder.orders.generation

    async def _do(self, change, *arguments) -> None:  # type: ignore[no-untyped-def]
        try:
            if self._in_thread:
                await asyncio.to_thread(change, *arguments)
            else:
                change(*arguments)
            self.problem = ""
        except TriageError as error:
            self.problem = str(error)
