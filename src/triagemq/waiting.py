"""Waiting in an event loop: for tasks until they have ended, and for what may not happen in time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

_Result = TypeVar("_Result")


async def end(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, as far as there are any, and wait until they have ended."""
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)


class Opened:
    """Opened by `async with`, and closed in the end."""

    async def open(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Tasks:
    """The background tasks of one owner: started here, and ended together."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, _Result]) -> asyncio.Task[_Result]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def close(self) -> None:
        """Cancel all, and wait until they have ended."""
        await end(*self._running)


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether it is set after so many seconds at most; None waits for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
