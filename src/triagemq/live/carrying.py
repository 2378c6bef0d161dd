"""Events whose addresses are the codes of their topics, carried to the ports that want parts of the tree of topics.

`triage topics carry`: the ports are network interfaces of this machine, members of a bridge, or those of OpenFlow
switches. Both follow the same instructions. Behind ports of this machine every event that has left is known again by
its address: its topic, queue and type go into figures and Trace by their names.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.client.direct.wire import HEADER_BYTES, read_head
from triagemq.coordinator.gateway.trace import PortNumbers, sample_columns
from triagemq.errors import CodeError, ParameterError
from triagemq.exchange.exposure import Exposed, check_listeners
from triagemq.network.linux import Interface, LinuxDataPlane
from triagemq.network.openflow import OpenFlowSwitches, SwitchTls
from triagemq.network.openflow.server import parse_place
from triagemq.plan import Instruction, SetPort, SetPrefix
from triagemq.topic_codes import CodeBook, EventAddress, Prefix, read_address, subtree_prefix
from triagemq.trace import Outcome, TraceWriter

_BUFFER_PACKETS = 1000.0
_MOST_REMEMBERED = 1 << 16
# Ethernet and IPv6 without other headers before UDP.
_IPV6, _UDP = b"\x86\xdd", 17
_LENGTH, _NEXT_HEADER, _ADDRESS, _MESSAGE = 18, 20, slice(38, 54), 14 + 40 + 8


@dataclass(frozen=True, slots=True)
class WantedSubtree:
    """A part of the tree of topics that is to leave by a port."""

    port: str
    topic_filter: str
    prefix: Prefix

    @classmethod
    def parse(cls, text: str, book: CodeBook) -> WantedSubtree:
        """From PORT=FILTER.

        >>> book = CodeBook()
        >>> book.add(["city/hall/smoke"])
        1
        >>> str(WantedSubtree.parse("radio=city/#", book).prefix)
        'ff1e:8000::/18'
        """
        port, mark, topic_filter = text.partition("=")
        if not mark or not port or not topic_filter:
            raise ParameterError("wanted", f"{text!r} is not PORT=FILTER, as radio=building/floor1/#")
        return cls(port, topic_filter, subtree_prefix(book, topic_filter))


def instructions(wanted: Sequence[WantedSubtree], bandwidth_bps: float, classes: int) -> list[Instruction]:
    """What a data plane and switches are told."""
    ports = dict.fromkeys(each.port for each in wanted)
    return [
        *(SetPort(port, bandwidth_bps, _BUFFER_PACKETS, classes) for port in ports),
        *(SetPrefix(each.prefix, each.port) for each in wanted),
    ]


@dataclass(slots=True)
class _Message:
    """What is known of an event at a port: of as many of its packets as have left."""

    event: EventAddress
    published_ns: int
    left: int
    priority_class: int
    enqueued_ns: int
    dequeued_ns: int
    size_bytes: int = 0


@dataclass
class EventRecord:
    """The events that have left, by their names, and the Trace of them, if there is one.

    Ids are rows of the book's topics and of `wanted`. Packets whose code nobody has are counted as `unknown`: their
    prefix is wanted, but the book does not have the topic yet.
    """

    book: CodeBook
    wanted: Sequence[WantedSubtree]
    writer: TraceWriter | None = None
    unknown: int = 0
    events: Counter[tuple[str, str, int, str]] = field(default_factory=Counter)
    waited_ns: Counter[tuple[str, str, int, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._topics = {topic: row for row, topic in enumerate(self.book.topics())}
        self._ports = list(dict.fromkeys(each.port for each in self.wanted))
        self._event = lru_cache(_MOST_REMEMBERED)(self._read)
        self._open: OrderedDict[tuple[str, int, int], _Message] = OrderedDict()
        self._publications: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._numbered = 0
        self._began_ns = time.time_ns()

    def add(self, times: Mapping[str, NDArray[np.void]]) -> None:
        """Packets that have left, as `LinuxDataPlane.queue_times` has them."""
        rows: list[tuple[int, ...]] = []
        new: list[tuple[int, ...]] = []
        for port, packets in times.items():
            for beginning, priority_class, enqueued_ns, dequeued_ns in zip(
                (each.tobytes() for each in packets["beginning"]),
                *(packets[name].tolist() for name in ("priority_class", "enqueued_ns", "dequeued_ns")),
                strict=True,
            ):
                self._packet(port, beginning, priority_class, enqueued_ns, dequeued_ns, rows, new)
        if self.writer is not None and rows:
            if new:
                self.writer.publications(_columns(new, _PUBLICATION))
            self.writer.deliveries(_columns(rows, _DELIVERY) | {"outcome": _delivered(len(rows))})

    def _packet(
        self,
        port: str,
        beginning: bytes,
        priority_class: int,
        enqueued_ns: int,
        dequeued_ns: int,
        rows: list[tuple[int, ...]],
        new: list[tuple[int, ...]],
    ) -> None:
        if beginning[12:14] != _IPV6 or beginning[_NEXT_HEADER] != _UDP:
            return
        address = beginning[_ADDRESS]
        event = self._event(address)
        if event is None:
            self.unknown += 1
            return
        seen = (event.topic, port, event.queue, event.event_type)
        head = read_head(beginning[_MESSAGE:])
        if head is None:
            # Somebody else's packet: an event all the same, of which nobody knows when it was published.
            self._count(seen, dequeued_ns - enqueued_ns)
            return
        message = self._open.setdefault(
            (port, head.session, head.number),
            _Message(event, head.published_ns, head.packets, priority_class, enqueued_ns, dequeued_ns),
        )
        message.left -= 1
        message.dequeued_ns = max(message.dequeued_ns, dequeued_ns)
        message.size_bytes += int.from_bytes(beginning[_LENGTH : _LENGTH + 2], "big") - 8 - HEADER_BYTES
        if message.left > 0:
            _forget_oldest(self._open)
            return
        del self._open[port, head.session, head.number]
        self._count(seen, message.dequeued_ns - message.enqueued_ns)
        whose = (head.session, head.number)
        topic = self._topics[event.topic]
        number = self._publications.get(whose)
        if number is None:
            number = self._publications[whose] = self._numbered
            self._numbered += 1
            _forget_oldest(self._publications)
            new.append((number, topic, -1, message.published_ns, message.size_bytes))
        prefix = Prefix(str(IPv6Address(address)), 128)
        subscription = next(
            row for row, each in enumerate(self.wanted) if each.port == port and each.prefix.covers(prefix)
        )
        times = (message.published_ns, message.enqueued_ns, message.dequeued_ns, message.dequeued_ns)
        subscriber = self._ports.index(port)
        rows.append(
            (
                number,
                subscription,
                subscriber,
                topic,
                -1,
                message.priority_class,
                *times,
                message.size_bytes,
            )
        )

    def _count(self, seen: tuple[str, str, int, str], waited_ns: int) -> None:
        self.events[seen] += 1
        self.waited_ns[seen] += waited_ns

    def _read(self, address: bytes) -> EventAddress | None:
        try:
            return read_address(self.book, str(IPv6Address(address)))
        except CodeError:
            return None

    def finish(self, extra: Mapping[str, Any]) -> None:
        """Close the Trace, with the names of what is in it."""
        if self.writer is not None:
            names = {
                "topics": self.book.topics(),
                "subscribers": self._ports,
                "subscriptions": [[each.port, each.topic_filter] for each in self.wanted],
            }
            self.writer.finish(measured_from_ns=self._began_ns, extra=names | dict(extra))

    def rows(self) -> list[dict[str, Any]]:
        """The events by topic, port, queue and type."""
        return [
            {
                "topic": topic,
                "port": port,
                "queue": queue,
                "type": event_type or None,
                "events": count,
                "mean_wait_seconds": self.waited_ns[topic, port, queue, event_type] / count * 1e-9,
            }
            for (topic, port, queue, event_type), count in sorted(self.events.items())
        ]


_PUBLICATION = ("publication_id", "topic_id", "publisher_id", "published_ns", "size_bytes")
_DELIVERY = (
    "publication_id",
    "subscription_id",
    "subscriber_id",
    "topic_id",
    "flow_id",
    "priority_class",
    "published_ns",
    "enqueued_ns",
    "dequeued_ns",
    "delivered_ns",
    "size_bytes",
)


def _columns(rows: Sequence[tuple[int, ...]], names: Sequence[str]) -> dict[str, Any]:
    return dict(zip(names, np.array(rows, dtype=np.int64).T, strict=True))


def _forget_oldest(remembered: OrderedDict[Any, Any]) -> None:
    """Of events of which more would have come long ago."""
    if len(remembered) > _MOST_REMEMBERED:
        remembered.popitem(last=False)


def _delivered(count: int) -> NDArray[np.int8]:
    return np.full(count, int(Outcome.delivered), dtype=np.int8)


class CarryingMachine:
    """Ports of this machine, from the first instruction to `close`."""

    def __init__(
        self,
        book: CodeBook,
        wanted: Sequence[WantedSubtree],
        interfaces: Mapping[str, str],
        bandwidth_bps: float,
        classes: int,
        trace: Path | None = None,
    ) -> None:
        self._plane = LinuxDataPlane({port: Interface(name) for port, name in interfaces.items()}, timed=True)
        try:
            self._plane.apply(instructions(wanted, bandwidth_bps, classes))
            writer = None
            if trace is not None:
                writer = TraceWriter(trace, scenario_text="", plan_text=None, producer="carry")
        except BaseException:
            self._plane.close()
            raise
        self.record = EventRecord(book, wanted, writer)
        self._numbers = PortNumbers(list(interfaces))

    def look(self) -> None:
        """Take down what has left since the look before."""
        self._counters = self._plane.counters()
        self.record.add(self._plane.queue_times())
        if self.record.writer is not None:
            columns = sample_columns(self._counters.ports, self._numbers, time.time_ns())
            self.record.writer.queue_samples(columns)

    def close(self) -> dict[str, Any]:
        """Put the interfaces back; all figures, with names."""
        self.look()
        missed = self._plane.times_missed
        self._plane.close()
        discarded = {port: counted.discarded for port, counted in self._counters.ports.items()}
        self.record.finish({"discarded": discarded, "queue_times_missed": missed})
        counted = self._counters.prefixes
        return {
            "wanted": [
                {
                    "port": each.port,
                    "filter": each.topic_filter,
                    "prefix": str(each.prefix),
                    "events": counted[each.prefix, each.port],
                }
                for each in self.record.wanted
            ],
            "discarded": discarded,
            "unknown": self.record.unknown,
            "topics": self.record.rows(),
        }


class CarryingSwitches:
    """Ports of OpenFlow switches, as DATAPATH/NAME, from the first instruction to `close`."""

    def __init__(
        self,
        wanted: Sequence[WantedSubtree],
        places: Mapping[str, tuple[int, str]],
        listen: str,
        bandwidth_bps: float,
        classes: int,
        *,
        tls: SwitchTls | None = None,
        allowed: Sequence[str] = (),
    ) -> None:
        self._wanted = wanted
        self._switches = OpenFlowSwitches(
            {switch for switch, _ in places.values()}, listen=[listen], ports=places, tls=tls, allowed=allowed
        )
        try:
            self._switches.apply(instructions(wanted, bandwidth_bps, classes))
        except BaseException:
            self._switches.close()
            raise

    def look(self) -> None:
        """Switches count by themselves."""

    def close(self) -> dict[str, Any]:
        """Take the rules away; what the switches have counted."""
        counted = self._switches.counters()
        self._switches.close()
        return {
            "wanted": [
                {
                    "port": each.port,
                    "filter": each.topic_filter,
                    "prefix": str(each.prefix),
                    "events": sum(one.prefixes.get(each.prefix, 0) for one in counted.values()),
                }
                for each in self._wanted
            ],
            "discarded": {f"{switch:016x}": one.discarded for switch, one in counted.items()},
        }


def check_switch_listener(listen: str, tls: SwitchTls | None, *, insecure: bool) -> list[str]:
    """Warnings about a place where OpenFlow switches connect; ParameterError if others reach it without TLS.

    >>> check_switch_listener("tcp:127.0.0.1:6653", None, insecure=False)
    []
    >>> check_switch_listener("tcp:0.0.0.0:6653", None, insecure=True)
    ['insecure: OpenFlow at 0.0.0.0 is reached from other machines without encryption']
    """
    place = parse_place(listen)
    if isinstance(place, Path):
        return []
    lacks = None if tls is not None else "--tls-certificate, --tls-key and --switch-ca"
    return check_listeners(
        [Exposed("OpenFlow", "--openflow", place[0], tokens=None, encryption=lacks)], insecure=insecure
    )


def places_of(words: Sequence[str], ports: Sequence[str]) -> dict[str, tuple[int, str]]:
    """From PORT=DATAPATH/NAME, one for each port: where they are.

    >>> places_of(["radio=1/eth3"], ["radio"])
    {'radio': (1, 'eth3')}
    """
    found: dict[str, tuple[int, str]] = {}
    for word in words:
        port, _, place = word.partition("=")
        switch, mark, name = place.partition("/")
        if not mark or not name or not switch.isdigit():
            raise ParameterError("interface", f"{word!r} is not PORT=DATAPATH/NAME, as radio=1/eth3")
        found[port] = int(switch), name
    for port in ports:
        if port not in found:
            raise ParameterError("interface", f"port {port!r} has none; add --interface {port}=DATAPATH/NAME")
    return found
