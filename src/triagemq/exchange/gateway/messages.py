"""Messages on their way, from the broker to a client or from a client to the broker; what they wait in; their counts.

Counts by topic are read again and again to learn what has changed since. Topics are in the order of their last change,
in steps of reading (or seconds): what has changed since a step is at the end, what has been idle for long at the
beginning. A topic that was idle for long is forgotten, and counted from 0 if it comes again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from triagemq.exchange.store import Row
from triagemq.mqttsn import TopicIdType

Origin: TypeAlias = tuple[int, ...]
"""Subscription identifiers of a copy, or the negative number of its lane."""


class DeliveryStage(IntEnum):
    """How far a message to a client is."""

    QUEUED = 0
    SENT = 1
    RELEASED = 2
    """QoS 2: PUBREC has come, PUBCOMP has not."""
    ABANDONED = 3
    """QoS 2, in the store only: given up, and its message id is not free yet."""


@dataclass(frozen=True, slots=True)
class LastWill:
    """What is published when a client is lost."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False


class Publication:
    """A message from the broker, shared by everyone it goes to."""

    __slots__ = (
        "payload",
        "publication_id",
        "published_ns",
        "publisher",
        "received_ns",
        "sent_directly",
        "topic",
    )

    def __init__(
        self, publication_id: int, topic: str, payload: bytes, published_ns: int, received_ns: int
    ) -> None:
        # Its name, where that is known.
        self.publisher = ""
        # It went to some without a broker, by the orders of this generation: they do not get it from here.
        self.sent_directly: int | None = None
        self.publication_id = publication_id
        self.topic = topic
        self.payload = payload
        self.published_ns = published_ns
        self.received_ns = received_ns


@dataclass(slots=True, eq=False)
class Subscription:
    """A filter that a client requested. `number` is its subscription_id in the Trace."""

    topic_filter: str
    qos: int
    id_type: TopicIdType
    number: int
    predefined_id: int = 0

    def row(self, client_id: str) -> Row:
        """What the store has of it."""
        return client_id, self.topic_filter, self.qos, int(self.id_type), self.predefined_id


@dataclass(slots=True, eq=False)
class Delivery:
    """A message on its way to one client."""

    sequence: int
    publication: Publication
    subscription: Subscription
    qos: int
    retain: bool
    priority_class: int
    message_id: int = 0
    stage: DeliveryStage = DeliveryStage.QUEUED
    attempts: int = 0
    # Those of the attempts after which the client was heard, but did not answer.
    ignored: int = 0
    sent_ns: int = 0
    enqueued_ns: int = -1
    dequeued_ns: int = -1
    # Flow id and class in which it was last sent: its client's leaving does not change them.
    flow: tuple[int, int] | None = None
    # It has been handed to the network, which has not sent it yet.
    waits_for_port: bool = False

    def row(self, client_id: str) -> Row:
        """What the store has of it."""
        publication = self.publication
        return (
            client_id,
            self.sequence,
            self.subscription.topic_filter,
            publication.topic,
            publication.payload,
            publication.published_ns,
            publication.received_ns,
            self.qos,
            int(self.retain),
            self.priority_class,
            self.message_id,
            int(self.stage),
        )


@dataclass(slots=True)
class Registering:
    """A REGISTER to a client that has not been answered."""

    message_id: int
    topic_name: str
    sent_ns: int
    attempts: int = 1
    ignored: int = 0


@dataclass(slots=True)
class InboundQos2:
    """A QoS 2 message from a client: stored from PUBREC until the broker has it. `packet_id` 0: not released.

    `broker_holds_it`: the broker has answered PUBREC, and would take the message for a new one after PUBREL.
    """

    topic: str
    payload: bytes
    retain: bool
    packet_id: int = 0
    broker_holds_it: bool = False

    def row(self, client_id: str, message_id: int) -> Row:
        """What the store has of it; a negative packet id: the broker holds it."""
        packet_id = -self.packet_id if self.broker_holds_it else self.packet_id
        return client_id, message_id, self.topic, self.payload, int(self.retain), packet_id


class Answered(NamedTuple):
    """A PUBLISH of a client that the broker has acknowledged: a digest of it, and when the client had its answer."""

    digest: int
    at_ns: int


class _Ranked(Protocol):
    @property
    def priority_class(self) -> int: ...


Item = TypeVar("Item", bound=_Ranked)


class PriorityBuffer(Generic[Item]):
    """What waits for one client: a queue per priority class, each in order of arrival.

    Into a full buffer an item comes only by pushing out a less important one.

    >>> from types import SimpleNamespace
    >>> smoke, pump = SimpleNamespace(priority_class=0), SimpleNamespace(priority_class=3)
    >>> buffer = PriorityBuffer()
    >>> buffer.push(pump, limit=1) is None, buffer.push(smoke, limit=1) is pump, buffer.pop() is smoke
    (True, True, True)
    """

    __slots__ = ("_queues", "_size")

    def __init__(self) -> None:
        self._queues: dict[int, deque[Item]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Item]:
        for priority_class in sorted(self._queues):
            yield from self._queues[priority_class]

    def push(self, item: Item, limit: int) -> Item | None:
        """Append; what had to go instead (perhaps the item itself), or None if there was room."""
        pushed_out = None
        if self._size >= limit:
            lowest = max(self._queues, default=item.priority_class)
            if lowest <= item.priority_class:
                return item
            pushed_out = self._take(lowest, newest=True)
        self._queue(item.priority_class).append(item)
        self._size += 1
        return pushed_out

    def push_back(self, item: Item) -> None:
        """Append without a limit: what was accepted before a restart."""
        self._queue(item.priority_class).append(item)
        self._size += 1

    def push_front(self, items: Iterable[Item]) -> None:
        """Put back what was taken, in the order in which it was."""
        for item in reversed(list(items)):
            self._queue(item.priority_class).appendleft(item)
            self._size += 1

    def pop(self) -> Item:
        """The oldest of the most important class."""
        return self._take(min(self._queues), newest=False)

    def peek(self) -> Item:
        """What `pop` would take."""
        return self._queues[min(self._queues)][0]

    def clear(self) -> list[Item]:
        """Take everything."""
        items = list(self)
        self._queues.clear()
        self._size = 0
        return items

    def _queue(self, priority_class: int) -> deque[Item]:
        queue = self._queues.get(priority_class)
        if queue is None:
            queue = self._queues[priority_class] = deque()
        return queue

    def _take(self, priority_class: int, *, newest: bool) -> Item:
        queue = self._queues[priority_class]
        item = queue.pop() if newest else queue.popleft()
        if not queue:
            del self._queues[priority_class]
        self._size -= 1
        return item


Key = TypeVar("Key", bound=Hashable)


class SmallSet(Collection[Key]):
    """What a session needs of a set, for next to nothing while it is empty: there may be a hundred thousand that are.

    >>> numbers = SmallSet()
    >>> 1 in numbers, len(numbers), list(numbers)
    (False, 0, [])
    >>> numbers.add(1)
    >>> 1 in numbers, len(numbers), list(numbers)
    (True, 1, [1])
    """

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: set[Key] | None = None

    def __contains__(self, item: object) -> bool:
        return self._items is not None and item in self._items

    def __iter__(self) -> Iterator[Key]:
        return iter(self._items or ())

    def __len__(self) -> int:
        return 0 if self._items is None else len(self._items)

    def add(self, item: Key) -> None:
        """Have it in the set."""
        if self._items is None:
            self._items = {item}
        else:
            self._items.add(item)

    def discard(self, item: Key) -> None:
        """Have it no longer."""
        if self._items is not None:
            self._items.discard(item)
            if not self._items:
                self._items = None

    def clear(self) -> None:
        """Have nothing."""
        self._items = None


IDLE_SECONDS = 900.0
"""A reader must remember a count for longer than this, to know of each whether it goes on or has begun anew."""

# Publications to ever new topics must not fill the memory with their counts.
_MOST_TOPICS = 1_000_000
_LONGEST_STEP_NS = 1_000_000_000
_FORGOTTEN_AT_ONCE = 1_000
# Own messages that have not come back from the broker.
_MOST_MESSAGES = 10_000
_LONGEST_NS = 60_000_000_000


@dataclass(slots=True)
class _Row:
    publications: int
    payload_bytes: int
    step: int
    begun_step: int
    changed_ns: int


@dataclass(frozen=True, slots=True)
class ChangedCounts:
    """Publications and bytes of payload by topic since each began to be counted.

    `begun`: those of them that began after the requested step. `step` is the one to request the next time.
    """

    topics: dict[str, tuple[int, int]]
    begun: list[str]
    step: int


class TopicCounts:
    """The caller brings the time.

    >>> counts = TopicCounts()
    >>> counts.count("a", 5, 0); counts.count("b", 5, 0)
    >>> first = counts.changed_since(0, 1)
    >>> counts.count("a", 7, 2)
    >>> counts.changed_since(first.step, 3).topics
    {'a': (2, 12)}
    """

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._step = 1
        self._step_ns = 0

    def __len__(self) -> int:
        return len(self._rows)

    def count(self, topic: str, payload_bytes: int, now_ns: int) -> None:
        """One publication."""
        if now_ns - self._step_ns > _LONGEST_STEP_NS:
            self._next_step(now_ns)
        row = self._rows.get(topic)
        if row is None:
            if len(self._rows) >= _MOST_TOPICS:
                return
            self._rows[topic] = _Row(1, payload_bytes, self._step, self._step, now_ns)
            return
        row.publications += 1
        row.payload_bytes += payload_bytes
        if row.step != self._step:
            row.step, row.changed_ns = self._step, now_ns
            del self._rows[topic]
            self._rows[topic] = row

    def changed_since(self, step: int, now_ns: int) -> ChangedCounts:
        """The counts that have changed after a step; after step 0, all."""
        topics: dict[str, tuple[int, int]] = {}
        begun = []
        for topic, row in reversed(self._rows.items()):
            if row.step <= step:
                break
            topics[topic] = row.publications, row.payload_bytes
            if row.begun_step > step:
                begun.append(topic)
        answered = self._step
        self._next_step(now_ns)
        return ChangedCounts(topics, begun, answered)

    def _next_step(self, now_ns: int) -> None:
        self._step += 1
        self._step_ns = now_ns
        before_ns = now_ns - IDLE_SECONDS * 1e9
        idle: list[str] = []
        for topic, row in self._rows.items():
            if row.changed_ns > before_ns or len(idle) >= _FORGOTTEN_AT_ONCE:
                break
            idle.append(topic)
        for topic in idle:
            del self._rows[topic]


class OwnMessages:
    """Who published what comes back, where MQTT 3.1.1 has no room for the name in the message.

    Messages that were given to the broker, by topic and payload, until they have come back or are old.

    Equal messages of two clients that are under way at the same time are both the later one's.

    >>> own = OwnMessages()
    >>> own.sent("smoke", b"yes", "sensor-7", 0)
    >>> own.publisher("smoke", b"yes", 5), own.publisher("smoke", b"yes", 6)
    ('sensor-7', '')
    """

    def __init__(self) -> None:
        # Publisher, how many are under way, and when the last was sent; the oldest first. A payload may be long, its
        # hash is not, and no client can make two that are equal.
        self._under_way: dict[int, tuple[str, int, int]] = {}

    def sent(self, topic: str, payload: bytes, publisher: str, now_ns: int) -> None:
        """A client's message goes to the broker."""
        key = hash((topic, payload))
        _, count, last_ns = self._under_way.pop(key, ("", 0, now_ns))
        count = 1 if now_ns - last_ns > _LONGEST_NS else count + 1
        self._under_way[key] = (publisher, count, now_ns)
        if len(self._under_way) > _MOST_MESSAGES:
            del self._under_way[next(iter(self._under_way))]

    def publisher(self, topic: str, payload: bytes, now_ns: int) -> str:
        """A message comes from the broker: the name of who published it here, or nothing."""
        key = hash((topic, payload))
        publisher, count, last_ns = self._under_way.get(key, ("", 0, now_ns))
        if count > 1:
            self._under_way[key] = (publisher, count - 1, last_ns)
        else:
            self._under_way.pop(key, None)
        return "" if now_ns - last_ns > _LONGEST_NS else publisher


class KnownPublications:
    """Gives each its number; the last one is remembered, since copies of it for other filters may follow."""

    def __init__(self) -> None:
        self._next_id = 0
        self.last: Publication | None = None
        self.last_origins: set[Origin] = set()
        self.counts = TopicCounts()
        """Publications by topic, whatever the number of copies."""
        self.own_messages = OwnMessages()

    def new(self, topic: str, payload: bytes, published_ns: int, received_ns: int) -> Publication:
        """A publication with the next id."""
        publication = Publication(self._next_id, topic, payload, published_ns, received_ns)
        self._next_id += 1
        return publication
