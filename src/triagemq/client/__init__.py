"""The library on a publisher's or subscriber's device: the standard library, the MQTT-SN codec, and nothing else.

Publisher, Subscriber                     for asyncio
BlockingPublisher, BlockingSubscriber     the same for programs without it
Connection                                one MQTT-SN connection, for those who need no more
TypedTopic                                what a topic carries, as octets, and how many these are at most

Calls of the program come in at `publisher`, `subscriber` or, without asyncio, `blocking`. `participant` is what both
share: a name, and an intent on lease at the `coordinator`. A `connection` gives a `session`, which is without I/O, one
of the `sockets`, a clock and futures; the session has an `outbox` for what is published, and an inbox for `events`.
`moving` is the handover from one gateway to another; `directions` are for promised topics, which go without a broker
(`direct`).
"""

from triagemq.client.connection import Connection
from triagemq.client.coordinator import Assignment, Coordinator, LimitedClaim, Promise, RequiredDelay
from triagemq.client.events import ConnectionCounters, Event
from triagemq.client.publisher import BlockingPublisher, Publisher, publish_without_connection
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.client.subscriber import BlockingSubscriber, Subscriber
from triagemq.client.types import TypedTopic, largest_size_bytes
from triagemq.dtls import ClientSecurity
from triagemq.errors import (
    ClientError,
    ClosedError,
    CoordinatorError,
    CoordinatorUnreachableError,
    GatewayUnreachableError,
    PromiseRefusedError,
    RefusedError,
)
from triagemq.intents import PublicationIntent, SubscriptionIntent, Utility
from triagemq.mqttsn.properties import EventProperties

__all__ = [
    "Assignment",
    "BlockingPublisher",
    "BlockingSubscriber",
    "ClientError",
    "ClientSecurity",
    "ClosedError",
    "Connection",
    "ConnectionCounters",
    "ConnectionSettings",
    "Coordinator",
    "CoordinatorError",
    "CoordinatorUnreachableError",
    "Event",
    "EventProperties",
    "GatewayUnreachableError",
    "LimitedClaim",
    "Promise",
    "PromiseRefusedError",
    "PublicationIntent",
    "Publisher",
    "RefusedError",
    "RequiredDelay",
    "Subscriber",
    "SubscriptionIntent",
    "TypedTopic",
    "Utility",
    "Will",
    "largest_size_bytes",
    "publish_without_connection",
]
