"""How sessions begin: CONNECT, its will asked for in two steps, and the way to the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triagemq.exchange.gateway import ending, naming, publishing, rows
from triagemq.exchange.gateway.actions import Gone
from triagemq.exchange.gateway.model import Endpoint, Session, SessionState, Will
from triagemq.exchange.gateway.settings import BrokerLoss, Mode
from triagemq.exchange.gateway.topics import ClientTopics
from triagemq.exchange.mqtt.owner import Login
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    ReturnCode,
    WillMsg,
    WillMsgReq,
    WillTopic,
    is_brokers_own,
)

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore
    from triagemq.exchange.gateway.link import Link

__all__ = ["connect", "connected", "estrange", "link_for", "move", "will_message", "will_topic"]

_NOWHERE = ("0.0.0.0", 0)


def connect(gateway: GatewayCore, endpoint: Endpoint, message: Connect) -> None:
    """A client wants a session."""
    settings = gateway.settings
    if settings.policy.closed:
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, "closed for now")
    elif settings.policy.forbids_connection(message.client_id):
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
    elif reason := gateway.places.refusal(message.client_id, endpoint):
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, reason)
    elif _broker_stays_away(gateway) and settings.mode is Mode.AGGREGATING:
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, "no broker")
    elif message.will:
        gateway.handshakes.begin(endpoint, message)
    else:
        gateway.handshakes.end(endpoint)
        _establish(gateway, endpoint, message, None)


def _broker_stays_away(gateway: GatewayCore) -> bool:
    since_ns = gateway.link.is_down_since_ns
    if gateway.settings.broker_loss is BrokerLoss.KEEP or since_ns is None:
        return False
    return gateway.now_ns - since_ns >= gateway.settings.broker_grace_seconds * 1e9


def will_topic(gateway: GatewayCore, endpoint: Endpoint, message: WillTopic) -> None:
    """The first half of the will, or word that there is none."""
    handshake = gateway.handshakes.get(endpoint)
    if handshake is None:
        _unexpected(gateway, endpoint, message)
    elif message.topic_name is None:
        gateway.handshakes.end(endpoint)
        _establish(gateway, endpoint, handshake.message, None)
    elif is_brokers_own(message.topic_name) or gateway.settings.policy.forbids_publication(
        handshake.message.client_id, message.topic_name
    ):
        gateway.handshakes.end(endpoint)
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "will not allowed")
    else:
        handshake.topic = message
        handshake.attempts = 1
        gateway.send(endpoint, WillMsgReq())


def will_message(gateway: GatewayCore, endpoint: Endpoint, message: WillMsg) -> None:
    """The second half of the will: the client is connected."""
    handshake = gateway.handshakes.get(endpoint)
    topic = None if handshake is None else handshake.topic
    if handshake is None or topic is None or topic.topic_name is None:
        _unexpected(gateway, endpoint, message)
        return
    gateway.handshakes.end(endpoint)
    will = Will(topic.topic_name, message.payload, topic.qos, topic.retain)
    _establish(gateway, endpoint, handshake.message, will)


def _establish(gateway: GatewayCore, endpoint: Endpoint, message: Connect, will: Will | None) -> None:
    if gateway.settings.policy.forbids_connection(message.client_id):
        # Since its CONNECT, which may have waited for a will.
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
        return
    if reason := gateway.places.refusal(message.client_id, endpoint):
        # Others may have come since.
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, reason)
        return
    gateway.counters.connects += 1
    other = gateway.by_endpoint.get(endpoint)
    if other is not None and other.client_id != message.client_id:
        ending.lose(gateway, other)
    session = gateway.sessions.get(message.client_id)
    if session is not None and (message.clean_session or session.clean):
        ending.end(gateway, session, "session cleaned")
        session = None
    if session is None:
        number = gateway.numbers.subscriber(message.client_id)
        link = link_for(gateway, message.client_id, message.clean_session)
        session = Session(
            message.client_id,
            number,
            endpoint,
            link,
            ClientTopics(gateway.topics),
            message.clean_session,
            message.duration_seconds,
        )
        gateway.sessions[message.client_id] = session
        gateway.places.enter(session)
        gateway.slots.add(session)
    else:
        session.duration_seconds = message.duration_seconds
        naming.new_connection(gateway, session)
        gateway.deliver.requeue(session)
        if session.link.is_closed:
            session.link.open()
            for message_id, arrival in list(session.arrivals.items()):
                if arrival.packet_id:
                    publishing.resume(gateway, session, message_id, arrival)
    if message.will:
        session.will = will
    move(gateway, session, endpoint)
    session.heard_ns = gateway.now_ns
    session.sleep_seconds = 0
    if gateway.settings.mode is Mode.TRANSPARENT and not session.link.available:
        session.state = SessionState.CONNECTING
        gateway.after(gateway.settings.connect_timeout_seconds, lambda: _connect_timeout(gateway, session))
        return
    connected(gateway, session)


def connected(gateway: GatewayCore, session: Session) -> None:
    """The client may send and get messages from now on."""
    session.state = SessionState.ACTIVE
    gateway.slots.changed(session)
    gateway.changes.put("sessions", *rows.session(session))
    gateway.present(session)
    gateway.send(session.endpoint, ConnAck(ReturnCode.ACCEPTED))
    ending.supervise(gateway, session, session.duration_seconds)
    if session.buffer:
        session.draining = True
        gateway.deliver.pump(session)


def _connect_timeout(gateway: GatewayCore, session: Session) -> None:
    if session.state is SessionState.CONNECTING:
        gateway.counters.refused["connect: no broker"] += 1
        gateway.send(session.endpoint, ConnAck(ReturnCode.REJECTED_CONGESTION))
        ending.to_disconnected(gateway, session)


def link_for(gateway: GatewayCore, client_id: str, clean: bool) -> Link:
    """The way to the broker for a client."""
    settings = gateway.settings
    if settings.mode is Mode.AGGREGATING:
        return gateway.link
    from triagemq.exchange.gateway.link import Link

    own = settings.credentials.get(client_id)
    login = Login(
        client_id,
        clean=clean,
        keep_alive_seconds=settings.broker_keep_alive_seconds,
        user=settings.user if own is None else own.user,
        password=settings.password if own is None else own.password,
    )
    link = gateway.links[client_id] = Link(gateway, client_id, login)
    link.open()
    return link


def move(gateway: GatewayCore, session: Session, endpoint: Endpoint) -> None:
    """A client is at this endpoint now, wherever it was before."""
    if gateway.by_endpoint.get(session.endpoint) is session and session.endpoint != endpoint:
        del gateway.by_endpoint[session.endpoint]
        gateway.counters.clients_moved += 1
    gateway.places.leave(session)
    session.endpoint = endpoint
    gateway.places.enter(session)
    gateway.by_endpoint[endpoint] = session
    session.link.routes.forget(session)


def estrange(gateway: GatewayCore, address: tuple[str, int]) -> None:
    """Somebody else may be at this address now: sessions there, behind a forwarder or not, wait for their CONNECT.

    Until then they are nowhere: nothing is sent to the address on their behalf, and nothing from there is theirs.
    """
    gateway.handshakes.end(address)
    there = gateway.by_endpoint.get(address)
    for session in ([] if there is None else [there]) + gateway.places.behind(address):
        gateway.by_endpoint.pop(session.endpoint, None)
        gateway.places.leave(session)
        session.endpoint = (*_NOWHERE, session.endpoint[2]) if len(session.endpoint) == 3 else _NOWHERE
        gateway.places.enter(session)
        session.link.routes.forget(session)
        gateway.act(Gone(session.client_id))


def _refuse(gateway: GatewayCore, endpoint: Endpoint, code: ReturnCode, reason: str) -> None:
    gateway.counters.refused[f"connect: {reason}"] += 1
    gateway.send(endpoint, ConnAck(code))


def _unexpected(gateway: GatewayCore, endpoint: Endpoint, message: WillTopic | WillMsg) -> None:
    gateway.counters.rejected[f"unexpected_{message.message_type.name.lower()}"] += 1
    if endpoint not in gateway.by_endpoint:
        gateway.counters.unknown_senders += 1
        gateway.send(endpoint, Disconnect())
