"""For programs without asyncio: an event loop in a thread of its own does the work.

with BlockingSubscriber("http://127.0.0.1:8080", name="ff-7") as subscriber:
    subscriber.subscribe("building/3/+/smoke", utility="log:10")
    for event in subscriber:
        print(event.topic, event.payload)
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from triagemq.client.events import Arrived, EventSource
from triagemq.errors import ClosedError
from triagemq.waiting import Opened

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_Inner = TypeVar("_Inner", bound=Opened)


class _LoopThread:
    """An event loop in a daemon thread: a program that forgets to close can still end."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

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
            self.call(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Blocking(Generic[_Inner]):
    """Opened when it is made, closed by `close` or the end of `with`. Figures are those of `inner`."""

    def __init__(self, inner: _Inner) -> None:
        self._inner = inner
        self._loop = _LoopThread(f"triagemq-{type(inner).__name__.lower()}")
        try:
            self._loop.call(inner.open())
        except BaseException:
            self._loop.end()
            raise

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or callable(value := getattr(self._inner, name)):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """See the class for asyncio; idempotent."""
        try:
            self._loop.call(self._inner.close())
        except ClosedError:
            pass
        finally:
            self._loop.end()


def blocking(
    method: Callable[Concatenate[_Inner, _Parameters], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[Blocking[_Inner], _Parameters], _Result]:
    """The method of the same name that waits for its result."""

    @wraps(method)
    def call(
        self: Blocking[_Inner], /, *arguments: _Parameters.args, **options: _Parameters.kwargs
    ) -> _Result:
        return self._loop.call(method(self._inner, *arguments, **options))

    return call


class BlockingSource(Blocking[_Inner], Generic[_Inner, Arrived]):
    """Iterate over it, or call `next`, in one thread."""

    def __init__(self, inner: _Inner, source: EventSource[Arrived]) -> None:
        super().__init__(inner)
        self._source = source
        self._taken: deque[Arrived] = deque()

    def __iter__(self) -> Iterator[Arrived]:
        while True:
            if not self._taken:
                try:
                    self._taken.extend(self._loop.call(self._source.take_all()))
                except ClosedError:
                    return
            if not self._taken:
                return
            yield self._taken.popleft()

    def next(self, timeout_seconds: float | None = None) -> Arrived | None:
        """The next event; None when none has come in that time, or the subscriber was closed."""
        if self._taken:
            return self._taken.popleft()
        return self._loop.call(self._source.next(timeout_seconds))
