"""One datagram to many addresses with one system call, with headers made beforehand."""

from __future__ import annotations

import ctypes
import errno
import socket
from collections.abc import Sequence

from triagemq.datagrams import Message, Piece, sendmmsg, socket_address

__all__ = ["AddressList", "is_available"]

# The kernel takes no more at once (UIO_MAXIOV).
_MOST_AT_ONCE = 1024


def is_available() -> bool:
    """Does this system have sendmmsg?"""
    return sendmmsg is not None


class AddressList:
    """Addresses in the form in which the kernel wants them."""

    __slots__ = ("_addresses", "_first", "_messages", "_piece", "_size")

    def __init__(self, family: int, addresses: Sequence[tuple[str, int]]) -> None:
        packed = [socket_address(family, *address) for address in addresses]
        length = len(packed[0]) if packed else 0
        self._addresses = ctypes.create_string_buffer(b"".join(packed), max(1, length * len(packed)))
        self._piece = Piece()
        self._size = len(packed)
        self._messages = (Message * len(packed))()
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
        assert sendmmsg is not None
        piece = self._piece
        piece.base = datagram
        piece.length = len(datagram)
        while begin < self._size:
            count = min(self._size - begin, _MOST_AT_ONCE)
            sent = sendmmsg(
                descriptor, self._first + begin * ctypes.sizeof(Message), count, socket.MSG_DONTWAIT
            )
            if sent > 0:
                begin += sent
                continue
            problem = ctypes.get_errno() or errno.EINVAL
            if problem != errno.EINTR:
                return begin, problem
        return begin, 0
