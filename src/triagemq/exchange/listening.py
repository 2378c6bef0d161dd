"""The gateway's UDP sockets: where it listens, what it receives, a second one that control packets leave by; DTLS."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import socket
import struct
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from triagemq.certificates import LOOK_EVERY_SECONDS, RenewalWatch
from triagemq.datagrams.messages import CONTROL_DSCP, dscp_mark
from triagemq.errors import GatewayError
from triagemq.exchange.associations import TICK_SECONDS, AssociationLimits, Associations
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.lifecycle import detach_sessions_at

if TYPE_CHECKING:
    from triagemq.dtls import ServerSecurity

_SOCKET_BUFFER_BYTES = 8 << 20
# What waits in queues of this machine counts against its sender: room for all that the queues of a port may hold (nine
# of 16,384 packets), so that their limits decide what has to go, and a starved class never stops an urgent one.
_SEND_BUFFER_BYTES = 256 << 20
# Linux's SO_SNDBUFFORCE and SO_RCVBUFFORCE, which Python does not name; elsewhere these numbers are refused.
_SNDBUFFORCE, _RCVBUFFORCE = 32, 33
# Linux's SO_ATTACH_REUSEPORT_CBPF: a program that chooses among the sockets of an address, here always the first.
_CHOOSE_BY_PROGRAM = 51
_RETURN_0 = struct.pack("=HBBI", 6, 0, 0, 0)
_DATAGRAMS_AT_ONCE = 256
_LARGEST_DATAGRAM = 65_535


def bind_udp(host: str, port: int, given_by: str = "--listen") -> socket.socket:
    """A socket that never blocks, with all the room the system gives; GatewayError if the address is not to be had.

    `given_by` is the option that says it.
    """
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setblocking(False)
        for option, forced, forced_bytes in (
            (socket.SO_RCVBUF, _RCVBUFFORCE, _SOCKET_BUFFER_BYTES),
            (socket.SO_SNDBUF, _SNDBUFFORCE, _SEND_BUFFER_BYTES),
        ):
            bound.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
            # Only root has more than a share of that.
            with contextlib.suppress(OSError):
                bound.setsockopt(socket.SOL_SOCKET, forced, forced_bytes)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        bound.bind(address)
    except OSError as error:
        if bound is not None:
            bound.close()
        raise GatewayError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another {given_by} HOST:PORT"
        ) from error
    return bound


def control_socket(udp_socket: socket.socket) -> socket.socket | None:
    """A second socket at the same address, to send from: it has a buffer of its own. None where that is not to be had.

    Everything that comes still goes to the first.
    """
    second = socket.socket(udp_socket.family, udp_socket.type, udp_socket.proto)
    try:
        second.setblocking(False)
        for each in (udp_socket, second):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        second.bind(udp_socket.getsockname())
        program = ctypes.create_string_buffer(_RETURN_0)
        second.setsockopt(
            socket.SOL_SOCKET, _CHOOSE_BY_PROGRAM, struct.pack("@HP", 1, ctypes.addressof(program))
        )
    except (OSError, AttributeError):
        second.close()
        return None
    return second


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


class DtlsListener:
    """DTLS between the socket and the core: `opened` on the way in, `associations.seal` on the way out.

    It has the associations, their timers, and the certificate that may be renewed.
    """

    def __init__(
        self,
        security: ServerSecurity,
        core: GatewayCore,
        udp_socket: socket.socket,
        limits: AssociationLimits | None = None,
    ) -> None:
        self.associations = Associations(
            security,
            counted=core.counters.rejected,
            established=self._established,
            is_known=self._is_known,
            limits=limits,
        )
        self._core = core
        self._socket = udp_socket
        self._mark = dscp_mark(udp_socket.family, CONTROL_DSCP)
        self._loop = asyncio.get_running_loop()
        self._renewal = RenewalWatch(security.files, self.associations.renew, _say)
        self._ticking = self._loop.create_task(self._keep_ticking())

    def opened(
        self, datagrams: Iterable[tuple[tuple[str, int], bytes]]
    ) -> Iterator[tuple[tuple[str, int], bytes]]:
        """The messages inside; what a handshake wants answered is answered."""
        associations, now = self.associations, self._loop.time()
        receive = associations.receive
        for address, datagram in datagrams:
            for message in receive(address, datagram, now):
                yield address, message
            if associations.outgoing:
                self._flush()

    async def close(self) -> None:
        """Take leave of all clients."""
        self._ticking.cancel()
        await asyncio.gather(self._ticking, return_exceptions=True)
        self.associations.close()
        self._flush()

    def _established(self, address: tuple[str, int], resumed: bool) -> None:
        self._core.counters.handshakes += 1
        self._core.counters.resumptions += resumed
        # The owner of the session of this address has yet to show itself, by a CONNECT.
        detach_sessions_at(self._core, address)

    def _is_known(self, address: tuple[str, int]) -> bool:
        return address in self._core.by_endpoint or bool(self._core.by_host.behind(address))

    def _flush(self) -> None:
        """With the mark of control packets: without handshakes there is nothing."""
        outgoing, self.associations.outgoing = self.associations.outgoing, []
        for address, datagram in outgoing:
            # What is lost is sent again: handshakes are made for that.
            with contextlib.suppress(OSError):
                self._socket.sendmsg((datagram,), self._mark, socket.MSG_DONTWAIT, address)

    async def _keep_ticking(self) -> None:
        looked = self._loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._loop.time()
            self.associations.tick(now, self._in_use)
            self._flush()
            if now - looked >= LOOK_EVERY_SECONDS:
                looked = now
                self._renewal.look()

    def _in_use(self) -> Collection[tuple[str, int]]:
        return {(endpoint[0], endpoint[1]) for endpoint in self._core.by_endpoint}


def _say(what: str) -> None:
    print(f"gateway: {what}", file=sys.stderr, flush=True)
