"""Connections to REST and the page: how many, and how long a request may take to arrive.

A connection counts from its accept, so that a TLS handshake that is never finished is a part of it. One that is not
serving a whole request (its headers, its body or the handshake are still to come, or it is idle) has to give way: after
a time, and at once to newer ones when all places are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import time
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

_HEADER_SECONDS = 10.0
_BODY_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_MOST_CONNECTIONS = 16_384
_OTHER_DESCRIPTORS = 256
"""For the store, gateways, the page's subscribers and the interpreter."""

_AT_ONCE = 32

MESSAGE_BYTES = 1 << 20
"""Of a WebSocket message from a page; gateways, which tell of all their flows, have `GATEWAY_MESSAGE_BYTES`."""
GATEWAY_MESSAGE_BYTES = 64 << 20


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    until: float | None
    """When it is closed unless something happens; None while a request is served."""


class Connections:
    """All that are open, in the order of their last step; `most` at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[int, _Connection] = {}

    def make_room(self) -> bool:
        """Whether another one may be accepted now; if not, those that have been incomplete or idle for longest are
        on their way out."""
        if len(self._open) < self._most:
            return True
        self._forget_closed()
        if len(self._open) < self._most:
            return True
        for each in [one for one in self._open.values() if one.until is not None][:_AT_ONCE]:
            self._close(each)
        return False

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self._most

    def accepted(self, connection: socket.socket) -> None:
        self._open.pop(connection.fileno(), None)
        self._open[connection.fileno()] = _Connection(connection, time.monotonic() + _HEADER_SECONDS)

    def now(self, number: int, seconds: float | None) -> None:
        """The connection with this descriptor has come a step further, and has so long for the next one."""
        known = self._open.pop(number, None)
        if known is not None:
            known.until = None if seconds is None else time.monotonic() + seconds
            self._open[number] = known

    async def keep_looking(self) -> None:
        """Close what takes too long, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._forget_closed()
            now = time.monotonic()
            for each in [one for one in self._open.values() if one.until is not None and one.until < now]:
                self._close(each)

    def _forget_closed(self) -> None:
        self._open = {number: each for number, each in self._open.items() if each.socket.fileno() == number}

    def _close(self, connection: _Connection) -> None:
        """The transport that has the socket sees its end and closes it."""
        self._open.pop(connection.socket.fileno(), None)
        with contextlib.suppress(OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)


class ConnectionListener(socket.socket):
    """A listening socket whose connections are known."""

    def __init__(self, listening: socket.socket, connections: Connections) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self._connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        if self._connections.make_room():
            connection, address = super().accept()
            self._connections.accepted(connection)
            return connection, address
        if self._connections.is_full:
            # All of them are being served.
            super().accept()[0].close()
        # The event loop first closes those that make room, and then asks again.
        raise BlockingIOError


def http_protocol(connections: Connections) -> type[H11Protocol]:
    """The HTTP protocol that tells how far each request has come."""

    class TimedProtocol(H11Protocol):
        _number: int | None = None
        _told: object = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._number = transport.get_extra_info("socket").fileno()

        def handle_events(self) -> None:
            super().handle_events()
            self._tell()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._tell()

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            super().handle_websocket_upgrade(event)
            if self._number is not None:
                connections.now(self._number, None)
                self._number = None

        def _tell(self) -> None:
            state = self.conn.their_state
            if self._number is None or state is self._told:
                return
            self._told = state
            seconds = {h11.IDLE: _HEADER_SECONDS, h11.SEND_BODY: _BODY_SECONDS}.get(state)
            connections.now(self._number, seconds)

    return TimedProtocol


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Messages of gateways may be large, those of others may not."""

    def handle_connect(self, event: Request) -> None:
        if not event.path.partition("?")[0].endswith("/channel"):
            self.conn.max_size = MESSAGE_BYTES
        super().handle_connect(event)


def most_connections() -> int:
    """As many as there are descriptors for, which are raised to what this process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = soft - min(_OTHER_DESCRIPTORS, soft // 2)
    return min(free, _MOST_CONNECTIONS) if soft != resource.RLIM_INFINITY else _MOST_CONNECTIONS
