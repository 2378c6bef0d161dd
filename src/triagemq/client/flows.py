"""The connections of one subscriber: slot 0 subscribes, the others carry the topics that the plan gives them.

The gateway moves topics between them, and falls back to slot 0; here they are only opened and closed. One that is no
longer needed is closed when nothing has come by it for a while: what waits in the network for it must still arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from triagemq.addresses import GatewayAddress
from triagemq.client.background import Background
from triagemq.client.connection import Connection
from triagemq.client.events import Event
from triagemq.client.settings import ConnectionSettings
from triagemq.errors import ClientError
from triagemq.waiting import end, is_set_within

FLOW_MARK = "~"
"""Between the client id that the coordinator gave and the number of a slot."""

_RETRY_SECONDS = 1.0


def flow_client_id(client_id: str, slot: int) -> str:
    """The client id of the connection that is a subscriber's slot.

    >>> flow_client_id("ff-7", 2)
    'ff-7~2'
    """
    return f"{client_id}{FLOW_MARK}{slot}"


class FlowConnections:
    """Keeps `count` slots open beside slot 0, which it is given and does not close."""

    def __init__(
        self,
        address: GatewayAddress,
        client_id: str,
        settings: ConnectionSettings,
        on_event: Callable[[Event], None],
        *,
        linger_seconds: float,
        client_id_is_new: bool,
        background: Background | None = None,
    ) -> None:
        self._address = address
        self._client_id = client_id
        self._settings = settings
        self._on_event = on_event
        self._linger_seconds = linger_seconds
        self._client_id_is_new = client_id_is_new
        self._background = background or Background(f"flows of {client_id}")
        self._slots: dict[int, Connection] = {}
        self._unwanted_since: dict[int, float] = {}
        self._count = 1
        self._changed = asyncio.Event()
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.problem = ""

    def __len__(self) -> int:
        return 1 + len(self._slots)

    @property
    def connections(self) -> list[Connection]:
        """Those beside slot 0."""
        return list(self._slots.values())

    def fit(self, count: int) -> None:
        """Have so many slots from now on."""
        if count != self._count or self._task is None:
            self._count = count
            self._changed.set()
            if self._task is None:
                self._task = self._background.start("keeping flows open", self._keep_fitting)

    async def until_fitting(self, seconds: float) -> None:
        """Wait until all slots are open that should be, though not for longer than that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(slot not in self._slots for slot in range(1, self._count)):
                    self._opened.clear()
                    await self._opened.wait()

    async def redirect(self, address: GatewayAddress, client_id: str) -> None:
        """Go on as another client, perhaps at another gateway."""
        self._address, self._client_id = address, client_id
        for slot, connection in list(self._slots.items()):
            await connection.redirect(address, flow_client_id(client_id, slot))

    async def close(self) -> None:
        """Close all but slot 0."""
        await end(self._task)
        await asyncio.gather(*(connection.close() for connection in self._slots.values()))
        self._slots.clear()

    async def _keep_fitting(self) -> None:
        while True:
            self._changed.clear()
            missing = [slot for slot in range(1, self._count) if slot not in self._slots]
            await asyncio.gather(*(self._open(slot) for slot in missing))
            await self._close_unwanted()
            waits = self._unwanted_since or any(slot not in self._slots for slot in range(1, self._count))
            await is_set_within(self._changed, _RETRY_SECONDS if waits else None)

    async def _open(self, slot: int) -> None:
        place = self._address, self._client_id
        connection = Connection(
            self._address.host,
            self._address.port,
            flow_client_id(self._client_id, slot),
            secure=self._address.secure,
            on_event=self._on_event,
            settings=self._settings,
            client_id_is_new=self._client_id_is_new,
            slot=slot,
            background=self._background,
        )
        try:
            await connection.open()
            while place != (self._address, self._client_id):
                # Its subscriber was sent to another gateway meanwhile.
                place = self._address, self._client_id
                await connection.redirect(self._address, flow_client_id(self._client_id, slot))
        except ClientError as error:
            # Slot 0 gets its topics meanwhile.
            self.problem = str(error)
        else:
            self._slots[slot] = connection
            self._opened.set()
            self.problem = ""
        finally:
            if self._slots.get(slot) is not connection:
                await connection.close()

    async def _close_unwanted(self) -> None:
        now = asyncio.get_running_loop().time()
        for slot in list(self._slots):
            if slot < self._count:
                self._unwanted_since.pop(slot, None)
                continue
            since = self._unwanted_since.setdefault(slot, now)
            if now - max(since, self._slots[slot].last_event_at) >= self._linger_seconds:
                del self._unwanted_since[slot]
                await self._slots.pop(slot).close()
