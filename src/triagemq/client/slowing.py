"""What a publisher does when it is asked to slow down: switches cannot be as quick as a subscriber needs it.

The coordinator asks for a rate by topic, and takes that back when delays allow it. A sensor's next reading is worth
more than an old one, so that by default publishing waits for its turn: whoever reads, then publishes and awaits that,
reads less often, and nothing that was read is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

from triagemq.errors import ParameterError
from triagemq.waiting import is_set_within

SlowDownMode = Literal["wait", "skip", "ignore"]
"""An event that comes too early waits for its turn, is left out, or is published all the same."""

_MODES = ("wait", "skip", "ignore")


class TopicRates:
    """The rates asked for, and when each topic may be published next. An event may come early by one place."""

    def __init__(self, mode: str, on_slow_down: Callable[[Mapping[str, float]], None] | None) -> None:
        if mode not in _MODES:
            raise ParameterError("slow_down", f"is {mode!r}; it is one of {', '.join(_MODES)}")
        self._mode = mode
        self._on_slow_down = on_slow_down
        self._due: dict[str, float] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._changed = asyncio.Event()
        self.asked: Mapping[str, float] = {}
        """Events per second, by topic, of those that are to slow down."""
        self.skipped = 0
        """Events that were left out."""

    def ask(self, rates: Mapping[str, float]) -> None:
        """These topics are to be published no more often than that, and all others as they come."""
        if rates == self.asked:
            return
        self._follow(rates)
        if self._on_slow_down is not None:
            # Later, so that a mistake in it is nobody else's.
            asyncio.get_running_loop().call_soon(self._on_slow_down, self.asked)

    def close(self) -> None:
        """Nobody waits for a turn any more."""
        self._follow({})

    def _follow(self, rates: Mapping[str, float]) -> None:
        self.asked = dict(rates)
        self._due = {topic: due for topic, due in self._due.items() if topic in rates}
        self._changed.set()
        self._changed = asyncio.Event()

    async def turn(self, topic: object) -> bool:
        """Wait until an event may be published; False if it is to be left out."""
        if not isinstance(topic, str) or topic not in self.asked or self._mode == "ignore":
            return True
        now = asyncio.get_running_loop().time
        if self._mode == "skip":
            if self._wait_seconds(topic, now()) > 0:
                self.skipped += 1
                return False
            self._take(topic, now())
            return True
        # In the order in which they came.
        async with self._turns.setdefault(topic, asyncio.Lock()):
            while (wait := self._wait_seconds(topic, now())) > 0:
                await is_set_within(self._changed, wait)
            self._take(topic, now())
        return True

    def _wait_seconds(self, topic: str, now: float) -> float:
        return self._due.get(topic, now) - now if topic in self.asked else 0.0

    def _take(self, topic: str, now: float) -> None:
        if topic in self.asked:
            between = 1.0 / self.asked[topic]
            self._due[topic] = max(self._due.get(topic, now), now - between) + between
