"""Turns: calls that concern the same things go one after the other, others side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

__all__ = ["Turns"]

Thing = TypeVar("Thing", bound=Hashable)


class Turns(Generic[Thing]):
    """Who came first has its turn first, for each thing; nobody holds one thing while it waits for another."""

    def __init__(self) -> None:
        self._last: dict[Thing, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def of(self, things: Iterable[Thing]) -> AsyncIterator[None]:
        """Wait until all that were here before for one of the things are done."""
        mine = set(things)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        earlier = {self._last[thing] for thing in mine if thing in self._last}
        self._last |= dict.fromkeys(mine, done)
        try:
            # Whoever gives up while it waits still lets the next one wait for those before it.
            if earlier:
                await asyncio.shield(asyncio.gather(*earlier))
            yield
        finally:
            self._pass_on(mine, done, earlier)

    def _pass_on(
        self, things: set[Thing], done: asyncio.Future[None], earlier: set[asyncio.Future[None]]
    ) -> None:
        unfinished = [each for each in earlier if not each.done()]
        if unfinished:
            after = asyncio.gather(*unfinished)
            after.add_done_callback(lambda _: self._pass_on(things, done, set()))
            return
        if not done.done():
            done.set_result(None)
        for thing in things:
            if self._last.get(thing) is done:
                del self._last[thing]
