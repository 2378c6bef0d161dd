"""Telling a load process that one of its clients comes or goes: a JSON datagram on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from triagemq.errors import TriageError

__all__ = ["listening", "tell"]

_LONGEST = 65_536


@contextlib.asynccontextmanager
async def listening(path: str | None, command: Callable[[str, bool], Awaitable[None]]) -> AsyncIterator[None]:
    """Follow commands from here on; none where there is no path."""
    if path is None:
        yield
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(path)
        heard.setblocking(False)
        task = asyncio.get_running_loop().create_task(_follow(heard, command))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _follow(heard: socket.socket, command: Callable[[str, bool], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        message = json.loads(await loop.sock_recv(heard, _LONGEST))
        # A client that cannot do as it is told now must not keep the others from it.
        with contextlib.suppress(TriageError):
            await command(message["name"], message["there"])


def tell(path: str, name: str, *, there: bool) -> None:
    """Let a client fail or leave, or return or join."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.sendto(json.dumps({"name": name, "there": there}).encode(), path)
