"""Counters, the outcome of every message for an Observer, and the numbers by which the Trace knows everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from triagemq.exchange.gateway.messages import Delivery, Publication, Subscription
from triagemq.exchange.gateway.sessions import Group, Session

if TYPE_CHECKING:
    from triagemq.scenario import Scenario
    from triagemq.trace.schema import Outcome

Name = TypeVar("Name", bound=Hashable)
# Of those that are gone: a name that returns soon has its number again.
_REMEMBERED_NAMES = 10_000


@dataclass(slots=True)
class GatewayCounters:
    """What a gateway has counted since it started: plain numbers, and counters by reason.

    `undelivered` has every message that did not reach a subscriber.
    """

    datagrams_in: int = 0
    datagram_bytes: int = 0
    unknown_senders: int = 0
    connects: int = 0
    handshakes: int = 0
    """DTLS associations that began."""
    resumptions: int = 0
    """Of these, by the short handshake of those who have been here before."""
    clients_lost: int = 0
    clients_moved: int = 0
    retries: int = 0
    broker_messages: int = 0
    broker_bytes: int = 0
    """Payloads of these."""
    broker_losses: int = 0
    client_messages: int = 0
    duplicates: int = 0
    """Requests and messages of clients that had come before."""
    storage_failures: int = 0
    """How often the state could not be stored from some moment on."""
    sent: int = 0
    """PUBLISH datagrams handed to the network."""
    delivered: int = 0
    """Of these, at QoS 0 all that were sent, at QoS 1 and 2 all that were acknowledged."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Datagrams, by the reason of their DecodeError, or `unexpected_...`; `dtls_...` before they were opened."""
    undelivered: Counter[str] = field(default_factory=Counter)
    """Messages to subscribers, by outcome and reason."""
    planned_drops: Counter[int] = field(default_factory=Counter)
    """Of these the ones that the plan drops, by priority class."""
    refused: Counter[str] = field(default_factory=Counter)
    """Requests and messages of clients, by what was refused and why."""

    def as_json(self) -> dict[str, Any]:
        """For `--json` and the log."""
        numbers = {name: getattr(self, name) for name in self.__slots__}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in numbers.items()}


class Observer(Protocol):
    """Hears of publications and of each copy that is settled; the live Trace is one."""

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
        while len(self._gone) > _REMEMBERED_NAMES:
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

    A client may have several connections: `subscriber_of` tells its name from a client id.

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


class ScenarioNumbers(Numbers):
    """Row numbers of a scenario, so that a live run can be compared with its forecast and simulation.

    What the scenario does not know gets numbers behind its last rows.
    The scenario has a subscription for each topic, also where a client has one filter for several of them.
    """

    def __init__(
        self, scenario: Scenario, subscriber_of: Callable[[str], str] = lambda client_id: client_id
    ) -> None:
        super().__init__(subscriber_of)
        topics, subscribers = list(scenario.topics.name), list(scenario.subscribers.name)
        self.topics = Names(topics)
        self.publishers = Names(scenario.publishers.name)
        self.subscribers = Names(subscribers)
        pairs = list(
            zip(
                scenario.subscriptions.subscriber.tolist(), scenario.subscriptions.topic.tolist(), strict=True
            )
        )
        self.subscriptions = Names((subscribers[subscriber], topics[topic]) for subscriber, topic in pairs)
        self._rows = {(subscriber, topics[topic]): row for row, (subscriber, topic) in enumerate(pairs)}

    def subscription_for(self, session: Session, subscription: Subscription, topic: str) -> int:
        """subscription_id of a subscriber's topic, if the scenario has it, else that of the filter."""
        return self._rows.get((session.number, topic), subscription.number)
