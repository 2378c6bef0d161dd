"""Who there is: sessions of clients, their timers, and the routes to them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, ValuesView
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from triagemq.datagrams import PriorityBuffer
from triagemq.gateway.core.messages import (
    Answered,
    Delivery,
    LastWill,
    Origin,
    Publication,
    Registering,
    Subscription,
)
from triagemq.gateway.core.thinning import Thinning
from triagemq.gateway.core.topics import ClientTopics
from triagemq.gateway.store import Row
from triagemq.mqtt.session import Packet
from triagemq.mqttsn import TopicIdType, matches
from triagemq.mqttsn.filters import has_wildcard
from triagemq.mqttsn.timestamps import DIRECT_SLOT, marked_publisher
from triagemq.plan.dataplane import NEVER_NS

if TYPE_CHECKING:
    from triagemq.datagrams import AddressList
    from triagemq.plan.dataplane import FlowKey, Treatment

TopicReference: TypeAlias = tuple[TopicIdType, int]
"""How a PUBLISH names a topic."""

Endpoint: TypeAlias = tuple[str, int] | tuple[str, int, bytes]
"""Where a client is: IP address and UDP port, and its wireless node id if a forwarder is in between."""

RouteKey: TypeAlias = tuple[bytes, Origin, int]
"""Topic, origin, QoS."""

Member: TypeAlias = "tuple[Session, Subscription]"
"""A recipient, and the subscription by which it gets a message."""

Copy: TypeAlias = "tuple[Recipient, Subscription, Publication]"
"""A publication for one recipient."""

SessionCopy: TypeAlias = "tuple[Session, Subscription, Publication]"
"""A publication for one MQTT-SN client."""

_MOST_ROUTES = 100_000
# Timers that were called off, and stay in the queue before it is rebuilt.
_FEW_TIMERS = 64


Key = TypeVar("Key", bound=tuple[Any, ...])
Value = TypeVar("Value")


class Grouped(dict[Key, Value]):
    """A dict that knows the entries of each group, too: the first element of a key is its group.

    >>> places = Grouped()
    >>> places["hall", "pump"] = 1
    >>> places["attic", "smoke"] = 2
    >>> places.of("hall")
    {('hall', 'pump'): 1}
    >>> places.discard(("hall", "pump")), places.of("hall"), len(places)
    (1, {}, 1)
    """

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[Any, dict[Key, Value]] = {}

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        self._groups.setdefault(key[0], {})[key] = value

    def of(self, group: Any) -> dict[Key, Value]:
        """The entries of a group, the oldest first."""
        return self._groups.get(group, {})

    def discard(self, key: Key) -> Value | None:
        """Remove an entry, if there is one."""
        if key not in self:
            return None
        entries = self._groups[key[0]]
        del entries[key]
        if not entries:
            del self._groups[key[0]]
        return super().pop(key)


class Timer:
    """One call to come; `what` is None once it was called, or called off."""

    __slots__ = ("what",)

    def __init__(self, what: Callable[[], None]) -> None:
        self.what: Callable[[], None] | None = what


class Timers:
    """Calls in the order of their times. What is called off goes at once, its place in the queue a little later.

    >>> timers, called = Timers(), []
    >>> first, second = timers.add(10, lambda: called.append(1)), timers.add(20, lambda: called.append(2))
    >>> timers.cancel(first)
    >>> timers.next_due_ns
    20
    >>> timers.take_due(20)()
    >>> called, timers.take_due(20), timers.next_due_ns
    ([2], None, None)
    """

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, Timer]] = []
        self._number = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, due_ns: int, what: Callable[[], None]) -> Timer:
        """Have something called."""
        timer = Timer(what)
        self._number += 1
        heapq.heappush(self._queue, (due_ns, self._number, timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Call it off, if it is not over."""
        if timer is None or timer.what is None:
            return
        timer.what = None
        self._cancelled += 1
        if self._cancelled > _FEW_TIMERS + len(self._queue) // 4:
            # Places of timers that were called off must not add up.
            self._queue = [entry for entry in self._queue if entry[2].what is not None]
            heapq.heapify(self._queue)
            self._cancelled = 0

    @property
    def next_due_ns(self) -> int | None:
        """The time of the next call."""
        queue = self._queue
        while queue and queue[0][2].what is None:
            heapq.heappop(queue)
            self._cancelled -= 1
        return queue[0][0] if queue else None

    def take_due(self, now_ns: int) -> Callable[[], None] | None:
        """The next call whose time has come."""
        due_ns = self.next_due_ns
        if due_ns is None or due_ns > now_ns:
            return None
        timer = heapq.heappop(self._queue)[2]
        what, timer.what = timer.what, None
        return what


class Recipient(Protocol):
    """A client, by whatever protocol."""

    @property
    def client_id(self) -> str: ...

    @property
    def subscriber(self) -> str:
        """Whose connection it is."""


class SessionState(IntEnum):
    """Section 6.14 of MQTT-SN 1.2."""

    DISCONNECTED = 0
    ACTIVE = 1
    ASLEEP = 2
    AWAKE = 3


Identify = Callable[[str], tuple[str, int]]
"""The name of the subscriber or publisher to whom a client id belongs, and the number of its connection."""


def own_name(client_id: str) -> tuple[str, int]:
    """Every client has its id for a name, and one connection.

    >>> own_name("pump")
    ('pump', 0)
    """
    return client_id, 0


@dataclass(slots=True, eq=False)
class Session:
    """One client."""

    client_id: str
    endpoint: Endpoint
    topics: ClientTopics
    clean: bool
    duration_seconds: int
    state: SessionState = SessionState.ACTIVE
    heard_ns: int = 0
    sleep_seconds: int = 0
    will: LastWill | None = None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    buffer: PriorityBuffer[Delivery] = field(default_factory=PriorityBuffer)
    in_flight: dict[int, Delivery] = field(default_factory=dict)
    # Message ids by which the client knows QoS 2 messages that it has not finished (an empty dict is small).
    reserved: dict[int, None] = field(default_factory=dict)
    # By topic id: REGISTERs without a REGACK, with what waits for it.
    registering: dict[int, Registering] = field(default_factory=dict)
    # By message id of the client: QoS 1 messages that the broker has not answered, and QoS 2 messages, which are
    # stored from PUBREC until the broker has them; those without a packet id are not released.
    publishing: dict[int, Packet] = field(default_factory=dict)
    inbound: dict[int, Packet] = field(default_factory=dict)
    answered: dict[int, Answered] = field(default_factory=dict)
    # By message id: filters for which the broker has not answered.
    subscribing: dict[int, str] = field(default_factory=dict)
    routes: dict[RouteKey, None] = field(default_factory=dict)
    next_message_id: int = 1
    next_sequence: int = 1
    awake_budget: int = 0
    draining: bool = False
    pump_is_due: bool = False
    retry_is_due: bool = False
    # Until it is lost, or while it is away until it is forgotten.
    timer: Timer | None = None
    # The subscriber or publisher whose connection it is, and its number: a subscriber has the first alone.
    subscriber: str = ""
    slot: int = 0
    # When the last PINGREQ went to it, until its PINGRESP comes, and the last round-trip times.
    probed_ns: int = 0
    round_trips: tuple[float, ...] = ()
    # Of a publisher's connection for what some have already: the orders that it follows.
    generation: int = 0
    # By the terms of its subscriptions: what waits for the end of an interval; by topic, which message that waits a
    # newer one replaces; and when to look for what has expired, should the buffer be full.
    thinning: Thinning[Delivery] | None = None
    newest: dict[str, Delivery] = field(default_factory=dict)
    purge_ns: int = NEVER_NS

    def row(self) -> Row:
        """What the store has of it: the client, its address and its will."""
        host, port, *node = self.endpoint
        where = host, port, node[0] if node else None
        times = self.duration_seconds, self.sleep_seconds
        will = (None, None, 0, 0) if self.will is None else self.will.row()
        return self.client_id, *where, int(self.state), int(self.clean), *times, *will

    @property
    def publisher(self) -> str:
        """Whose messages it brings; marked where some subscribers have them already."""
        if self.slot != DIRECT_SLOT:
            return self.subscriber
        return marked_publisher(self.subscriber, self.generation)

    @property
    def unregistered(self) -> list[Delivery]:
        """Messages that wait until the client knows the id of their topic."""
        return [delivery for one in self.registering.values() for delivery in one.waiting]

    @property
    def held(self) -> list[Delivery]:
        """Messages that wait for the end of an interval, in which one of their topic has been sent."""
        return [] if self.thinning is None else [*self.thinning]

    @property
    def waiting(self) -> int:
        """Messages that count against the buffer."""
        return len(self.buffer) + sum(len(one.waiting) for one in self.registering.values())

    @property
    def connected(self) -> bool:
        """Whether messages from its endpoint are its own."""
        return self.state is not SessionState.DISCONNECTED

    @property
    def is_empty(self) -> bool:
        """Does it hold nothing that its client would miss?"""
        return not (self.subscriptions or self.buffer or self.inbound)

    def message_id(self) -> int:
        """An id for a PUBLISH or REGISTER to this client that no unanswered one has."""
        while True:
            message_id = self.next_message_id
            self.next_message_id = message_id % 0xFFFF + 1
            if message_id not in self.in_flight and message_id not in self.reserved:
                return message_id

    def requeue(self) -> None:
        """Put back everything that was not answered: the client is away, or has come back."""
        waiting = [*self.unregistered, *self.in_flight.values()]
        for delivery in self.in_flight.values():
            # It has been sent, and may be sent as often again.
            delivery.attempts = 1
        self.in_flight.clear()
        self.registering.clear()
        self.buffer.push_front(sorted(waiting, key=lambda delivery: delivery.sequence))
        for delivery in () if self.thinning is None else self.thinning.clear():
            self.buffer.push_back(delivery)


@dataclass(slots=True, eq=False)
class Group:
    """Clients that get the same datagram, by whose topic id they know the topic."""

    reference: TopicReference
    members: list[Member]
    # For the sender and for the trace; a group never changes once it is in a route.
    keys: list[FlowKey] | None = None
    addresses: AddressList | None = None
    traced: Any = None
    # How each member is treated by the plan with this number, and whether any is dropped (core.treatments).
    planned_at: int = -1
    treatments: list[Treatment] = field(default_factory=list)
    is_dropped: bool = False


@dataclass(slots=True, eq=False)
class Route:
    """All recipients of a copy in the order of their classes: groups who get it at once at QoS 0, and those to be
    looked at one by one."""

    topic_name: str
    recipients: list[Group | Member]

    def members(self) -> Iterator[Member]:
        """Every recipient, those in groups too."""
        for one in self.recipients:
            if isinstance(one, Group):
                yield from one.members
            else:
                yield one


class RouteTable:
    """Routes by key, and by what they depend on: sessions know the keys of theirs, topics are looked up here."""

    def __init__(self) -> None:
        self._routes: dict[RouteKey, Route] = {}
        self._keys_of_topic: dict[bytes, list[RouteKey]] = {}
        # Bound once: every message from the broker is looked up.
        self.get = self._routes.get

    def values(self) -> ValuesView[Route]:
        """All that are known now."""
        return self._routes.values()

    def keep(self, key: RouteKey, route: Route) -> None:
        """Remember a route that was worked out."""
        if len(self._routes) >= _MOST_ROUTES:
            self.clear()
        self._routes[key] = route
        self._keys_of_topic.setdefault(key[0], []).append(key)

    def forget(self, session: Session) -> None:
        """A client has changed: routes that lead to it have to be worked out again."""
        for key in list(session.routes):
            self._forget(key)

    def forget_topics_of(self, topic_filter: str) -> None:
        """Who gets the topics of a filter has changed."""
        topics = (
            [topic for topic in self._keys_of_topic if matches(topic_filter, topic.decode())]
            if has_wildcard(topic_filter)
            else [topic_filter.encode()]
        )
        for topic in topics:
            for key in list(self._keys_of_topic.get(topic, ())):
                self._forget(key)

    def clear(self) -> None:
        """Everything has to be worked out again."""
        for key in list(self._routes):
            self._forget(key)

    def _forget(self, key: RouteKey) -> None:
        route = self._routes.pop(key)
        for session, _ in route.members():
            session.routes.pop(key, None)
        keys = self._keys_of_topic[key[0]]
        keys.remove(key)
        if not keys:
            del self._keys_of_topic[key[0]]
