"""Messages of a direct topic as packets, and back again: pure, without sockets.

Every packet has 36 octets in front, in network order:

    magic 2, version 1, reserved 1, topic 4       what it is, and a mark of its topic
    session 8, number 8                           which publisher since its start, which message of it, from 1 on
    published_ns 8                                when the message was published, Unix time
    packet 2, packets 2                           which part of the message, of how many

All packets of a message but the last carry equally much. A message is handed on when all of it has come, once; nothing
is requested again. A sender to the group may send anything: invalid packets are counted by reason, and the memory of
unfinished messages is limited. Nothing here proves where a packet comes from: that is left to the switches.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter, OrderedDict
from enum import StrEnum
from struct import Struct
from typing import NamedTuple

from triagemq.errors import ParameterError

_HEADER = Struct("!HBxIQQQHH")
_MAGIC, _VERSION = 0x7D4D, 1

HEADER_BYTES = _HEADER.size
UDP_BYTES = {4: 28, 6: 48}
"""Headers of IP and UDP, by the version of IP."""
SMALLEST_PAYLOAD = 512
"""Octets in every packet but a message's last, at least: a large message is not a cloud of crumbs."""
MOST_PACKETS = 0xFFFF
NO_ORDERS = (1 << 32) - 1
"""The generation of publishers that follow none: they are for every listener."""

_LATEST_NS = (1 << 63) - 1
_WINDOW = 1024
_MASK = (1 << _WINDOW) - 1
_MOST_SESSIONS = 256
_MOST_UNFINISHED = 64


class Rejection(StrEnum):
    """Why a packet was not used."""

    MALFORMED = "malformed"
    """Too short, no packet of ours, or of a version that we do not know."""
    FOREIGN = "foreign"
    """Of another topic."""
    TOO_LARGE = "too_large"
    INCONSISTENT = "inconsistent"
    """It contradicts the other packets of its message."""
    DUPLICATE = "duplicate"
    LATE = "late"
    """Of a message so old that it is not known whether it has come."""


class DirectMessage(NamedTuple):
    """What a publisher has published."""

    session: int
    number: int
    published_ns: int
    payload: bytes


def new_session(generation: int) -> int:
    """A number for a publisher since its start, and the generation of the orders that it follows.

    >>> generation_of(new_session(7)), generation_of(new_session(NO_ORDERS)) == NO_ORDERS
    (7, True)
    """
    return (secrets.randbits(31) + 1) << 32 | generation % (1 << 32)


def generation_of(session: int) -> int:
    return session % (1 << 32)


def topic_mark(topic: str) -> int:
    """Four octets that distinguish topics which share an address by mistake."""
    return int.from_bytes(hashlib.blake2s(topic.encode(), digest_size=4).digest(), "big")


def packets_of(message: DirectMessage, mark: int, payload_bytes: int) -> list[bytes]:
    """The packets of a message, each with at most so many octets of it.

    >>> message = DirectMessage(session=7, number=1, published_ns=0, payload=bytes(1_300))
    >>> [len(packet) - HEADER_BYTES for packet in packets_of(message, topic_mark("ward/3/pulse"), 600)]
    [600, 600, 100]
    """
    session, number, published_ns, payload = message
    if payload_bytes < SMALLEST_PAYLOAD:
        raise ParameterError(
            "payload_bytes", f"a packet has room for {payload_bytes}; {SMALLEST_PAYLOAD} is the least"
        )
    count = max(1, -(-len(payload) // payload_bytes))
    if count > MOST_PACKETS:
        raise ParameterError("payload", f"of {len(payload)} bytes is too large for {MOST_PACKETS} packets")
    head = (_MAGIC, _VERSION, mark, session, number, published_ns)
    return [
        _HEADER.pack(*head, index, count) + payload[index * payload_bytes : (index + 1) * payload_bytes]
        for index in range(count)
    ]


class PacketHead(NamedTuple):
    """What a packet says of its message."""

    topic_mark: int
    session: int
    number: int
    published_ns: int
    packet: int
    packets: int


def head_of(packet: bytes) -> PacketHead:
    """Of a packet that `packets_of` has made.

    >>> message = DirectMessage(session=7, number=1, published_ns=0, payload=bytes(1_300))
    >>> packets = packets_of(message, topic_mark("ward/3/pulse"), 600)
    >>> [(head.number, head.packet, head.packets) for head in map(head_of, packets)]
    [(1, 0, 3), (1, 1, 3), (1, 2, 3)]
    """
    return PacketHead(*_HEADER.unpack_from(packet)[2:])


class SeenMessages:
    """Which messages of which publishers have come: each counts once, and gaps are known.

    >>> seen = SeenMessages()
    >>> [seen.take(session=7, number=number) for number in (1, 2, 2, 5)]
    [None, None, <Rejection.DUPLICATE: 'duplicate'>, None]
    >>> seen.received, seen.missing
    (3, 2)
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._missing_before = 0
        self.received = 0

    def rejection(self, session: int, number: int) -> Rejection | None:
        """Why a message is rejected; None if it is not."""
        known = self._sessions.get(session)
        return None if known is None else known.rejection(number)

    def take(self, session: int, number: int) -> Rejection | None:
        """A whole message is here; None if it is to be handed on."""
        known = self.hear_of(session, number)
        rejection = known.rejection(number)
        if rejection is None:
            known.done |= 1 << (known.highest - number)
            known.received += 1
            self.received += 1
        return rejection

    def hear_of(self, session: int, number: int) -> _Session:
        """Something of a message has come: those before it that have not are missing."""
        known = self._sessions.get(session)
        if known is None:
            known = self._sessions[session] = _Session(number)
            if len(self._sessions) > _MOST_SESSIONS:
                _, oldest = self._sessions.popitem(last=False)
                self._missing_before += oldest.missing
        else:
            self._sessions.move_to_end(session)
            known.reach(number)
        return known

    @property
    def missing(self) -> int:
        """Messages between the first and the last of each publisher that have not come, or not as a whole."""
        return self._missing_before + sum(known.missing for known in self._sessions.values())


class _Session:
    """One publisher since its start: bit i of `done` is the message `highest` - i."""

    __slots__ = ("done", "first", "highest", "received")

    def __init__(self, number: int) -> None:
        self.first = self.highest = number
        self.done = self.received = 0

    def reach(self, number: int) -> None:
        if number > self.highest:
            ahead = number - self.highest
            self.done = 0 if ahead >= _WINDOW else (self.done << ahead) & _MASK
            self.highest = number
        elif self.highest - _WINDOW < number < self.first:
            self.first = number

    def rejection(self, number: int) -> Rejection | None:
        behind = self.highest - number
        if behind >= _WINDOW:
            return Rejection.LATE
        return Rejection.DUPLICATE if behind >= 0 and self.done >> behind & 1 else None

    @property
    def missing(self) -> int:
        return self.highest - self.first + 1 - self.received


class _Unfinished:
    __slots__ = ("begun_ns", "bytes", "count", "parts", "published_ns", "size")

    def __init__(self, count: int, published_ns: int, begun_ns: int) -> None:
        self.count, self.published_ns, self.begun_ns = count, published_ns, begun_ns
        self.parts: dict[int, bytes] = {}
        self.bytes = 0
        # Of every part but the last, once one of these has come.
        self.size: int | None = None

    def fits(self, index: int, part: bytes) -> bool:
        """Whether a part can belong to the others."""
        last = self.count - 1
        if index < last:
            there = self.parts.get(last)
            return self.size in (None, len(part)) and (there is None or len(there) <= len(part))
        return self.size is None or len(part) <= self.size


class Reassembly:
    """Packets in, messages out. `largest_bytes` is the largest message; time is whatever the caller counts in ns."""

    def __init__(
        self,
        topic: str,
        largest_bytes: int,
        *,
        patience_seconds: float = 1.0,
    ) -> None:
        if largest_bytes < 1:
            raise ParameterError("max_size_bytes", f"must be at least 1, is {largest_bytes}")
        self._mark = topic_mark(topic)
        self._largest_bytes = largest_bytes
        self._most_packets = min(MOST_PACKETS, -(-largest_bytes // SMALLEST_PAYLOAD))
        self._patience_ns = round(patience_seconds * 1e9)
        self._unfinished: OrderedDict[tuple[int, int], _Unfinished] = OrderedDict()
        self.seen = SeenMessages()
        self.rejected: Counter[Rejection] = Counter()

    def add(self, packet: bytes, now_ns: int) -> DirectMessage | None:
        """A packet has come; the message that is finished by it."""
        found = self._add(packet, now_ns)
        if isinstance(found, Rejection):
            self.rejected[found] += 1
            return None
        return found

    def _add(self, packet: bytes, now_ns: int) -> DirectMessage | Rejection | None:
        if len(packet) < HEADER_BYTES:
            return Rejection.MALFORMED
        magic, version, mark, session, number, published_ns, index, count = _HEADER.unpack_from(packet)
        if magic != _MAGIC or version != _VERSION:
            return Rejection.MALFORMED
        if index >= count or number == 0 or published_ns > _LATEST_NS:
            return Rejection.MALFORMED
        if mark != self._mark:
            return Rejection.FOREIGN
        part = packet[HEADER_BYTES:]
        if count > self._most_packets or len(part) > self._largest_bytes:
            return Rejection.TOO_LARGE
        if count > 1 and len(part) < (SMALLEST_PAYLOAD if index < count - 1 else 1):
            return Rejection.INCONSISTENT
        refused = self.seen.rejection(session, number)
        if refused is not None:
            return refused
        if count == 1 and (session, number) not in self._unfinished:
            return self.seen.take(session, number) or DirectMessage(session, number, published_ns, part)
        return self._keep((session, number), count, published_ns, index, part, now_ns)

    def _keep(
        self, key: tuple[int, int], count: int, published_ns: int, index: int, part: bytes, now_ns: int
    ) -> DirectMessage | Rejection | None:
        self._give_up(now_ns)
        message = self._unfinished.get(key)
        if message is None:
            message = self._unfinished[key] = _Unfinished(count, published_ns, now_ns)
            self.seen.hear_of(*key)
        elif (message.count, message.published_ns) != (count, published_ns):
            return Rejection.INCONSISTENT
        if index in message.parts:
            return Rejection.DUPLICATE
        if not message.fits(index, part):
            return Rejection.INCONSISTENT
        if message.bytes + len(part) > self._largest_bytes:
            return Rejection.TOO_LARGE
        message.parts[index] = part
        message.bytes += len(part)
        if index < count - 1:
            message.size = len(part)
        if len(message.parts) < count:
            return None
        del self._unfinished[key]
        payload = b"".join(message.parts[index] for index in range(count))
        return self.seen.take(*key) or DirectMessage(*key, published_ns, payload)

    def _give_up(self, now_ns: int) -> None:
        while self._unfinished:
            key, oldest = next(iter(self._unfinished.items()))
            if (
                len(self._unfinished) < _MOST_UNFINISHED
                and now_ns - oldest.begun_ns <= self._patience_ns
                and self.seen.rejection(*key) is None
            ):
                return
            del self._unfinished[key]

    @property
    def held_bytes(self) -> int:
        """Memory of unfinished messages."""
        return sum(each.bytes for each in self._unfinished.values())
