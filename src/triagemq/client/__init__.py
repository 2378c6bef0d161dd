"""The library on a publisher's or subscriber's device: the standard library, the MQTT-SN codec, and nothing else.

Publisher, Subscriber                     for asyncio
BlockingPublisher, BlockingSubscriber     the same for programs without it
Connection                                one MQTT-SN connection, for those who need no more
"""

from triagemq.client.blocking import BlockingPublisher, BlockingSubscriber
from triagemq.client.connection import Connection, ConnectionCounters
from triagemq.client.connectionless import publish_without_connection
from triagemq.client.coordinator import Assignment, Coordinator
from triagemq.client.events import Event, Overflow
from triagemq.client.publisher import Publisher
from triagemq.client.settings import ConnectionSettings, Will
from triagemq.client.subscriber import Subscriber
from triagemq.client.wanted import Wanted
from triagemq.dtls import ClientSecurity
from triagemq.errors import (
    ClientError,
    ClosedError,
    CoordinatorError,
    CoordinatorUnreachableError,
    GatewayUnreachableError,
    RefusedError,
)

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
    "GatewayUnreachableError",
    "Overflow",
    "Publisher",
    "RefusedError",
    "Subscriber",
    "Wanted",
    "Will",
    "publish_without_connection",
]
