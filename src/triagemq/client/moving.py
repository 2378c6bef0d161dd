"""Moving from one gateway to another without a gap: for a while events come from both, and each is handed on once.

The gateway that is left has events in its queues that the other never sees: these come first. What the new one sends
waits, topic by topic, until the old one has come to the same event, or has nothing more. An event is known again by its
topic, its octets, and the time of its publication where it carries one: equal events without one that come while a
subscriber moves may be taken for each other.

A gateway that is left because it is away has stored messages that were acknowledged. When it is back they are fetched,
those alone that the new one has not brought, and the session there is ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from triagemq.client.connection import Connection
from triagemq.client.coordinator import Assignment, Direction
from triagemq.client.events import Event
from triagemq.errors import CoordinatorError
from triagemq.waiting import end

QUIET_SECONDS = 1.0
"""A gateway that has brought nothing for so long but what the other brought, too, has nothing more of its own."""

_RACE_SECONDS = 0.5
"""By so much the one may be ahead of the other with the same event."""

_LONGEST_SECONDS = 30.0
_LONGEST_ABSENCE_SECONDS = 3600.0
"""So long a gateway that is away is waited for."""

_MOST_REMEMBERED = 100_000
"""Events of the new gateway that are known again when the old one brings them."""

_SETTLING_SECONDS = 5.0
_LOOK_SECONDS = 0.1
"""Looking is work, and hundreds of subscribers may move at once."""

_PROMPT_SECONDS = 2.0

AWAY_PAUSE_SECONDS = 1.0
"""Before a coordinator or gateway that cannot be reached is tried again."""

POLL_SECONDS = 20.0
POLL_PAUSE_SECONDS = 0.05
"""How long the coordinator may keep a request for news, and the pause before the next."""

AskWhere = Callable[[int], Awaitable[Assignment | Direction]]
"""Where to be, as soon as that is newer than a generation, or some seconds later."""

_Identity = int
"""A hash: of many large events no more is remembered."""


class Tap:
    """Where the events of one gateway go; this may change."""

    def __init__(self, take: Callable[[Event], None]) -> None:
        self.take = take

    def __call__(self, event: Event) -> None:
        self.take(event)


class Handover:
    """Events of two gateways as one stream, in the order of each topic, none lost and none twice.

    >>> got = []
    >>> moving = Handover(lambda event: got.append(event.payload))
    >>> smoke = [Event("smoke", b"%d" % number, None, 0) for number in range(5)]
    >>> moving.new(smoke[2]); moving.old(smoke[0]); moving.new(smoke[3]); moving.old(smoke[1]); got
    [b'0', b'1']
    >>> moving.old(smoke[2]); moving.old(smoke[3]); moving.new(smoke[4]); moving.old(smoke[4]); got
    [b'0', b'1', b'2', b'3', b'4']
    >>> moving.duplicates
    3
    """

    def __init__(self, hand_on: Callable[[Event], None]) -> None:
        self.hand_on = hand_on
        # What one of the two has brought, and the other not yet.
        self._only_old: Counter[_Identity] = Counter()
        self._only_new: Counter[_Identity] = Counter()
        self._held: dict[str, deque[Event]] = {}
        self._switched: set[str] = set()
        # Nothing is held any more; and nothing is compared any more.
        self._is_released = self.is_over = False
        self._joined_at = float("inf")
        self._order: deque[_Identity] = deque()
        self.duplicates = 0
        self.is_given_up = False
        """There is no more waiting for what the old gateway may have."""
        # What the old gateway brought first, and when: to be looked at, and all since the new one brings everything.
        self._from_old: deque[tuple[float, _Identity]] = deque()
        self._since_joined: deque[tuple[float, _Identity]] = deque()
        self._alone_at = 0.0

    def old(self, event: Event) -> None:
        """From the gateway that is left."""
        identity = _identity(event)
        if self._only_new[identity]:
            self._only_new[identity] -= 1
            self.duplicates += 1
            return
        held = self._held.get(event.topic)
        if held is not None and any(_identity(each) == identity for each in held):
            # Both are at the same event: the old one has lost what is before it; what is behind it comes from the new.
            self._only_new[identity] -= 1
            self.duplicates += 1
            self._release(event.topic)
            return
        self._only_old[identity] += 1
        now = time.monotonic()
        self._from_old.append((now, identity))
        self._since_joined.append((now, identity))
        self.hand_on(event)

    def new(self, event: Event) -> None:
        """From the gateway to which it goes."""
        if self.is_over:
            self.hand_on(event)
            return
        identity = _identity(event)
        if event.retained and time.monotonic() < self._joined_at + _SETTLING_SECONDS:
            # It was there when the subscriber came first.
            return
        if self._only_old[identity]:
            # The old one is as far as this, or further; no more has to be waited for.
            self._only_old[identity] -= 1
            self.duplicates += 1
            self._release(event.topic)
        elif self._is_released or event.topic in self._switched:
            self._count_new(identity)
            self.hand_on(event)
        else:
            self._held.setdefault(event.topic, deque()).append(event)

    def joined(self, now: float) -> None:
        """The new gateway brings everything from now on."""
        self._joined_at = now
        while self._since_joined and self._since_joined[0][0] < now - _RACE_SECONDS:
            self._since_joined.popleft()

    def alone_at(self, now: float) -> float:
        """When the old gateway last brought something that the new one has not, as far as that is known now."""
        while self._from_old and self._from_old[0][0] < now - _RACE_SECONDS:
            at, identity = self._from_old.popleft()
            if self._only_old[identity]:
                self._alone_at = at
        return self._alone_at

    @property
    def is_level(self) -> bool:
        """Has the new gateway brought all that the old one has brought since it does so?"""
        return not any(self._only_old[identity] for _, identity in self._since_joined)

    def finish(self) -> None:
        """For what comes from the old gateway, if anything does, nothing waits."""
        self._is_released = True
        for topic in list(self._held):
            self._release(topic)

    def _release(self, topic: str) -> None:
        self._switched.add(topic)
        for event in self._held.pop(topic, ()):
            self._count_new(_identity(event))
            self.hand_on(event)

    def _count_new(self, identity: _Identity) -> None:
        self._only_new[identity] += 1
        self._order.append(identity)
        if len(self._order) > _MOST_REMEMBERED:
            oldest = self._order.popleft()
            self._only_new[oldest] -= 1
            if self._only_new[oldest] <= 0:
                del self._only_new[oldest]


def _identity(event: Event) -> _Identity:
    return hash((event.topic, event.payload, event.published_ns))


async def drained(handover: Handover, left: Connection) -> None:
    """Until the gateway that is left has sent all that it had, as far as one can tell.

    One that is away is waited for: it has stored what it had acknowledged. What the new one brings is handed on then. A
    connection may not know yet that its gateway is gone: silence counts only if the gateway answers after it.
    """
    began = now = time.monotonic()
    back_at: float | None = None
    asked_at = _probe(left)
    while not handover.is_given_up and now < began + _LONGEST_ABSENCE_SECONDS:
        if not left.is_active or (back_at is None and left.heard_at < asked_at):
            back_at = None
            if now >= began + _RACE_SECONDS or not left.is_active:
                handover.finish()
        else:
            back_at = now if back_at is None else back_at
            quiet_at = max(back_at, handover.alone_at(now)) + QUIET_SECONDS
            if now >= quiet_at or now >= back_at + _LONGEST_SECONDS:
                if left.heard_at >= asked_at >= quiet_at:
                    break
                if asked_at < quiet_at:
                    asked_at = _probe(left)
        await asyncio.sleep(_LOOK_SECONDS)
        now = time.monotonic()
    handover.finish()


def _probe(left: Connection) -> float:
    """Ask whether a gateway is there: it is when something is heard of it after this time."""
    left.probe()
    return asyncio.get_running_loop().time()


async def level(handover: Handover) -> None:
    """After that: until the new gateway has brought what the old one had brought before it."""
    began = time.monotonic()
    while not (handover.is_level or handover.is_given_up or time.monotonic() > began + _SETTLING_SECONDS):
        await asyncio.sleep(_LOOK_SECONDS)


async def unless_sent_elsewhere(
    moving: Coroutine[Any, Any, None], ask: AskWhere, gateway: str, after: int
) -> bool:
    """Move to a gateway; False if the coordinator names another one (`ask`) before that is done.

    Without that, a gateway that dies, or whose broker hangs, would keep its newcomers for ever.
    """
    task = asyncio.get_running_loop().create_task(moving)
    watching: asyncio.Task[None] | None = None
    try:
        # Most are there by then, and hundreds that move at once need not ask.
        await asyncio.wait({task}, timeout=_PROMPT_SECONDS)
        if not task.done():
            watching = asyncio.get_running_loop().create_task(_until_elsewhere(ask, gateway, after))
            await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        assert watching is not None
        watching.result()
        return False
    finally:
        await end(task, watching)


async def _until_elsewhere(ask: AskWhere, gateway: str, after: int) -> None:
    while True:
        try:
            found = await ask(after)
            if found.gateway and found.gateway != gateway:
                return
            after = found.generation
        except CoordinatorError:
            await asyncio.sleep(_PROMPT_SECONDS)
        await asyncio.sleep(_LOOK_SECONDS)


def nowhere(event: Event) -> None:
    """For what the gateway that was left still brings: the new one brings it, too."""
