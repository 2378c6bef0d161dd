"""Messages on their way, from the broker to a client or from a client to the broker, and what they wait in."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from triagemq.mqttsn import TopicIdType


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
    """A filter that a client asked for. `number` is its subscription_id in the Trace."""

    topic_filter: str
    qos: int
    id_type: TopicIdType
    number: int
    predefined_id: int = 0


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


@dataclass(slots=True)
class Registering:
    """A REGISTER to a client that has not been answered."""

    message_id: int
    topic_name: str
    sent_ns: int
    attempts: int = 1
    ignored: int = 0


@dataclass(slots=True)
class Arrival:
    """A QoS 2 message from a client: stored from PUBREC until the broker has it. `packet_id` 0: not released.

    `broker_holds_it`: the broker has answered PUBREC, and would take the message for a new one after PUBREL.
    """

    topic: str
    payload: bytes
    retain: bool
    packet_id: int = 0
    broker_holds_it: bool = False


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
