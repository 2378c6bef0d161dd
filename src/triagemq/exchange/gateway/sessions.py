"""Who there is: sessions of clients, their timers, the links by which they reach the broker, and the routes to them.

A broker sends one copy of a message per matching filter. MQTT 5 says which filters a copy is for (subscription
identifiers); for 3.1.1 filters that overlap go over different connections (lanes), so that the connection says it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, ValuesView
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from triagemq.exchange.gateway.messages import (
    Answered,
    Delivery,
    InboundQos2,
    LastWill,
    Origin,
    PriorityBuffer,
    Registering,
    SmallSet,
    Subscription,
)
from triagemq.exchange.gateway.topics import ClientTopics, KnownTopic
from triagemq.exchange.mqtt.packets import Message
from triagemq.exchange.mqtt.session import Login, MqttOwner, MqttSession
from triagemq.exchange.store import Row
from triagemq.mqttsn import TopicIdType, matches
from triagemq.mqttsn.filters import has_wildcard
from triagemq.mqttsn.timestamps import DIRECT_SLOT, marked_publisher

if TYPE_CHECKING:
    from triagemq.plan.dataplane import Treatment

Endpoint: TypeAlias = tuple[str, int] | tuple[str, int, bytes]
"""Where a client is: IP address and UDP port, and its wireless node id if a forwarder is in between."""

RouteKey: TypeAlias = tuple[bytes, Origin, int]
"""Topic, origin, QoS."""

Member: TypeAlias = "tuple[Session, Subscription]"
"""Who gets a message, and by which subscription."""

_MOST_LANES = 1_000
"""Of one link; there are as many as filters overlap."""
_MOST_ROUTES = 100_000
_LONG_AGO_NS = -(10**18)
_LAST_IDENTIFIER = 0x0FFF_FFFF
# A filter's identifiers whose retained messages may still come.
_KEPT_IDENTIFIERS = 64
# Messages with the identifier of a filter that was dropped may still be on their way.
_KEPT_OLD_IDENTIFIERS = 10_000
# Timers that were called off, and stay in the queue before it is rebuilt.
_FEW_TIMERS = 64


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


class SessionState(IntEnum):
    """Section 6.14 of MQTT-SN 1.2; CONNECTING waits for the broker to accept the client (transparent mode)."""

    DISCONNECTED = 0
    ACTIVE = 1
    ASLEEP = 2
    AWAKE = 3
    CONNECTING = 4


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
    number: int
    endpoint: Endpoint
    link: BrokerLink
    topics: ClientTopics
    clean: bool
    duration_seconds: int
    state: SessionState = SessionState.CONNECTING
    heard_ns: int = 0
    sleep_seconds: int = 0
    will: LastWill | None = None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    buffer: PriorityBuffer[Delivery] = field(default_factory=PriorityBuffer)
    in_flight: dict[int, Delivery] = field(default_factory=dict)
    # Message ids by which the client knows QoS 2 messages that it has not finished.
    reserved: SmallSet[int] = field(default_factory=SmallSet)
    # Of these, the ids of messages that were given up, with their sequence numbers (see delivery.py).
    abandoned: dict[int, int] | None = None
    # By topic id: what waits for the REGACK of that id.
    unregistered: dict[int, list[Delivery]] = field(default_factory=dict)
    registering: dict[int, Registering] = field(default_factory=dict)
    # By message id of the client: the token of a QoS 1 message that the broker has not answered, and others.
    publishing: dict[int, object] = field(default_factory=dict)
    inbound: dict[int, InboundQos2] = field(default_factory=dict)
    answered: dict[int, Answered] = field(default_factory=dict)
    # By message id: filters for which the broker has not answered.
    subscribing: dict[int, str] = field(default_factory=dict)
    routes: SmallSet[RouteKey] = field(default_factory=SmallSet)
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

    def row(self) -> Row:
        """What the store has of it: the client, its address and its will."""
        host, port, *node = self.endpoint
        will = self.will
        return (
            self.client_id,
            host,
            port,
            node[0] if node else None,
            int(self.state),
            int(self.clean),
            self.duration_seconds,
            self.sleep_seconds,
            None if will is None else will.topic,
            None if will is None else will.payload,
            0 if will is None else will.qos,
            0 if will is None else int(will.retain),
        )

    def confirm_topic(self, known: KnownTopic, confirmed: bool = True) -> None:
        """The client knows a topic id, or has shown that it does not."""
        if known.confirmed is not confirmed:
            self.topics.confirm(known, confirmed)
            self.link.routes.forget_topics_of(known.topic.name)

    @property
    def publisher(self) -> str:
        """Whose messages it brings; marked where some subscribers have them already."""
        if self.slot != DIRECT_SLOT:
            return self.subscriber
        return marked_publisher(self.subscriber, self.generation)

    @property
    def waiting(self) -> int:
        """Messages that count against the buffer."""
        return len(self.buffer) + sum(map(len, self.unregistered.values()))

    @property
    def connected(self) -> bool:
        """Whether messages from its endpoint are its own."""
        return self.state is not SessionState.DISCONNECTED

    @property
    def is_empty(self) -> bool:
        """Does it hold nothing that its client would miss?"""
        return not (self.subscriptions or self.buffer or self.inbound or self.abandoned)

    def message_id(self) -> int:
        """An id for a PUBLISH or REGISTER to this client that no unanswered one has."""
        while True:
            message_id = self.next_message_id
            self.next_message_id = message_id % 0xFFFF + 1
            if message_id not in self.in_flight and message_id not in self.reserved:
                return message_id

    def requeue(self) -> None:
        """Put back everything that was not answered: the client is away, or has come back."""
        waiting = [delivery for deliveries in self.unregistered.values() for delivery in deliveries]
        waiting += self.in_flight.values()
        for delivery in self.in_flight.values():
            # It has been sent, and may be sent as often again.
            delivery.attempts = 1
        self.unregistered.clear()
        self.in_flight.clear()
        self.registering.clear()
        self.buffer.push_front(sorted(waiting, key=lambda delivery: delivery.sequence))


class Group:
    """Clients that get the same datagram. `tail` is what follows length and type: flags, topic id, message id."""

    __slots__ = ("is_dropped", "members", "planned_at", "prepared", "tail", "traced", "treatments")

    def __init__(self, id_type: TopicIdType, topic_id: int) -> None:
        self.tail = bytes((id_type,)) + topic_id.to_bytes(2) + b"\0\0"
        self.members: list[Member] = []
        # For the sender and for the trace; a group never changes once it is in a route.
        self.prepared: Any = None
        self.traced: Any = None
        # How each member is treated by the plan with this number, and whether any is dropped (core.treatments).
        self.planned_at = -1
        self.treatments: list[Treatment] = []
        self.is_dropped = False

    def of(self, members: list[Member]) -> Group:
        """The same for some of its members."""
        some = Group(TopicIdType.NORMAL, 0)
        some.tail, some.members = self.tail, members
        return some

    def datagram(self, payload: bytes) -> bytes:
        """A PUBLISH at QoS 0, as `mqttsn.encode_publish` makes it.

        >>> Group(TopicIdType.NORMAL, 7).datagram(b"on").hex()
        '090c00000700006f6e'
        """
        size = len(payload) + 7
        if size < 256:
            return bytes((size, 0x0C)) + self.tail + payload
        return b"\x01" + (size + 2).to_bytes(2) + b"\x0c" + self.tail + payload


class Route:
    """All recipients of a copy in the order of their classes: groups who get it at once at QoS 0, and those to be
    looked at one by one."""

    __slots__ = ("recipients", "topic_name")

    def __init__(self, topic_name: str) -> None:
        self.topic_name = topic_name
        self.recipients: list[Group | Member] = []

    def members(self) -> Iterator[Member]:
        """Every recipient, those in groups too."""
        for one in self.recipients:
            if isinstance(one, Group):
                yield from one.members
            else:
                yield one

    def sessions(self) -> Iterator[Session]:
        """Everyone on whom it depends."""
        for session, _ in self.members():
            yield session


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
        for session in route.sessions():
            session.routes.discard(key)
        keys = self._keys_of_topic[key[0]]
        keys.remove(key)
        if not keys:
            del self._keys_of_topic[key[0]]


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
    # The broker has taken it over the present connection.
    is_subscribed: bool = False
    # Identifier of a SUBSCRIBE to those who get the retained messages that it brings.
    fetchers: dict[int, dict[Session, None]] = field(default_factory=dict)
    # Retained messages that came before the answer to the SUBSCRIBE that fetched them.
    early: list[tuple[Origin, Message]] = field(default_factory=list)
    asked_ns: int = _LONG_AGO_NS

    @property
    def qos(self) -> int:
        """The highest that a client requests."""
        wanted = [subscription.qos for subscription in self.members.values()]
        wanted += [join.subscription.qos for join in (*self.asking, *self.joining)]
        return max(wanted, default=0)

    @property
    def is_unused(self) -> bool:
        """Has it no client, and none that waits for an answer about it?"""
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
        """The requests on their way will not be answered: they are to be sent again."""
        self.joining = [*self.asking, *self.joining]
        self.asking = []
        self.packet_id = 0
        self.is_subscribed = False


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


class BrokerLink:
    """A route to the broker: which filters are subscribed there for whom, over which connections (`lanes`).

    The aggregating mode has one link for all clients, the transparent mode one for each (and one for those who publish
    without a connection). `key` is the client's id in transparent mode, else empty; the link's `owner` hears what the
    broker says, and with `most_waiting` requests without an answer it is busy. A link to the broker of another gateway,
    is a peer of the one to our own (`peer_of`): what comes over either goes to the same clients.
    """

    def __init__(
        self,
        key: str,
        login: Login,
        owner: Callable[[BrokerLink], MqttOwner],
        *,
        version: int,
        most_waiting: int,
        now_ns: int,
        peer_of: BrokerLink | None = None,
        number: int = 0,
    ) -> None:
        self.key = key
        self.is_peer = peer_of is not None
        self._first_origin = -1 - number * _MOST_LANES
        self.login = login
        self._owner = owner(self)
        self.lanes = [self.lane(login, version)]
        self.filters: dict[str, Filter] = {}
        self.routes: RouteTable = RouteTable() if peer_of is None else peer_of.routes
        self.is_down_since_ns: int | None = now_ns
        self.up_since_ns: int | None = None
        self.identifiers: Identifiers = Identifiers() if peer_of is None else peer_of.identifiers
        self.by_packet: dict[tuple[int, int], Filter] = {}
        # Filters that the broker may have for us without need, and those to ask for again over each lane.
        self.to_unsubscribe: dict[str, None] = {}
        self.to_ask: dict[int, list[Filter]] = {}
        # Clients that wait for an answer to a SUBSCRIBE.
        self.waiting = 0
        self._most_waiting = most_waiting
        self.is_closed = False

    def lane(self, login: Login, version: int) -> MqttSession:
        """A connection to be."""
        return MqttSession(self._owner, login, version=version)

    def reopen(self) -> None:
        """With other connections than before, if it was closed."""
        if self.is_closed:
            self.lanes = [self.lane(self.login, self.lanes[0].version)]
            self.is_closed = False

    def begin_anew(self) -> None:
        """Before it is opened: what the broker has stored for us is for clients that have no session any more."""
        self.login = replace(self.login, purges=True)
        for lane in self.lanes:
            lane.login = self.login

    @property
    def available(self) -> bool:
        """Can the broker be reached now?"""
        return not self.is_closed and self.lanes[0].connected

    @property
    def is_busy(self) -> bool:
        """Do too many wait for the broker's answers to subscribe to anything more?"""
        most = self._most_waiting
        return self.waiting >= most or any(
            lane.outbox.unanswered_requests >= most or not lane.outbox.has_room for lane in self.lanes
        )

    def origin_of(self, lane: MqttSession) -> Origin:
        """What tells messages of a lane without identifiers from those of others."""
        return (self._first_origin - self.lanes.index(lane),)

    def filters_for(self, origin: Origin, topic: str) -> list[Filter]:
        """The filters that a copy of a message is for."""
        if origin and origin[0] >= 0:
            named = self.identifiers.filters(origin)
            if named is not None:
                return named
        lane = self._first_origin - origin[0] if origin and origin[0] < 0 else 0
        return [
            entry
            for entry in self.filters.values()
            if entry.lane == lane and matches(entry.topic_filter, topic)
        ]

    def fetchers_for(self, origin: Origin, topic: str) -> list[tuple[Session, Filter]]:
        """Who gets a retained message: those whose SUBSCRIBE has brought it."""
        found = []
        for entry in self.filters_for(origin, topic):
            identifiers = [number for number in origin if number in entry.fetchers]
            if not identifiers and (not origin or origin[0] < 0):
                identifiers = [entry.identifier]
            for identifier in identifiers:
                found += [(session, entry) for session in entry.fetchers.get(identifier, ())]
        return found
