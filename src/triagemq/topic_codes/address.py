"""Topic and event type in one IPv6 multicast address.

    ff1e   topic, zeros behind it   event type   zeros
    16     100                      9            3        bits

Flags say that the address is transient (1), the scope is global (e). The topic comes first: all events of a subtree
have one prefix, whatever their types, which switches match as they match any other.

The code of a topic is that of its parent, and behind it the number of the child. Children are numbered in the order in
which they become known, and keep their numbers for ever: a topic that is gone keeps its code, and a new one gets the
next. Numbers are written in an Exp-Golomb code, which has no end: two bits for the first two children, four for four
more, six for the next eight. No code of a child begins with that of another, and each has a one in it, so that the
zeros behind a code are part of none.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from triagemq.errors import CodeError, ParameterError
from triagemq.files import write_durably
from triagemq.mqttsn.topics import topic_filter_problem, topic_name_problem

TOPIC_BITS = 100
TYPE_BITS = 9

_VERSION = 1


def child_bits(number: int) -> str:
    """The bits of a child, counted from 0.

    >>> [child_bits(number) for number in (0, 1, 2, 5, 6)]
    ['10', '11', '0100', '0111', '001000']
    """
    value = number + 2
    length = value.bit_length()
    return "0" * (length - 2) + f"{value:b}"


def read_child(bits: str, at: int) -> tuple[int, int] | None:
    """The number of the child whose bits begin there, and where they end; None for zeros up to the end.

    >>> read_child("0100" + "10", 0), read_child("10000", 2)
    ((2, 4), None)
    """
    one = bits.find("1", at)
    if one < 0:
        return None
    end = one + (one - at) + 2
    if end > len(bits):
        raise CodeError(f"the bits {bits[at:]} end within the number of a child")
    return int(bits[one:end], 2) - 2, end


@dataclass
class _Node:
    bits: str
    path: tuple[str, ...]
    children: dict[str, _Node] = field(default_factory=dict)


class CodeBook:
    """All topics that ever had a code, and the event types that have numbers.

    >>> book = CodeBook()
    >>> book.add(["city/hall/smoke", "city/hall/water"])
    2
    >>> book.bits("city/hall/water"), book.topic("101011")
    ('101011', 'city/hall/water')
    """

    def __init__(self) -> None:
        self._root = _Node("", ())
        self._types: list[str] = [""]

    @property
    def types(self) -> Sequence[str]:
        """Names of event types by their numbers; 0 is that of events of which no type is known."""
        return self._types

    def add(self, topics: Iterable[str]) -> int:
        """Give codes to topics and to those above them; how many of the topics had none."""
        new = 0
        for topic in topics:
            if problem := topic_name_problem(topic):
                raise ParameterError("topic", f"{topic!r} is no topic name: {problem.replace('_', ' ')}")
            new += self._grow(topic)
        return new

    def add_type(self, name: str) -> int:
        """The number of an event type, which is the next one if it has none."""
        if name not in self._types:
            if len(self._types) >= 1 << TYPE_BITS:
                raise CodeError(f"there are {1 << TYPE_BITS} event types already; {name!r} has no room")
            self._types.append(name)
        return self._types.index(name)

    def bits(self, topic: str) -> str:
        """The code of a topic."""
        node = self._root
        for level in topic.split("/"):
            if level not in node.children:
                known = ", ".join(sorted(node.children)[:5]) or "nothing"
                above = "/".join(node.path)
                raise CodeError(f"{topic!r} has no code: below {above!r} there is {known}, not {level!r}")
            node = node.children[level]
        return node.bits

    def topic(self, bits: str) -> str:
        """The topic of a code, with or without zeros behind it."""
        node, at = self._root, 0
        while (found := read_child(bits, at)) is not None:
            number, at = found
            children = list(node.children.values())
            if number >= len(children):
                raise CodeError(
                    f"{'/'.join(node.path)!r} has {len(children)} children, and no number {number}"
                )
            node = children[number]
        if node is self._root:
            raise CodeError("the bits of a topic are all zero")
        return "/".join(node.path)

    def topics(self) -> list[str]:
        """All topics with a code, each after the one above it."""
        found, open_nodes = [], list(self._root.children.values())[::-1]
        while open_nodes:
            node = open_nodes.pop()
            found.append("/".join(node.path))
            open_nodes += list(node.children.values())[::-1]
        return found

    def as_json(self) -> dict[str, Any]:
        """What `load_book` reads: the topics in an order that numbers children as they are numbered here."""
        return {"version": _VERSION, "types": self._types[1:], "topics": self.topics()}

    def _grow(self, topic: str) -> bool:
        node, is_new = self._root, False
        for level in topic.split("/"):
            child = node.children.get(level)
            if child is None:
                bits = node.bits + child_bits(len(node.children))
                if len(bits) > TOPIC_BITS:
                    raise CodeError(
                        f"{topic!r} needs {len(bits)} bits, and a topic has {TOPIC_BITS}; make the tree less deep, or "
                        "name its largest branches first"
                    )
                child = node.children[level] = _Node(bits, (*node.path, level))
                is_new = True
            node = child
        return is_new


def load_book(path: Path) -> CodeBook:
    """The book in a file; an empty one if there is no such file."""
    book = CodeBook()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return book
    try:
        stored = json.loads(text)
        if stored["version"] != _VERSION:
            raise CodeError(
                f"{path}: codes of version {stored['version']}; this triage reads version {_VERSION}"
            )
        for name in stored["types"]:
            book.add_type(name)
        book.add(stored["topics"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CodeError(f"{path}: holds no codes of topics; name another file, or remove it") from None
    return book


def save_book(book: CodeBook, path: Path) -> None:
    """Write a book to a file, whole or not at all."""
    try:
        write_durably(path, json.dumps(book.as_json(), indent=1, ensure_ascii=False))
    except OSError as error:
        raise CodeError(f"{path}: cannot be written: {error.strerror}") from None


CODES = 0xFF1E
"""What all addresses of events begin with."""
EVENT_PORT = 7400
"""The UDP port that they are sent to."""
_HEAD = f"{CODES:016b}"
_IN_TEXT = re.compile(
    rf"(?<![0-9a-f:])(?P<address>{CODES:x}:[0-9a-f:]*[0-9a-f:])(?P<length>/\d+)?(?![0-9a-f:])"
)


@dataclass(frozen=True, slots=True)
class EventAddress:
    """What an address says of an event; the type is a name, "" where none is said."""

    topic: str
    event_type: str = ""

    def __str__(self) -> str:
        return self.topic + (f", type {self.event_type}" if self.event_type else "")


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first bits of an address, as switches match them."""

    address: str
    length: int

    @classmethod
    def parse(cls, text: str) -> Prefix:
        """One of events, or ParameterError.

        >>> str(Prefix.parse("ff1e:a000::/20"))
        'ff1e:a000::/20'
        """
        try:
            network = ipaddress.IPv6Network(text)
        except ValueError as error:
            raise ParameterError("prefix", f"{text!r} is no prefix of IPv6 addresses: {error}") from None
        if network.prefixlen < len(_HEAD) or int(network.network_address) >> 112 != CODES:
            raise ParameterError("prefix", f"{text!r} is no prefix of topics: those begin with ff1e::/16")
        return cls(str(network.network_address), network.prefixlen)

    @property
    def octets(self) -> bytes:
        """The address as packets have it."""
        return ipaddress.IPv6Address(self.address).packed

    def covers(self, other: Prefix) -> bool:
        """Whether all that the other matches is matched by this one.

        >>> Prefix("ff1e:8000::", 17).covers(Prefix("ff1e:a000::", 20))
        True
        """
        apart = int.from_bytes(self.octets, "big") ^ int.from_bytes(other.octets, "big")
        return self.length <= other.length and not apart >> 128 - self.length

    def __str__(self) -> str:
        return f"{self.address}/{self.length}"


def event_address(book: CodeBook, event: EventAddress) -> str:
    """Where an event is sent.

    >>> book = CodeBook()
    >>> book.add(["city/hall/smoke"])
    1
    >>> event_address(book, EventAddress("city/hall/smoke"))
    'ff1e:a800::'
    """
    if event.event_type not in book.types:
        known = ", ".join(book.types[1:]) or "none"
        raise CodeError(f"the event type {event.event_type!r} has no number; those that have: {known}")
    kind = f"{book.types.index(event.event_type):0{TYPE_BITS}b}"
    return _address(book.bits(event.topic).ljust(TOPIC_BITS, "0") + kind)


def read_address(book: CodeBook, address: str) -> EventAddress:
    """What an address says, or CodeError."""
    bits = f"{int(_ipv6(address)):0128b}"
    if not bits.startswith(_HEAD):
        raise CodeError(f"{address} is the address of no topic: those begin with ff1e")
    topic, rest = bits[len(_HEAD) :][:TOPIC_BITS], bits[len(_HEAD) + TOPIC_BITS :]
    # Addresses of versions before have the number of a queue behind the type.
    kind = int(rest[:TYPE_BITS], 2)
    if kind >= len(book.types):
        raise CodeError(f"{address} has the event type {kind}; there are {len(book.types) - 1}")
    return EventAddress(book.topic(topic), book.types[kind])


def subtree_prefix(book: CodeBook, topic_filter: str) -> Prefix:
    """The prefix of all events that a filter takes: of one topic, or of a topic and everything below it (/#).

    >>> book = CodeBook()
    >>> book.add(["city/hall/smoke"])
    1
    >>> str(subtree_prefix(book, "city/#")), str(subtree_prefix(book, "city"))
    ('ff1e:8000::/18', 'ff1e:8000::/116')
    """
    if problem := topic_filter_problem(topic_filter):
        raise ParameterError("filter", f"{topic_filter!r} is no filter: {problem.replace('_', ' ')}")
    if "+" in topic_filter.split("/"):
        raise ParameterError("filter", f"{topic_filter!r} is no subtree: + takes one level only")
    if topic_filter == "#":
        return Prefix(_address(""), len(_HEAD))
    if topic_filter.endswith("/#"):
        bits = book.bits(topic_filter.removesuffix("/#"))
    else:
        bits = book.bits(topic_filter).ljust(TOPIC_BITS, "0")
    return Prefix(_address(bits), len(_HEAD) + len(bits))


def with_names(book: CodeBook, text: str) -> str:
    """A line of a log with the names of events and subtrees behind their addresses and prefixes.

    >>> book = CodeBook()
    >>> book.add(["city/hall/smoke"])
    1
    >>> with_names(book, "ipv6_dst=ff1e:8000::/18 output:2, ff1e:a800::7.7400, ff1e::1, fe80::1")
    'ipv6_dst=ff1e:8000::/18 [city/#] output:2, ff1e:a800::7 [city/hall/smoke].7400, ff1e::1, fe80::1'
    """
    return _IN_TEXT.sub(lambda found: f"{found[0]}{_name(book, found)}", text)


def _name(book: CodeBook, found: re.Match[str]) -> str:
    try:
        if found["length"] is None:
            return f" [{read_address(book, found['address'])}]"
        prefix = Prefix.parse(found[0])
        bits = f"{int.from_bytes(prefix.octets, 'big'):0128b}"[len(_HEAD) : prefix.length]
        return f" [{book.topic(bits)}{'/#' if len(bits) < TOPIC_BITS else ''}]"
    except (CodeError, ParameterError):
        return ""


def _address(bits: str) -> str:
    return str(ipaddress.IPv6Address(int((_HEAD + bits).ljust(128, "0"), 2)))


def _ipv6(address: str) -> ipaddress.IPv6Address:
    try:
        return ipaddress.IPv6Address(address)
    except ValueError:
        raise ParameterError("address", f"{address!r} is no IPv6 address") from None
