"""How a gateway joins its coordinator from wherever it is: over a WebSocket that it opens and opens again.

Requests come over that as they do over a control socket, in the same lines of JSON.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from triagemq.channel.messages import encode_line, reachable
from triagemq.errors import ParameterError
from triagemq.gateway.config import GatewayConfig
from triagemq.hiding import without_password

_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.2, 2.0
_SLOWER = 1.7
_REFUSALS = {401: "it does not know the token", 403: "the token does not allow a gateway of this name"}


class Joining:
    """`run` until it is cancelled. `answered` gives the answer to a line."""

    def __init__(self, config: GatewayConfig, answered: Callable[[bytes], Awaitable[dict[str, Any]]]) -> None:
        assert config.join is not None
        parts = urlsplit(config.join)
        # Over a Unix socket as elsewhere; which host a request names means nothing there.
        self._path = parts.path if parts.scheme == "unix" else None
        if self._path is None and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ParameterError(
                "join",
                "must be http://HOST:PORT, https://HOST:PORT or unix:/PATH, is "
                f"{without_password(config.join)!r}",
            )
        self._coordinator = without_password(config.join).rstrip("/")
        address = "http://localhost" if self._path is not None else config.join.rstrip("/")
        self._url = f"{address.replace('http', 'ws', 1)}/v1/gateways/{quote(config.name)}/channel"
        self._name = config.name
        self._headers = {} if config.token is None else {"Authorization": f"Bearer {config.token}"}
        self._context = None
        if parts.scheme == "https":
            self._context = ssl.create_default_context(cafile=config.join_authority)
        self._answered = answered
        self._reported = ""

    async def run(self) -> None:
        """Join, do what is said, and join again."""
        delay = _FIRST_DELAY_SECONDS
        while True:
            try:
                channel = await self._connect()
                async with channel:
                    delay = _FIRST_DELAY_SECONDS
                    await self._follow(channel)
            except InvalidStatus as error:
                status = error.response.status_code
                self._report(_REFUSALS.get(status, f"HTTP status {status}"))
            except ConnectionClosed as error:
                self._report(
                    (error.rcvd.reason if error.rcvd is not None else "") or "the connection was lost"
                )
            except (OSError, TimeoutError, WebSocketException) as error:
                self._report(str(getattr(error, "strerror", None) or error) or type(error).__name__)
            await asyncio.sleep(delay)
            delay = min(delay * _SLOWER, _LONGEST_DELAY_SECONDS)

    async def _connect(self) -> ClientConnection:
        if self._path is None:
            return await connect(
                self._url, additional_headers=self._headers, ssl=self._context, max_size=None
            )
        with reachable(Path(self._path)) as name:
            return await unix_connect(name, self._url, additional_headers=self._headers, max_size=None)

    async def _follow(self, channel: ClientConnection) -> None:
        async for line in channel:
            answer = await self._answered(line.encode() if isinstance(line, str) else line)
            await channel.send(encode_line(answer))
            self._reported = ""
        raise ConnectionClosed(channel.protocol.close_rcvd, channel.protocol.close_sent)

    def _report(self, problem: str) -> None:
        """Once for each problem: it is tried again until it goes."""
        if problem != self._reported:
            self._reported = problem
            print(
                f"gateway {self._name} cannot join {self._coordinator}: {problem}; still trying",
                file=sys.stderr,
                flush=True,
            )
