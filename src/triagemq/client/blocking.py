"""Publisher and Subscriber for programs without asyncio: an event loop in a thread of its own does the work.

with BlockingSubscriber("http://127.0.0.1:8080", name="ff-7") as subscriber:
    subscriber.subscribe("building/3/+/smoke", utility="log:10")
    for event in subscriber:
        print(event.topic, event.payload)
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

from triagemq.client.connection import ConnectionCounters
from triagemq.client.coordinator import Promise
from triagemq.client.events import Event
from triagemq.client.publisher import Publisher
from triagemq.client.subscriber import Subscriber
from triagemq.client.types import TypedTopic
from triagemq.errors import ClosedError
from triagemq.intents import Declared, Wanted

_Result = TypeVar("_Result")
_Participant = TypeVar("_Participant", Publisher, Subscriber)


class _LoopThread:
    """An event loop in a daemon thread: a program that forgets to close can still end."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do it there, wait for it here."""
        if not self._thread.is_alive():
            work.close()
            raise ClosedError("it was closed; make a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C here must end the waiting there, too.
            future.cancel()
            raise

    def end(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()


class _Blocking(Generic[_Participant]):
    """Opened when it is made, closed by `close` or the end of `with`."""

    def __init__(self, kind: type[_Participant], coordinator: str | None, options: Mapping[str, Any]) -> None:
        self._loop = _LoopThread(f"triagemq-{kind.__name__.lower()}")
        try:
            self._inner: _Participant = self._loop.call(_opened(kind, coordinator, options))
        except BaseException:
            self._loop.end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """See Publisher and Subscriber; idempotent."""
        try:
            self._loop.call(self._inner.close())
        except ClosedError:
            pass
        finally:
            self._loop.end()


class BlockingPublisher(_Blocking[Publisher]):
    """Takes what Publisher takes. Its methods may be called by several threads."""

    def __init__(self, coordinator: str | None = None, **options: Any) -> None:
        super().__init__(Publisher, coordinator, options)

    def declare(
        self, rates: Mapping[str, float | tuple[float, float] | None], *, size_bytes: float | None = None
    ) -> None:
        """See Publisher."""
        self._loop.call(self._inner.declare(rates, size_bytes=size_bytes))

    def declare_all(self, declared: Iterable[Declared]) -> None:
        """See Publisher."""
        self._loop.call(self._inner.declare_all(declared))

    def addresses(self) -> dict[str, str]:
        """See Publisher."""
        return self._loop.call(self._inner.addresses())

    def publish(
        self,
        topic: str | int | TypedTopic[Any],
        payload: Any,
        *,
        qos: int = 0,
        retain: bool = False,
        wait: bool = True,
    ) -> bool:
        """See Publisher."""
        return self._loop.call(self._inner.publish(topic, payload, qos=qos, retain=retain, wait=wait))

    def flush(self) -> None:
        """See Publisher."""
        self._loop.call(self._inner.flush())

    @property
    def counters(self) -> ConnectionCounters:
        """What happened so far."""
        return self._inner.counters


class BlockingSubscriber(_Blocking[Subscriber]):
    """Takes what Subscriber takes; iterate over it, or call `next`, in one thread."""

    def __init__(self, coordinator: str | None = None, **options: Any) -> None:
        super().__init__(Subscriber, coordinator, options)
        self._taken: deque[Event] = deque()

    def subscribe(self, topic: str | int | TypedTopic[Any], **wanted: Any) -> None:
        """See Subscriber."""
        self._loop.call(self._inner.subscribe(topic, **wanted))

    def subscribe_all(self, wanted: Iterable[Wanted]) -> None:
        """See Subscriber."""
        self._loop.call(self._inner.subscribe_all(wanted))

    def unsubscribe(self, *topics: str | int) -> None:
        """See Subscriber."""
        self._loop.call(self._inner.unsubscribe(*topics))

    def promise(self, topic: str, timeout_seconds: float = 10.0) -> Promise | None:
        """See Subscriber."""
        return self._loop.call(self._inner.promise(topic, timeout_seconds))

    def __iter__(self) -> Iterator[Event]:
        while True:
            if not self._taken:
                try:
                    self._taken.extend(self._loop.call(self._inner.take_all()))
                except ClosedError:
                    return
            if not self._taken:
                return
            yield self._taken.popleft()

    def next(self, timeout_seconds: float | None = None) -> Event | None:
        """The next event; None when none has come in that time, or the subscriber was closed."""
        if self._taken:
            return self._taken.popleft()
        return self._loop.call(self._inner.next(timeout_seconds))

    @property
    def overflowed(self) -> int:
        """Events that were dropped because the program did not take them in time."""
        return self._inner.overflowed


async def _opened(
    kind: type[_Participant], coordinator: str | None, options: Mapping[str, Any]
) -> _Participant:
    participant = kind(coordinator, **options)
    await participant.open()
    return participant
