"""The UDP socket of a connection, with DTLS at mqttsns:// addresses.

A DTLS association is made when there is something to send, and made again when the gateway has lost it. A restarted
gateway sends an alert in clear, as anyone could. So it is taken as a hint: the old association stays in use until
the new one has proved who is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

from triagemq.addresses import GatewayAddress
from triagemq.client.settings import ConnectionSettings
from triagemq.dtls import LONGEST_MESSAGE, Association, is_alert_without_association
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


async def _resolve(gateway: GatewayAddress) -> _Address:
    """A numeric address needs no name server, and no thread that waits for one."""
    host, port, _ = gateway
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
    except OSError:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    return found[0]


class GatewaySocket:
    """Calls `on_datagram` with each message of the gateway. Encrypted or not, messages look the same.

    `on_lost` is called when the association is over or replaced, and returns whether the connection begins again. If
    not, the last message is sent again. `on_distrust` is called when the gateway's certificate is not accepted.
    """

    def __init__(
        self,
        settings: ConnectionSettings,
        *,
        on_datagram: Callable[[bytes], None],
        on_lost: Callable[[str], bool],
        on_distrust: Callable[[], None],
    ) -> None:
        self._make_socket, self._security = settings.make_socket, settings.security
        self._on_datagram, self._on_lost, self._on_distrust = on_datagram, on_lost, on_distrust
        self._gateway = GatewayAddress("", 0, False)
        self._socket: socket.socket | None = None
        self._association: Association | None = None
        # The association that the present handshake leads to.
        self._next: Association | None = None
        self._begun_at = float("-inf")
        self._last: bytes | None = None
        self.problem = self.distrust = ""
        """Why the handshake does not succeed; the second if the reason is the gateway's certificate."""

    async def open(self, gateway: GatewayAddress) -> None:
        """Talk to a gateway, or to another one over the same port; ParameterError if its security cannot be used."""
        if gateway.secure:
            self._security.load_once()
        self.renew()
        is_new = self._socket is None
        try:
            family, kind, protocol, _, address = await _resolve(gateway)
            self._gateway = gateway
            if self._socket is None:
                self._socket = self._make_socket(family, kind, protocol)
                self._socket.setblocking(False)
                with contextlib.suppress(OSError):
                    # As much as the system allows: a burst must not be lost before the loop comes round.
                    self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
                asyncio.get_running_loop().add_reader(self._socket, self._readable)
            self._socket.connect(address)
        except OSError as error:
            if is_new:
                self.close()
            raise unreachable(gateway.host, gateway.port, error) from error

    @property
    def local_address(self) -> tuple[str, int]:
        """Its own port."""
        assert self._socket is not None
        name = self._socket.getsockname()
        return name[0], name[1]

    def send(self, message: bytes) -> bool:
        """Send if the system takes it now; False if its buffer is full. During a handshake the last one waits."""
        if not self._gateway.secure:
            return self._transmit(message)
        self._last = message
        if self._association is None:
            self._shake_hands()
            return True
        return len(message) > LONGEST_MESSAGE or self._transmit(self._association.seal(message))

    def renew(self) -> None:
        """Begin a new association with the next message."""
        if self._association is not None:
            self._transmit_all(self._association.close())
        self._association = self._next = None

    def close(self) -> None:
        """Take leave, and give the port back."""
        self.renew()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _transmit(self, datagram: bytes) -> bool:
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

    def _transmit_all(self, datagrams: list[bytes]) -> None:
        for datagram in datagrams:
            self._transmit(datagram)

    def _readable(self) -> None:
        for _ in range(_DATAGRAMS_AT_ONCE):
            if self._socket is None:
                return
            try:
                datagram = self._socket.recv(_LARGEST_DATAGRAM)
            except OSError:
                # None left, or port unreachable: timers find that out, too.
                return
            if self._gateway.secure:
                self._decrypt(datagram)
            else:
                self._on_datagram(datagram)

    # DTLS.

    def _shake_hands(self) -> None:
        """Begin, or repeat without an answer: the session, which wants to send, has the timers."""
        now = asyncio.get_running_loop().time()
        if self._next is not None and now - self._begun_at < _LONGEST_HANDSHAKE_SECONDS:
            self._next.repeat()
            self._transmit_all(self._next.take())
            return
        self._begun_at = now
        self._next = self._security.association(self._gateway.host, self._gateway.port)
        self._transmit_all(self._next.begin())

    def _decrypt(self, datagram: bytes) -> None:
        association = self._association
        if association is not None:
            if is_alert_without_association(datagram):
                self._hinted()
                return
            found = association.receive(datagram)
            for message in found:
                self._on_datagram(message)
            if found:
                return
            self._transmit_all(association.take())
            if association.is_closed:
                self._association = None
                self._on_lost("the gateway has ended the association")
                return
        if self._next is not None:
            self._go_on(self._next, datagram)

    def _hinted(self) -> None:
        """An alert claims that the gateway does not know the association."""
        if asyncio.get_running_loop().time() - self._begun_at >= _HINTS_APART_SECONDS:
            self._next = None
            self._shake_hands()

    def _go_on(self, following: Association, datagram: bytes) -> None:
        found = following.receive(datagram)
        self._transmit_all(following.take())
        if following.is_established:
            self._established(following)
        elif following.is_closed:
            self._next = None
            self.problem = following.problem
            if distrust := following.distrust:
                self._security.forget(self._gateway.host, self._gateway.port)
                self.problem = self.distrust = f"its certificate is not trusted: {distrust}"
                self._on_distrust()
        for message in found:
            self._on_datagram(message)

    def _established(self, following: Association) -> None:
        before, self._association, self._next = self._association, following, None
        self.problem = self.distrust = ""
        self._security.remember(self._gateway.host, self._gateway.port, following)
        if before is not None:
            # Quietly: the gateway knows nothing of it, but what is dropped without a farewell cannot be resumed.
            before.close()
        begins_again = before is not None and self._on_lost("the gateway has lost the association")
        if not begins_again and self._last is not None:
            self.send(self._last)
