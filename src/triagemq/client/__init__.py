"""The library on a publisher's or subscriber's device: the standard library, the MQTT-SN codec, and nothing else.

Publisher, Subscriber                     for asyncio
BlockingPublisher, BlockingSubscriber     the same for programs without it
Connection                                one MQTT-SN connection, for those who need no more
TypedTopic                                what a topic carries, as octets, and how many these are at most

The program's calls come in at `publisher`, `subscriber` or, for programs without asyncio, `blocking`; `participant` is
what they share: a name, and an intent that the `coordinator` is told and reminded of; `background` runs what goes on
beside the program's calls, and reports what fails there. A subscriber goes on at
another gateway as `moving` says. The parts of a `connection` are its `lifeline`
(made, lost, made again), `topics` (names, ids and filters), `publishing` (what goes out) and `events` (what comes in);
they see the whole as a `wire`, over one of the `sockets`, with the `settings` of the connection. `direct` is another
way, without gateway and broker, for events that have a promise; `directions` has publishers and subscribers take it.
"""

from triagemq.client.blocking import BlockingPublisher, BlockingSubscriber
from triagemq.client.connection import Connection, ConnectionCounters
from triagemq.client.coordinator import Assignment, Coordinator, Promise, RequiredDelay
from triagemq.client.events import Event, Overflow
from triagemq.client.publisher import Publisher, publish_without_connection
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.client.subscriber import Subscriber
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
from triagemq.intents import Declared, Utility, Wanted

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
    "Declared",
    "Event",
    "GatewayUnreachableError",
    "Overflow",
    "Promise",
    "PromiseRefusedError",
    "Publisher",
    "RefusedError",
    "RequiredDelay",
    "Subscriber",
    "TypedTopic",
    "Utility",
    "Wanted",
    "Will",
    "largest_size_bytes",
    "publish_without_connection",
]
