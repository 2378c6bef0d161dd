"""Events from the gateway to the program.

Inbox             PUBLISH from the gateway: named, answered as its QoS demands, and handed on once
ExactlyOnce       QoS 2 events that come by two gateways, handed on once
EventQueue        where events wait for the program, up to a limit; EventSource: how the program takes them
ReceivedCounts    how many of each topic came, and how late, for the coordinator

A QoS 2 message is handed on when it first comes, and known by its message id until PUBREL. Ids of finished messages are
remembered for a while, because the network may bring a copy that was late; the contents are compared, too, because the
gateway uses ids again.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from triagemq import mqttsn as sn
from triagemq.errors import ParameterError
from triagemq.mqttsn.properties import EventProperties, split_properties
from triagemq.mqttsn.timestamps import split_payload

_REMEMBERED = 1024
_REMEMBERED_SECONDS = 60.0
_MOST_HELD = 256
_MOST_TOPICS = 50_000
_LONGEST_TOPIC = 1_024

Arrived = TypeVar("Arrived")


class Event(NamedTuple):
    """What was published. `published_ns` is known if the publisher put it in; both times are Unix time."""

    topic: str
    payload: bytes
    published_ns: int | None
    received_ns: int
    qos: int = 0
    retained: bool = False
    value: Any = None
    """The payload as a value of the topic's type, where the subscription has one."""
    transport: str = "gateway"
    """How it came: that, or where it is promised by `multicast`, without a broker."""
    properties: EventProperties | None = None
    """What its MQTT 5 publisher says of it, where the subscription asks for that and there is any."""

    @property
    def latency_seconds(self) -> float | None:
        """From publication to arrival here, as far as the two clocks agree."""
        return None if self.published_ns is None else (self.received_ns - self.published_ns) / 1e9


class ExactlyOnce:
    """Recognises a QoS 2 event that comes a second time by another gateway, with another message id.

    A publisher whose gateway dies before it acknowledges publishes again elsewhere, and cannot know what was sent on.
    An event is known by its topic, payload and time of publication; without a time two equal events are two events.

    >>> once, event = ExactlyOnce(), Event("smoke", b"0.7", published_ns=5, received_ns=6, qos=2)
    >>> once.is_repeated(event), once.is_repeated(event), once.is_repeated(event._replace(published_ns=7))
    (False, True, False)
    """

    def __init__(self, limit: int = 20_000) -> None:
        self._limit = limit
        self._seen: OrderedDict[int, None] = OrderedDict()

    def is_repeated(self, event: Event) -> bool:
        """A retained event comes again with each new subscription, and is no repetition."""
        if event.qos != 2 or event.retained or event.published_ns is None:
            return False
        identity = hash((event.topic, event.payload, event.published_ns))
        if identity in self._seen:
            return True
        self._seen[identity] = None
        if len(self._seen) > self._limit:
            self._seen.popitem(last=False)
        return False


class EventQueue(Generic[Arrived]):
    """Events in order of arrival, for any number of takers in one event loop; beyond a limit the oldest are dropped."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ParameterError("queue_events", f"must be at least 1, is {limit}")
        self._events: deque[Arrived] = deque(maxlen=limit)
        self._arrived = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None
        self._has_failed = False
        self.overflowed = 0
        """Events dropped because they were not taken."""

    def __len__(self) -> int:
        return len(self._events)

    def put(self, event: Arrived) -> None:
        """An event has arrived."""
        self.overflowed += len(self._events) == self._events.maxlen
        self._events.append(event)
        self._arrived.set()

    def end(self) -> None:
        """No more will come; what is here can still be taken."""
        self._ended = True
        self._arrived.set()

    def fail(self, error: Exception, *, for_good: bool = False) -> None:
        """The next `take`, when all that is here is taken, raises this error, once or from then on."""
        if not self._has_failed:
            self._error, self._has_failed = error, for_good
        self._arrived.set()

    async def take(self) -> Arrived | None:
        """The next event; None when there will be no more."""
        while not self._events:
            if (error := self._error) is not None:
                self._error = error if self._has_failed else None
                raise error
            if self._ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._events.popleft()

    async def take_all(self) -> list[Arrived]:
        """All that are here, at least one; none when there will be no more."""
        first = await self.take()
        if first is None:
            return []
        events = [first, *self._events]
        self._events.clear()
        return events


class EventSource(Generic[Arrived]):
    """What a program takes events from."""

    _queue: EventQueue[Arrived]

    def __aiter__(self) -> AsyncIterator[Arrived]:
        return self

    async def __anext__(self) -> Arrived:
        event = await self._queue.take()
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self, timeout_seconds: float | None = None) -> Arrived | None:
        """The next event; None when none has come in that time, or the subscriber was closed."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._queue.take()
        except TimeoutError:
            return None

    async def take_all(self) -> list[Arrived]:
        """All events that are here, at least one; none when the subscriber was closed."""
        return await self._queue.take_all()

    @property
    def overflowed(self) -> int:
        """Events that were dropped because the program did not take them in time."""
        return self._queue.overflowed


@dataclass(slots=True)
class ConnectionCounters:
    """What happened so far."""

    connected: int = 0
    published: int = 0
    acknowledged: int = 0
    retransmissions: int = 0
    refused: int = 0
    not_sent: int = 0
    """QoS 0 messages while there was no connection."""
    received: int = 0
    duplicates: int = 0
    unknown_topics: int = 0
    """Events under a topic id that the gateway had not announced; the client requests it."""
    malformed: int = 0

    @classmethod
    def of(cls, several: Iterable[ConnectionCounters]) -> ConnectionCounters:
        """Those of several connections together."""
        return cls(*map(sum, zip(*map(astuple, several), strict=True)))


class Inbox:
    """What came over one connection. `send` sends a message to the gateway, `hand_on` gets each event once."""

    def __init__(
        self,
        send: Callable[[sn.PubAck | sn.PubRec | sn.PubComp | sn.RegAck], object],
        hand_on: Callable[[Event], None],
        predefined_topics: Mapping[int, str],
    ) -> None:
        self._send = send
        self._hand_on = hand_on
        self._predefined = predefined_topics
        self._names: dict[int, str] = {}
        self._unfinished: dict[int, int] = {}
        self._finished: OrderedDict[int, tuple[int, float]] = OrderedDict()
        self._held: dict[int, list[tuple[sn.Publish, int]]] = {}
        self.counters = ConnectionCounters()

    def begin(self, *, fresh: bool) -> None:
        """Connected again: held messages may mean another topic by now; in a fresh session message ids do, too."""
        self._held.clear()
        if fresh:
            self._unfinished.clear()
            self._finished.clear()

    def learn(self, topic_id: int, name: str) -> None:
        """The name of a topic id; events that came before it are handed on now."""
        self._names[topic_id] = name
        for message, received_ns in self._held.pop(topic_id, ()):
            self._deliver(name, message, received_ns)

    def register(self, message: sn.Register) -> None:
        """REGISTER: the gateway announces an id before it uses it."""
        self._send(sn.RegAck(message.topic_id, message.message_id, sn.ReturnCode.ACCEPTED))
        self.learn(message.topic_id, message.topic_name)

    def publish(self, message: sn.Publish) -> None:
        """An event, perhaps for the second time."""
        received_ns = time.time_ns()
        name = self._name(message)
        if name is None:
            self._unknown(message, received_ns)
            return
        if message.qos <= 0:
            self._deliver(name, message, received_ns)
            return
        contents = hash((name, message.payload))
        if message.qos == 1:
            # Two equal events may follow each other under one id only if the second is marked as a repetition.
            repeated = message.dup and self._is_finished(message.message_id, contents)
            self._send(sn.PubAck(message.topic_id, message.message_id, sn.ReturnCode.ACCEPTED))
            self._finish(message.message_id, contents)
        else:
            repeated = self._unfinished.get(message.message_id) == contents
            if not repeated:
                repeated = self._is_finished(message.message_id, contents)
            self._send(sn.PubRec(message.message_id))
            self._unfinished[message.message_id] = contents
        if repeated:
            self.counters.duplicates += 1
        else:
            self._deliver(name, message, received_ns)

    def release(self, message: sn.PubRel) -> None:
        """QoS 2: the gateway will not send it again."""
        contents = self._unfinished.pop(message.message_id, None)
        if contents is not None:
            self._finish(message.message_id, contents)
        self._send(sn.PubComp(message.message_id))

    def _name(self, message: sn.Publish) -> str | None:
        if message.topic_id_type is sn.TopicIdType.NORMAL:
            return self._names.get(message.topic_id)
        if message.topic_id_type is sn.TopicIdType.SHORT:
            return sn.short_topic_name(message.topic_id)
        return self._predefined.get(message.topic_id, f"predefined:{message.topic_id}")

    def _unknown(self, message: sn.Publish, received_ns: int) -> None:
        """Have the gateway register the id again. QoS 1 and 2 come again then; QoS 0 does not, so it is held."""
        self.counters.unknown_topics += 1
        if message.qos <= 0 and sum(map(len, self._held.values())) < _MOST_HELD:
            self._held.setdefault(message.topic_id, []).append((message, received_ns))
        self._send(sn.PubAck(message.topic_id, message.message_id, sn.ReturnCode.REJECTED_INVALID_TOPIC_ID))

    def _deliver(self, name: str, message: sn.Publish, received_ns: int) -> None:
        self.counters.received += 1
        properties, octets = split_properties(message.payload)
        published_ns, payload = split_payload(octets)
        qos, retained = max(0, message.qos), message.retain
        self._hand_on(Event(name, payload, published_ns, received_ns, qos, retained, properties=properties))

    def _finish(self, message_id: int, contents: int) -> None:
        self._finished[message_id] = (contents, time.monotonic())
        self._finished.move_to_end(message_id)
        if len(self._finished) > _REMEMBERED:
            self._finished.popitem(last=False)

    def _is_finished(self, message_id: int, contents: int) -> bool:
        found = self._finished.get(message_id)
        return (
            found is not None and found[0] == contents and time.monotonic() - found[1] < _REMEMBERED_SECONDS
        )


LATENCY_PARTS = 4
"""Bins of reported latencies to each doubling, from 1 µs on."""


def latency_bin(seconds: float, parts: int = LATENCY_PARTS) -> int:
    """The bin of a latency, in bins of equal width within each doubling; 0 below 1 µs.

    >>> [latency_bin(seconds) for seconds in (0.0, 1e-6, 1.3e-6, 2e-6, 0.25)]
    [0, 1, 2, 5, 72]
    """
    if seconds < 1e-6:
        return 0
    mantissa, exponent = math.frexp(seconds * 1e6)
    return (exponent - 1) * parts + int((2 * mantissa - 1) * parts) + 1


def bin_middle_seconds(number: int, parts: int = LATENCY_PARTS) -> float:
    """A latency in the middle of a bin.

    >>> latency_bin(bin_middle_seconds(72))
    72
    """
    exponent, part = divmod(number - 1, parts)
    return 0.0 if number < 1 else math.ldexp(1 + (part + 0.5) / parts, exponent) * 1e-6


def percentile_seconds(bins: Mapping[int, int], share: float, parts: int = LATENCY_PARTS) -> float | None:
    """The latency that this share does not exceed, within half a bin (10 %); None if there are none.

    >>> round(percentile_seconds({latency_bin(0.010): 19, latency_bin(1.0): 1}, 0.95), 4)
    0.0092
    """
    rest = share * sum(bins.values())
    for number in sorted(bins):
        rest -= bins[number]
        if rest <= 1e-9:
            return bin_middle_seconds(number, parts)
    return None


class Latencies:
    """How many, how long in all and at most, and how many in each bin; `parts` bins for each doubling.

    >>> delays = Latencies(parts=32)
    >>> for microseconds in range(1, 1_001):
    ...     delays.add(1e-6 * microseconds)
    >>> abs(delays.quantile(0.5) / 500e-6 - 1) < 0.03
    True
    >>> delays.as_json()["count"], delays.as_json()["worst_seconds"]
    (1000, 0.001)
    """

    def __init__(self, parts: int = LATENCY_PARTS) -> None:
        self._parts = parts
        self.count = 0
        self.total_seconds = self.worst_seconds = 0.0
        self.bins: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_seconds += seconds
        self.worst_seconds = max(self.worst_seconds, seconds)
        self.bins[latency_bin(seconds, self._parts)] += 1

    def quantile(self, share: float) -> float | None:
        """The latency in seconds that this share does not exceed, within half a bin; None if there is none."""
        found = percentile_seconds(self.bins, share, self._parts)
        return None if found is None else min(found, self.worst_seconds)

    def as_json(self) -> dict[str, Any]:
        """How many, and p50, p99.9 and the worst, in seconds."""
        return {
            "count": self.count,
            "p50_seconds": self.quantile(0.5),
            "p99_9_seconds": self.quantile(0.999),
            "worst_seconds": self.worst_seconds if self.count else None,
        }


class ReceivedCounts:
    """Counts since the last report.

    >>> received = ReceivedCounts()
    >>> received.count(Event("smoke", b"", 1_000_000_000, 1_250_000_000))
    >>> received.report()["received"]["smoke"]
    {'count': 1, 'latency_seconds_sum': 0.25, 'latency_seconds_max': 0.25, 'latency_bins': {72: 1}}
    >>> received.report()
    {}
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._latencies: dict[str, Latencies] = {}

    def count(self, event: Event) -> None:
        """An event has arrived; its latency counts if its publisher has put in the time."""
        topic, latency_seconds = event.topic, event.latency_seconds
        if topic not in self._counts and (len(self._counts) >= _MOST_TOPICS or len(topic) > _LONGEST_TOPIC):
            return
        self._counts[topic] += 1
        if latency_seconds is not None:
            self._latencies.setdefault(topic, Latencies()).add(latency_seconds)

    def report(self) -> dict[str, Any]:
        """For a heartbeat; the counts begin anew."""
        rows = {}
        for topic, count in self._counts.items():
            latencies = self._latencies.get(topic, Latencies())
            rows[topic] = {
                "count": count,
                "latency_seconds_sum": latencies.total_seconds,
                "latency_seconds_max": latencies.worst_seconds,
                "latency_bins": dict(latencies.bins),
            }
        self._counts, self._latencies = Counter(), {}
        return {"received": rows} if rows else {}
