"""Messages in transit between broker and clients, and counts by topic.

Counts by topic are read again and again to learn what has changed since. Topics are in the order of their last change,
in steps of reading (or seconds): what has changed since a step is at the end, what has been idle for long at the
beginning. A topic that was idle for long is forgotten, and counted from 0 if it comes again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from triagemq.gateway.store import Row
from triagemq.mqttsn import TopicIdType
from triagemq.mqttsn.properties import EventProperties, with_properties
from triagemq.plan.dataplane import NEVER_NS, CopyTerms

LARGEST_PAYLOAD = 65_507 - 9 - 255
"""The largest UDP payload, less the headers of MQTT-SN and of an encapsulation."""

Origin: TypeAlias = tuple[int, ...]
"""Subscription identifiers of a copy, or the negative number of its lane."""


class DeliveryStage(IntEnum):
    """How far a message to a client is."""

    QUEUED = 0
    SENT = 1
    RELEASED = 2
    """QoS 2: PUBREC has come, PUBCOMP has not."""


@dataclass(frozen=True, slots=True)
class LastWill:
    """What is published when a client is lost."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False

    def row(self) -> Row:
        """Its columns in the row of the session."""
        return self.topic, self.payload, self.qos, int(self.retain)


@dataclass(slots=True, eq=False)
class Publication:
    """A message from the broker, shared by everyone it goes to."""

    publication_id: int
    topic: str
    payload: bytes
    published_ns: int
    received_ns: int
    # Its name, where that is known.
    publisher: str = ""
    # It went to some without a broker, by the orders of this generation: they do not get it from here.
    sent_directly: int | None = None
    # When its publisher says that it expires.
    expires_ns: int = NEVER_NS
    # What its MQTT 5 publisher says of it, if anything.
    properties: EventProperties | None = None

    def with_properties(self) -> Publication:
        """As it is sent to subscriptions that ask for its properties, where they fit."""
        if self.properties is None:
            return self
        payload = with_properties(self.payload, self.properties)
        return self if len(payload) > LARGEST_PAYLOAD else replace(self, payload=payload, properties=None)

    def expires_by(self, terms: CopyTerms | None) -> int:
        """When it expires for a subscription with these terms. Its age counts from its publication, by the clock of its
        publisher where that is known; a clock that is ahead makes no event younger than its arrival here."""
        if terms is None or terms.expires_seconds == math.inf:
            return self.expires_ns
        return min(
            self.expires_ns, min(self.published_ns, self.received_ns) + int(terms.expires_seconds * 1e9)
        )


@dataclass(slots=True, eq=False)
class Subscription:
    """A filter that a client requested."""

    topic_filter: str
    qos: int
    id_type: TopicIdType
    predefined_id: int = 0

    def row(self, client_id: str) -> Row:
        """What the store has of it."""
        return client_id, self.topic_filter, self.qos, int(self.id_type), self.predefined_id


@dataclass(slots=True, eq=False)
class Delivery:
    """A message in transit to one client."""

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
    # The terms by which it waits.
    newest_only: bool = False
    expires_ns: int = NEVER_NS

    def heed(self, terms: CopyTerms | None) -> None:
        """Wait by these terms of its subscription. What a client has just asked for is no newer event."""
        self.newest_only = terms is not None and terms.newest_only and not self.retain
        self.expires_ns = self.publication.expires_by(terms)

    def has_expired(self, now_ns: int) -> bool:
        """Whether it is too old to be sent; of QoS 2 with PUBREC only the end is missing."""
        return self.expires_ns <= now_ns and self.stage is not DeliveryStage.RELEASED

    def take_place(self, older: Delivery) -> None:
        """Be what waits where `older` does, which then is what has been superseded."""
        for name in ("publication", "subscription", "qos", "retain", "expires_ns"):
            mine, theirs = getattr(self, name), getattr(older, name)
            setattr(self, name, theirs)
            setattr(older, name, mine)

    def row(self, client_id: str) -> Row:
        """What the store has of it."""
        one, topic_filter = self.publication, self.subscription.topic_filter
        message = one.topic, one.payload, one.published_ns, one.received_ns
        state = self.qos, int(self.retain), self.priority_class, self.message_id, int(self.stage)
        return client_id, self.sequence, topic_filter, *message, *state, self.expires_ns


@dataclass(slots=True)
class Registering:
    """A REGISTER to a client that has not been answered, and what waits for the answer."""

    topic_id: int
    message_id: int
    topic_name: str
    sent_ns: int
    waiting: list[Delivery] = field(default_factory=list)
    attempts: int = 1
    ignored: int = 0


class Answered(NamedTuple):
    """A PUBLISH of a client that the broker has acknowledged: a digest of it, and when the client had its answer."""

    digest: int
    at_ns: int


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

    Equal messages of two clients that are in transit at the same time are both the later one's.

    >>> own = OwnMessages()
    >>> own.sent("smoke", b"yes", "sensor-7", 0)
    >>> own.publisher("smoke", b"yes", 5), own.publisher("smoke", b"yes", 6)
    ('sensor-7', '')
    """

    def __init__(self) -> None:
        # Publisher, how many are in transit, and when the last was sent; the oldest first. A payload may be long, its
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


# Copies of one publication for several connections to the broker come within moments.
_MOST_RECENT = 4_096
_RECENT_NS = 5_000_000_000


class RecentPublications:
    """Publications of the last moments, and over which connections to the broker a copy of each has come.

    One that comes again over the same connection is another publication, also with an equal payload.

    >>> recent = RecentPublications()
    >>> first = Publication(7, "smoke", b"1", 0, 0)
    >>> recent.add(0, first), recent.take(1, "smoke", b"1", 5) is first, recent.take(1, "smoke", b"1", 6)
    (None, True, None)
    """

    def __init__(self) -> None:
        # By topic and payload, the oldest first, each with a bit for every connection.
        self._known: dict[int, list[list[Any]]] = {}
        self._order: deque[tuple[int, int]] = deque()

    def take(self, connection: int, topic: str, payload: bytes, now_ns: int) -> Publication | None:
        """The publication of which a copy has come, if it is known."""
        while self._order and (self._order[0][1] < now_ns - _RECENT_NS or len(self._order) > _MOST_RECENT):
            key, _ = self._order.popleft()
            entries = self._known[key]
            del entries[0]
            if not entries:
                del self._known[key]
        bit = 1 << connection
        next_one = None
        entries = self._known.get(hash((topic, payload)), [])
        for entry in reversed(entries):
            if entry[1] & bit:
                break
            next_one = entry
        else:
            # The first of this connection: it may have missed the earlier ones.
            next_one = entries[-1] if entries else None
        if next_one is None:
            return None
        next_one[1] |= bit
        publication: Publication = next_one[0]
        return publication

    def add(self, connection: int, publication: Publication) -> None:
        """A new one, which has come over a connection."""
        key = hash((publication.topic, publication.payload))
        self._known.setdefault(key, []).append([publication, 1 << connection])
        self._order.append((key, publication.received_ns))


class KnownPublications:
    """Gives each its number; the last one is remembered, since copies of it for other filters may follow."""

    def __init__(self) -> None:
        self._next_id = 0
        self.last: Publication | None = None
        self.last_origins: set[Origin] = set()
        self.counts = TopicCounts()
        """Publications by topic, whatever the number of copies."""
        self.own_messages = OwnMessages()
        self.recent: RecentPublications | None = None
        """Where clients have connections of their own to the broker: the same publication comes over several."""

    def new(self, topic: str, payload: bytes, published_ns: int, received_ns: int) -> Publication:
        """A publication with the next id."""
        publication = Publication(self._next_id, topic, payload, published_ns, received_ns)
        self._next_id += 1
        return publication
