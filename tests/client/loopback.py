"""What a client talks to on loopback: a gateway with a real Mosquitto, and a network that loses datagrams."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

from tests.gateway.real import Mosquitto

from triagemq.broker import BrokerAddress
from triagemq.client.connection import Connection
from triagemq.client.events import Event
from triagemq.client.settings import ConnectionSettings
from triagemq.dtls import ServerSecurity
from triagemq.gateway import Gateway, GatewaySettings
from triagemq.gateway.core.sessions import Identify, own_name

QUICK = ConnectionSettings(
    ping_seconds=0.5,
    retry_seconds=0.25,
    first_delay_seconds=0.1,
    longest_delay_seconds=0.5,
    connect_timeout_seconds=30,
    close_timeout_seconds=30,
    answer_timeout_seconds=120,
)
"""Short timers for a short way; none of them decides whether a test passes."""


@contextlib.asynccontextmanager
async def gateway_with_broker(
    directory: Path,
    identify: Identify = own_name,
    *,
    security: ServerSecurity | None = None,
    **settings: object,
) -> AsyncIterator[Gateway]:
    """A gateway that has reached its broker."""
    broker = Mosquitto(directory / "broker")
    gateway = Gateway(
        GatewaySettings(**({"retry_seconds": 0.3, "retries": 30} | settings)),  # type: ignore[arg-type]
        BrokerAddress.parse(broker.url),
        ("127.0.0.1", 0),
        identify=identify,
        security=security,
    )
    try:
        await gateway.start()
        assert await gateway.wait_for_broker(20)
        yield gateway
    finally:
        await gateway.close()
        broker.end()


async def connected(
    port: int, client_id: str, events: list[Event] | None = None, **options: object
) -> Connection:
    """A connection that appends its events to a list."""
    connection = Connection(
        "127.0.0.1",
        port,
        client_id,
        on_event=None if events is None else events.append,
        **({"settings": QUICK} | options),  # type: ignore[arg-type]
    )
    await connection.open()
    return connection


async def until(condition: object, seconds: float = 40.0) -> None:
    """Wait until a function says yes."""
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


class BadNetwork:
    """A UDP proxy in front of a gateway that drops, doubles and delays datagrams at random, both ways."""

    def __init__(self, gateway_port: int, seed: int, loss: float, doubled: float, delayed: float) -> None:
        self._target = ("127.0.0.1", gateway_port)
        self._random = random.Random(seed)
        self._loss, self._doubled, self._delayed = loss, doubled, delayed
        self._towards: dict[tuple[str, int], asyncio.DatagramTransport] = {}
        self._opening: dict[tuple[str, int], list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._front: asyncio.DatagramTransport | None = None
        self.is_perfect = False
        self.lost = 0

    async def __aenter__(self) -> BadNetwork:
        loop = asyncio.get_running_loop()
        self._front, _ = await loop.create_datagram_endpoint(
            lambda: _Forward(self._from_client), local_addr=("127.0.0.1", 0)
        )
        self.port = self._front.get_extra_info("sockname")[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for transport in (self._front, *self._towards.values()):
            assert transport is not None
            transport.close()
        await asyncio.sleep(0)

    def renumber(self) -> None:
        """Clients have other addresses from now on, as behind a router that has forgotten them."""
        for transport in self._towards.values():
            transport.close()
        self._towards.clear()

    def _from_client(self, datagram: bytes, client: tuple[str, int]) -> None:
        if client in self._towards:
            self._pass_on(lambda: self._towards[client].sendto(datagram))
        elif client in self._opening:
            self._opening[client].append(datagram)
        else:
            self._opening[client] = [datagram]
            task = asyncio.get_running_loop().create_task(self._open(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self, client: tuple[str, int]) -> None:
        def back(datagram: bytes, _: object) -> None:
            assert self._front is not None
            front = self._front
            self._pass_on(lambda: front.sendto(datagram, client))

        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: _Forward(back), remote_addr=self._target
        )
        self._towards[client] = transport
        for datagram in self._opening.pop(client):
            self._from_client(datagram, client)

    def _pass_on(self, send: object) -> None:
        assert callable(send)
        if self.is_perfect:
            send()
            return
        if self._random.random() < self._loss:
            self.lost += 1
            return
        for _ in range(2 if self._random.random() < self._doubled else 1):
            if self._random.random() < self._delayed:
                asyncio.get_running_loop().call_later(self._random.uniform(0, 0.05), send)
            else:
                send()


class _Forward(asyncio.DatagramProtocol):
    def __init__(self, pass_on: object) -> None:
        self._pass_on = pass_on

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        assert callable(self._pass_on)
        self._pass_on(data, address)
