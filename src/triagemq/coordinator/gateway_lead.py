"""Leading a gateway: it is told grants, orders and decisions, and told again whenever it comes back.

Whoever changes grants waits for a telling that began after the change; tellings that would only repeat one another are
one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from triagemq.coordinator.control_lines import ControlError
from triagemq.coordinator.gateway_link import Measured
from triagemq.coordinator.grants import Grant
from triagemq.coordinator.orders import Orders

__all__ = ["GatewayLead", "Link"]

_LOG = logging.getLogger("triagemq.coordinator")
_MOST_ROWS_WAITING = 10_000


class Link(Protocol):
    """What is needed of a GatewayLink."""

    @property
    def connected(self) -> bool: ...

    async def orders(self, orders: Orders) -> int: ...

    async def grants(self, required: bool, grants: Mapping[str, Grant]) -> None: ...

    async def decisions(self, rows: Sequence[Mapping[str, Any]]) -> None: ...

    async def measure(self, *, flows: bool = True) -> Measured: ...


class GatewayLead:
    """One gateway, behind one link. `following` is the generation it follows, None while that is not known.

    While grants are not `required`, everyone may do everything, and the gateway is told so once per connection.
    """

    def __init__(self, link: Link, grants: Callable[[], Mapping[str, Grant]], *, required: bool) -> None:
        self.link = link
        self.following: int | None = None
        self.problem: str | None = None
        self._grants = grants
        self.required = required
        self._asked = 0
        self._told = 0
        self._grants_turn = asyncio.Lock()
        self._orders_turn = asyncio.Lock()
        self._rows: list[Mapping[str, Any]] = []

    @property
    def busy(self) -> bool:
        """Orders are on their way."""
        return self._orders_turn.locked()

    def lost(self) -> None:
        """The gateway is away: what it follows when it is back is not known."""
        self.following = None

    async def tell_grants(self) -> bool:
        """Tell the gateway who may do what; False if it cannot be told now."""
        mine = self._asked = self._asked + 1
        async with self._grants_turn:
            if self._told >= mine:
                return True
            asked = self._asked
            try:
                await self.link.grants(self.required, self._grants())
            except ControlError as error:
                self._failed(error)
                return False
            self._told = asked
            return True

    async def tell_orders(self, latest: Callable[[], Orders]) -> Orders | None:
        """Have the gateway follow the orders that are the latest when it is its turn; None if it cannot be told now."""
        async with self._orders_turn:
            orders = latest()
            try:
                self.following = await self.link.orders(orders)
            except ControlError as error:
                self._failed(error)
                return None
        self.problem = None
        return orders

    async def tell_decisions(self, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """Have decisions written into the trace; they wait while the gateway is away, the oldest go."""
        self._rows = [*self._rows, *rows][-_MOST_ROWS_WAITING:]
        if not self._rows or not self.link.connected:
            return
        sent, self._rows = self._rows, []
        try:
            await self.link.decisions(sent)
        except ControlError as error:
            self._rows = [*sent, *self._rows][-_MOST_ROWS_WAITING:]
            self._failed(error)

    def _failed(self, error: ControlError) -> None:
        if self.link.connected and str(error) != self.problem:
            # Not lost, but unwilling: somebody should know.
            _LOG.warning("the gateway: %s", error)
        self.problem = str(error)
