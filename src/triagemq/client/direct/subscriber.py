"""A subscriber of one direct topic: in shared memory from publishers of this host, by multicast from all others.

    async with DirectSubscriber("ward/3/pulse", "239.1.2.3:7400") as subscriber:
        async for event in subscriber:
            print(event.value, event.latency_seconds)

A message that comes both ways is handed on once. What is lost is not sent again: it is counted as missing.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from triagemq.client.direct.ends import AsyncEnd, BlockingEnd, DirectEnd
from triagemq.client.direct.host_delay import HostDelay
from triagemq.client.direct.multicast import MulticastReceiver
from triagemq.client.direct.shared_memory import MemoryReader
from triagemq.client.direct.wire import DirectMessage, Reassembly
from triagemq.client.events import EventQueue, Overflow
from triagemq.client.types import TypedTopic
from triagemq.errors import ClosedError, ParameterError

_PACKETS_AT_ONCE = 64
_DEFAULT_LARGEST_BYTES = 65_536


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
            self._hand_on(event)

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
