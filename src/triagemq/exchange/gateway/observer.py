"""Who is told what became of every message; the live Trace is one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from triagemq.exchange.gateway.model import Delivery, Publication, Session, Subscription
    from triagemq.exchange.gateway.routes import Group
    from triagemq.trace.schema import Outcome

__all__ = ["Names", "Numbers", "Observer"]

Name = TypeVar("Name", bound=Hashable)
# Of those that are gone: whoever returns soon has its number again.
_KEPT_NAMES = 10_000


class Observer(Protocol):
    """Hears of publications and of each copy that is settled."""

    def published(self, publication: Publication, qos: int) -> None:
        """A message has come from the broker."""

    def fanned_out(self, group: Group, publication: Publication, now_ns: int) -> None:
        """A QoS 0 message has been sent to all of a group, with no managed port in between."""

    def settled(
        self,
        session: Session,
        subscription: Subscription,
        publication: Publication,
        outcome: Outcome,
        delivery: Delivery | None,
        now_ns: int,
    ) -> None:
        """A copy has been delivered, or never will be."""


class Names(Generic[Name]):
    """Numbers for names, in order of appearance; none is ever given to a second name.

    A name that is gone is forgotten after so many others, and has another number if it ever returns; the `first` ones
    are never gone.

    >>> names = Names(["a"])
    >>> names.number("a"), names.number("b"), names.number("a"), names.by_number()
    (0, 1, 0, ['a', 'b'])
    """

    def __init__(self, first: Iterable[Name] = ()) -> None:
        self._numbers = {name: number for number, name in enumerate(first)}
        self._first = self._next = len(self._numbers)
        self._gone: dict[Name, None] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def is_there(self, name: Name) -> bool:
        """Has it a number, and is not gone?"""
        number = self._numbers.get(name)
        return number is not None and number >= self._first and name not in self._gone

    def number(self, name: Name) -> int:
        """The number of a name that is there now."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._next
            self._next += 1
        elif self._gone:
            self._gone.pop(name, None)
        return number

    def gone(self, name: Name) -> None:
        """A name is there no longer."""
        if self._numbers.get(name, -1) >= self._first:
            self._gone[name] = None
        while len(self._gone) > _KEPT_NAMES:
            oldest = next(iter(self._gone))
            del self._gone[oldest], self._numbers[oldest]

    def by_number(self) -> list[Name | None]:
        """The names in the order of their numbers; None for one that is forgotten."""
        found: list[Name | None] = [None] * self._next
        for name, number in self._numbers.items():
            found[number] = name
        return found


class Numbers:
    """Ids of the Trace for what has only names here, in order of appearance.

    A subscriber may have several connections: `subscriber_of` tells its name from a client id.

    >>> numbers = Numbers()
    >>> numbers.topic("a"), numbers.topic("b"), numbers.topic("a")
    (0, 1, 0)
    """

    def __init__(self, subscriber_of: Callable[[str], str] = lambda client_id: client_id) -> None:
        self._subscriber_of = subscriber_of
        self.topics: Names[str] = Names()
        self.publishers: Names[str] = Names()
        self.subscribers: Names[str] = Names()
        self.subscriptions: Names[tuple[str, str]] = Names()
        # Connections of a subscriber beside its first.
        self._more: dict[str, int] = {}

    def topic(self, name: str) -> int:
        """topic_id of a topic."""
        return self.topics.number(name)

    def publisher(self, name: str) -> int:
        """publisher_id of a publisher, by its name; -1 if that is not known."""
        if not name:
            return -1
        number = self.publishers.number(name)
        # Those of whom nothing has been heard for longest are forgotten first.
        self.publishers.gone(name)
        return number

    def subscriber(self, client_id: str) -> int:
        """subscriber_id of a client that has come."""
        name = self._subscriber_of(client_id)
        if self.subscribers.is_there(name):
            self._more[name] = self._more.get(name, 0) + 1
        return self.subscribers.number(name)

    def left(self, client_id: str) -> None:
        """A client has gone for good."""
        name = self._subscriber_of(client_id)
        more = self._more.pop(name, 0)
        if more > 1:
            self._more[name] = more - 1
        elif not more:
            self.subscribers.gone(name)

    def subscription(self, client_id: str, topic_filter: str) -> int:
        """subscription_id of a client's filter."""
        return self.subscriptions.number((self._subscriber_of(client_id), topic_filter))

    def unsubscribed(self, client_id: str, topic_filter: str) -> None:
        """A client has a filter no longer."""
        self.subscriptions.gone((self._subscriber_of(client_id), topic_filter))

    def subscription_for(self, session: Session, subscription: Subscription, topic: str) -> int:
        """subscription_id of a message that a client gets by a filter."""
        return subscription.number
