"""What publishers and subscribers have in common: a name, a connection to a gateway, and perhaps a coordinator."""

from __future__ import annotations

import secrets
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, Self

from triagemq.client.connection import Connection
from triagemq.client.coordinator import Coordinator
from triagemq.client.events import Event
from triagemq.client.lease import Lease
from triagemq.client.settings import ConnectionSettings, GatewayAddress, Will
from triagemq.errors import ClosedError, ParameterError

__all__ = ["Participant"]


class Participant(ABC):
    """Found by its coordinator under its `name`, or alone with a gateway. A name of its own choice is new to both."""

    def __init__(
        self,
        kind: Literal["publisher", "subscriber"],
        coordinator: str | Coordinator | None,
        *,
        gateway: str | None,
        name: str | None,
        token: str | None,
        keep_session: bool,
        will: Will | None,
        settings: ConnectionSettings | None,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        if (coordinator is None) == (gateway is None):
            raise ParameterError("coordinator", "give the address of a coordinator or of a gateway, not both")
        self.name = name or f"{kind}-{secrets.token_hex(6)}"
        self.settings = settings or ConnectionSettings()
        self._kind = kind
        self._name_is_new = name is None
        # A gateway without a coordinator knows a client by its token, where it knows tokens.
        self._client_id = self.name if token is None else f"{self.name}.{token}"
        self._gateway = None if gateway is None else GatewayAddress.parse(gateway)
        self._owns_coordinator = isinstance(coordinator, str)
        self._coordinator = (
            Coordinator(coordinator, token=token, ssl_context=ssl_context)
            if isinstance(coordinator, str)
            else coordinator
        )
        self._keep_session = keep_session
        self._will = will
        self._connection: Connection | None = None
        self._lease: Lease | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def open(self) -> None:
        """Announce to the coordinator, connect to the gateway."""

    @abstractmethod
    async def close(self) -> None:
        """Leave both."""

    async def _connect(
        self, address: GatewayAddress, client_id: str, on_event: Callable[[Event], None] | None = None
    ) -> None:
        self._connection = Connection(
            address.host,
            address.port,
            client_id,
            secure=address.secure,
            on_event=on_event,
            settings=self.settings,
            keep_session=self._keep_session,
            client_id_is_new=self._name_is_new,
            will=self._will,
        )
        await self._connection.open()

    async def _leave(self) -> None:
        """Close the connection, withdraw from the coordinator."""
        try:
            if self._connection is not None:
                await self._connection.close()
            if self._lease is not None:
                await self._lease.end()
        finally:
            if self._coordinator is not None and self._owns_coordinator:
                await self._coordinator.close()

    def _require_connection(self) -> Connection:
        if self._connection is None:
            kind = type(self).__name__
            raise ClosedError(f"the {self._kind} is not open; use `async with {kind}(...)`")
        return self._connection
