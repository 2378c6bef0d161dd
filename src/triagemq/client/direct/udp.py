"""The sockets of a direct topic: packets to its multicast address, and those that come there.

The kernel brings packets to the listeners of the sending host, too, and stamps them when they arrive, so that the delay
of the program can be separated.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from triagemq.addresses import host_and_port, place
from triagemq.errors import ClientError, ParameterError
from triagemq.intents import Number, Ruled

MakeSocket = Callable[[int, int, int], socket.socket]

_BUFFER_BYTES = 4 << 20
_LARGEST_DATAGRAM = 65_535
# Of Linux; Python has no names for them.
_MULTICAST_ALL, _MULTICAST_ALL_6, _STAMPS = 49, 29, 35
_INDEX_OF_INTERFACE = 0x8933
_STAMP = struct.Struct("@ll")
_ROOM_FOR_STAMP = socket.CMSG_SPACE(_STAMP.size)
_ANY_GROUP = "239.192.0.0"
_TRY_LATER = (errno.EAGAIN, errno.ENOBUFS)


@dataclass(frozen=True, slots=True)
class GroupAddress:
    """Where a direct topic is.

    >>> GroupAddress.parse("239.1.2.3:7400")
    GroupAddress(group='239.1.2.3', port=7400)
    """

    group: str
    port: int

    @classmethod
    def parse(cls, text: str, parameter: str = "address") -> GroupAddress:
        """From GROUP:PORT; ParameterError if that is no multicast address."""
        host, port = host_and_port(text, parameter)
        try:
            is_multicast = ipaddress.ip_address(host).is_multicast
        except ValueError:
            is_multicast = False
        if not is_multicast:
            raise ParameterError(parameter, f"must be a multicast GROUP:PORT, as 239.1.2.3:7400, is {text!r}")
        return cls(host, port)

    @property
    def version(self) -> int:
        """Of IP."""
        return 6 if ":" in self.group else 4

    def __str__(self) -> str:
        return place(self.group, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings(Ruled):
    """How packets leave, and where they are expected."""

    interface: str | None = None
    """Its name; None leaves it to the routes of the system."""
    hops: Annotated[int, Number(1, 255, whole=True)] = 16
    """So many routers may pass a packet on, less one."""
    dscp: Annotated[int, Number(0, 63, whole=True)] | None = None
    """The mark of the topic's level, for networks that go by marks."""
    mtu_bytes: Annotated[int, Number(640, 65_535, whole=True)] = 1500
    """The longest packet, with the headers of IP and UDP."""
    make_socket: MakeSocket = socket.socket
    """Makes UDP sockets (family, kind, protocol), perhaps in another network namespace."""


class MulticastSender:
    """Sends without waiting: what the system does not take now is given back."""

    def __init__(self, address: GroupAddress, settings: NetworkSettings) -> None:
        self._socket = _opened(address, settings)
        self.not_sent = 0
        """Packets that the system refused for good: no route, or an interface that is down."""
        self.problem = ""
        """Why it refused the last one."""
        try:
            _set_up_sending(self._socket, address, settings)
            self._target = _socket_address(self._socket, address, settings)
        except OSError as error:
            self._socket.close()
            raise _unusable(address, settings, error) from error

    def fileno(self) -> int:
        """To wait until it can send again."""
        return self._socket.fileno()

    def send(self, packets: Sequence[bytes]) -> Sequence[bytes]:
        """Those that the system has no room for at the moment, to be sent first, later."""
        for number, packet in enumerate(packets):
            try:
                self._socket.sendto(packet, self._target)
            except OSError as error:
                if error.errno in _TRY_LATER:
                    return packets[number:]
                self.not_sent += 1
                self.problem = error.strerror or str(error)
            else:
                self.problem = ""
        return ()

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()


def source_address(settings: NetworkSettings) -> str | None:
    """The address that packets to promised topics come from, by the routes of now; None if there is no route."""
    group = GroupAddress(_ANY_GROUP, 9)
    try:
        with _opened(group, settings) as made:
            _set_up_sending(made, group, settings)
            # Nothing is sent: the system chooses a source for the connection.
            made.connect(_socket_address(made, group, settings))
            return str(made.getsockname()[0])
    except (OSError, ClientError):
        return None


class MulticastReceiver:
    """What comes to the group on an interface."""

    def __init__(self, address: GroupAddress, settings: NetworkSettings) -> None:
        self._socket = _opened(address, settings)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, _STAMPS, 1)
            _join(self._socket, address, settings)
            # To the group, not to every address of this host: nothing else comes in.
            self._socket.bind(_socket_address(self._socket, address, settings))
        except OSError as error:
            self._socket.close()
            raise _unusable(address, settings, error) from error

    def fileno(self) -> int:
        """To wait for packets."""
        return self._socket.fileno()

    def receive(self) -> tuple[bytes, int | None] | None:
        """The next packet, and when the kernel had it (Unix time in ns); None if there is none at the moment."""
        try:
            packet, ancillary, _, _ = self._socket.recvmsg(_LARGEST_DATAGRAM, _ROOM_FOR_STAMP)
        except OSError:
            return None
        for level, kind, value in ancillary:
            if level == socket.SOL_SOCKET and kind == _STAMPS and len(value) == _STAMP.size:
                seconds, nanoseconds = _STAMP.unpack(value)
                return packet, seconds * 1_000_000_000 + nanoseconds
        return packet, None

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()


def _opened(address: GroupAddress, settings: NetworkSettings) -> socket.socket:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    try:
        made = settings.make_socket(family, socket.SOCK_DGRAM, 0)
    except OSError as error:
        raise _unusable(address, settings, error) from error
    made.setblocking(False)
    return made


def _set_up_sending(sender: socket.socket, address: GroupAddress, settings: NetworkSettings) -> None:
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    index = _index(sender, settings)
    if address.version == 6:
        level = socket.IPPROTO_IPV6
        sender.setsockopt(level, socket.IPV6_MULTICAST_HOPS, settings.hops)
        sender.setsockopt(level, socket.IPV6_MULTICAST_IF, index)
        if settings.dscp is not None:
            sender.setsockopt(level, socket.IPV6_TCLASS, settings.dscp << 2)
        return
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, settings.hops)
    if index:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, _membership("0.0.0.0", index))
    if settings.dscp is not None:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, settings.dscp << 2)


def _join(receiver: socket.socket, address: GroupAddress, settings: NetworkSettings) -> None:
    """On that interface only: what others of this host have joined elsewhere does not come here."""
    index = _index(receiver, settings)
    if address.version == 6:
        packed = socket.inet_pton(socket.AF_INET6, address.group)
        receiver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, packed + struct.pack("@I", index))
        receiver.setsockopt(socket.IPPROTO_IPV6, _MULTICAST_ALL_6, 0)
        return
    receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, _membership(address.group, index))
    receiver.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL, 0)


def _socket_address(
    made: socket.socket, address: GroupAddress, settings: NetworkSettings
) -> tuple[str, int] | tuple[str, int, int, int]:
    """Groups of one link are nowhere without its interface."""
    if address.version == 6:
        return address.group, address.port, 0, _index(made, settings)
    return address.group, address.port


def _membership(group: str, index: int) -> bytes:
    """`struct ip_mreqn`."""
    return struct.pack("@4s4si", socket.inet_aton(group), bytes(4), index)


def _index(made: socket.socket, settings: NetworkSettings) -> int:
    """The number of the interface where the socket is, which may be in another namespace than we are; 0 for any."""
    if settings.interface is None:
        return 0
    request = struct.pack("16s16x", os.fsencode(settings.interface)[:15])
    answer = fcntl.ioctl(made.fileno(), _INDEX_OF_INTERFACE, request)
    return int(struct.unpack_from("@i", answer, 16)[0])


def _unusable(address: GroupAddress, settings: NetworkSettings, error: OSError) -> ClientError:
    through = "" if settings.interface is None else f" through {settings.interface}"
    hint = "; give an interface" if error.errno == errno.ENODEV and settings.interface is None else ""
    return ClientError(f"{address} cannot be used{through}: {error.strerror or error}{hint}")
