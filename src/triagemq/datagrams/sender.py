"""Datagrams leave this program here: many with one system call, and none forgotten.

What a full socket cannot take waits here, control first and then by class, and its sender learns what became of it:
nothing counts as sent that the kernel has not taken.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import Any, Final

from triagemq.datagrams.messages import (
    BATCH,
    CONTROL_DSCP,
    Address,
    ClassMarks,
    MessageBatch,
    dscp_mark,
    sendmmsg,
    socket_address,
)

CONTROL_CLASS: Final = -1
"""The priority class of control packets: before all others."""

Datagrams = Sequence[tuple[Address, bytes]]
"""Datagrams to send, each with the (IP address, UDP port) it goes to."""

_TRY_LATER: Final = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)
"""Errors that mean that the socket has no room now."""

Seal = Callable[[Address, bytes], bytes | None]
"""Encrypts a datagram for an address, or says with None that it cannot go there."""

_MOST_ADDRESSES = 1 << 16
_UNMARKED = 0
# Each datagram has the mark of its class.
_BY_CLASS = -1
_FLAGS = socket.MSG_DONTWAIT


class Unsent:
    """A datagram that was not sent at once, the one at `place` of those that were handed over.

    `problem` is None while it waits for room in the socket; then 0 if it has been sent, ENOBUFS if it had to give way,
    EAGAIN if it still waited at the end, or what the kernel has against it. A `token` that is set comes back then.
    """

    __slots__ = ("address", "class_of", "datagram", "dscp", "place", "priority_class", "problem", "token")

    def __init__(
        self,
        place: int,
        address: Address,
        datagram: bytes,
        class_of: Callable[[int], int],
        problem: int | None,
        dscp: int = _UNMARKED,
    ) -> None:
        self.place, self.address, self.datagram = place, address, datagram
        self.class_of, self.priority_class = class_of, class_of(place)
        self.dscp, self.problem = dscp, problem
        self.token: Any = None


class DatagramSender:
    """Sends datagrams from a bound UDP socket, in order, without ever blocking.

    What the socket cannot take now (its buffer is full) goes out as soon as it can: control first, then by class, and
    up to `most_waiting` datagrams. Beyond that the newest of the lowest class gives way, control last.
    With a `control_socket` (bound to the same address) control packets have a buffer of their own, and never wait for
    what queues of this machine hold of others.

    Both calls return what was not sent at once; `on_settled` gets, in batches and from the event loop, the outcome
    of those that waited and have a token. `seal` makes of a datagram what leaves for an address, at the last moment and
    in the order of leaving; None (ENOTCONN) where no client is. With `marks_classes` datagrams bear the marks of their
    classes (CLASS_DSCP). `system_calls` counts calls of the kernel, and
    `unsent`, by errno, what could not be sent at all: EINVAL for an address that is not one in digits.
    """

    def __init__(
        self,
        udp_socket: socket.socket,
        control_socket: socket.socket | None = None,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        most_waiting: int = 100_000,
        on_settled: Callable[[Sequence[Unsent]], None] | None = None,
        seal: Seal | None = None,
        marks_classes: bool = False,
    ) -> None:
        self._dscp = _BY_CLASS if marks_classes else _UNMARKED
        self.on_settled = on_settled
        self.unsent: Counter[int] = Counter()
        self._data = _SocketQueue(self, udp_socket, loop, most_waiting, seal)
        self._control = (
            self._data
            if control_socket is None
            else _SocketQueue(self, control_socket, loop, most_waiting, seal)
        )

    def __call__(
        self, datagrams: Datagrams, class_of: Callable[[int], int] | None = None
    ) -> Sequence[Unsent]:
        """Send; `class_of` tells the priority class of the one at a place, if it has to wait."""
        return self._data.take(datagrams, class_of or _first_class, self._dscp)

    def control(self, datagrams: Datagrams) -> Sequence[Unsent]:
        """Send with the mark of control packets (DSCP CS6), which every data plane on the way lets pass first."""
        return self._control.take(datagrams, _control_class, CONTROL_DSCP)

    def rerank(self) -> None:
        """Classes have changed: put what waits in their order."""
        self._data.rerank()

    @property
    def waiting(self) -> int:
        """Datagrams that the sockets could not take yet."""
        return self._data.waiting + (self._control.waiting if self._control is not self._data else 0)

    @property
    def data_waits(self) -> bool:
        """Is the socket of everything but control full?"""
        return self._data.waiting > 0

    @property
    def system_calls(self) -> int:
        return self._data.system_calls + (
            self._control.system_calls if self._control is not self._data else 0
        )

    def close(self) -> None:
        """Stop waiting for the sockets, which stay open."""
        self._data.close()
        self._control.close()


def _first_class(place: int) -> int:
    return 0


def _control_class(place: int) -> int:
    return CONTROL_CLASS


def _alike(queue: deque[Unsent]) -> list[Unsent]:
    """The first of a queue, as many as go out with the same mark."""
    dscp = queue[0].dscp
    return list(takewhile(lambda one: one.dscp == dscp, islice(queue, BATCH)))


class _SocketQueue:
    """One socket, and what waits for it by priority class."""

    def __init__(
        self,
        sender: DatagramSender,
        udp_socket: socket.socket,
        loop: asyncio.AbstractEventLoop | None,
        most_waiting: int,
        seal: Seal | None,
    ) -> None:
        self.waiting = self.system_calls = 0
        self._sender, self._socket, self._loop = sender, udp_socket, loop
        self._most_waiting = most_waiting
        self._seal = seal
        self._queues: dict[int, deque[Unsent]] = {}
        self._addresses: dict[Address, tuple[Any, int]] = {}
        family = udp_socket.family
        self._batches = {
            _UNMARKED: MessageBatch(family),
            CONTROL_DSCP: MessageBatch(family, dscp_mark(family, CONTROL_DSCP)),
            _BY_CLASS: MessageBatch(family, dscp_mark(family, _UNMARKED)),
        }
        self._marks = ClassMarks(family)

    def take(self, datagrams: Datagrams, class_of: Callable[[int], int], dscp: int) -> Sequence[Unsent]:
        """Send what the socket takes, unless others of the kind wait already; the rest waits."""
        control = dscp == CONTROL_DSCP
        unsent: list[Unsent] = []
        begin = 0
        if not self.waiting or (control and CONTROL_CLASS not in self._queues):
            begin, failed = self._send_from(datagrams, dscp, class_of)
            if begin == len(datagrams) and not failed:
                return unsent
            unsent += [Unsent(place, *datagrams[place], class_of, why, dscp) for place, why in failed]
        if begin < len(datagrams):
            if not self.waiting:
                self._event_loop().add_writer(self._socket, self._flush)
            waiting = [
                Unsent(place, *datagrams[place], class_of, None, dscp)
                for place in range(begin, len(datagrams))
            ]
            unsent += waiting
            self._settled([gone for one in waiting if (gone := self._wait(one)) is not None])
        return unsent

    def rerank(self) -> None:
        waiting = [one for rank in sorted(self._queues) for one in self._queues[rank]]
        self._queues.clear()
        for one in waiting:
            one.priority_class = one.class_of(one.place)
            self._queues.setdefault(one.priority_class, deque()).append(one)

    def close(self) -> None:
        if self.waiting:
            self._event_loop().remove_writer(self._socket)
            left = [one for rank in sorted(self._queues) for one in self._queues[rank]]
            self._queues.clear()
            self.waiting = 0
            for one in left:
                one.problem = errno.EAGAIN
                self._sender.unsent[errno.EAGAIN] += 1
            self._settled(left)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop() if self._loop is None else self._loop

    def _wait(self, one: Unsent) -> Unsent | None:
        """Let a datagram wait; the one that has to give way, if there is no room for both."""
        gone = None
        if self.waiting >= self._most_waiting:
            lowest = max(self._queues, default=one.priority_class)
            if lowest <= one.priority_class:
                gone = one
            else:
                gone = self._queues[lowest].pop()
                if not self._queues[lowest]:
                    del self._queues[lowest]
                self.waiting -= 1
            gone.problem = errno.ENOBUFS
            self._sender.unsent[errno.ENOBUFS] += 1
        if gone is not one:
            self._queues.setdefault(one.priority_class, deque()).append(one)
            self.waiting += 1
        return gone

    def _flush(self) -> None:
        """The socket has room again."""
        settled: list[Unsent] = []
        while self._queues:
            rank = min(self._queues)
            queue = self._queues[rank]
            some = _alike(queue)
            done, failed = self._send_from(
                [(one.address, one.datagram) for one in some],
                some[0].dscp,
                [one.priority_class for one in some].__getitem__,
            )
            for one in some[:done]:
                one.problem = 0
                queue.popleft()
            for place, problem in failed:
                some[place].problem = problem
            settled += some[:done]
            self.waiting -= done
            if not queue:
                del self._queues[rank]
            if done < len(some):
                break
        if not self._queues:
            self._event_loop().remove_writer(self._socket)
        self._settled(settled)

    def _settled(self, some: Sequence[Unsent]) -> None:
        """Tell of those that waited; what has just been handed over has no token yet, and is returned."""
        known = [one for one in some if one.token is not None]
        if known and self._sender.on_settled is not None:
            self._sender.on_settled(known)

    def _send_from(
        self, datagrams: Datagrams, dscp: int, class_of: Callable[[int], int]
    ) -> tuple[int, list[tuple[int, int]]]:
        """Send until the socket is full: how many are dealt with, and which of them failed, with the errno."""
        # Never in the midst of a batch, which points into them.
        if len(self._addresses) > _MOST_ADDRESSES:
            self._addresses.clear()
        begin = 0
        failed: list[tuple[int, int]] = []
        while begin < len(datagrams):
            done, problem = self._send_batch(datagrams, begin, dscp, class_of)
            self.system_calls += 1
            begin += done
            if problem in _TRY_LATER:
                break
            if problem and problem != errno.EINTR:
                # The first one that was not sent is the one at fault.
                self._sender.unsent[problem] += 1
                failed.append((begin, problem))
                begin += 1
        return begin, failed

    def _send_batch(
        self, datagrams: Datagrams, begin: int, dscp: int, class_of: Callable[[int], int]
    ) -> tuple[int, int]:
        known, seal = self._addresses, self._seal
        count = 0
        problem = errno.EINVAL
        headers = self._batches[dscp]
        batch = datagrams if begin == 0 and len(datagrams) <= BATCH else datagrams[begin : begin + BATCH]
        for (address, datagram), piece, header in zip(batch, headers.pieces, headers.headers, strict=False):
            name = (known.get(address) or self._known(address))[1]
            if name == 0:
                break
            if seal is not None:
                sealed = seal(address, datagram)
                if sealed is None:
                    problem = errno.ENOTCONN
                    break
                datagram = sealed
            piece.base = datagram
            piece.length = len(datagram)
            header.name = name
            if dscp == _BY_CLASS:
                header.control = self._marks.control(class_of(begin + count))
            count += 1
        if count == 0:
            return 0, problem
        sent: int = sendmmsg(self._socket.fileno(), headers.first, count, _FLAGS)
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
