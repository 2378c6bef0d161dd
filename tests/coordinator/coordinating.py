"""A coordinator for tests: the real service, store, planner and REST, in front of a gateway that only remembers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import uvicorn
from fastapi import FastAPI

from triagemq.channel.grants import Grant
from triagemq.channel.link import GatewayLink
from triagemq.channel.messages import (
    ControlError,
    DesiredState,
    GatewayRefusalError,
    Measured,
    ObservedChange,
)
from triagemq.channel.orders import Orders
from triagemq.coordinator.access.tokens import Role, TokenRequest, new_token
from triagemq.coordinator.api import create_app
from triagemq.coordinator.control_plane import ControlPlane
from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.settings import Settings
from triagemq.coordinator.store import Store, add_token
from triagemq.plan.dataplane import FlowCounters

LONG_SECONDS = 60.0
"""How long a test waits for what must happen: on a loaded machine nothing happens at once."""


class Clock:
    """Stands in for the module `time` of one that is tested: its seconds pass when the test says so."""

    time_ns = staticmethod(time.time_ns)

    def __init__(self) -> None:
        self.seconds = time.monotonic()

    def monotonic(self) -> float:
        return self.seconds


class FakeLink:
    """A gateway link without a gateway: remembers what it was told; `topics` are the counts it measures."""

    def __init__(self) -> None:
        self.connected = True
        self.told_orders: list[Orders] = []
        self.told_grants: list[tuple[bool, dict[str, Grant]]] = []
        self.told_decisions: list[Mapping[str, Any]] = []
        self.topics: dict[str, tuple[int, int]] = {}
        self.epoch = "first"
        self.refuses_orders = False
        self.refuses_everything = False
        self.state = DesiredState()
        self.broker_connected = True
        self.carried: int | None = None
        self.flows: dict[str, FlowCounters] = {}
        self.observed = ObservedChange()

    def _there(self) -> None:
        if not self.connected:
            raise ControlError("the gateway is not there")

    async def following(self) -> tuple[str, int]:
        self._there()
        return self.state.author, self.state.version

    async def send_state(self, before: DesiredState | None, after: DesiredState) -> None:
        self._there()
        if self.refuses_everything:
            raise GatewayRefusalError("the gateway refuses 'state': no room on its disk")
        if before is not None and (before.author, before.version) != (self.state.author, self.state.version):
            raise GatewayRefusalError("the gateway refuses 'state': it follows another")
        if after.orders is not None and (before is None or after.orders is not before.orders):
            if self.refuses_orders:
                raise GatewayRefusalError("the gateway refuses 'state': no")
            self.told_orders.append(after.orders)
        if before is None or after.grants is not before.grants:
            self.told_grants.append((after.grants.required, dict(after.grants.by_base)))
        self.state = after

    async def decisions(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._there()
        self.told_decisions += rows

    async def measure(self, *, flows: bool = True, topics: bool = True, after: str = "") -> Measured:
        self._there()
        return Measured(
            epoch=self.epoch,
            at_ns=time.time_ns(),
            topics=dict(self.topics),
            counters={"sent": 5, "refused": {"publish": 1}},
            ports={},
            flows=dict(self.flows),
            generation=self.told_orders[-1].generation if self.told_orders else 0,
            sessions=0,
            broker_connected=self.broker_connected,
            author=self.state.author,
            version=self.state.version,
            broker_since_ns=1,
            carried=self.carried,
            observed=self.observed,
        )


class Running:
    """A coordinator that runs, its clients by token, and the fake gateway."""

    def __init__(
        self, coordinator: ControlPlane, link: FakeLink, client: httpx.AsyncClient, app: FastAPI
    ) -> None:
        self.coordinator = coordinator
        self.link = link
        self.client = client
        self.app = app

    async def until(self, what: Any) -> Any:
        """Wait for something to become true; it may be asynchronous."""
        deadline = time.monotonic() + LONG_SECONDS
        while True:
            found = what()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            assert time.monotonic() < deadline, "waited in vain"
            await asyncio.sleep(0.02)

    async def settled(self) -> None:
        """Until everything announced is in force."""
        await self.until(lambda: self.coordinator.runtime.generation > 0)
        registry, runtime = self.coordinator.service.registry, self.coordinator.runtime
        await self.until(lambda: all(runtime.is_in_force(record.key) for record in registry))


def make_token(database: str, *roles: str, **rights: Any) -> str:
    """A token in the database, made as `triage token create` does."""
    secret, token = new_token(TokenRequest(label="test", roles=tuple(Role(role) for role in roles), **rights))
    store = Store(database)
    store.write_now(add_token, token)
    store.close_now()
    return secret


def database_in(directory: Path) -> str:
    return f"sqlite:///{directory / 'coordinator.sqlite'}"


def make_coordinator(database: str, link: FakeLink, *, access: bool = False, **options: Any) -> ControlPlane:
    network = options.pop("network", Network.plain(1e5))
    settings = Settings(
        database=database,
        gateway_socket="",
        broker="mqtt://127.0.0.1:1883",
        access=access,
        most_body_bytes=4_000_000,
        **{"gateway_address": "127.0.0.1:10000", "most_worth": math.inf} | options,
    )
    return ControlPlane(settings, Store(database), cast(GatewayLink, link), network)


@asynccontextmanager
async def running(
    directory: Path,
    *,
    link: FakeLink | None = None,
    gateway: Path | None = None,
    access: bool = False,
    **options: Any,
) -> AsyncIterator[Running]:
    """A coordinator on the database in a directory, reached without sockets; `gateway` is a real one's socket."""
    real = None if gateway is None else GatewayLink(gateway)
    link = cast(FakeLink, real) if real is not None else link or FakeLink()
    coordinator = make_coordinator(database_in(directory), link, access=access, **options)
    app = create_app(coordinator)
    await coordinator.start()
    if real is not None:
        real.start(coordinator.gateway_connected)
        assert await real.wait_connected(LONG_SECONDS)
    elif link.connected:
        await coordinator.gateway_connected()
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield Running(coordinator, link, client, app)
    finally:
        await coordinator.stop()
        if real is not None:
            await real.close()


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The application on a real socket of this loop; gives its address without the scheme."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, lifespan="off", ws="websockets-sansio", timeout_graceful_shutdown=2
        )
    )
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()


def subscriber(name: str, *topics: str, **more: Any) -> dict[str, Any]:
    """The body of an announcement. On a machine that has to compile first, a plan takes longer than a usual lease."""
    return {
        "name": name,
        "lease_seconds": 60,
        "subscriptions": [{"topic": topic, "utility": "log:10"} for topic in topics],
        **more,
    }


def publisher(name: str, *topics: str, rate: float | None = 5.0, **more: Any) -> dict[str, Any]:
    """The body of an announcement."""
    rated = {} if rate is None else {"rate_per_second": rate, "size_bytes": 100}
    publications = [{"topic": topic, **rated} for topic in topics]
    return {"name": name, "lease_seconds": 60, "publications": publications, **more}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}
