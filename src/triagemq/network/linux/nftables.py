"""The messages of nftables that unprivileged classifying needs, written by hand; sent as transactions.

Numbers are those of include/uapi/linux/netfilter/nf_tables.h. Unlike in routing netlink they are in network order.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Sequence

from triagemq.network.linux.namespaces import in_namespace
from triagemq.network.linux.netlink import attribute, attributes, text_attribute

__all__ = [
    "Nftables",
    "compare",
    "count_in",
    "drop",
    "end_with_priority",
    "load_header",
    "load_meta",
    "load_random",
    "look_up",
    "mask",
    "message",
    "nested",
    "number",
    "rule",
]

NETDEV = 5
NEW_TABLE, DELETE_TABLE, NEW_CHAIN, DELETE_CHAIN = 0, 2, 3, 5
NEW_RULE, DELETE_RULE, NEW_SET, NEW_ELEMENT, DELETE_ELEMENT = 6, 8, 9, 12, 14
NEW_OBJECT, GET_OBJECT = 18, 19
NETWORK, TRANSPORT = 1, 2
EQUAL, NOT_EQUAL, LESS = 0, 1, 2
META_PROTOCOL, META_PRIORITY, META_TRANSPORT = 1, 2, 16
GOTO = -4

_SUBSYSTEM = 10 << 8
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
_REQUEST, _ACKNOWLEDGE, _DUMP, _CREATE = 0x1, 0x4, 0x300, 0x400
_NESTED = 0x8000
_REGISTER = 8
_COUNTER = 1
_HEADER = struct.Struct("=IHHII")


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("!I", value & 0xFFFFFFFF))


def nested(kind: int, *inner: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(inner))


def message(kind: int, *content: bytes) -> tuple[int, bytes]:
    """One step of a transaction."""
    return kind, b"".join(content)


# Expressions of a rule.


def _expression(name: str, *content: bytes) -> bytes:
    return nested(1, text_attribute(1, name), nested(2, *content))


def load_header(base: int, offset: int, length: int, register: int = _REGISTER) -> bytes:
    """Octets of the network or transport header, or after it; a packet without them matches no rule."""
    return _expression("payload", number(1, register), number(2, base), number(3, offset), number(4, length))


def load_meta(key: int) -> bytes:
    return _expression("meta", number(1, _REGISTER), number(2, key))


def load_random(modulus: int) -> bytes:
    """A random number, in network order for `compare`."""
    return _expression("numgen", number(1, _REGISTER), number(2, modulus), number(3, 1)) + _expression(
        "byteorder",
        *(number(kind, value) for kind, value in ((1, _REGISTER), (2, _REGISTER), (3, 1), (4, 4), (5, 4))),
    )


def mask(octets: bytes) -> bytes:
    return _expression(
        "bitwise",
        *(number(1, _REGISTER), number(2, _REGISTER), number(3, len(octets))),
        *(nested(4, attribute(1, octets)), nested(5, attribute(1, bytes(len(octets))))),
    )


def compare(how: int, octets: bytes) -> bytes:
    return _expression("cmp", number(1, _REGISTER), number(2, how), nested(3, attribute(1, octets)))


def count_in(counter: str) -> bytes:
    return _expression("objref", number(1, _COUNTER), text_attribute(2, counter))


def look_up(set_name: str) -> bytes:
    """Do what the verdict says that a map has for the key in the registers."""
    return _expression("lookup", text_attribute(1, set_name), number(2, _REGISTER), number(3, 0))


def drop() -> bytes:
    return _verdict(0)


def end_with_priority(priority: int) -> bytes:
    """Give the packet a priority, by which HTB finds its class, and let it pass."""
    value = nested(2, attribute(1, struct.pack("=I", priority)))
    return (
        _expression("immediate", number(1, _REGISTER), value)
        + _expression("meta", number(2, META_PRIORITY), number(3, _REGISTER))
        + _verdict(1)
    )


def rule(table: str, chain: str, *expressions: bytes) -> tuple[int, bytes]:
    """A rule at the end of a chain."""
    return message(NEW_RULE, text_attribute(1, table), text_attribute(2, chain), nested(4, *expressions))


def _verdict(code: int) -> bytes:
    return _expression("immediate", number(1, 0), nested(2, nested(2, number(1, code))))


class Nftables:
    """A netfilter netlink socket in a network namespace."""

    def __init__(self, namespace: str | None) -> None:
        self._socket = in_namespace(
            namespace, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 12)
        )
        self._socket.bind((0, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        # The system's limit holds without root; half of what is reported is for bookkeeping.
        self.most_bytes = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
        self._sequence = 0

    def transact(self, steps: Sequence[tuple[int, bytes]]) -> None:
        """All steps or none; OSError says what the kernel has against one."""
        packed = [self._packed(_BATCH_BEGIN, 0, b"", 10, plain=True)]
        for place, (kind, content) in enumerate(steps):
            last = _ACKNOWLEDGE if place == len(steps) - 1 else 0
            created = _CREATE if kind in (NEW_TABLE, NEW_CHAIN, NEW_SET, NEW_ELEMENT, NEW_OBJECT) else 0
            appended = 0xC00 if kind == NEW_RULE else 0
            packed.append(self._packed(kind, last | created | appended, content))
        awaited = self._sequence
        packed.append(self._packed(_BATCH_END, 0, b"", 10, plain=True))
        self._socket.send(b"".join(packed))
        problem = 0
        while True:
            for sequence, kind, begin, _, received in self._received():
                if kind == 2:
                    (error,) = struct.unpack_from("=i", received, begin)
                    problem = problem or -error
                    if sequence == awaited or sequence > awaited:
                        if problem:
                            raise OSError(problem, f"nftables: {os.strerror(problem)}")
                        return

    def counters(self, table: str) -> dict[str, tuple[int, int]]:
        """Packets and bytes of the named counters of a table."""
        content = text_attribute(1, table)
        self._socket.send(self._packed(GET_OBJECT, _DUMP, content))
        found: dict[str, tuple[int, int]] = {}
        while True:
            for _, kind, begin, end, received in self._received():
                if kind == 3:
                    return found
                if kind == 2:
                    (error,) = struct.unpack_from("=i", received, begin)
                    raise OSError(-error, f"nftables: {os.strerror(-error)}")
                name, values = _counter(received, begin + 4, end)
                found[name] = values

    def close(self) -> None:
        self._socket.close()

    def _packed(
        self, kind: int, flags: int, content: bytes, resource: int = 0, *, plain: bool = False
    ) -> bytes:
        self._sequence += 1
        family = 0 if plain else NETDEV
        return (
            _HEADER.pack(
                20 + len(content), kind if plain else _SUBSYSTEM | kind, _REQUEST | flags, self._sequence, 0
            )
            + struct.pack("!BBH", family, 0, resource)
            + content
        )

    def _received(self) -> Iterable[tuple[int, int, int, int, bytes]]:
        received = self._socket.recv(1 << 16)
        at = 0
        while at + 16 <= len(received):
            length, kind, _, sequence, _ = _HEADER.unpack_from(received, at)
            yield sequence, kind, at + 16, at + length, received
            at += (length + 3) & ~3


def _counter(received: bytes, begin: int, end: int) -> tuple[str, tuple[int, int]]:
    name, packets, octets = "", 0, 0
    for kind, first, last in attributes(received, begin, end):
        if kind == 2:
            name = received[first:last].rstrip(b"\0").decode()
        elif kind == 4:
            for inner, place, _ in attributes(received, first, last):
                (value,) = struct.unpack_from("!Q", received, place)
                if inner == 1:
                    octets = value
                elif inner == 2:
                    packets = value
    return name, (packets, octets)
