"""The publisher and the subscriber of one direct topic: to and from hosts of the network, without a broker.

    publisher = DirectPublisher("ward/3/pulse", "239.1.2.3:7400", max_size_bytes=51, min_separation_seconds=0.02)
    async with publisher:
        await publisher.publish(b"61.5")

    async with DirectSubscriber("ward/3/pulse", "239.1.2.3:7400") as subscriber:
        async for event in subscriber:
            print(event.value, event.latency_seconds)

A promise holds only as long as its publisher keeps to what it has declared; the first switch cuts off another one. So a
message that is too large is refused here, and one that comes too soon waits here: the separation runs from the end of
one message's sending to the beginning of the next. That wait is counted, and is no host delay.

Lost messages are not sent again; they are counted. Processes of one host get messages as others do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from triagemq.client.blocking import Blocking, BlockingSource, blocking
from triagemq.client.connection import notify
from triagemq.client.direct.udp import GroupAddress, MulticastReceiver, MulticastSender, NetworkSettings
from triagemq.client.direct.wire import (
    HEADER_BYTES,
    NO_ORDERS,
    UDP_BYTES,
    DirectMessage,
    Reassembly,
    new_session,
    packets_of,
    topic_mark,
)
from triagemq.client.events import EventQueue, EventSource, Latencies
from triagemq.client.types import TypedTopic
from triagemq.errors import ClosedError, ParameterError
from triagemq.mqttsn import valid_topic_name
from triagemq.waiting import Opened

_LARGEST_MESSAGE = 16 << 20
_PACKETS_AT_ONCE = 64
_DEFAULT_LARGEST_BYTES = 65_536
_DELAY_PARTS = 32
"""Of each doubling: percentiles of delays that the host adds are exact to 3 %; no promise's bound has these."""


class _DirectEnd:
    """A topic and its address."""

    def __init__(
        self,
        topic: str | TypedTopic[Any],
        address: str,
        *,
        max_size_bytes: int | None = None,
        network: NetworkSettings | None = None,
    ) -> None:
        self._typed = None if isinstance(topic, str) else topic
        self.topic = topic if isinstance(topic, str) else topic.topic
        if not valid_topic_name(self.topic):
            raise ParameterError("topic", f"{self.topic!r} is no topic name")
        self._address = GroupAddress.parse(address)
        self._network = network or NetworkSettings()
        self.max_size_bytes = self._size_limit(max_size_bytes)

    def _size_limit(self, given: int | None) -> int:
        """The largest message: that of the type, or as declared."""
        if given is None:
            if self._typed is None:
                raise ParameterError("max_size_bytes", "must be declared for a topic without a type")
            return max(1, self._typed.largest_size_bytes)
        if not 1 <= given <= _LARGEST_MESSAGE:
            raise ParameterError("max_size_bytes", f"must be from 1 to {_LARGEST_MESSAGE}, is {given}")
        return given


@dataclass(slots=True)
class SentCounters:
    """What happened so far."""

    published: int = 0
    held_back: int = 0
    """Messages that came sooner than declared, and waited."""
    held_back_seconds: float = 0.0
    not_sent: int = 0
    """Packets that the system did not take: no route, or an interface that is down."""


class DirectPublisher(Opened, _DirectEnd):
    """Opened by `async with`; events follow each other in the order of the calls of `publish`."""

    def __init__(
        self,
        topic: str | TypedTopic[Any],
        address: str,
        *,
        min_separation_seconds: float = 0.0,
        generation: int = NO_ORDERS,
        **options: Any,
    ) -> None:
        super().__init__(topic, address, **options)
        if not 0 <= min_separation_seconds <= 1e6:
            raise ParameterError(
                "min_separation_seconds", f"must be from 0 to 1e6, is {min_separation_seconds}"
            )
        self._separation_ns = round(min_separation_seconds * 1e9)
        self._mark = topic_mark(self.topic)
        self._payload_bytes = self._network.mtu_bytes - UDP_BYTES[self._address.version] - HEADER_BYTES
        self.generation = generation
        """Of the coordinator's orders; subscribers know by it whether an event comes by the gateway, too."""
        self._session = self._number = 0
        self._sender: MulticastSender | None = None
        self._is_open = False
        self._turn = asyncio.Lock()
        self._earliest_ns = 0
        self.counters = SentCounters()
        """What happened so far."""
        self.host_delay = Latencies(_DELAY_PARTS)
        """From `publish` (or the end of its wait) until the system has the last packet."""

    async def open(self) -> None:
        """Take the socket."""
        if not self._is_open:
            self._sender = MulticastSender(self._address, self._network)
            self._is_open = True
            self._begin_session()

    def _begin_session(self) -> None:
        self._session, self._number = new_session(self.generation), 0

    async def close(self) -> None:
        """Idempotent. Counters can still be read."""
        if self._is_open and self._sender is not None:
            self._is_open = False
            self._sender.close()

    async def renew(self, generation: int) -> None:
        """Follow other orders from the next event on; the separation holds."""
        async with self._turn:
            self.generation = generation
            self._begin_session()

    async def publish(self, value: Any) -> None:
        """Octets, or a value of the typed topic; returns when the system has all of it."""
        payload = self._encoded(value)
        async with self._turn:
            if (pause := self._pause_seconds()) > 0:
                self.counters.held_back += 1
                self.counters.held_back_seconds += pause
            while (pause := self._pause_seconds()) > 0:
                await asyncio.sleep(pause)
            if not self._is_open or self._sender is None:
                raise ClosedError(f"the publisher of {self.topic!r} is not open; use it with `async with`")
            begun_ns = time.monotonic_ns()
            self._number += 1
            self.counters.published += 1
            message = DirectMessage(self._session, self._number, time.time_ns(), payload)
            try:
                rest = self._sender.send(packets_of(message, self._mark, self._payload_bytes))
                while rest:
                    await self._until_writable(self._sender)
                    rest = self._sender.send(rest)
            finally:
                # Also of one that was given up half sent: the next one must be separated from it.
                self.counters.not_sent = self._sender.not_sent
                now_ns = time.monotonic_ns()
                self.host_delay.add((now_ns - begun_ns) / 1e9)
                self._earliest_ns = now_ns + self._separation_ns

    def _encoded(self, value: Any) -> bytes:
        payload = value if self._typed is None else self._typed.encode(value)
        if not isinstance(payload, bytes):
            raise ParameterError(
                "payload", f"must be bytes, is {type(payload).__name__}; or give a TypedTopic"
            )
        if len(payload) > self.max_size_bytes:
            raise ParameterError(
                "payload", f"has {len(payload)} bytes, {self.topic!r} has declared {self.max_size_bytes}"
            )
        return payload

    def _pause_seconds(self) -> float:
        return (self._earliest_ns - time.monotonic_ns()) / 1e9

    async def _until_writable(self, sender: MulticastSender) -> None:
        loop, writable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(sender, writable.set)
        try:
            await writable.wait()
        finally:
            loop.remove_writer(sender)

    @property
    def problem(self) -> str:
        """Why the last packet was not sent; empty if it was."""
        return "" if self._sender is None else self._sender.problem


class BlockingDirectPublisher(Blocking[DirectPublisher]):
    """The same without asyncio; its methods may be called by several threads."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(DirectPublisher(*arguments, **options))

    publish = blocking(DirectPublisher.publish)


class DirectEvent(NamedTuple):
    """What was published. All times are Unix time."""

    topic: str
    value: Any
    """As the topic's type says; octets where it has none."""
    published_ns: int
    arrived_ns: int
    """When this host had the last packet."""
    received_ns: int
    session: int
    """Which publisher, since its start."""
    number: int
    """Which message of it, from 1 on."""

    @property
    def latency_seconds(self) -> float:
        """From publication to the program here, as far as the two clocks agree."""
        return (self.received_ns - self.published_ns) / 1e9

    @property
    def host_delay_seconds(self) -> float:
        """The part of that on this host."""
        return (self.received_ns - self.arrived_ns) / 1e9


@dataclass(frozen=True, slots=True)
class ReceivedCounters:
    """What happened so far."""

    received: int
    missing: int
    """Messages between the first and the last of each publisher that have not come."""
    undecodable: int
    """Messages that are none of the topic's type."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Packets by the reason why they were not used."""


class DirectSubscriber(Opened, EventSource[DirectEvent], _DirectEnd):
    """Opened by `async with`. `on_event` gets events at once, instead of the queue behind `async for`."""

    def __init__(
        self,
        topic: str | TypedTopic[Any],
        address: str,
        *,
        queue_events: int = 10_000,
        on_event: Callable[[DirectEvent], None] | None = None,
        **options: Any,
    ) -> None:
        if isinstance(topic, str):
            options["max_size_bytes"] = options.get("max_size_bytes") or _DEFAULT_LARGEST_BYTES
        super().__init__(topic, address, **options)
        self._queue: EventQueue[DirectEvent] = EventQueue(queue_events)
        self._hand_on = self._queue.put if on_event is None else on_event
        self._reassembly = Reassembly(self.topic, self.max_size_bytes)
        self._undecodable = 0
        self._receiver: MulticastReceiver | None = None
        self.host_delay = Latencies(_DELAY_PARTS)
        """From the arrival of the last packet to the program."""

    async def open(self) -> None:
        """Join the group."""
        self._receiver = MulticastReceiver(self._address, self._network)
        asyncio.get_running_loop().add_reader(self._receiver, self._readable)

    async def close(self) -> None:
        """Leave; events that are here can still be taken."""
        if self._receiver is not None:
            asyncio.get_running_loop().remove_reader(self._receiver)
            self._receiver.close()
            self._receiver = None
        self._queue.end()

    def _readable(self) -> None:
        for _ in range(_PACKETS_AT_ONCE):
            found = None if self._receiver is None else self._receiver.receive()
            if found is None:
                return
            packet, stamp_ns = found
            arrived_ns = time.time_ns() if stamp_ns is None else stamp_ns
            message = self._reassembly.add(packet, time.monotonic_ns())
            if message is not None and (event := self._event(message, arrived_ns)) is not None:
                notify(self._hand_on, event)

    def _event(self, message: DirectMessage, arrived_ns: int) -> DirectEvent | None:
        session, number, published_ns, payload = message
        value: Any = payload
        if self._typed is not None:
            try:
                value = self._typed.decode(payload)
            except ParameterError:
                self._undecodable += 1
                return None
        received_ns = time.time_ns()
        # Clocks of kernel and program may disagree.
        self.host_delay.add(max(0, received_ns - arrived_ns) / 1e9)
        return DirectEvent(self.topic, value, published_ns, arrived_ns, received_ns, session, number)

    @property
    def counters(self) -> ReceivedCounters:
        """What happened so far."""
        return ReceivedCounters(
            received=self._reassembly.seen.received,
            missing=self._reassembly.seen.missing,
            undecodable=self._undecodable,
            rejected={str(reason): count for reason, count in self._reassembly.rejected.items()},
        )


class BlockingDirectSubscriber(BlockingSource[DirectSubscriber, DirectEvent]):
    """The same without asyncio; iterate over it, or call `next`, in one thread."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        inner = DirectSubscriber(*arguments, **options)
        super().__init__(inner, inner)
