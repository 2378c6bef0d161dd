"""Telling a load process what its clients do next: a JSON datagram on a Unix socket.

`{"name": "crew", "there": false}`: a client fails or leaves, or returns or joins. `{"situation": 2}`: topics are worth
to everyone what they are in the situation of that number, of those that the scenario's conditions lead to.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from triagemq.errors import TriageError

__all__ = ["listening", "tell"]

Command = Callable[[dict[str, Any]], Awaitable[None]]

_LONGEST = 65_536


@contextlib.asynccontextmanager
async def listening(path: str | None, command: Command) -> AsyncIterator[None]:
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


async def _follow(heard: socket.socket, command: Command) -> None:
    loop = asyncio.get_running_loop()
    while True:
        message = json.loads(await loop.sock_recv(heard, _LONGEST))
        # A client that cannot do as it is told now must not keep the others from it.
        with contextlib.suppress(TriageError):
            await command(message)


def tell(path: str, message: dict[str, Any]) -> None:
    """Let the clients of a process do something."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.sendto(json.dumps(message).encode(), path)
