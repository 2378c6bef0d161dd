"""One UDP socket with a port of its own, connected to the gateway: the network tells flows apart by it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from triagemq.client.gateway_errors import unreachable

__all__ = ["DatagramSocket"]

_RECEIVE_BUFFER_BYTES = 4 << 20
_LARGEST_DATAGRAM = 65_535
_DATAGRAMS_AT_ONCE = 64

_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


async def _resolve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> _Address:
    """Numbers need no thread that asks a name server."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    return found[0]


class DatagramSocket:
    """Calls `on_datagram` with whatever comes from the gateway's address."""

    def __init__(
        self,
        on_datagram: Callable[[bytes], None],
        make_socket: Callable[[int, int, int], socket.socket] = socket.socket,
    ) -> None:
        self._make_socket = make_socket
        self._on_datagram = on_datagram
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self, host: str, port: int) -> None:
        """Take a free port."""
        self._loop = loop = asyncio.get_running_loop()
        try:
            family, kind, protocol, _, address = await _resolve(loop, host, port)
            self._socket = self._make_socket(family, kind, protocol)
            self._socket.setblocking(False)
            with contextlib.suppress(OSError):
                # As much as the system allows: a burst must not be lost before the loop comes round.
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
            self._socket.connect(address)
        except OSError as error:
            self.close()
            raise unreachable(host, port, error) from error
        loop.add_reader(self._socket, self._readable)

    async def redirect(self, host: str, port: int) -> None:
        """Talk to another address from now on, over the same port."""
        assert self._loop is not None
        try:
            address = (await _resolve(self._loop, host, port))[4]
            if self._socket is not None:
                self._socket.connect(address)
        except OSError as error:
            raise unreachable(host, port, error) from error

    @property
    def local_address(self) -> tuple[str, int]:
        """Where it receives."""
        assert self._socket is not None
        name = self._socket.getsockname()
        return name[0], name[1]

    def send(self, datagram: bytes) -> bool:
        """Send if the system takes it now; False if its buffer is full."""
        if self._socket is None:
            return True
        try:
            self._socket.send(datagram)
        except BlockingIOError:
            return False
        except OSError:
            # The answer to an earlier datagram (nobody listens there); this one is as good as lost on the way.
            return True
        return True

    problem = distrust = ""
    """Nothing but silence can be wrong here."""

    def renew(self) -> None:
        """Every datagram stands for itself: there is nothing that could be begun anew."""

    def close(self) -> None:
        """Give the port back."""
        if self._socket is not None:
            if self._loop is not None:
                self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _readable(self) -> None:
        for _ in range(_DATAGRAMS_AT_ONCE):
            if self._socket is None:
                return
            try:
                datagram = self._socket.recv(_LARGEST_DATAGRAM)
            except OSError:
                # None left, or word that nobody listens there: timers find that out, too.
                return
            self._on_datagram(datagram)
