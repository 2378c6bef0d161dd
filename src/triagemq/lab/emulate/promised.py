"""Promised messages of real clients: when they are published, and when they left their host and arrived.

The clients are those of the product, which also decides over which route a message goes. Here are the sockets that note
the kernel's timestamps, and the times of publication.

Publishers publish as often as they may. A publisher that is late, because this machine was busy, makes all that follow
as late, so that phases stay what they were. What counts is when packets have left their host: a machine that pauses in
the midst of a message makes its last packets late, and the next message must not follow as if nothing had happened. A
publisher that babbles has a process of its own, and sends as fast as its access link takes it.

A message takes of a wire what the scenario says it takes: the headers of real packets are others than its overhead, and
payloads are longer or shorter by what they differ, as far as the publisher has declared such sizes.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from triagemq.client.direct import DirectEvent, DirectPublisher, DirectSubscriber, NetworkSettings
from triagemq.client.direct.wire import (
    HEADER_BYTES,
    SMALLEST_PAYLOAD,
    UDP_BYTES,
    generation_of,
    head_of,
    topic_mark,
)
from triagemq.errors import NetworkError
from triagemq.lab.emulate.receipts import LastArrival, Receipts, TimedSocket
from triagemq.mqttsn.timestamps import PREFIX_BYTES, stamp_payload
from triagemq.network.linux.netlink import in_namespace
from triagemq.scenario import Floats, Scenario
from triagemq.scenario.conditions import Situation
from triagemq.waiting import is_set_within

if TYPE_CHECKING:
    from triagemq.lab.recordings import RecordedStream
    from triagemq.simulate.source import PublicationStream

Publish = Callable[[int, bytes, int], Awaitable[None]]
"""Publishes an event of a publication, a row of the scenario: its payload, and when it was published."""

ETHERNET_BYTES = 14
"""What the kernel counts of a packet before IP."""

REAL_OVERHEAD_BYTES = ETHERNET_BYTES + UDP_BYTES[4] + HEADER_BYTES
LONGEST_PACKET_BYTES = ETHERNET_BYTES + 9000

IDLE = "(idle port)"
IDLE_TOPIC = "idle"
IDLE_ADDRESS = "239.255.255.254:16999"
"""An address for probes of an idle port alone."""
IDLE_ROW = -1
_IDLE_SECONDS = 0.01

_QUIET_ROUNDS = 100
"""Of the event loop, in each of which some tens of packets are read: so many make a message of megabytes whole."""
_AHEAD_SECONDS = 1.0
_ROOM_BYTES = 8 << 20
_BABBLING_SECONDS = 0.02
"""What a babbler has waiting in its host: so much that its link is never idle, and not seconds of it."""
_LEAST_BABBLING_BYTES, _BOOKED_BYTES = 16 << 10, 1.6
"""The kernel books more for a packet than it has octets."""
# SO_SNDBUFFORCE and SO_RCVBUFFORCE of Linux: as much room as root wants.
_FORCED = {socket.SO_SNDBUF: 32, socket.SO_RCVBUF: 33}
# SO_TIMESTAMPING of Linux: a time is requested packet by packet, comes without the packet, and is that of the driver.
_STAMPING, _STAMP_SENT, _STAMPS_ALONE = 37, struct.pack("=I", 1 << 1), 1 << 4 | 1 << 11
_STAMP = struct.Struct("@ll")
_ROOM_FOR_STAMPS = 512
_LEAVING_SECONDS, _MOST_LEAVING_SECONDS = 0.0005, 2.0


@dataclass(frozen=True, slots=True)
class PromisedClients:
    """What a process of clients needs to send or get promised messages.

    `interfaces` says by which interface each client does so, and `receipts` is the file for what they note.
    """

    interfaces: dict[str, str]
    receipts: str
    babbling: list[str] = field(default_factory=list)
    synchronised: bool = False


@dataclass(frozen=True, slots=True)
class RealMessages:
    """How the messages of a publication are made of real packets that take as much of a wire as the scenario's."""

    packet_bytes: int
    overhead_bytes: float

    @classmethod
    def of(cls, scenario: Scenario, publication: int) -> RealMessages:
        """NetworkError if real packets cannot be so long, or so short."""
        switch = int(scenario.publishers.access_switch[scenario.publications.publisher[publication]])
        packet_bytes = int(scenario.switches.packet_bytes[switch])
        if not SMALLEST_PAYLOAD + REAL_OVERHEAD_BYTES <= packet_bytes <= LONGEST_PACKET_BYTES:
            raise NetworkError(
                f"packets of switch {scenario.switches.name[switch]!r} have {packet_bytes} octets; those of real "
                f"messages have {SMALLEST_PAYLOAD + REAL_OVERHEAD_BYTES} to {LONGEST_PACKET_BYTES} here"
            )
        return cls(packet_bytes, scenario.overhead_bytes)

    @property
    def mtu_bytes(self) -> int:
        return self.packet_bytes - ETHERNET_BYTES

    def packets(self, size_bytes: float) -> int:
        """Of how many packets a message is."""
        return max(1, math.ceil(size_bytes / (self.packet_bytes - self.overhead_bytes)))

    def payload_bytes(self, size_bytes: float) -> int:
        """How long the payload is that stands for a message of this size; never longer than that.

        >>> RealMessages(1500, 66.0).payload_bytes(2000.0)
        1976
        """
        beyond = self.packets(size_bytes) * (REAL_OVERHEAD_BYTES - self.overhead_bytes)
        return max(PREFIX_BYTES, math.floor(size_bytes - max(0.0, beyond)))

    def last_packet_bytes(self, size_bytes: Floats) -> Floats:
        """What the last packet of each message takes of a wire."""
        room = self.packet_bytes - self.overhead_bytes
        packets = np.maximum(1.0, np.ceil(size_bytes / room))
        return np.asarray(size_bytes - (packets - 1) * room + self.overhead_bytes)

    def require(self, size_bytes: float, topic: str) -> None:
        """NetworkError if no real message is as small as the largest of a topic."""
        wire = size_bytes + self.packets(size_bytes) * self.overhead_bytes
        least = self.packets(size_bytes) * REAL_OVERHEAD_BYTES + PREFIX_BYTES
        if wire < least or size_bytes < PREFIX_BYTES:
            raise NetworkError(
                f"a message of {topic!r} takes {wire:g} octets of a wire, and a real one takes {least} at least; "
                f"state an overhead_bytes of {REAL_OVERHEAD_BYTES} or more, and messages of {PREFIX_BYTES} or more"
            )


def require_real_messages(scenario: Scenario, publications: Iterable[int]) -> None:
    """NetworkError if there are no real messages for one of these that may be promised."""
    for row in publications:
        topic = scenario.topics.name[int(scenario.publications.topic[row])]
        RealMessages.of(scenario, row).require(float(scenario.publications.max_size_bytes[row]), topic)


# Sockets, in the namespaces of their hosts.


class ArrivalSocket(TimedSocket):
    """Has room for all that comes while this process waits for its turn: it is the network that is measured."""

    def setsockopt(self, *arguments: Any) -> None:
        super().setsockopt(*_with_room(arguments, _ROOM_BYTES))


@dataclass(slots=True)
class SentMessage:
    """A direct message as the socket saw it: of how many packets it is, and when the system had the last one."""

    socket: DepartureSocket
    generation: int
    sent_ns: int
    packets: int
    handed_over_ns: int = 0


class DepartureSocket(socket.socket):
    """Notes each message in `sent`, by the mark of its topic; the kernel says when its first and its last packet left
    the host, behind the queue of the access link. `room_bytes` may wait for that."""

    def __init__(self, sent: dict[int, SentMessage], room_bytes: int, *kind: Any) -> None:
        super().__init__(*kind)
        self._sent, self._room_bytes = sent, room_bytes
        super().setsockopt(socket.SOL_SOCKET, _STAMPING, _STAMPS_ALONE)

    def setsockopt(self, *arguments: Any) -> None:
        super().setsockopt(*_with_room(arguments, self._room_bytes))

    def sendto(self, packet: bytes, target: Any) -> int:  # type: ignore[override]
        head = head_of(packet)
        is_end = head.packet in (0, head.packets - 1)
        stamp = [(socket.SOL_SOCKET, _STAMPING, _STAMP_SENT)] if is_end else []
        octets = self.sendmsg([packet], stamp, 0, target)
        if head.packet == 0:
            generation = generation_of(head.session)
            self._sent[head.topic_mark] = SentMessage(self, generation, head.published_ns, head.packets)
        self._sent[head.topic_mark].handed_over_ns = time.time_ns()
        return octets

    def left_ns(self) -> list[int]:
        """When they left, in Unix ns: all that were not returned yet."""
        found: list[int] = []
        while True:
            try:
                _, ancillary, _, _ = self.recvmsg(0, _ROOM_FOR_STAMPS, socket.MSG_ERRQUEUE)
            except OSError:
                return found
            for level, kind, value in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, _STAMPING):
                    seconds, nanoseconds = _STAMP.unpack_from(value)
                    found.append(seconds * 1_000_000_000 + nanoseconds)


def _with_room(arguments: tuple[Any, ...], room_bytes: int) -> tuple[Any, ...]:
    level, option, *_ = arguments
    if level == socket.SOL_SOCKET and option in _FORCED:
        return level, _FORCED[option], room_bytes
    return arguments


def network_of(
    namespace: str, interface: str, made: Callable[..., socket.socket], mtu_bytes: int = 1500
) -> NetworkSettings:
    """Where the sockets of a client's direct topics are, and how they are made."""
    return NetworkSettings(
        interface=interface,
        mtu_bytes=mtu_bytes,
        make_socket=lambda *kind: in_namespace(namespace, lambda: made(*kind)),
    )


# Publishers.


@dataclass(slots=True)
class _UnderWay:
    """A message that may not have left yet: what is noted of it, when its last packet would leave if all went well, and
    when its packets left that are stamped, as far as that is known."""

    noted: tuple[int, ...]
    message: SentMessage
    due_ns: int
    left_ns: list[int] = field(default_factory=list)

    @property
    def has_left(self) -> bool:
        return len(self.left_ns) >= min(2, self.message.packets)


class PromisedPublications:
    """The publications of this process that may be promised, published in their time; `namespaces` by publisher.

    `publish` is the client's; without it there are direct publishers alone, at the addresses that `promise` names.
    """

    def __init__(
        self,
        scenario: Scenario,
        course: Sequence[Situation],
        config: PromisedClients,
        namespaces: Mapping[str, str],
        *,
        seed: int = 0,
        replay: str | None = None,
        publish: Publish | None = None,
    ) -> None:
        self._scenario, self._course, self._config, self._seed = scenario, course, config, seed
        self._namespaces, self._replay = namespaces, replay
        self._publish = self._publish_directly if publish is None else publish
        self._is_direct = publish is None
        self._direct: dict[int, DirectPublisher] = {}
        self._sent: defaultdict[str, dict[int, SentMessage]] = defaultdict(dict)
        self._under_way: dict[int, _UnderWay] = {}
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._receipts = Receipts(Path(config.receipts))
        self._idle: DirectPublisher | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._silent: Collection[str] = frozenset()
        self.rows: Mapping[int, str] = {}
        """What is promised now, and its addresses: published here, or by another process."""
        self.late_ns = 0
        """By how much all of it is later than it was drawn."""

    def network(self, name: str) -> NetworkSettings | None:
        """The network of a publisher's direct topics; None if nothing of it can be promised."""
        if name not in self._interfaces:
            return None
        rows = np.flatnonzero(
            self._scenario.publications.publisher == self._scenario.publishers.name.index(name)
        )
        return network_of(
            self._namespaces[name],
            self._interfaces[name],
            partial(DepartureSocket, self._sent[name], self._room_bytes(name)),
            RealMessages.of(self._scenario, int(rows[0])).mtu_bytes,
        )

    @property
    def _interfaces(self) -> Mapping[str, str]:
        return self._config.interfaces

    def _room_bytes(self, name: str) -> int:
        if name not in self._config.babbling:
            return _ROOM_BYTES
        publisher = self._scenario.publishers.name.index(name)
        bps = float(self._scenario.publishers.access_bps[publisher])
        return max(_LEAST_BABBLING_BYTES, round(bps / 8 * _BABBLING_SECONDS * _BOOKED_BYTES))

    async def promise(self, addresses: Iterable[tuple[int, str]]) -> None:
        """Publish these in their time from now on, and no others."""
        promised = dict(addresses)
        for row in [row for row, publisher in self._direct.items() if self.rows[row] != promised.get(row)]:
            await self._has_left(row, 0.0)
            await self._direct.pop(row).close()
        self.rows = promised
        for row in promised.keys() - self._direct.keys() if self._is_direct else ():
            name = self._name(row)
            if name not in self._interfaces:
                continue
            publisher = self._direct[row] = DirectPublisher(
                self._topic(row),
                promised[row],
                max_size_bytes=int(self._scenario.publications.max_size_bytes[row]),
                network=self.network(name),
            )
            await publisher.open()

    async def _publish_directly(self, row: int, payload: bytes, published_ns: int) -> None:
        if row in self._direct:
            await self._direct[row].publish(payload)

    async def run(self, begins_ns: int, ended: asyncio.Event, silent: Collection[str] = frozenset()) -> None:
        """Everything in its time, until the end, but for what `silent` publishers would publish at a time."""
        self._silent = silent
        await self._open_idle()
        work = [self._babble(row, begins_ns, ended) for row in self._direct if self._babbles(row)]
        if self._idle is not None:
            work.append(self._keep_probing(self._idle, begins_ns, ended))
        # A publication without promises may be promised later.
        owners = self._scenario.publications.publisher.tolist()
        names = self._interfaces.keys() - set(self._config.babbling)
        mine = {row for row, owner in enumerate(owners) if self._scenario.publishers.name[owner] in names}
        await asyncio.gather(self._follow(mine, begins_ns, ended), *work)

    async def close(self) -> None:
        """Give everything back, and write the rest."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        for row in list(self._under_way):
            await self._has_left(row)
        for publisher in (*self._direct.values(), *([] if self._idle is None else [self._idle])):
            await publisher.close()
        self._receipts.close()

    async def _open_idle(self) -> None:
        if IDLE not in self._interfaces:
            return
        made = partial(DepartureSocket, self._sent[IDLE], _ROOM_BYTES)
        network = network_of(self._namespaces[IDLE], self._interfaces[IDLE], made)
        self._idle = DirectPublisher(IDLE_TOPIC, IDLE_ADDRESS, max_size_bytes=1, network=network)
        await self._idle.open()

    async def _follow(self, rows: set[int], begins_ns: int, ended: asyncio.Event) -> None:
        if not rows:
            return
        stream, until = await asyncio.to_thread(self._stream, rows), 0.0
        while not ended.is_set():
            until += _AHEAD_SECONDS
            for due_ns, row, size in stream.until(until).tolist():
                if row not in rows:
                    continue
                while (left := begins_ns + due_ns + self.late_ns - time.time_ns()) > 0:
                    if await is_set_within(ended, left * 1e-9):
                        return
                self.late_ns -= left
                task = asyncio.get_running_loop().create_task(self._send(row, size, begins_ns + due_ns))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    def _stream(self, rows: set[int]) -> PublicationStream | RecordedStream:
        # Late: subscribers publish nothing, and start sooner without.
        if self._replay is not None:
            from triagemq.lab.recordings import RecordedStream

            return RecordedStream(Path(self._replay), self._scenario)
        from triagemq.simulate.promised.direct import released
        from triagemq.simulate.source import PublicationStream

        scenario, course = self._scenario, self._course
        direct = np.zeros((len(course), len(scenario.publications)), dtype=np.bool_)
        direct[:, sorted(rows)] = True
        given = np.stack([each.rate_per_second for each in course])
        rates, releases = released(scenario, given, direct, synchronised=self._config.synchronised)
        rates = np.where(direct, rates, 0.0)
        return PublicationStream(
            releases.scenario,
            seed=self._seed,
            rates=[(each.at_seconds, rates[number]) for number, each in enumerate(course)],
            largest_bytes=releases.largest_bytes,
            at_once=releases.at_once,
        )

    async def _send(self, row: int, size: float, due_ns: int) -> None:
        async with self._turns[row]:
            self.late_ns = max(self.late_ns, await self._has_left(row))
            while (left := due_ns + self.late_ns - time.time_ns()) > 0:
                await asyncio.sleep(left * 1e-9)
            name, now_ns = self._name(row), time.time_ns()
            if row not in self.rows or name in self._silent:
                return
            try:
                await self._publish(row, self._payload(row, size, now_ns), now_ns)
            finally:
                # Half of it may have been sent when it was given up.
                message = self._sent[name].pop(topic_mark(self._topic(row)), None)
                if message is not None:
                    self.late_ns = max(self.late_ns, message.sent_ns - due_ns)
                    noted = row, message.generation, now_ns, message.sent_ns, round(size)
                    self._under_way[row] = _UnderWay(noted, message, due_ns + self._between_ns(row, size))

    async def _has_left(self, row: int, patience_seconds: float = _MOST_LEAVING_SECONDS) -> int:
        """Wait until a message has left and note it; by how much its last packet was late. The last packets of two
        messages are to be apart, too, where this machine has paused in the midst of one."""
        under_way = self._under_way.pop(row, None)
        if under_way is None:
            return 0
        given_up = time.monotonic() + patience_seconds
        while True:
            under_way.left_ns += under_way.message.socket.left_ns()
            if under_way.has_left or time.monotonic() > given_up:
                break
            await asyncio.sleep(_LEAVING_SECONDS)
        begun_ns = under_way.left_ns[0] if under_way.left_ns else under_way.message.sent_ns
        self._receipts.add(*under_way.noted, under_way.message.handed_over_ns, begun_ns)
        return under_way.left_ns[-1] - under_way.due_ns if under_way.has_left else 0

    def _payload(self, row: int, size: float, published_ns: int) -> bytes:
        payload_bytes = RealMessages.of(self._scenario, row).payload_bytes(size)
        return stamp_payload(bytes(payload_bytes - PREFIX_BYTES), published_ns)

    def _between_ns(self, row: int, size: float) -> int:
        """From when the first packet of a message leaves its host to when the last one does."""
        publisher = int(self._scenario.publications.publisher[row])
        messages = RealMessages.of(self._scenario, row)
        packets = messages.packets(size)
        wire = size + packets * messages.overhead_bytes - messages.packet_bytes if packets > 1 else 0.0
        return round(wire * 8e9 / float(self._scenario.publishers.access_bps[publisher]))

    async def _babble(self, row: int, begins_ns: int, ended: asyncio.Event) -> None:
        size = float(self._scenario.publications.max_size_bytes[row])
        sent, mark = self._sent[self._name(row)], topic_mark(self._topic(row))
        await is_set_within(ended, max(0.0, (begins_ns - time.time_ns()) * 1e-9))
        while not ended.is_set():
            now_ns = time.time_ns()
            await self._publish(row, self._payload(row, size, now_ns), now_ns)
            if (message := sent.pop(mark, None)) is not None:
                message.socket.left_ns()
                noted = row, message.generation, now_ns, message.sent_ns, round(size), message.handed_over_ns
                self._receipts.add(*noted, message.sent_ns)
            await asyncio.sleep(0)

    async def _keep_probing(self, idle: DirectPublisher, begins_ns: int, ended: asyncio.Event) -> None:
        await is_set_within(ended, max(0.0, (begins_ns - time.time_ns()) * 1e-9))
        mark = topic_mark(IDLE_TOPIC)
        while not await is_set_within(ended, _IDLE_SECONDS):
            await self._has_left(IDLE_ROW)
            await idle.publish(b"\0")
            if (message := self._sent[IDLE].pop(mark, None)) is not None:
                noted = IDLE_ROW, message.generation, message.sent_ns, message.sent_ns, 1
                self._under_way[IDLE_ROW] = _UnderWay(noted, message, 0)

    def _babbles(self, row: int) -> bool:
        return self._name(row) in self._config.babbling

    def _name(self, publication: int) -> str:
        return self._scenario.publishers.name[int(self._scenario.publications.publisher[publication])]

    def _topic(self, publication: int) -> str:
        return self._scenario.topics.name[int(self._scenario.publications.topic[publication])]


# Subscribers.


class PromisedReceipts:
    """What subscribers of this process get directly; `arrival` is what their sockets know. `namespaces` by name."""

    def __init__(self, config: PromisedClients, namespaces: Mapping[str, str]) -> None:
        self._interfaces, self._namespaces = config.interfaces, namespaces
        self._receipts = Receipts(Path(config.receipts))
        self._noted = 0
        self._direct: list[DirectSubscriber] = []
        self.arrival = LastArrival()

    def note(self, subscriber: int, topic: int, published_ns: int, received_ns: int) -> None:
        """A message has come."""
        self._noted += 1
        self._receipts.add(subscriber, topic, published_ns, self.arrival.of(received_ns), received_ns)

    async def listen(self, scenario: Scenario, publication: int, subscription: int, address: str) -> None:
        """Get what is promised without a client, where there is no exchange."""
        subscriber = int(scenario.subscriptions.subscriber[subscription])
        topic = int(scenario.subscriptions.topic[subscription])
        await self._listen(
            scenario.subscribers.name[subscriber],
            scenario.topics.name[topic],
            address,
            int(scenario.publications.max_size_bytes[publication]),
            (subscriber, topic),
        )

    async def listen_to_idle_port(self) -> None:
        """To its probes."""
        await self._listen(IDLE, IDLE_TOPIC, IDLE_ADDRESS, 1, (IDLE_ROW, IDLE_ROW))

    async def _listen(
        self, name: str, topic: str, address: str, max_size_bytes: int, rows: tuple[int, int]
    ) -> None:
        def note(event: DirectEvent) -> None:
            self.note(*rows, event.published_ns, event.received_ns)

        subscriber = DirectSubscriber(
            topic, address, max_size_bytes=max_size_bytes, on_event=note, network=self.network(name)
        )
        self._direct.append(subscriber)
        await subscriber.open()

    def network(self, name: str) -> NetworkSettings:
        """The network of a subscriber's direct topics."""
        made = partial(ArrivalSocket, self.arrival)
        return network_of(self._namespaces[name], self._interfaces[name], made)

    async def until_quiet(self) -> None:
        """Take what has come."""
        quiet, noted = 0, -1
        while quiet < _QUIET_ROUNDS:
            quiet, noted = (quiet + 1, noted) if noted == self._noted else (0, self._noted)
            await asyncio.sleep(0)

    async def close(self) -> None:
        """Take what has come, leave, and write the rest."""
        await self.until_quiet()
        for subscriber in self._direct:
            await subscriber.close()
        self._receipts.close()
