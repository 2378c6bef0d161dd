"""A topic filter as the broker knows it: who gets its messages, who is waiting to, and by which numbers it goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from triagemq.exchange.gateway.model import Session, Subscription
from triagemq.exchange.gateway.routes import Origin
from triagemq.exchange.mqtt.packets import Message

__all__ = ["Filter", "Identifiers", "Join"]

_LONG_AGO_NS = -(10**18)
_LAST_IDENTIFIER = 0x0FFF_FFFF
# A filter's identifiers whose retained messages may still come.
_KEPT_IDENTIFIERS = 64
# Messages with the identifier of a filter that was dropped may still be on their way.
_KEPT_OLD_IDENTIFIERS = 10_000


@dataclass(slots=True, eq=False)
class Join:
    """A client that waits for the answer to a SUBSCRIBE."""

    session: Session
    subscription: Subscription
    answer: Callable[[int], None]


@dataclass(slots=True, eq=False)
class Filter:
    """One filter over one lane of a link. `granted` is the broker's QoS, -1 before its first answer."""

    topic_filter: str
    lane: int
    identifier: int = 0
    granted: int = -1
    members: dict[Session, Subscription] = field(default_factory=dict)
    # Those who wait for the next SUBSCRIBE, and those whose SUBSCRIBE is on its way.
    joining: list[Join] = field(default_factory=list)
    asking: list[Join] = field(default_factory=list)
    packet_id: int = 0
    # Identifier of a SUBSCRIBE to those who get the retained messages that it brings.
    fetchers: dict[int, dict[Session, None]] = field(default_factory=dict)
    # Retained messages that came before the answer to the SUBSCRIBE that fetched them.
    early: list[tuple[Origin, Message]] = field(default_factory=list)
    asked_ns: int = _LONG_AGO_NS

    @property
    def qos(self) -> int:
        """The highest that anybody wants."""
        wanted = [subscription.qos for subscription in self.members.values()]
        wanted += [join.subscription.qos for join in (*self.asking, *self.joining)]
        return max(wanted, default=0)

    @property
    def is_unused(self) -> bool:
        """Does nobody want it, or wait for an answer about it?"""
        return not (self.members or self.joining or self.asking or self.packet_id)

    def leave(self, session: Session) -> int:
        """A client does not want it any more; the number of answers for which it does not wait now."""
        self.members.pop(session, None)
        for fetchers in self.fetchers.values():
            fetchers.pop(session, None)
        return self.withdraw(session)

    def withdraw(self, session: Session) -> int:
        """A client does not wait for answers about it any more; the number of these."""
        before = len(self.joining) + len(self.asking)
        if before:
            self.joining = [join for join in self.joining if join.session is not session]
            self.asking = [join for join in self.asking if join.session is not session]
        return before - len(self.joining) - len(self.asking)

    def ask_again(self) -> None:
        """What was asked will not be answered: all of it is to be asked anew."""
        self.joining = [*self.asking, *self.joining]
        self.asking = []
        self.packet_id = 0


class Identifiers:
    """The subscription identifiers (MQTT 5) of all filters of a link. Every SUBSCRIBE has one of its own."""

    def __init__(self) -> None:
        self._filters: dict[int, Filter] = {}
        self._old: dict[int, None] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._filters) + len(self._old)

    def give(self, entry: Filter) -> None:
        """Another one for a filter that is subscribed to again."""
        entry.identifier = self._next
        self._next = self._next % _LAST_IDENTIFIER + 1
        self._filters[entry.identifier] = entry
        if len(entry.fetchers) >= _KEPT_IDENTIFIERS:
            oldest = next(iter(entry.fetchers))
            del entry.fetchers[oldest]
            self._filters.pop(oldest, None)

    def restore(self, entry: Filter) -> None:
        """Put back one of before a restart."""
        if entry.identifier:
            self._filters[entry.identifier] = entry
            self._next = max(self._next, entry.identifier % _LAST_IDENTIFIER + 1)

    def forget(self, entry: Filter) -> None:
        """A filter is dropped; its identifiers mean nothing for a while, and then nothing that we know of."""
        for identifier in {entry.identifier, *entry.fetchers}:
            if self._filters.pop(identifier, None) is not None:
                self._old[identifier] = None
        while len(self._old) > _KEPT_OLD_IDENTIFIERS:
            del self._old[next(iter(self._old))]

    def filters(self, origin: Origin) -> list[Filter] | None:
        """The filters that a message is for; None if an identifier is of an earlier gateway."""
        of_now = [identifier for identifier in origin if identifier not in self._old]
        known = [entry for entry in map(self._filters.get, of_now) if entry is not None]
        return known if len(known) == len(of_now) else None
