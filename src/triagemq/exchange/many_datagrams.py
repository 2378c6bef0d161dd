"""One datagram to many addresses with one system call: sendmmsg through ctypes, with headers made beforehand."""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import socket
import struct
from collections.abc import Sequence

__all__ = ["AddressList", "is_available", "socket_address"]

# The kernel takes no more at once (UIO_MAXIOV).
_MOST_AT_ONCE = 1024


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


class _Header(ctypes.Structure):
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

    _fields_ = (("header", _Header), ("sent_length", ctypes.c_uint))


_sendmmsg = getattr(ctypes.CDLL(None, use_errno=True), "sendmmsg", None)
if _sendmmsg is not None:
    _sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


def is_available() -> bool:
    """Does this system have sendmmsg?"""
    return _sendmmsg is not None


def socket_address(family: int, host: str, port: int) -> bytes:
    """struct sockaddr_in or sockaddr_in6; an IPv4 address on an IPv6 socket is mapped."""
    begin = struct.pack("=H", family) + struct.pack("!H", port)
    address = ipaddress.ip_address(host)
    if family == socket.AF_INET:
        return begin + address.packed + bytes(8)
    packed = address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
    zone = getattr(address, "scope_id", None)
    scope = 0 if zone is None else int(zone) if zone.isdigit() else socket.if_nametoindex(zone)
    return begin + bytes(4) + packed + struct.pack("=I", scope)


class AddressList:
    """Addresses in the form in which the kernel wants them."""

    __slots__ = ("_addresses", "_first", "_messages", "_piece", "_size")

    def __init__(self, family: int, addresses: Sequence[tuple[str, int]]) -> None:
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
        self._first = ctypes.addressof(self._messages)

    def send(self, descriptor: int, datagram: bytes, begin: int = 0) -> tuple[int, int]:
        """Send to all from `begin` on: up to which one it went, and the errno that stopped it there, or 0."""
        assert _sendmmsg is not None
        piece = self._piece
        piece.base = datagram
        piece.length = len(datagram)
        while begin < self._size:
            count = min(self._size - begin, _MOST_AT_ONCE)
            sent = _sendmmsg(
                descriptor, self._first + begin * ctypes.sizeof(_Message), count, socket.MSG_DONTWAIT
            )
            if sent > 0:
                begin += sent
                continue
            problem = ctypes.get_errno() or errno.EINVAL
            if problem != errno.EINTR:
                return begin, problem
        return begin, 0
