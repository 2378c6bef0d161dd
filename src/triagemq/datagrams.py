"""UDP below the level of Python's sockets: one system call for many datagrams, and the mark of control packets.

The gateway and the data planes both send by the thousand. `sendmmsg` (through ctypes) takes an array of messages that
name their address and their octets; whoever sends the same again keeps the array and changes only what differs.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import socket
import struct
from typing import Any, Final

__all__ = [
    "CONTROL_DSCP",
    "TRY_LATER",
    "Message",
    "MessageHeader",
    "Piece",
    "control_mark",
    "sendmmsg",
    "socket_address",
]

CONTROL_DSCP: Final = 48
"""CS6: the mark of control packets, which every data plane lets pass first."""

TRY_LATER: Final = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)
"""Errors that mean that the socket has no room now."""


class Piece(ctypes.Structure):
    """struct iovec."""

    _fields_ = (("base", ctypes.c_char_p), ("length", ctypes.c_size_t))


class MessageHeader(ctypes.Structure):
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


class Message(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (("header", MessageHeader), ("sent_length", ctypes.c_uint))


sendmmsg: Final[Any] = getattr(ctypes.CDLL(None, use_errno=True), "sendmmsg", None)
"""(descriptor, address of the first Message, count, flags) to the number sent, or -1 and an errno; None without it."""
if sendmmsg is not None:
    sendmmsg.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int)


def control_mark(family: int) -> tuple[int, int, bytes]:
    """Ancillary data (level, option, octets) that marks one datagram as a control packet.

    >>> level, option, octets = control_mark(socket.AF_INET)
    >>> (level, option) == (socket.IPPROTO_IP, socket.IP_TOS), struct.unpack("=i", octets)[0] >> 2
    (True, 48)
    """
    octets = struct.pack("=i", CONTROL_DSCP << 2)
    if family == socket.AF_INET6:
        return socket.IPPROTO_IPV6, socket.IPV6_TCLASS, octets
    return socket.IPPROTO_IP, socket.IP_TOS, octets


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
