"""The front of a managed gateway: its ports by the orders in force, and its clients as the coordinator sees them.

Its packets go to the ports in the gateway's process. Where the kernel or switches have the queues, they cannot reorder
a stream of octets: then each client's copies wait in embedded ports of the front's own, and leave with the mark of
control packets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from triagemq.addresses import host_and_port
from triagemq.broker import BrokerAddress
from triagemq.channel.messages import PresentClient
from triagemq.channel.orders import Orders, OrdersChange, client_id_of
from triagemq.client.connection import CONNECTION_MARK
from triagemq.errors import PlanError
from triagemq.gateway.binder import FlowBinder
from triagemq.gateway.core.state import Gone, Present
from triagemq.gateway.front.server import Front
from triagemq.gateway.sockets import StreamToken
from triagemq.network import EmbeddedDataPlane

if TYPE_CHECKING:
    from triagemq.datagrams import Datagrams, Unsent
    from triagemq.gateway.config import GatewayConfig
    from triagemq.gateway.core.sessions import Identify
    from triagemq.gateway.observed import ObservedClients
    from triagemq.gateway.server import Gateway
    from triagemq.plan.dataplane import FlowCounters


class ManagedFront:
    """`plane` and `binder` are those of the gateway, if it has ports in its process."""

    def __init__(
        self,
        config: GatewayConfig,
        gateway: Gateway,
        *,
        identify: Identify,
        observed: ObservedClients,
        plane: EmbeddedDataPlane | None,
        binder: FlowBinder,
    ) -> None:
        assert config.front is not None
        files = config.front_certificate, config.front_key
        self.unbound = 0
        """Clients at addresses that no port can send to."""
        self._front = front = Front(
            gateway.core,
            BrokerAddress.parse(config.broker),
            host_and_port(config.front, "--front", lowest_port=0),
            tick=gateway.tick,
            presence=self._presence,
            identify=identify,
            marks_control=config.dataplane in ("reported", "none"),
            certificate=None if files[0] is None or files[1] is None else (files[0], files[1]),
        )
        self._identify, self._observed = identify, observed
        self._binder = binder
        self._own_plane: EmbeddedDataPlane | None = None
        if plane is None and config.dataplane != "plain":
            plane = self._own_plane = EmbeddedDataPlane(_no_datagrams, front.settled, clock=gateway.clock)
            self._binder = FlowBinder(plane, identify, replicates=False)
        front.plane, front.port_of = plane, self._binder.port_of

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return self._front.address

    @property
    def clients(self) -> list[PresentClient]:
        """Those that the broker has let in."""
        identify = self._identify
        return [
            PresentClient(client.client_id, client.endpoint, client_id_of(*identify(client.client_id)))
            for client in self._front.clients
        ]

    @property
    def round_trips(self) -> dict[str, float]:
        """Seconds to clients and back, by client id, as TCP measures them."""
        return self._front.round_trips

    async def start(self, orders: Orders) -> None:
        """Listen."""
        self._order(orders)
        await self._front.start()

    async def close(self) -> None:
        """Disconnect its clients."""
        await self._front.close()
        if self._own_plane is not None:
            self._own_plane.close()

    def follow(self, orders: Orders, change: OrdersChange) -> None:
        """New orders are in force in the gateway."""
        self._order(orders, change)
        self._front.rerank()

    def identify_again(self) -> None:
        """Client ids have come to mean other names."""
        if self._own_plane is not None:
            self._binder.identify_again()
        self._front.identify_again()

    def flows(self) -> dict[str, FlowCounters]:
        """What was counted in ports of its own, by client id."""
        if self._own_plane is None:
            return {}
        counted = self._own_plane.counters().flows
        return {
            client_id: counted[key] for client_id, key in self._binder.clients().items() if key in counted
        }

    def _order(self, orders: Orders, change: OrdersChange | None = None) -> None:
        if self._own_plane is None:
            return
        try:
            self._binder.order(orders, change)
            self._own_plane.reclassify(
                lambda token: token.treatment() if isinstance(token, StreamToken) else None
            )
        except PlanError as error:
            print(f"front: orders are not followed: {error}", file=sys.stderr, flush=True)

    def _presence(self, news: Present | Gone) -> None:
        if isinstance(news, Gone):
            self._binder.gone(news.client_id)
            self._observed.remove(news.client_id)
            return
        if CONNECTION_MARK not in news.client_id:
            self._observed.put(self._front.observed(news))
        try:
            self._binder.connected(news.client_id, news.endpoint[:2], subscribes=news.subscribes)
        except PlanError:
            self.unbound += 1


def _no_datagrams(datagrams: Datagrams, class_of: Callable[[int], int], /) -> Sequence[Unsent]:
    raise AssertionError("only connections have packets here")
