"""A connection that is being opened while its subscriber is redirected ends at the new gateway."""

from __future__ import annotations

import asyncio

import pytest

from triagemq.addresses import GatewayAddress
from triagemq.client import flows as module
from triagemq.client.flows import FlowConnections
from triagemq.client.settings import ConnectionSettings


class SlowConnection:
    """Takes until `may_open` to be open."""

    may_open: asyncio.Event

    def __init__(self, host: str, port: int, client_id: str, **_: object) -> None:
        self.at = host, port, client_id

    async def open(self) -> None:
        await self.may_open.wait()

    async def redirect(self, address: GatewayAddress, client_id: str) -> None:
        self.at = address.host, address.port, client_id

    async def close(self) -> None: ...


def test_a_connection_that_is_opened_during_a_redirect_is_at_the_new_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        SlowConnection.may_open = asyncio.Event()
        monkeypatch.setattr(module, "Connection", SlowConnection)
        flows = FlowConnections(
            GatewayAddress("old", 1),
            "ff-7",
            ConnectionSettings(),
            lambda event: None,
            linger_seconds=1.0,
            client_id_is_new=True,
        )
        flows.fit(2)
        await asyncio.sleep(0)
        await flows.redirect(GatewayAddress("new", 2), "ff-7")
        SlowConnection.may_open.set()
        await flows.until_fitting(5.0)
        (one,) = flows.connections
        assert isinstance(one, SlowConnection)
        assert one.at == ("new", 2, "ff-7~1")
        await flows.close()

    asyncio.run(run())
