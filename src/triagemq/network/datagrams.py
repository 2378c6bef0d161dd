"""Sending many datagrams to many addresses with one system call, or one by one where that is missing."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import socket
import struct
from collections import Counter, deque
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from triagemq.datagrams import TRY_LATER, Message, Piece, control_mark, sendmmsg, socket_address

__all__ = ["DatagramSender"]

_BATCH = 256
_FLAGS = socket.MSG_DONTWAIT
_MOST_ADDRESSES = 1 << 16

Address = tuple[str, int]


class _Batch:
    """Headers made once, all with the same ancillary data; who sends fills in where datagrams are and go."""

    def __init__(self, family: int, ancillary: Sequence[tuple[int, int, bytes]] = ()) -> None:
        self._piece_array = (Piece * _BATCH)()
        self._message_array = (Message * _BATCH)()
        self.pieces = list(self._piece_array)
        self.headers = [message.header for message in self._message_array]
        self.first = ctypes.byref(self._message_array)
        control = b"".join(_ancillary(*one) for one in ancillary)
        self._control = ctypes.create_string_buffer(control, len(control)) if control else None
        length = 16 if family == socket.AF_INET else 28
        first_piece = ctypes.addressof(self._piece_array)
        for number, header in enumerate(self.headers):
            header.name_length = length
            header.pieces = first_piece + number * ctypes.sizeof(Piece)
            header.piece_count = 1
            if self._control is not None:
                header.control = ctypes.addressof(self._control)
                header.control_length = len(control)


def _ancillary(level: int, kind: int, data: bytes) -> bytes:
    """struct cmsghdr and its data, with the padding that the kernel expects."""
    length = socket.CMSG_LEN(len(data))
    packed = struct.pack("@Nii", length, level, kind) + data
    return packed.ljust(socket.CMSG_SPACE(len(data)), b"\0")


class DatagramSender:
    """Sends datagrams from one bound UDP socket, in order, without ever blocking.

    What the socket cannot take now (its buffer is full) goes out as soon as it can, up to `most_waiting` datagrams.
    `system_calls` counts how often the kernel was asked, and `unsent`, by errno, what could not be sent at all: ENOBUFS
    for those above `most_waiting`, EINVAL for an address that is not one in digits, or what the kernel said.

    `control` sends with the mark of control packets (DSCP CS6), which every data plane on the way lets pass first.
    """

    def __init__(
        self,
        udp_socket: socket.socket,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        most_waiting: int = 100_000,
        batched: bool = True,
    ) -> None:
        self.unsent: Counter[int] = Counter()
        self.system_calls = 0
        self._socket, self._loop = udp_socket, loop
        self._most_waiting = most_waiting
        # With whether it is marked.
        self._waiting: deque[tuple[Address, bytes, bool]] = deque()
        self._addresses: dict[Address, tuple[Any, int]] = {}
        self._sendmmsg = sendmmsg if batched else None
        self._mark = [control_mark(udp_socket.family)]
        if self._sendmmsg is not None:
            self._plain = _Batch(udp_socket.family)
            self._marked = _Batch(udp_socket.family, self._mark)

    def __call__(self, datagrams: Sequence[tuple[Address, bytes]]) -> None:
        self._take(datagrams, False)

    def control(self, datagrams: Sequence[tuple[Address, bytes]]) -> None:
        """Send with the mark of control packets."""
        self._take(datagrams, True)

    @property
    def waiting(self) -> int:
        """Datagrams that the socket could not take yet."""
        return len(self._waiting)

    def close(self) -> None:
        """Stop waiting for the socket, which stays open; what waited counts as unsent."""
        if self._waiting:
            self._event_loop().remove_writer(self._socket)
            self.unsent[errno.EAGAIN] += len(self._waiting)
            self._waiting.clear()

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop() if self._loop is None else self._loop

    def _take(self, datagrams: Sequence[tuple[Address, bytes]], marked: bool) -> None:
        if self._waiting:
            self._wait(datagrams, marked)
            return
        begin = self._send_from(datagrams, marked)
        if begin < len(datagrams):
            self._wait(datagrams[begin:], marked)
            self._watch()

    def _wait(self, datagrams: Sequence[tuple[Address, bytes]], marked: bool) -> None:
        room = self._most_waiting - len(self._waiting)
        self._waiting.extend((address, datagram, marked) for address, datagram in datagrams[:room])
        if len(datagrams) > room:
            self.unsent[errno.ENOBUFS] += len(datagrams) - room

    def _watch(self) -> None:
        self._event_loop().add_writer(self._socket, self._flush)

    def _flush(self) -> None:
        waiting = list(self._waiting)
        begin = 0
        for marked, alike in groupby(waiting, key=lambda one: one[2]):
            datagrams = [(address, datagram) for address, datagram, _ in alike]
            sent = self._send_from(datagrams, marked)
            begin += sent
            if sent < len(datagrams):
                break
        self._waiting = deque(waiting[begin:])
        if not self._waiting:
            self._event_loop().remove_writer(self._socket)

    def _send_from(self, datagrams: Sequence[tuple[Address, bytes]], marked: bool) -> int:
        """Send until the socket is full; returns how many are dealt with."""
        # Never in the midst of a batch, which points into them.
        if len(self._addresses) > _MOST_ADDRESSES:
            self._addresses.clear()
        begin = 0
        send = self._send_one if self._sendmmsg is None else self._send_batch
        while begin < len(datagrams):
            done, problem = send(datagrams, begin, marked)
            self.system_calls += 1
            begin += done
            if problem in TRY_LATER:
                break
            if problem and problem != errno.EINTR:
                # The first one that was not sent is the one at fault.
                self.unsent[problem] += 1
                begin += 1
        return begin

    def _send_one(
        self, datagrams: Sequence[tuple[Address, bytes]], begin: int, marked: bool
    ) -> tuple[int, int]:
        address, datagram = datagrams[begin]
        if self._known(address)[1] == 0:
            return 0, errno.EINVAL
        if self._socket.family == socket.AF_INET6 and ":" not in address[0]:
            address = (f"::ffff:{address[0]}", address[1])
        try:
            if marked:
                self._socket.sendmsg((datagram,), self._mark, _FLAGS, address)
            else:
                self._socket.sendto(datagram, _FLAGS, address)
        except OSError as problem:
            return 0, problem.errno or errno.EINVAL
        return 1, 0

    def _send_batch(
        self, datagrams: Sequence[tuple[Address, bytes]], begin: int, marked: bool
    ) -> tuple[int, int]:
        known = self._addresses
        count = 0
        headers = self._marked if marked else self._plain
        batch = datagrams if begin == 0 and len(datagrams) <= _BATCH else datagrams[begin : begin + _BATCH]
        for (address, datagram), piece, header in zip(batch, headers.pieces, headers.headers, strict=False):
            name = (known.get(address) or self._known(address))[1]
            if name == 0:
                break
            piece.base = datagram
            piece.length = len(datagram)
            header.name = name
            count += 1
        if count == 0:
            return 0, errno.EINVAL
        assert self._sendmmsg is not None
        sent: int = self._sendmmsg(self._socket.fileno(), headers.first, count, _FLAGS)
        return (sent, 0) if sent >= 0 else (0, ctypes.get_errno() or errno.EINVAL)

    def _known(self, address: Address) -> tuple[Any, int]:
        """A socket address and where it is in memory; 0 if it is none of this socket's family."""
        found = self._addresses.get(address)
        if found is None:
            try:
                packed = socket_address(self._socket.family, *address)
            except (ValueError, OSError, struct.error):
                found = (None, 0)
            else:
                buffer = ctypes.create_string_buffer(packed, len(packed))
                found = (buffer, ctypes.addressof(buffer))
            self._addresses[address] = found
        return found
