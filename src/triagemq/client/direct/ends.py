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

A message that comes by memory and by multicast is handed on once. Lost messages are not sent again; they are counted.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Self

from triagemq.client.connection import notify
from triagemq.client.direct.memory import MemoryReader, MemoryWriter
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
from triagemq.client.events import EventQueue, Overflow, latency_bin, percentile_seconds
from triagemq.client.types import TypedTopic
from triagemq.errors import ClosedError, ParameterError
from triagemq.mqttsn import valid_topic_name

_LARGEST_MESSAGE = 16 << 20
_PACKETS_AT_ONCE = 64
_DEFAULT_LARGEST_BYTES = 65_536
_HOST_DELAY_PARTS = 32


class HostDelay:
    """Delays in nanoseconds that the host adds, which is no part of a promise's bound.

    >>> delays = HostDelay()
    >>> for microseconds in range(1, 1_001):
    ...     delays.add(1_000 * microseconds)
    >>> abs(delays.quantile(0.5) / 500e-6 - 1) < 0.03
    True
    >>> delays.as_json()["count"], delays.as_json()["worst_seconds"]
    (1000, 0.001)
    """

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self.count = 0
        self.worst_seconds = 0.0

    def add(self, delay_ns: int) -> None:
        """Clocks of two hosts may disagree: what seems to be negative counts as nothing."""
        seconds = max(0, delay_ns) / 1e9
        self.count += 1
        self.worst_seconds = max(self.worst_seconds, seconds)
        self._bins[latency_bin(seconds, _HOST_DELAY_PARTS)] += 1

    def quantile(self, share: float) -> float | None:
        """The delay in seconds that this share does not exceed, to 3 %; None if there is none."""
        found = percentile_seconds(self._bins, share, _HOST_DELAY_PARTS)
        return None if found is None else min(found, self.worst_seconds)

    def as_json(self) -> dict[str, Any]:
        """How many, and p50, p99.9 and the worst, in seconds."""
        return {
            "count": self.count,
            "p50_seconds": self.quantile(0.5),
            "p99_9_seconds": self.quantile(0.999),
            "worst_seconds": self.worst_seconds if self.count else None,
        }


class DirectEnd(ABC):
    """`address` None is for this host alone."""

    def __init__(
        self,
        topic: str | TypedTopic[Any],
        address: str | None,
        *,
        max_size_bytes: int | None = None,
        network: NetworkSettings | None = None,
        shared_memory: bool = True,
    ) -> None:
        self._typed = None if isinstance(topic, str) else topic
        self.topic = topic if isinstance(topic, str) else topic.topic
        if not valid_topic_name(self.topic):
            raise ParameterError("topic", f"{self.topic!r} is no topic name")
        if address is None and not shared_memory:
            raise ParameterError("address", "is needed without shared memory; give GROUP:PORT")
        self._address = None if address is None else GroupAddress.parse(address)
        self._network = network or NetworkSettings()
        self._shares = shared_memory
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

    @property
    def _meets_at(self) -> str:
        """What ends on one host have in common beside the topic."""
        return "" if self._address is None else str(self._address)

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...


class AsyncEnd(DirectEnd):
    """For asyncio."""

    async def open(self) -> None:
        """Take the sockets, meet those on this host."""
        self._open()

    async def close(self) -> None:
        """Idempotent."""
        self._close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class BlockingEnd(DirectEnd):
    """Opened when it is made, closed by `close` or the end of `with`."""

    def close(self) -> None:
        """Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class SentCounters:
    """What happened so far."""

    published: int
    held_back: int
    """Messages that came sooner than declared, and waited."""
    held_back_seconds: float
    not_sent: int
    """Packets that the system did not take: no route, or an interface that is down."""
    local_readers: int
    """Subscribers of this host, as far as they are known."""


class _Sending(DirectEnd):
    """What both kinds of publisher do; they differ in how they wait."""

    def __init__(
        self,
        topic: str | TypedTopic[Any],
        address: str | None,
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
        version = 4 if self._address is None else self._address.version
        self._payload_bytes = self._network.mtu_bytes - UDP_BYTES[version] - HEADER_BYTES
        self.generation = generation
        """Of the coordinator's orders; subscribers know by it whether an event comes by the gateway, too."""
        self._session = self._number = 0
        self._memory: MemoryWriter | None = None
        self._sender: MulticastSender | None = None
        self._is_open = False
        self._earliest_ns = self._begun_ns = 0
        self._held_back = self._held_back_ns = 0
        self.host_delay = HostDelay()
        """From `publish` (or the end of its wait) until the system has the last packet."""

    def _open(self) -> None:
        if self._is_open:
            return
        # A subscriber knows a publisher by its ring: opened again, it is another one.
        self._session, self._number = new_session(self.generation), 0
        if self._address is not None:
            self._sender = MulticastSender(self._address, self._network)
        try:
            if self._shares:
                self._memory = MemoryWriter(self.topic, self._meets_at, self._session, self.max_size_bytes)
        except BaseException:
            if self._sender is not None:
                self._sender.close()
            raise
        self._is_open = True

    def _close(self) -> None:
        # Both parts keep their counters, which may be read after the end.
        if self._is_open:
            self._is_open = False
            for part in (self._memory, self._sender):
                if part is not None:
                    part.close()

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
        return max(0, self._earliest_ns - time.monotonic_ns()) / 1e9

    def _note_pause(self, seconds: float) -> None:
        self._held_back += 1
        self._held_back_ns += round(1e9 * seconds)

    def _begin(self, payload: bytes) -> Sequence[bytes]:
        """Send; the packets that must wait for room."""
        if not self._is_open:
            raise ClosedError(f"the publisher of {self.topic!r} is not open; use it with `with`")
        self._begun_ns = time.monotonic_ns()
        self._number += 1
        message = DirectMessage(self._session, self._number, time.time_ns(), payload)
        if self._memory is not None:
            self._memory.write(message.number, message.published_ns, payload)
        if self._sender is None:
            return ()
        return self._sender.send(packets_of(message, self._mark, self._payload_bytes))

    def _end(self) -> None:
        now_ns = time.monotonic_ns()
        self.host_delay.add(now_ns - self._begun_ns)
        self._earliest_ns = now_ns + self._separation_ns

    @property
    def counters(self) -> SentCounters:
        """What happened so far."""
        return SentCounters(
            published=self._number,
            held_back=self._held_back,
            held_back_seconds=self._held_back_ns / 1e9,
            not_sent=0 if self._sender is None else self._sender.not_sent,
            local_readers=0 if self._memory is None else self._memory.readers,
        )

    @property
    def problem(self) -> str:
        """Why the last packet was not sent; empty if it was."""
        return "" if self._sender is None else self._sender.problem


class DirectPublisher(_Sending, AsyncEnd):
    """For asyncio. See the module's text; `address` None is for subscribers of this host alone."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._turn = asyncio.Lock()

    async def renew(self, generation: int) -> None:
        """Follow other orders from the next event on; the separation holds."""
        async with self._turn:
            self._close()
            self.generation = generation
            self._open()

    async def publish(self, value: Any) -> None:
        """Octets, or a value of the typed topic; returns when the system has all of it."""
        payload = self._encoded(value)
        async with self._turn:
            if pause := self._pause_seconds():
                self._note_pause(pause)
                while pause := self._pause_seconds():
                    await asyncio.sleep(pause)
            rest = self._begin(payload)
            try:
                while rest:
                    rest = await self._go_on(rest)
            finally:
                # Also of one that was given up half sent: the next one must keep its distance.
                self._end()

    async def _go_on(self, rest: Sequence[bytes]) -> Sequence[bytes]:
        assert self._sender is not None
        loop, writable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._sender, writable.set)
        try:
            await writable.wait()
        finally:
            loop.remove_writer(self._sender)
        return self._sender.send(rest)


class BlockingDirectPublisher(_Sending, BlockingEnd):
    """The same without asyncio; its methods may be called by several threads."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._turn = threading.Lock()
        self._open()

    def close(self) -> None:
        """Idempotent."""
        with self._turn:
            self._close()

    def publish(self, value: Any) -> None:
        """See DirectPublisher."""
        payload = self._encoded(value)
        with self._turn:
            if pause := self._pause_seconds():
                self._note_pause(pause)
                while pause := self._pause_seconds():
                    time.sleep(pause)
            rest = self._begin(payload)
            while rest:
                assert self._sender is not None
                select.select([], [self._sender], [])
                rest = self._sender.send(rest)
            self._end()


class DirectWay(StrEnum):
    """How a message came."""

    MEMORY = "memory"
    MULTICAST = "multicast"


class DirectEvent(NamedTuple):
    """What was published. All times are Unix time."""

    topic: str
    value: Any
    """As the topic's type says; octets where it has none."""
    published_ns: int
    arrived_ns: int
    """When this host had the last packet; in shared memory, when it was published."""
    received_ns: int
    way: DirectWay
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
    overrun: int
    """Those of them that a publisher of this host has replaced before they were read."""
    undecodable: int
    """Messages that are none of the topic's type."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Packets, and messages in shared memory, by the reason why they were not used."""


class _Receiving(DirectEnd):
    """What both kinds of subscriber do."""

    def __init__(self, topic: str | TypedTopic[Any], address: str | None, **options: Any) -> None:
        if isinstance(topic, str):
            options["max_size_bytes"] = options.get("max_size_bytes") or _DEFAULT_LARGEST_BYTES
        super().__init__(topic, address, **options)
        self._reassembly = Reassembly(self.topic, self.max_size_bytes)
        self._seen = self._reassembly.seen
        self._undecodable = self._overrun_before = 0
        self._memory: MemoryReader | None = None
        self._receiver: MulticastReceiver | None = None
        self.host_delay = {way: HostDelay() for way in DirectWay}
        """From arrival to the program. In shared memory there is nothing else: it runs from publication."""

    def _open(self) -> None:
        try:
            if self._shares:
                self._memory = MemoryReader(self.topic, self._meets_at, self._seen.expect)
            if self._address is not None:
                self._receiver = MulticastReceiver(self._address, self._network)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._memory is not None:
            self._overrun_before += self._memory.overrun
            self._memory.close()
        if self._receiver is not None:
            self._receiver.close()
        self._memory = self._receiver = None

    def _from_memory(self) -> Iterator[DirectEvent]:
        assert self._memory is not None
        for message in self._memory.receive():
            refused = self._seen.take(message.session, message.number)
            if refused is None:
                yield from self._event(message, message.published_ns, DirectWay.MEMORY)
            else:
                self._reassembly.rejected[refused] += 1

    def _from_network(self) -> Iterator[DirectEvent]:
        receiver = self._receiver
        assert receiver is not None
        for _ in range(_PACKETS_AT_ONCE):
            found = receiver.receive()
            if found is None:
                return
            packet, stamp_ns = found
            arrived_ns = time.time_ns() if stamp_ns is None else stamp_ns
            message = self._reassembly.add(packet, time.monotonic_ns())
            if message is not None:
                yield from self._event(message, arrived_ns, DirectWay.MULTICAST)

    def _event(self, message: DirectMessage, arrived_ns: int, way: DirectWay) -> Iterable[DirectEvent]:
        session, number, published_ns, payload = message
        value: Any = payload
        if self._typed is not None:
            try:
                value = self._typed.decode(payload)
            except ParameterError:
                self._undecodable += 1
                return ()
        received_ns = time.time_ns()
        self.host_delay[way].add(received_ns - arrived_ns)
        return (DirectEvent(self.topic, value, published_ns, arrived_ns, received_ns, way, session, number),)

    @property
    def counters(self) -> ReceivedCounters:
        """What happened so far."""
        return ReceivedCounters(
            received=self._seen.received,
            missing=self._seen.missing,
            overrun=self._overrun_before + (0 if self._memory is None else self._memory.overrun),
            undecodable=self._undecodable,
            rejected={str(reason): count for reason, count in self._reassembly.rejected.items()},
        )


class DirectSubscriber(_Receiving, AsyncEnd):
    """For asyncio. `on_event` gets events at once, instead of the queue behind `async for`."""

    def __init__(
        self,
        topic: str | TypedTopic[Any],
        address: str | None,
        *,
        queue_events: int = 10_000,
        overflow: Overflow | str = Overflow.DROP_OLDEST,
        on_event: Callable[[DirectEvent], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(topic, address, **options)
        self._queue: EventQueue[DirectEvent] = EventQueue(queue_events, Overflow(overflow))
        self._hand_on = self._queue.put if on_event is None else on_event

    async def open(self) -> None:
        """Join the group, and meet the publishers of this host."""
        self._open()
        loop = asyncio.get_running_loop()
        if self._memory is not None:
            loop.add_reader(self._memory, self._readable, self._from_memory)
        if self._receiver is not None:
            loop.add_reader(self._receiver, self._readable, self._from_network)

    async def close(self) -> None:
        """Leave; events that are here can still be taken."""
        loop = asyncio.get_running_loop()
        for part in (self._memory, self._receiver):
            if part is not None:
                loop.remove_reader(part)
        self._close()
        self._queue.end()

    def _readable(self, take: Callable[[], Iterator[DirectEvent]]) -> None:
        for event in take():
            notify(self._hand_on, event)

    def __aiter__(self) -> AsyncIterator[DirectEvent]:
        return self

    async def __anext__(self) -> DirectEvent:
        event = await self._queue.take()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self, timeout_seconds: float | None = None) -> DirectEvent | None:
        """The next event; None when none has come in that time, or the subscriber was closed."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._queue.take()
        except TimeoutError:
            return None

    async def take_all(self) -> list[DirectEvent]:
        """All events that are here, at least one; none when the subscriber was closed."""
        return await self._queue.take_all()

    @property
    def overflowed(self) -> int:
        """Events that were dropped because the program did not take them in time."""
        return self._queue.overflowed


class BlockingDirectSubscriber(_Receiving, BlockingEnd):
    """The same without asyncio and without a thread; iterate over it, or call `next`, in one thread."""

    def __init__(self, topic: str | TypedTopic[Any], address: str | None, **options: Any) -> None:
        super().__init__(topic, address, **options)
        self._taken: deque[DirectEvent] = deque()
        self._open()
        self._poll = select.poll()
        self._takers: dict[int, Callable[[], Iterator[DirectEvent]]] = {}
        if self._memory is not None:
            self._takers[self._memory.fileno()] = self._from_memory
        if self._receiver is not None:
            self._takers[self._receiver.fileno()] = self._from_network
        for number in self._takers:
            self._poll.register(number, select.POLLIN)

    def close(self) -> None:
        """Idempotent."""
        self._takers.clear()
        self._close()

    def __iter__(self) -> Iterator[DirectEvent]:
        while (event := self.next()) is not None:
            yield event

    def next(self, timeout_seconds: float | None = None) -> DirectEvent | None:
        """The next event; None when none has come in that time."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self._taken:
            if not self._takers:
                raise ClosedError(f"the subscriber of {self.topic!r} was closed")
            left = None if deadline is None else 1000 * max(0.0, deadline - time.monotonic())
            ready = self._poll.poll(left)
            for number, _ in ready:
                self._taken.extend(self._takers[number]())
            if not ready and deadline is not None and time.monotonic() >= deadline:
                break
        return self._taken.popleft() if self._taken else None
