"""Topic and event type in one IPv6 multicast address.

    ff1e   topic, zeros behind it   event type   zeros
    16     100                      9            3        bits

Flags say that the address is transient (1), the scope is global (e). The topic comes first: all events of a subtree
have one prefix, whatever their types, which switches match as they match any other.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from triagemq.errors import CodeError, ParameterError
from triagemq.mqttsn.topics import topic_filter_problem
from triagemq.topic_codes.book import TOPIC_BITS, TYPE_BITS, CodeBook

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
