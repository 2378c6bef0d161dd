"""UDP below the level of Python's sockets, for the gateway and the data planes, which both send by the thousand.

`sendmmsg` sends many datagrams with one system call; its addresses and messages are laid out in memory through ctypes.
What a full socket cannot take waits, control first and then by class, and its sender gets its outcome: nothing counts
as sent that the kernel has not taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import ipaddress
import math
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, Final, Generic, Protocol, TypeVar

CONTROL_DSCP: Final = 48
"""CS6: the mark of control packets, which every data plane lets pass first."""

CLASS_DSCP: Final = (46, 40, 32, 24, 16, 8, 1)
"""The marks of priority classes, class 0 first: EF, CS5 to CS1, and lower effort. All stay below control packets."""

BATCH: Final = 256
"""Messages of a MessageBatch."""

# The kernel takes no more at once (UIO_MAXIOV).
_MOST_AT_ONCE = 1024

Address = tuple[str, int]

CONTROL_CLASS: Final = -1
"""The priority class of control packets: before all others."""

Datagrams = Sequence[tuple[Address, bytes]]
"""Datagrams to send, each with the (IP address, UDP port) it goes to."""

_TRY_LATER: Final = (errno.EAGAIN, errno.ENOBUFS, errno.ENOMEM)
"""Errors that mean that the socket has no room now."""

Seal = Callable[[Address, bytes], bytes | None]
"""Encrypts a datagram for an address, or says with None that it cannot go there."""

_MOST_ADDRESSES = 1 << 16
_NEVER_NS = (1 << 63) - 1
_FLAGS = socket.MSG_DONTWAIT


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
    """Ancillary data in memory that mark control packets and classes; classes beyond the last mark have none."""

    def __init__(self, family: int) -> None:
        marks = (CONTROL_DSCP, *CLASS_DSCP, 0)
        packed = [b"".join(_ancillary(*one) for one in dscp_mark(family, dscp)) for dscp in marks]
        self.length = len(packed[0])
        self._buffer = ctypes.create_string_buffer(b"".join(packed), self.length * len(packed))
        begin = ctypes.addressof(self._buffer)
        self._places = {place + CONTROL_CLASS: begin + place * self.length for place in range(len(packed))}
        self._unmarked = self._places[len(CLASS_DSCP)]

    def control(self, priority_class: int) -> int:
        """Where the ancillary data of a class are."""
        return self._places.get(priority_class, self._unmarked)


class MessageBatch:
    """Headers made once; the sender fills in where datagrams are and go, and the mark if they have one."""

    def __init__(self, family: int, *, marked_bytes: int = 0) -> None:
        self._piece_array = (_Piece * BATCH)()
        self._message_array = (_Message * BATCH)()
        self.pieces = list(self._piece_array)
        self.headers = [message.header for message in self._message_array]
        self.first = ctypes.byref(self._message_array)
        length = 16 if family == socket.AF_INET else 28
        first_piece = ctypes.addressof(self._piece_array)
        for number, header in enumerate(self.headers):
            header.name_length = length
            header.pieces = first_piece + number * ctypes.sizeof(_Piece)
            header.piece_count = 1
            header.control_length = marked_bytes


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


class Ranked(Protocol):
    """Anything with a priority class; 0 is the most important."""

    priority_class: int


Item = TypeVar("Item", bound=Ranked)


class PriorityBuffer(Generic[Item]):
    """What waits: a queue per priority class, each in order of arrival.

    Into a full buffer an item comes only by pushing out a less important one.

    >>> from types import SimpleNamespace
    >>> smoke, pump = SimpleNamespace(priority_class=0), SimpleNamespace(priority_class=3)
    >>> buffer = PriorityBuffer()
    >>> buffer.push(pump, limit=1) is None, buffer.push(smoke, limit=1) is pump, buffer.pop() is smoke
    (True, True, True)
    """

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: defaultdict[int, deque[Item]] = defaultdict(deque)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __bool__(self) -> bool:
        return bool(self._queues)

    def __iter__(self) -> Iterator[Item]:
        for priority_class in sorted(self._queues):
            yield from self._queues[priority_class]

    def push(self, item: Item, limit: float) -> Item | None:
        """Append; what had to go instead (perhaps the item itself), or None if there was room."""
        pushed_out = None
        if len(self) >= limit:
            lowest = max(self._queues, default=item.priority_class)
            if lowest <= item.priority_class:
                return item
            pushed_out = self._take(lowest, newest=True)
        self.push_back(item)
        return pushed_out

    def push_back(self, item: Item) -> None:
        """Append without a limit: what was accepted before a restart."""
        self._queues[item.priority_class].append(item)

    def push_front(self, items: list[Item]) -> None:
        """Put back what was taken, in the order in which it was."""
        for item in reversed(items):
            self._queues[item.priority_class].appendleft(item)

    def pop(self) -> Item:
        """The oldest of the most important class."""
        return self._take(min(self._queues), newest=False)

    def peek(self) -> Item:
        """What `pop` would take."""
        return self._queues[min(self._queues)][0]

    def first(self, most: int) -> list[Item]:
        """What `pop` would take as long as that is of one class."""
        return list(islice(self._queues[min(self._queues)], most))

    def clear(self) -> list[Item]:
        """Take everything."""
        items = list(self)
        self._queues.clear()
        return items

    def _take(self, priority_class: int, *, newest: bool) -> Item:
        queue = self._queues[priority_class]
        item = queue.pop() if newest else queue.popleft()
        if not queue:
            del self._queues[priority_class]
        return item


@dataclass(slots=True, eq=False)
class Unsent:
    """A datagram that was not sent at once, the one at `place` of those that were handed over.

    `problem` is None while it waits for room in the socket; then 0 if it has been sent, ENOBUFS if it was dropped,
    EAGAIN if it still waited at the end, EXPIRED, SUPERSEDED, or what the kernel has against it. A `token` that is set
    comes back then.
    """

    place: int
    address: Address
    datagram: bytes
    priority_class: int
    problem: int | None
    token: Any = None
    replaces: Hashable = None
    expires_ns: int = _NEVER_NS


EXPIRED: Final = errno.ETIME
SUPERSEDED: Final = errno.ESTALE

TermsOf = Callable[[int], tuple[Hashable, int] | None]
"""How the datagram at a place may wait: until a later one with the same key (not None) takes its place, and until it
expires (Unix time, ns)."""


class DatagramSender:
    """Sends datagrams from a bound UDP socket, in order, without ever blocking.

    What the socket cannot take now (its buffer is full) goes out as soon as it can: control first, then by class, and
    up to `most_waiting` datagrams. Beyond that the newest of the lowest class is dropped, control last. It waits by its
    terms, if it has any.

    Both calls return what was not sent at once; `on_settled` gets, in batches and from the event loop, the outcome
    of those that waited and have a token. `seal` makes of a datagram what leaves for an address, at the last moment and
    in the order of leaving; None (ENOTCONN) where no client is. With `marks_classes` datagrams bear the marks of their
    classes (CLASS_DSCP). The errno of an address that is not one in digits is EINVAL.
    """

    def __init__(
        self,
        udp_socket: socket.socket,
        *,
        most_waiting: int = 100_000,
        on_settled: Callable[[Sequence[Unsent]], None] | None = None,
        seal: Seal | None = None,
        marks_classes: bool = False,
    ) -> None:
        self.on_settled = on_settled
        self._socket = udp_socket
        self._waiting: PriorityBuffer[Unsent] = PriorityBuffer()
        # What is sent when the turn comes of the one that was the first to wait with this key.
        self._newest: dict[Hashable, Unsent] = {}
        self._most_waiting = most_waiting
        self._seal = seal
        self._marks_classes = marks_classes
        self._addresses: dict[Address, tuple[Any, int]] = {}
        self._marks = ClassMarks(udp_socket.family)
        self._unmarked = MessageBatch(udp_socket.family)
        self._marked = MessageBatch(udp_socket.family, marked_bytes=self._marks.length)

    @property
    def waiting(self) -> int:
        """Datagrams that the socket could not take yet."""
        return len(self._waiting)

    def __call__(
        self,
        datagrams: Datagrams,
        class_of: Callable[[int], int] | None = None,
        terms_of: TermsOf | None = None,
    ) -> Sequence[Unsent]:
        """Send; `class_of` gives the priority class of the one at a place."""
        return self._take(datagrams, class_of or (lambda place: 0), is_control=False, terms_of=terms_of)

    def control(self, datagrams: Datagrams) -> Sequence[Unsent]:
        """Send with the mark of control packets (DSCP CS6), which every data plane lets pass first."""
        return self._take(datagrams, lambda place: CONTROL_CLASS, is_control=True)

    def rerank(self, class_of: Callable[[Unsent], int]) -> None:
        """Classes have changed: what waits with a token goes in the order of those of now, and with their marks."""
        for one in self._clear():
            if one.token is not None:
                one.priority_class = class_of(one)
            self._wait(one, math.inf)

    def close(self) -> None:
        """Stop waiting for the socket."""
        if self._waiting:
            asyncio.get_running_loop().remove_writer(self._socket)
            left = self._clear()
            for one in left:
                one.problem = errno.EAGAIN
            self._settled(left)

    def _take(
        self,
        datagrams: Datagrams,
        class_of: Callable[[int], int],
        *,
        is_control: bool,
        terms_of: TermsOf | None = None,
    ) -> Sequence[Unsent]:
        """Send what the socket takes, unless others of the kind wait already; the rest waits."""
        waiting = self._waiting
        begin = 0
        failed: list[tuple[int, int]] = []
        if not waiting or (is_control and waiting.peek().priority_class != CONTROL_CLASS):
            begin, failed = self._send_from(datagrams, is_control or self._marks_classes, class_of)
            if begin == len(datagrams) and not failed:
                return []
        unsent = [Unsent(place, *datagrams[place], class_of(place), why) for place, why in failed]
        if begin < len(datagrams):
            if not waiting:
                asyncio.get_running_loop().add_writer(self._socket, self._flush)
            late = [
                Unsent(place, *datagrams[place], class_of(place), None)
                for place in range(begin, len(datagrams))
            ]
            unsent += late
            for one in late:
                if terms_of is not None and (terms := terms_of(one.place)) is not None:
                    one.replaces, one.expires_ns = terms
            self._settled([gone for one in late if (gone := self._wait(one, self._most_waiting)) is not None])
        return unsent

    def _wait(self, one: Unsent, limit: float) -> Unsent | None:
        """Have a datagram wait; the one that will not be sent because of that, with its problem."""
        older = self._newest.get(one.replaces)
        if one.replaces is not None:
            self._newest[one.replaces] = one
        if older is not None:
            one.priority_class, older.problem = older.priority_class, SUPERSEDED
            return older
        gone = self._waiting.push(one, limit)
        if gone is not None:
            gone = self._newest.pop(gone.replaces, gone)
            gone.problem = errno.ENOBUFS
        return gone

    def _clear(self) -> list[Unsent]:
        """Take everything that waits."""
        left = [self._newest.get(one.replaces, one) for one in self._waiting.clear()]
        self._newest.clear()
        return left

    def _pop(self, one: Unsent, problem: int) -> Unsent:
        """The turn of a datagram has come."""
        one.problem = problem
        self._waiting.pop()
        self._newest.pop(one.replaces, None)
        return one

    def _flush(self) -> None:
        """The socket has room again."""
        settled: list[Unsent] = []
        now_ns = time.time_ns()
        while self._waiting:
            some = [self._newest.get(one.replaces, one) for one in self._waiting.first(BATCH)]
            if some[0].expires_ns <= now_ns:
                settled.append(self._pop(some[0], EXPIRED))
                continue
            some = [*takewhile(lambda one: one.expires_ns > now_ns, some)]
            priority_class = some[0].priority_class
            done, failed = self._send_from(
                [(one.address, one.datagram) for one in some],
                self._marks_classes or priority_class == CONTROL_CLASS,
                ([priority_class] * len(some)).__getitem__,
            )
            for one in some[:done]:
                self._pop(one, 0)
            for place, problem in failed:
                some[place].problem = problem
            settled += some[:done]
            if done < len(some):
                break
        if not self._waiting:
            asyncio.get_running_loop().remove_writer(self._socket)
        self._settled(settled)

    def _settled(self, some: Sequence[Unsent]) -> None:
        """Report those that waited; what has just been handed over has no token yet, and is returned."""
        known = [one for one in some if one.token is not None]
        if known and self.on_settled is not None:
            self.on_settled(known)

    def _send_from(
        self, datagrams: Datagrams, marked: bool, class_of: Callable[[int], int]
    ) -> tuple[int, list[tuple[int, int]]]:
        """Send until the socket is full: how many are dealt with, and which of them failed, with the errno."""
        # Never in the midst of a batch, which points into them.
        if len(self._addresses) > _MOST_ADDRESSES:
            self._addresses.clear()
        begin = 0
        failed: list[tuple[int, int]] = []
        while begin < len(datagrams):
            done, problem = self._send_batch(datagrams, begin, marked, class_of)
            begin += done
            if problem in _TRY_LATER:
                break
            if problem and problem != errno.EINTR:
                # The first one that was not sent is the one at fault.
                failed.append((begin, problem))
                begin += 1
        return begin, failed

    def _send_batch(
        self, datagrams: Datagrams, begin: int, marked: bool, class_of: Callable[[int], int]
    ) -> tuple[int, int]:
        known, seal = self._addresses, self._seal
        count = 0
        problem = errno.EINVAL
        headers = self._marked if marked else self._unmarked
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
            if marked:
                header.control = self._marks.control(class_of(begin + count))
            count += 1
        if count == 0:
            return 0, problem
        sent: int = sendmmsg(self._socket.fileno(), headers.first, count, _FLAGS)
        return (sent, 0) if sent >= 0 else (0, ctypes.get_errno() or errno.EINVAL)

    def _known(self, address: Address) -> tuple[Any, int]:
        """A socket address and where it is in memory; 0 if it is none of this socket's family."""
        found: tuple[Any, int] = (None, 0)
        with contextlib.suppress(ValueError, OSError, struct.error):
            packed = socket_address(self._socket.family, *address)
            buffer = ctypes.create_string_buffer(packed, len(packed))
            found = (buffer, ctypes.addressof(buffer))
        self._addresses[address] = found
        return found
