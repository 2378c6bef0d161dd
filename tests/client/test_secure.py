"""Clients of a gateway that speaks DTLS: everything as without, and nothing in clear."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.client.loopback import QUICK, connected, gateway_with_broker, until

from triagemq.certificates import own_certificate
from triagemq.client.events import Event
from triagemq.client.settings import ConnectionSettings
from triagemq.dtls import ClientSecurity, ServerSecurity
from triagemq.exchange import Gateway
from triagemq.exchange.broker_process import find_mosquitto

pytestmark = pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")


def trusting(directory: Path, **others: object) -> ConnectionSettings:
    """Settings of a client that trusts the certificate in that directory."""
    certificate, _ = own_certificate(directory)
    return replace(QUICK, security=ClientSecurity(authority=certificate, **others))  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def secure_gateway(directory: Path, **settings: object) -> AsyncIterator[Gateway]:
    security = ServerSecurity(*own_certificate(directory / "certificate"))
    async with gateway_with_broker(directory, security=security, **settings) as gateway:
        yield gateway


def test_messages_pass_both_ways_at_every_qos_through_dtls(tmp_path: Path) -> None:
    async def main() -> None:
        async with secure_gateway(tmp_path) as gateway:
            settings = trusting(tmp_path / "certificate")
            events: list[Event] = []
            port = gateway.address[1]
            subscriber = await connected(port, "subscriber", events, secure=True, settings=settings)
            publisher = await connected(port, "publisher", secure=True, settings=settings)
            await subscriber.subscribe("floor/+", qos=2)
            for qos in range(3):
                await publisher.publish("floor/1", b"%d" % qos, qos=qos)
            await until(lambda: len(events) == 3)
            assert sorted(event.payload for event in events) == [b"0", b"1", b"2"]
            await publisher.close()
            await subscriber.close()
            counters = gateway.core.counters
            assert (counters.handshakes, counters.resumptions) == (2, 1)

    asyncio.run(main())
