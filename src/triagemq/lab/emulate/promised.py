"""Promised messages of real clients: by the direct path, from publishers' access links to subscribers' interfaces.

Publishers send as often as they may. Nobody's messages are closer together than declared: whoever is late, because
this machine was busy, makes all that follow as late, so that phases stay what they were. What counts is when packets
have left their host, which the kernel tells: a machine that pauses in the midst of a message makes its last packets
late, and the next message must not follow as if nothing had happened. One that babbles has a process of its own, and
sends as fast as its access link takes it.

A message takes of a wire what the scenario says it takes: the headers of real packets are others than its overhead, and
payloads are longer or shorter by what they differ.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from triagemq.client.direct import DirectEvent, DirectPublisher, DirectSubscriber, NetworkSettings
from triagemq.client.direct.wire import HEADER_BYTES, SMALLEST_PAYLOAD, UDP_BYTES, is_first_or_last
from triagemq.errors import NetworkError
from triagemq.lab.emulate.receipts import Receipts
from triagemq.network.linux.netlink import in_namespace
from triagemq.scenario import Floats, Scenario
from triagemq.scenario.conditions import Situation
from triagemq.waiting import is_set_within

if TYPE_CHECKING:
    from triagemq.simulate.replay import RecordedStream
    from triagemq.simulate.source import PublicationStream

Brokered = Callable[[int, float, int], Awaitable[None]]
"""Publishes an event of a publication by way of the broker, too: its size, and when it was published."""

ETHERNET_BYTES = 14
"""What the kernel counts of a packet before IP."""

REAL_OVERHEAD_BYTES = ETHERNET_BYTES + UDP_BYTES[4] + HEADER_BYTES
LONGEST_PACKET_BYTES = ETHERNET_BYTES + 9000

IDLE = "(idle port)"
IDLE_TOPIC = "idle"
IDLE_ADDRESS = "239.255.255.254:16999"
"""Where nobody sends but who wants to know what an idle port takes."""
IDLE_ROW = -1
_IDLE_SECONDS = 0.01

_NUMBER_BYTES = 8
_QUIET_ROUNDS = 100
"""Of the event loop, in each of which some tens of packets are read: so many make a message of megabytes whole."""
_AHEAD_SECONDS = 1.0
_ROOM_BYTES = 8 << 20
_BABBLING_SECONDS = 0.02
"""What a babbler has waiting in its host: so much that its link is never idle, and not seconds of it."""
_LEAST_BABBLING_BYTES, _BOOKED_BYTES = 16 << 10, 1.6
"""The kernel books more for a packet than it has octets."""
# SO_RCVBUFFORCE of Linux: as much room as root wants.
_RECEIVE_ROOM = 33
# SO_TIMESTAMPING of Linux: a time is asked for packet by packet, comes without the packet, and is that of the driver.
_STAMPING, _STAMP_SENT, _TELL_STAMPS = 37, struct.pack("=I", 1 << 1), 1 << 4 | 1 << 11
_STAMP = struct.Struct("@ll")
_ROOM_FOR_STAMPS = 512
_LEAVING_SECONDS, _MOST_LEAVING_SECONDS = 0.0005, 2.0


@dataclass(frozen=True, slots=True)
class PromisedClients:
    """What a process of clients needs to send or get promised messages.

    `interfaces` says by which interface each client does so, and `receipts` is the file for what they note. The
    addresses come in a file of their own, when they are known: see `tell_addresses`.
    """

    interfaces: dict[str, str]
    receipts: str
    babbling: list[str] = field(default_factory=list)
    synchronised: bool = False


@dataclass(frozen=True, slots=True)
class PromisedAddress:
    """A promise by rows of the scenario, and the address of its publication."""

    publication: int
    subscription: int
    address: str


def tell_addresses(path: Path, promises: Iterable[PromisedAddress]) -> None:
    """For processes of clients."""
    path.write_text(json.dumps([[each.publication, each.subscription, each.address] for each in promises]))


def told_addresses(path: str) -> list[PromisedAddress]:
    """What `tell_addresses` wrote."""
    return [PromisedAddress(*row) for row in json.loads(Path(path).read_text())]


@dataclass(frozen=True, slots=True)
class RealMessages:
    """How the messages of a publication are made of real packets that take as much of a wire as the scenario's."""

    packet_bytes: int
    overhead_bytes: float

    @classmethod
    def of(cls, scenario: Scenario, publication: int) -> RealMessages:
        """NetworkError if real packets cannot be so long, or so short."""
        publisher = int(scenario.publications.publisher[publication])
        switch = int(scenario.publishers.access_switch[publisher])
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
        """How long the payload is that stands for a message of this size.

        >>> RealMessages(1500, 66.0).payload_bytes(2000.0)
        1976
        """
        packets = self.packets(size_bytes)
        wire = size_bytes + packets * self.overhead_bytes
        return max(1, math.floor(wire - packets * REAL_OVERHEAD_BYTES))

    def last_packet_bytes(self, size_bytes: Floats) -> Floats:
        """What the last packet of each message takes of a wire."""
        room = self.packet_bytes - self.overhead_bytes
        packets = np.maximum(1.0, np.ceil(size_bytes / room))
        return np.asarray(size_bytes - (packets - 1) * room + self.overhead_bytes)

    def require(self, size_bytes: float, topic: str) -> None:
        """NetworkError if no real message is as small as the largest of a topic."""
        wire = size_bytes + self.packets(size_bytes) * self.overhead_bytes
        least = self.packets(size_bytes) * REAL_OVERHEAD_BYTES + 1
        if wire < least:
            raise NetworkError(
                f"a message of {topic!r} takes {wire:g} octets of a wire, and a real one takes {least} at least; "
                f"state an overhead_bytes of {REAL_OVERHEAD_BYTES} or more"
            )


class _RoomySocket(socket.socket):
    """Has room for all that comes while this process waits for its turn: it is the network that is measured."""

    def setsockopt(self, *arguments: Any) -> None:
        if arguments[:2] == (socket.SOL_SOCKET, socket.SO_RCVBUF):
            arguments = (socket.SOL_SOCKET, _RECEIVE_ROOM, _ROOM_BYTES)
        super().setsockopt(*arguments)


class _LeavingSocket(socket.socket):
    """Knows when the first and the last packet of each message left the host, behind the queue of its access link."""

    def __init__(self, *kind: Any) -> None:
        super().__init__(*kind)
        super().setsockopt(socket.SOL_SOCKET, _STAMPING, _TELL_STAMPS)

    def sendto(self, packet: bytes, target: Any) -> int:  # type: ignore[override]
        stamp = [(socket.SOL_SOCKET, _STAMPING, _STAMP_SENT)] if is_first_or_last(packet) else []
        return self.sendmsg([packet], stamp, 0, target)

    def left_ns(self) -> list[int]:
        """When they left, in Unix ns: all that were not told of yet."""
        found: list[int] = []
        while True:
            try:
                _, beside, _, _ = self.recvmsg(0, _ROOM_FOR_STAMPS, socket.MSG_ERRQUEUE)
            except OSError:
                return found
            for level, kind, value in beside:
                if (level, kind) == (socket.SOL_SOCKET, _STAMPING):
                    seconds, nanoseconds = _STAMP.unpack_from(value)
                    found.append(seconds * 1_000_000_000 + nanoseconds)


@dataclass(slots=True)
class _UnderWay:
    """A message that may not have left yet: what is noted of it, when its last packet would leave if all went well, and
    when its packets left that are stamped, as far as that is known."""

    noted: tuple[int, ...]
    stamped: int
    due_ns: int
    left_ns: list[int] = field(default_factory=list)


class _NarrowSocket(socket.socket):
    """Has room for what waits for a link of a babbler."""

    send_room_bytes = _LEAST_BABBLING_BYTES

    def setsockopt(self, *arguments: Any) -> None:
        if arguments[:2] == (socket.SOL_SOCKET, socket.SO_SNDBUF):
            arguments = (*arguments[:2], self.send_room_bytes)
        super().setsockopt(*arguments)


def network_of(
    namespace: str,
    interface: str,
    mtu_bytes: int = 1500,
    *,
    made: Callable[..., socket.socket] = _RoomySocket,
) -> NetworkSettings:
    """Where a client's sockets are, and how they are made."""
    return NetworkSettings(
        interface=interface,
        mtu_bytes=mtu_bytes,
        make_socket=lambda *kind: in_namespace(namespace, lambda: made(*kind)),
    )


class PromisedPublishers:
    """The publishers of promised messages in this process; `namespaces` and the interfaces are by their names."""

    def __init__(
        self,
        scenario: Scenario,
        course: Sequence[Situation],
        config: PromisedClients,
        seed: int,
        replay: str | None = None,
    ) -> None:
        self._scenario, self._course, self._config, self._seed = scenario, course, config, seed
        self._replay = replay
        self._open: dict[int, DirectPublisher] = {}
        self._leaving: dict[int, _LeavingSocket] = {}
        self._under_way: dict[int, _UnderWay] = {}
        self._at: dict[int, str] = {}
        self._numbers: Counter[int] = Counter()
        self._messages: dict[int, RealMessages] = {}
        self._sent = Receipts(Path(config.receipts))
        self._idle: DirectPublisher | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self.rows: set[int] = set()
        """The publications that are sent directly, by this process or another."""
        self._silent: Collection[str] = frozenset()
        self._brokered: Brokered | None = None
        self.late_ns = 0
        """By how much all of it is later than it was drawn."""

    async def open(self, promises: Iterable[PromisedAddress], namespaces: dict[str, str]) -> None:
        """Take the sockets of those that are promised now; those of others that babble are theirs."""
        scenario, interfaces = self._scenario, self._config.interfaces
        wanted = {promise.publication: promise.address for promise in promises}
        self.rows = set(wanted)
        for row in [row for row, address in self._at.items() if wanted.get(row) != address]:
            del self._at[row]
            await self._has_left(row, 0.0)
            await self._open.pop(row).close()
        for row, address in wanted.items():
            name = self._name(row)
            if row in self._open or name not in interfaces:
                continue
            messages = self._messages[row] = RealMessages.of(scenario, row)
            topic = scenario.topics.name[int(scenario.publications.topic[row])]
            largest = float(scenario.publications.max_size_bytes[row])
            messages.require(largest, topic)
            publisher = DirectPublisher(
                topic,
                address,
                max_size_bytes=messages.payload_bytes(largest),
                network=network_of(
                    namespaces[name], interfaces[name], messages.mtu_bytes, made=partial(self._made, row)
                ),
                shared_memory=False,
            )
            await publisher.open()
            self._open[row], self._at[row] = publisher, address
        if IDLE in interfaces and self._idle is None:
            self._idle = DirectPublisher(
                IDLE_TOPIC,
                IDLE_ADDRESS,
                max_size_bytes=1,
                network=network_of(
                    namespaces[IDLE], interfaces[IDLE], made=partial(self._leaving_socket, IDLE_ROW)
                ),
                shared_memory=False,
            )
            await self._idle.open()

    def _made(self, row: int, *kind: Any) -> socket.socket:
        """The socket of a publication, in the present namespace."""
        if self._name(row) not in self._config.babbling:
            return self._leaving_socket(row, *kind)
        narrow = _NarrowSocket(*kind)
        publisher = int(self._scenario.publications.publisher[row])
        bps = float(self._scenario.publishers.access_bps[publisher])
        booked = round(bps / 8 * _BABBLING_SECONDS * _BOOKED_BYTES)
        narrow.send_room_bytes = max(_LEAST_BABBLING_BYTES, booked)
        return narrow

    def _leaving_socket(self, row: int, *kind: Any) -> socket.socket:
        made = self._leaving[row] = _LeavingSocket(*kind)
        return made

    async def publish(
        self,
        begins_ns: int,
        ended: asyncio.Event,
        *,
        silent: Collection[str] = frozenset(),
        brokered: Brokered | None = None,
    ) -> None:
        """Everything in its time, until the end, but for what `silent` publishers would send at a time."""
        self._silent, self._brokered = silent, brokered
        babbling = {row for row in self._open if self._name(row) in self._config.babbling}
        work = [self._babble(row, begins_ns, ended) for row in babbling]
        if self._idle is not None:
            work.append(self._keep_probing(self._idle, begins_ns, ended))
        # What nobody is promised now may be promised to somebody later.
        owners = self._scenario.publications.publisher.tolist()
        names = self._config.interfaces.keys() - set(self._config.babbling)
        mine = {row for row, owner in enumerate(owners) if self._scenario.publishers.name[owner] in names}
        await asyncio.gather(self._follow(mine, begins_ns, ended), *work)

    async def close(self) -> None:
        """Give everything back, and write the rest; what hosts took is `host_delay` until then."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        for row in list(self._under_way):
            await self._has_left(row)
        for publisher in (*self._open.values(), *([] if self._idle is None else [self._idle])):
            await publisher.close()
        self._sent.close()

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
            from triagemq.simulate.replay import RecordedStream

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
        if row in self._under_way:
            self.late_ns = max(self.late_ns, await self._has_left(row))
            while (left := due_ns + self.late_ns - time.time_ns()) > 0:
                await asyncio.sleep(left * 1e-9)
        publisher, now_ns = self._open.get(row), time.time_ns()
        if publisher is None or self._name(row) in self._silent:
            return
        self.late_ns = max(self.late_ns, now_ns - due_ns)
        self._numbers[row] += 1
        number = self._numbers[row]
        try:
            await publisher.publish(_numbered(number, self._messages[row].payload_bytes(size)))
        finally:
            # Half of it may have been sent when it was given up.
            noted = row, number, now_ns, round(size), time.time_ns()
            if row in self._leaving:
                stamped = min(2, self._messages[row].packets(size))
                self._under_way[row] = _UnderWay(noted, stamped, due_ns + self._between_ns(row, size))
            else:
                self._sent.add(*noted, now_ns)
        if self._brokered is not None:
            await self._brokered(row, size, now_ns)

    async def _has_left(self, row: int, patience_seconds: float = _MOST_LEAVING_SECONDS) -> int:
        """Wait until a message has left and note it; by how much its last packet was late. The last packets of two
        messages are to be apart, too, where this machine has paused in the midst of one."""
        message = self._under_way.pop(row, None)
        if message is None:
            return 0
        given_up = time.monotonic() + patience_seconds
        while True:
            message.left_ns += self._leaving[row].left_ns()
            if len(message.left_ns) >= message.stamped or time.monotonic() > given_up:
                break
            await asyncio.sleep(_LEAVING_SECONDS)
        _, _, published_ns, _, _ = message.noted
        self._sent.add(*message.noted, message.left_ns[0] if message.left_ns else published_ns)
        return message.left_ns[-1] - message.due_ns if len(message.left_ns) >= message.stamped else 0

    def _between_ns(self, row: int, size: float) -> int:
        """From when the first packet of a message leaves its host to when the last one does."""
        publisher = int(self._scenario.publications.publisher[row])
        messages = self._messages[row]
        packets = messages.packets(size)
        wire = size + packets * messages.overhead_bytes - messages.packet_bytes if packets > 1 else 0.0
        return round(wire * 8e9 / float(self._scenario.publishers.access_bps[publisher]))

    async def _babble(self, row: int, begins_ns: int, ended: asyncio.Event) -> None:
        size = float(self._scenario.publications.max_size_bytes[row])
        await is_set_within(ended, max(0.0, (begins_ns - time.time_ns()) * 1e-9))
        while not ended.is_set():
            await self._send(row, size, time.time_ns())
            await asyncio.sleep(0)

    async def _keep_probing(self, idle: DirectPublisher, begins_ns: int, ended: asyncio.Event) -> None:
        await is_set_within(ended, max(0.0, (begins_ns - time.time_ns()) * 1e-9))
        number = 0
        while not await is_set_within(ended, _IDLE_SECONDS):
            await self._has_left(IDLE_ROW)
            number, now_ns = number + 1, time.time_ns()
            await idle.publish(b"\0")
            self._under_way[IDLE_ROW] = _UnderWay((IDLE_ROW, number, now_ns, 1, time.time_ns()), 1, 0)

    def _name(self, publication: int) -> str:
        return self._scenario.publishers.name[int(self._scenario.publications.publisher[publication])]


def _numbered(number: int, payload_bytes: int) -> bytes:
    """A payload that begins with its number, where there is room for it."""
    if payload_bytes < _NUMBER_BYTES:
        return bytes(payload_bytes)
    return number.to_bytes(_NUMBER_BYTES, "big") + bytes(payload_bytes - _NUMBER_BYTES)


def _number_of(event: DirectEvent) -> int:
    """Which message of its publication it is; a publisher that has moved to another address counts on."""
    if len(event.value) < _NUMBER_BYTES:
        return event.number
    return int.from_bytes(event.value[:_NUMBER_BYTES], "big")


class PromisedSubscribers:
    """Those who get promised messages in this process, as many as there are promises; each notes what it gets."""

    def __init__(self, scenario: Scenario, config: PromisedClients) -> None:
        self._scenario, self._config = scenario, config
        self._open: dict[tuple[int, int, str], DirectSubscriber] = {}
        self._got = Receipts(Path(config.receipts))
        self._noted = 0

    async def open(self, promises: Iterable[PromisedAddress], namespaces: dict[str, str]) -> None:
        """Join the groups of these promises, and leave all others."""
        scenario, interfaces = self._scenario, self._config.interfaces
        wanted = {(each.subscription, each.publication, each.address) for each in promises}
        if IDLE in interfaces:
            wanted.add((IDLE_ROW, IDLE_ROW, IDLE_ADDRESS))
        for gone in self._open.keys() - wanted:
            await self._open.pop(gone).close()
        for key in sorted(wanted - self._open.keys()):
            subscription, publication, address = key
            name, topic, largest = IDLE, IDLE_TOPIC, 1
            if subscription != IDLE_ROW:
                name = scenario.subscribers.name[int(scenario.subscriptions.subscriber[subscription])]
                topic = scenario.topics.name[int(scenario.subscriptions.topic[subscription])]
                size = float(scenario.publications.max_size_bytes[publication])
                largest = RealMessages.of(scenario, publication).payload_bytes(size)
            subscriber = self._open[key] = DirectSubscriber(
                topic,
                address,
                max_size_bytes=largest,
                on_event=self._noting(subscription, publication),
                network=network_of(namespaces[name], interfaces[name]),
                shared_memory=False,
            )
            await subscriber.open()

    def _noting(self, subscription: int, publication: int) -> Any:
        def note(event: DirectEvent) -> None:
            self._noted += 1
            self._got.add(
                subscription,
                publication,
                _number_of(event),
                event.published_ns,
                event.arrived_ns,
                event.received_ns,
            )

        return note

    async def close(self) -> None:
        """Take what has come, leave, and write the rest."""
        quiet, noted = 0, -1
        while quiet < _QUIET_ROUNDS:
            quiet, noted = (quiet + 1, noted) if noted == self._noted else (0, self._noted)
            await asyncio.sleep(0)
        for subscriber in self._open.values():
            await subscriber.close()
        self._got.close()
