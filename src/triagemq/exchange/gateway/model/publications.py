"""What is known of the messages that the broker has sent: their numbers, their publishers, and how many of each topic.

Counts are read again and again by somebody who wants to know what has changed since. Topics are kept in the order of
their last change, in steps of reading (or seconds): what has changed since a step is at the end, what has been idle for
long at the beginning. A topic that was idle for long is forgotten, and counted from 0 if it comes again.
"""

from __future__ import annotations

from dataclasses import dataclass

from triagemq.exchange.gateway.model.messages import Publication
from triagemq.exchange.gateway.model.sessions import Origin

IDLE_SECONDS = 900.0
"""Whoever reads must remember a count for longer than this, to know of each whether it goes on or has begun anew."""

# Whoever publishes to ever new topics must not fill the memory with their counts.
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

    `begun`: those of them that began after the step that was asked for. `step` is what to ask for the next time.
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
        # hash is not, and nobody outside can make two that are equal.
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
