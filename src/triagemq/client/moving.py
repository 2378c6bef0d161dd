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
from collections.abc import Callable

from triagemq.client.connection import Connection
from triagemq.client.events import Event
from triagemq.waiting import is_set_within

QUIET_SECONDS = 1.0
"""A gateway that has brought nothing for so long but what the other brought, too, has nothing more of its own."""

_RACE_SECONDS = 0.5
"""By so much the one may be ahead of the other with the same event."""

_LONGEST_SECONDS = 30.0
_LONGEST_ABSENCE_SECONDS = 3600.0
"""So long a gateway that is away is waited for."""

_MOST_REMEMBERED = 100_000
"""Events of one gateway that are known again when the other brings them."""

_SETTLING_SECONDS = 5.0
_LOOK_SECONDS = 0.1
"""Looking is work, and hundreds of subscribers may move at once."""

_Identity = int
"""A hash: of many large events no more is remembered."""


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
        # How often the old one has brought an event more often than the new one; below 0 the new one is ahead.
        self._ahead: Counter[_Identity] = Counter()
        self._held: dict[str, list[Event]] = {}
        self._switched: set[str] = set()
        # Nothing is held any more; and nothing is compared any more.
        self._is_released = self.is_over = False
        self._joined_at = float("inf")
        self.duplicates = 0
        # What the old gateway brought first, and when: since a little before the new one brings everything.
        self._from_old: deque[tuple[float, _Identity]] = deque(maxlen=_MOST_REMEMBERED)

    def old(self, event: Event) -> None:
        """From the gateway that is left."""
        identity = _identity(event)
        if self._count(identity, 1) < 0:
            self.duplicates += 1
            if any(_identity(each) == identity for each in self._held.get(event.topic, ())):
                # Both are at the same event: the old one has lost what is before it; what is behind comes from the new.
                self._release(event.topic)
            return
        self._from_old.append((time.monotonic(), identity))
        self.hand_on(event)

    def new(self, event: Event) -> None:
        """From the gateway to which it goes."""
        if self.is_over:
            self.hand_on(event)
            return
        if event.retained and time.monotonic() < self._joined_at + _SETTLING_SECONDS:
            # It was there when the subscriber came first.
            return
        if self._count(_identity(event), -1) > 0:
            # The old one is as far as this, or further; no more has to be waited for.
            self.duplicates += 1
            self._release(event.topic)
        elif self._is_released or event.topic in self._switched:
            self.hand_on(event)
        else:
            self._held.setdefault(event.topic, []).append(event)

    def _count(self, identity: _Identity, more: int) -> int:
        """By how much the old one was ahead with this event."""
        before = self._ahead[identity]
        self._ahead[identity] += more
        if before == -more:
            del self._ahead[identity]
        elif len(self._ahead) > _MOST_REMEMBERED:
            del self._ahead[next(iter(self._ahead))]
        return before

    def joined(self, now: float) -> None:
        """The new gateway brings everything from now on."""
        self._joined_at = now
        while self._from_old and self._from_old[0][0] < now - _RACE_SECONDS:
            self._from_old.popleft()

    def alone_at(self, now: float) -> float:
        """When the old gateway last brought something that the new one has not, as far as that is known now."""
        alone = (
            at
            for at, identity in reversed(self._from_old)
            if at < now - _RACE_SECONDS and self._ahead[identity] > 0
        )
        return next(alone, 0.0)

    @property
    def is_level(self) -> bool:
        """Has the new gateway brought all that the old one has brought since it does so?"""
        return not any(self._ahead[identity] > 0 for _, identity in self._from_old)

    def finish(self) -> None:
        """For what comes from the old gateway, if anything does, nothing waits."""
        self._is_released = True
        for topic in list(self._held):
            self._release(topic)

    def _release(self, topic: str) -> None:
        self._switched.add(topic)
        for event in self._held.pop(topic, ()):
            self.hand_on(event)


def _identity(event: Event) -> _Identity:
    return hash((event.topic, event.payload, event.published_ns))


async def drained(handover: Handover, left: Connection, closing: asyncio.Event) -> None:
    """Until the gateway that is left has sent all that it had, as far as is known, or the subscriber closes.

    One that is away is waited for: it has stored what it had acknowledged. What the new one brings is handed on then. A
    connection may not know yet that its gateway is gone: silence counts only if the gateway answers after it.
    """
    began = now = time.monotonic()
    back_at: float | None = None
    asked_at = _probe(left)
    while not closing.is_set() and now < began + _LONGEST_ABSENCE_SECONDS:
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
        await is_set_within(closing, _LOOK_SECONDS)
        now = time.monotonic()
    handover.finish()


def _probe(left: Connection) -> float:
    """Probe a gateway: it is there when something comes from it after this time."""
    left.probe()
    return asyncio.get_running_loop().time()


async def level(handover: Handover, closing: asyncio.Event) -> None:
    """After that: until the new gateway has brought what the old one had brought before it."""
    ends = time.monotonic() + _SETTLING_SECONDS
    while not (handover.is_level or closing.is_set() or time.monotonic() > ends):
        await is_set_within(closing, _LOOK_SECONDS)
