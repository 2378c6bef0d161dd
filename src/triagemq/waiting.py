"""Waiting in an event loop: for tasks until they have ended, and for what may not happen in time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any


async def end(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel tasks, as far as there are any, and wait until they have ended."""
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether it is set after so many seconds at most; None waits for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
