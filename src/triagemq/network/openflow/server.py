"""Where switches and this process meet: it listens for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from triagemq.addresses import host_and_port
from triagemq.errors import NetworkError, ParameterError

Place = Path | tuple[str, int]
"""A unix socket, or an address and a TCP port."""

OnConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection, and returns when it has ended."""


def parse_place(text: str) -> Place:
    """
    >>> parse_place("tcp:127.0.0.1:6653")
    ('127.0.0.1', 6653)
    >>> parse_place("unix:/run/switch/core.mgmt")
    PosixPath('/run/switch/core.mgmt')
    """
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest:
        return Path(rest)
    if scheme == "tcp":
        with contextlib.suppress(ParameterError):
            return host_and_port(rest, lowest_port=0)
    raise NetworkError(f"{text!r} is no place to meet switches; write tcp:127.0.0.1:6653 or unix:/path")


class Meeting:
    """Listens at some places until it is closed."""

    def __init__(self, on_connection: OnConnection) -> None:
        self._on_connection = on_connection
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.listening: list[Place] = []

    async def open(self, listen: Sequence[Place]) -> None:
        try:
            for place in listen:
                self._servers.append(await self._listen(place))
        except OSError as error:
            await self.close()
            raise NetworkError(f"cannot listen for switches at {place}: {error.strerror or error}") from None

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _listen(self, place: Place) -> asyncio.Server:
        if isinstance(place, Path):
            # A killed process leaves its socket behind.
            place.unlink(missing_ok=True)
            self.listening.append(place)
            return await asyncio.start_unix_server(self._serve, place)
        server = await asyncio.start_server(self._serve, *place)
        self.listening.append(server.sockets[0].getsockname()[:2])
        return server

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._on_connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
