"""A publisher of one direct topic: straight to the subscribers, without a broker.

    publisher = DirectPublisher("ward/3/pulse", "239.1.2.3:7400", max_size_bytes=51, min_separation_seconds=0.02)
    async with publisher:
        await publisher.publish(b"61.5")

A promise holds only as long as its publisher keeps to what it has declared, and a publisher that does not is cut off by
the first switch. So a message that is too large is refused here, and one that comes too soon waits here: the separation
runs from the end of one message's sending to the beginning of the next. That wait is not host delay; it is counted.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from triagemq.client.direct.ends import AsyncEnd, BlockingEnd, DirectEnd
from triagemq.client.direct.host_delay import HostDelay
from triagemq.client.direct.multicast import MulticastSender
from triagemq.client.direct.shared_memory import MemoryWriter
from triagemq.client.direct.wire import (
    HEADER_BYTES,
    NO_ORDERS,
    UDP_BYTES,
    DirectMessage,
    new_session,
    packets_of,
    topic_mark,
)
from triagemq.client.types import TypedTopic
from triagemq.errors import ClosedError, ParameterError


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
        """Of the coordinator's orders; subscribers tell by it whether an event comes to them another way."""
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
        """Follow other orders from the next event on; the separation is kept."""
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
