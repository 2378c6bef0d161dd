"""The gateway's UDP socket: where it listens, and what it receives."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from triagemq.errors import GatewayError

__all__ = ["bind_udp", "received"]

_SOCKET_BUFFER_BYTES = 8 << 20
# Linux's SO_SNDBUFFORCE and SO_RCVBUFFORCE, which Python does not name; elsewhere these numbers are refused.
_SNDBUFFORCE, _RCVBUFFORCE = 32, 33
_DATAGRAMS_AT_ONCE = 256
_LARGEST_DATAGRAM = 65_535


def bind_udp(host: str, port: int) -> socket.socket:
    """A socket that never blocks, with all the room the system gives; GatewayError if the address is not to be had."""
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setblocking(False)
        for option, forced in ((socket.SO_RCVBUF, _RCVBUFFORCE), (socket.SO_SNDBUF, _SNDBUFFORCE)):
            bound.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
            # Only root has more than a share of that: what queues of this machine hold counts against the sender.
            with contextlib.suppress(OSError):
                bound.setsockopt(socket.SOL_SOCKET, forced, _SOCKET_BUFFER_BYTES)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise GatewayError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --listen HOST:PORT"
        ) from error
    return bound


def received(udp_socket: socket.socket) -> Iterator[tuple[tuple[str, int], bytes]]:
    """Datagrams that are there now, with their sender; not without end, for others want the event loop, too."""
    receive = udp_socket.recvfrom
    for _ in range(_DATAGRAMS_AT_ONCE):
        try:
            datagram, address = receive(_LARGEST_DATAGRAM)
        except OSError:
            # None left, or an error of an earlier datagram that is reported here; the socket itself is well.
            return
        # IPv6 addresses come with more than host and port.
        yield (address if len(address) == 2 else address[:2]), datagram
