"""A client's own connection to the broker."""

from __future__ import annotations

import asyncio
from typing import Protocol

_MOST_TO_BROKER_BYTES = 1 << 20


class BrokerLegOwner(Protocol):
    """The client in whose name it is."""

    def broker_made(self, leg: BrokerLeg) -> None: ...

    def broker_data(self, leg: BrokerLeg, data: bytes) -> None: ...

    def broker_lost(self, leg: BrokerLeg) -> None: ...

    def broker_congested(self, leg: BrokerLeg) -> None: ...


class BrokerLeg(asyncio.Protocol):
    """Its octets go to the client, until it is closed from this side."""

    def __init__(self, client: BrokerLegOwner) -> None:
        self.is_congested = self.is_open = False
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._is_unwanted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True
        transport.set_write_buffer_limits(_MOST_TO_BROKER_BYTES)
        if self._is_unwanted:
            transport.abort()
        else:
            self._client.broker_made(self)

    def data_received(self, data: bytes) -> None:
        self._client.broker_data(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open, self._transport = False, None
        self._client.broker_lost(self)

    def pause_writing(self) -> None:
        self.is_congested = True
        self._client.broker_congested(self)

    def resume_writing(self) -> None:
        self.is_congested = False
        self._client.broker_congested(self)

    def write(self, octets: bytes) -> None:
        if self._transport is not None:
            self._transport.write(octets)

    def close(self) -> None:
        """When everything is written."""
        self._is_unwanted = True
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._is_unwanted = True
        if self._transport is not None:
            self._transport.abort()
