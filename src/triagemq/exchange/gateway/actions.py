"""What the gateway wants done outside: datagrams to send, broker connections to open and close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from triagemq.exchange.gateway.model.messages import Delivery, Publication
from triagemq.exchange.gateway.model.sessions import Endpoint, Group, Session
from triagemq.exchange.mqtt.session import MqttSession


class SendControl(NamedTuple):
    """Everything but PUBLISH: passes first and is never dropped. `after_commit`: not before all changes are stored."""

    endpoint: Endpoint
    datagram: bytes
    after_commit: bool = False


class SendPublish(NamedTuple):
    """A PUBLISH to one client."""

    session: Session
    delivery: Delivery
    datagram: bytes


class SendMany(NamedTuple):
    """One QoS 0 PUBLISH to the clients of a group: to those at `places`, or (None) to all."""

    group: Group
    publication: Publication
    datagram: bytes
    places: Sequence[int] | None = None


class Broadcast(NamedTuple):
    """To everyone in the neighbourhood, if the gateway has an address for that."""

    datagram: bytes


class OpenBroker(NamedTuple):
    """Connect this session, and keep it connected: to our own broker, or to that of a peer by its name."""

    session: MqttSession
    peer: str = ""


class CloseBroker(NamedTuple):
    """Disconnect this session for good."""

    session: MqttSession


class Present(NamedTuple):
    """A client is at an endpoint now. It comes before everything that is sent there."""

    client_id: str
    endpoint: Endpoint
    subscribes: bool


class Gone(NamedTuple):
    """A client is not connected any more."""

    client_id: str


class Say(NamedTuple):
    """A line for whoever runs the gateway."""

    text: str


Action: TypeAlias = (
    SendControl | SendPublish | SendMany | Broadcast | OpenBroker | CloseBroker | Present | Gone | Say
)
