"""Where switches and this process meet: it listens for switches, or goes to the ports on which they listen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from triagemq.addresses import host_and_port
from triagemq.errors import NetworkError, ParameterError

__all__ = ["Meeting", "Place", "parse_place"]

Place = Path | tuple[str, int]
"""A unix socket, or an address and a TCP port."""

OnConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection, and returns when it has ended."""

_RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)


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
    """Listens at some places and goes to others, again and again, until it is closed."""

    def __init__(self, on_connection: OnConnection) -> None:
        self._on_connection = on_connection
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.listening: list[Place] = []

    async def open(self, listen: Sequence[Place], connect: Sequence[Place]) -> None:
        try:
            for place in listen:
                self._servers.append(await self._listen(place))
        except OSError as error:
            await self.close()
            raise NetworkError(f"cannot listen for switches at {place}: {error.strerror or error}") from None
        for place in connect:
            self._start(self._keep_going(place))

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
        self._start(self._on_connection(reader, writer))

    async def _keep_going(self, place: Place) -> None:
        failures = 0
        while True:
            with contextlib.suppress(OSError):
                if isinstance(place, Path):
                    streams = await asyncio.open_unix_connection(place)
                else:
                    streams = await asyncio.open_connection(*place)
                failures = 0
                await self._on_connection(*streams)
            await asyncio.sleep(_RETRY_SECONDS[min(failures, len(_RETRY_SECONDS) - 1)])
            failures += 1

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
