"""What the kernel wants for `sendmmsg`: addresses and messages as it lays them out in memory, through ctypes."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

CONTROL_DSCP: Final = 48
"""CS6: the mark of control packets, which every data plane lets pass first."""

CLASS_DSCP: Final = (46, 40, 32, 24, 16, 8, 1)
"""The marks of priority classes, class 0 first: EF, CS5 to CS1, and lower effort. All stay below control packets."""

BATCH: Final = 256
"""Messages of a MessageBatch."""

# The kernel takes no more at once (UIO_MAXIOV).
_MOST_AT_ONCE = 1024

Address = tuple[str, int]


class _Piece(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _MessageHeader(ctypes.Structure):
    """struct msghdr."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint32),
        ("pieces", ctypes.c_void_p),
        ("piece_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (("header", _MessageHeader), ("sent_length", ctypes.c_uint))


sendmmsg: Final[Any] = ctypes.CDLL(None, use_errno=True).sendmmsg
"""(descriptor, address of the first message, count, flags) to the number sent, or -1 and an errno."""
sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


def socket_address(family: int, host: str, port: int) -> bytes:
    """struct sockaddr_in or sockaddr_in6; an IPv4 address on an IPv6 socket is mapped. ValueError for other hosts.

    >>> socket_address(socket.AF_INET, "10.0.0.1", 10000)[2:8].hex()
    '27100a000001'
    """
    found = ipaddress.ip_address(host)
    family_and_port = struct.pack("=H", family) + struct.pack("!H", port)
    if family == socket.AF_INET:
        if found.version != 4:
            raise ValueError(host)
        return family_and_port + found.packed + bytes(8)
    if isinstance(found, ipaddress.IPv4Address):
        return family_and_port + bytes(4) + bytes(10) + b"\xff\xff" + found.packed + bytes(4)
    scope = 0
    if found.scope_id is not None:
        scope = int(found.scope_id) if found.scope_id.isdigit() else socket.if_nametoindex(found.scope_id)
    return family_and_port + bytes(4) + found.packed + struct.pack("=I", scope)


class AddressList:
    """Many addresses for one datagram after the other, in the form in which the kernel wants them."""

    __slots__ = ("_addresses", "_first", "_marks", "_messages", "_piece", "_size")

    def __init__(self, family: int, addresses: Sequence[Address], classes: Sequence[int] = ()) -> None:
        """With `classes`, one for each address, datagrams bear their marks."""
        packed = [socket_address(family, *address) for address in addresses]
        length = len(packed[0]) if packed else 0
        self._addresses = ctypes.create_string_buffer(b"".join(packed), max(1, length * len(packed)))
        self._piece = _Piece()
        self._size = len(packed)
        self._messages = (_Message * len(packed))()
        begin = ctypes.addressof(self._addresses)
        piece = ctypes.addressof(self._piece)
        for number, message in enumerate(self._messages):
            header = message.header
            header.name = begin + number * length
            header.name_length = length
            header.pieces = piece
            header.piece_count = 1
        self._marks = ClassMarks(family) if classes else None
        if self._marks is not None:
            for message, priority_class in zip(self._messages, classes, strict=True):
                message.header.control_length = self._marks.length
                message.header.control = self._marks.control(priority_class)
        self._first = ctypes.addressof(self._messages)

    def send(self, descriptor: int, datagram: bytes) -> tuple[int, int]:
        """Send to all: how many have it, from the first on, and the errno that stopped it there, or 0."""
        piece = self._piece
        piece.base = datagram
        piece.length = len(datagram)
        begin = 0
        while begin < self._size:
            count = min(self._size - begin, _MOST_AT_ONCE)
            sent = sendmmsg(
                descriptor, self._first + begin * ctypes.sizeof(_Message), count, socket.MSG_DONTWAIT
            )
            if sent > 0:
                begin += sent
                continue
            problem = ctypes.get_errno() or errno.EINVAL
            if problem != errno.EINTR:
                return begin, problem
        return begin, 0


class ClassMarks:
    """Ancillary data in memory that mark a datagram with its class; those beyond the last mark have none."""

    def __init__(self, family: int) -> None:
        packed = [b"".join(_ancillary(*one) for one in dscp_mark(family, dscp)) for dscp in (*CLASS_DSCP, 0)]
        self.length = len(packed[0])
        self._buffer = ctypes.create_string_buffer(b"".join(packed), self.length * len(packed))
        self._begin = ctypes.addressof(self._buffer)

    def control(self, priority_class: int) -> int:
        """Where the ancillary data of a class are."""
        return self._begin + min(priority_class, len(CLASS_DSCP)) * self.length


class MessageBatch:
    """Headers made once, all with the same ancillary data; who sends fills in where datagrams are and go."""

    def __init__(self, family: int, ancillary: Sequence[tuple[int, int, bytes]] = ()) -> None:
        self._piece_array = (_Piece * BATCH)()
        self._message_array = (_Message * BATCH)()
        self.pieces = list(self._piece_array)
        self.headers = [message.header for message in self._message_array]
        self.first = ctypes.byref(self._message_array)
        control = b"".join(_ancillary(*one) for one in ancillary)
        self._control = ctypes.create_string_buffer(control, len(control)) if control else None
        length = 16 if family == socket.AF_INET else 28
        first_piece = ctypes.addressof(self._piece_array)
        for number, header in enumerate(self.headers):
            header.name_length = length
            header.pieces = first_piece + number * ctypes.sizeof(_Piece)
            header.piece_count = 1
            if self._control is not None:
                header.control = ctypes.addressof(self._control)
                header.control_length = len(control)


def _ancillary(level: int, kind: int, data: bytes) -> bytes:
    """struct cmsghdr and its data, with the padding that the kernel expects."""
    length = socket.CMSG_LEN(len(data))
    packed = struct.pack("@Nii", length, level, kind) + data
    return packed.ljust(socket.CMSG_SPACE(len(data)), b"\0")


def dscp_mark(family: int, dscp: int) -> list[tuple[int, int, bytes]]:
    """Ancillary data (level, option, octets) that mark one datagram; on an IPv6 socket also one to an IPv4 address.

    >>> ((level, option, octets),) = dscp_mark(socket.AF_INET, CONTROL_DSCP)
    >>> (level, option) == (socket.IPPROTO_IP, socket.IP_TOS), struct.unpack("=i", octets)[0] >> 2
    (True, 48)
    """
    octets = struct.pack("=i", dscp << 2)
    marks = [(socket.IPPROTO_IP, socket.IP_TOS, octets)]
    if family == socket.AF_INET6:
        marks.append((socket.IPPROTO_IPV6, socket.IPV6_TCLASS, octets))
    return marks
