"""UDP sockets of a client, each with a port of its own and connected to the gateway.

DatagramSocket sends in clear; SecureSocket puts DTLS on it: messages go in and come out as they do without. An
association is made when there is something to send, and made again when the gateway has lost it: a gateway that was
started again says so, in clear, and anyone could. So that is taken as a hint: the old association stays in use until
the new one has proved who is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from triagemq.dtls import LONGEST_MESSAGE, Association, ClientSecurity, is_alert_without_association
from triagemq.errors import GatewayUnreachableError

_RECEIVE_BUFFER_BYTES = 4 << 20
_LARGEST_DATAGRAM = 65_535
_DATAGRAMS_AT_ONCE = 64
_LONGEST_HANDSHAKE_SECONDS = 5.0
_HINTS_APART_SECONDS = 1.0

_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def unreachable(host: str, port: int, error: OSError) -> GatewayUnreachableError:
    """The system has no route to that address.

    >>> str(unreachable("nowhere", 10000, OSError(101, "Network is unreachable")))
    'gateway nowhere:10000: Network is unreachable; check the address'
    """
    return GatewayUnreachableError(f"gateway {host}:{port}: {error.strerror or error}; check the address")


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
            # The ICMP answer to an earlier datagram (port unreachable); this one is as good as lost.
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
                # None left, or port unreachable: timers find that out, too.
                return
            self._on_datagram(datagram)


class SecureSocket:
    """Calls `on_datagram` with every message, and `on_lost` when the association is over or another one.

    `on_lost` returns whether the connection is then made again from its beginning; if not, what was sent last is sent
    again. `on_distrust` is called when the gateway cannot prove to be what its address says.
    """

    def __init__(
        self,
        on_datagram: Callable[[bytes], None],
        on_lost: Callable[[str], bool],
        on_distrust: Callable[[], None],
        security: ClientSecurity,
        make_socket: Callable[[int, int, int], socket.socket] = socket.socket,
    ) -> None:
        self._socket = DatagramSocket(self._received, make_socket)
        self._on_datagram, self._on_lost, self._on_distrust = on_datagram, on_lost, on_distrust
        self._security = security
        self._gateway = ("", 0)
        self._association: Association | None = None
        # Whose handshake is going on, since when.
        self._next: Association | None = None
        self._begun_at = float("-inf")
        self._last: bytes | None = None
        self.problem = self.distrust = ""
        """What keeps the handshake from succeeding; the second if that is the gateway's certificate."""

    async def open(self, host: str, port: int) -> None:
        """Take a free port; ParameterError if the files of the security cannot be used."""
        self._security.load_once()
        self._gateway = (host, port)
        await self._socket.open(host, port)

    async def redirect(self, host: str, port: int) -> None:
        """Talk to another gateway from now on, over the same port."""
        self.renew()
        self._gateway = (host, port)
        await self._socket.redirect(host, port)

    @property
    def local_address(self) -> tuple[str, int]:
        """Where it receives."""
        return self._socket.local_address

    @property
    def was_resumed(self) -> bool:
        """Was the handshake of this association a short one?"""
        return self._association is not None and self._association.was_resumed

    def send(self, datagram: bytes) -> bool:
        """Send if the system takes it now; False if its buffer is full. Before the handshake the last one waits."""
        self._last = datagram
        association = self._association
        if association is None:
            self._shake_hands()
            return True
        if len(datagram) > LONGEST_MESSAGE:
            return True
        return self._socket.send(association.seal(datagram))

    def renew(self) -> None:
        """Begin anew with what is sent next."""
        if self._association is not None:
            self._send(self._association.close())
        self._association = self._next = None

    def close(self) -> None:
        """Take leave, and give the port back."""
        self.renew()
        self._socket.close()

    def _send(self, datagrams: list[bytes]) -> None:
        for datagram in datagrams:
            self._socket.send(datagram)

    # Handshakes.

    def _shake_hands(self) -> None:
        """Begin, or repeat without an answer: the session, which wants to send, has the timers."""
        now = asyncio.get_running_loop().time()
        if self._next is not None and now - self._begun_at < _LONGEST_HANDSHAKE_SECONDS:
            self._next.repeat()
            self._send(self._next.take())
            return
        self._begun_at = now
        self._next = self._security.association(*self._gateway)
        self._send(self._next.begin())

    def _hinted(self) -> None:
        """An alert says that the gateway does not know the association."""
        now = asyncio.get_running_loop().time()
        if now - self._begun_at >= _HINTS_APART_SECONDS:
            self._next = None
            self._shake_hands()

    def _go_on(self, following: Association, datagram: bytes) -> None:
        found = following.receive(datagram)
        self._send(following.take())
        if following.is_established:
            self._established(following)
        elif following.is_closed:
            self._next = None
            self.problem = following.problem
            distrust = following.distrust
            if distrust:
                self._security.forget(*self._gateway)
                self.problem = self.distrust = f"its certificate is not trusted: {distrust}"
                self._on_distrust()
        for message in found:
            self._on_datagram(message)

    def _established(self, following: Association) -> None:
        before, self._association, self._next = self._association, following, None
        self.problem = self.distrust = ""
        self._security.remember(*self._gateway, following)
        if before is not None:
            # Quietly: the gateway knows nothing of it, but what is dropped without a farewell cannot be resumed.
            before.close()
        begins_again = before is not None and self._on_lost("the gateway has lost the association")
        if not begins_again and self._last is not None:
            self.send(self._last)

    # What comes in.

    def _received(self, datagram: bytes) -> None:
        association = self._association
        if association is not None and not is_alert_without_association(datagram):
            found = association.receive(datagram)
            if found:
                for message in found:
                    self._on_datagram(message)
                return
            self._send(association.take())
            if association.is_closed:
                self._association = None
                self._on_lost("the gateway has ended the association")
                return
        if self._next is not None and not (
            association is not None and is_alert_without_association(datagram)
        ):
            self._go_on(self._next, datagram)
        elif association is not None and is_alert_without_association(datagram):
            self._hinted()
