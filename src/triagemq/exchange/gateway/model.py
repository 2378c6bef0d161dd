"""What a gateway knows: sessions, their subscriptions and wills, and messages on their way to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from triagemq.exchange.gateway.buffer import PriorityBuffer
from triagemq.exchange.gateway.small_set import SmallSet
from triagemq.exchange.gateway.topics import ClientTopics
from triagemq.mqttsn import TopicIdType

if TYPE_CHECKING:
    from triagemq.exchange.gateway.link import Link
    from triagemq.exchange.gateway.routes import RouteKey
    from triagemq.exchange.gateway.timers import Timer

__all__ = [
    "Arrival",
    "Delivery",
    "Endpoint",
    "Publication",
    "Registering",
    "Session",
    "SessionState",
    "Stage",
    "Subscription",
    "Will",
]

Endpoint: TypeAlias = tuple[str, int] | tuple[str, int, bytes]
"""Where a client is: IP address and UDP port, and its wireless node id if a forwarder is in between."""


class SessionState(IntEnum):
    """Section 6.14 of MQTT-SN 1.2; CONNECTING waits for the broker to accept the client (transparent mode)."""

    DISCONNECTED = 0
    ACTIVE = 1
    ASLEEP = 2
    AWAKE = 3
    CONNECTING = 4


class Stage(IntEnum):
    """How far a message to a client is."""

    QUEUED = 0
    SENT = 1
    RELEASED = 2
    """QoS 2: PUBREC has come, PUBCOMP has not."""
    ABANDONED = 3
    """QoS 2, in the store only: given up, and its message id is not free yet."""


@dataclass(frozen=True, slots=True)
class Will:
    """What is published when a client is lost."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False


class Publication:
    """A message from the broker, shared by everyone it goes to."""

    __slots__ = ("payload", "publication_id", "published_ns", "publisher", "received_ns", "topic")

    def __init__(
        self, publication_id: int, topic: str, payload: bytes, published_ns: int, received_ns: int
    ) -> None:
        # Its name, where that is known.
        self.publisher = ""
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
    stage: Stage = Stage.QUEUED
    attempts: int = 0
    # Those of the attempts after which the client was heard, but did not answer.
    ignored: int = 0
    sent_ns: int = 0
    enqueued_ns: int = -1
    dequeued_ns: int = -1
    # Flow id and class in which it was last sent: a new plan, or its client's leaving, does not change them.
    flow: tuple[int, int] | None = None


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


@dataclass(slots=True, eq=False)
class Session:
    """One client."""

    client_id: str
    number: int
    endpoint: Endpoint
    link: Link
    topics: ClientTopics
    clean: bool
    duration_seconds: int
    state: SessionState = SessionState.CONNECTING
    heard_ns: int = 0
    sleep_seconds: int = 0
    will: Will | None = None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    buffer: PriorityBuffer[Delivery] = field(default_factory=PriorityBuffer)
    in_flight: dict[int, Delivery] = field(default_factory=dict)
    # Message ids by which the client knows QoS 2 messages that it has not finished.
    reserved: SmallSet[int] = field(default_factory=SmallSet)
    # Of these, the ids of messages that were given up, with their sequence numbers (see retrying.py).
    abandoned: dict[int, int] | None = None
    # By topic id: what waits for the REGACK of that id.
    unregistered: dict[int, list[Delivery]] = field(default_factory=dict)
    registering: dict[int, Registering] = field(default_factory=dict)
    # By message id of the client.
    publishing: SmallSet[int] = field(default_factory=SmallSet)
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    answered: dict[int, tuple[int, int]] = field(default_factory=dict)
    # By message id: filters for which the broker has not answered.
    subscribing: dict[int, str] = field(default_factory=dict)
    routes: SmallSet[RouteKey] = field(default_factory=SmallSet)
    next_message_id: int = 1
    next_sequence: int = 1
    awake_budget: int = 0
    draining: bool = False
    pump_is_due: bool = False
    # It will be looked which topic ids have rested.
    rest_is_due: bool = False
    retry_is_due: bool = False
    # Until it is lost, or while it is away until it is forgotten.
    timer: Timer | None = None
    # The subscriber whose connection it is, and which of several (see slots.py).
    subscriber: str = ""
    slot: int = 0

    @property
    def waiting(self) -> int:
        """Messages that count against the buffer."""
        return len(self.buffer) + sum(map(len, self.unregistered.values()))

    @property
    def connected(self) -> bool:
        """Whether messages from its endpoint are its own."""
        return self.state is not SessionState.DISCONNECTED

    def message_id(self) -> int:
        """An id for a PUBLISH or REGISTER to this client that no unanswered one has."""
        while True:
            message_id = self.next_message_id
            self.next_message_id = message_id % 0xFFFF + 1
            if message_id not in self.in_flight and message_id not in self.reserved:
                return message_id


@dataclass(slots=True)
class Registering:
    """A REGISTER to a client that has not been answered."""

    message_id: int
    topic_name: str
    sent_ns: int
    attempts: int = 1
    ignored: int = 0
