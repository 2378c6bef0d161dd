"""How sessions begin and end: CONNECT with its will, keep-alive supervision, a broker that comes and goes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from triagemq.exchange.gateway import publishing, rows, subscribing
from triagemq.exchange.gateway.actions import Gone
from triagemq.exchange.gateway.model import Endpoint, Session, SessionState, Will
from triagemq.exchange.gateway.settings import BrokerLoss, Mode
from triagemq.exchange.mqtt.session import Login
from triagemq.mqttsn import (
    ConnAck,
    Connect,
    Disconnect,
    ReturnCode,
    WillMsg,
    WillMsgReq,
    WillMsgResp,
    WillMsgUpd,
    WillTopic,
    WillTopicReq,
    WillTopicResp,
    WillTopicUpd,
)
from triagemq.trace.schema import Outcome

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore
    from triagemq.exchange.gateway.link import Link
    from triagemq.exchange.mqtt.packets import ConnAck as BrokerConnAck

__all__ = [
    "Handshake",
    "broker_lost",
    "broker_reached",
    "broker_refused",
    "connect",
    "end",
    "expire_later",
    "link_for",
    "lose",
    "move",
    "revoke",
    "supervise",
    "to_disconnected",
    "update_will_message",
    "update_will_topic",
    "will_message",
    "will_topic",
]


@dataclass(slots=True)
class Handshake:
    """A CONNECT whose will is being asked for."""

    message: Connect
    topic: WillTopic | None = None
    attempts: int = 1


def connect(gateway: GatewayCore, endpoint: Endpoint, message: Connect) -> None:
    """A client wants a session."""
    settings = gateway.settings
    is_new = message.client_id not in gateway.sessions
    waiting = len(gateway.sessions) + len(gateway.handshakes)
    if settings.policy.forbids_connection(message.client_id):
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
    elif is_new and settings.policy.refuses_connection(message.client_id, waiting):
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, "policy")
    elif _broker_stays_away(gateway, gateway.link) and settings.mode is Mode.AGGREGATING:
        _refuse(gateway, endpoint, ReturnCode.REJECTED_CONGESTION, "no broker")
    elif message.will:
        handshake = gateway.handshakes[endpoint] = Handshake(message)
        gateway.send(endpoint, WillTopicReq())
        _ask_again_later(gateway, endpoint, handshake)
    else:
        gateway.handshakes.pop(endpoint, None)
        _establish(gateway, endpoint, message, None)


def will_topic(gateway: GatewayCore, endpoint: Endpoint, message: WillTopic) -> None:
    """The first half of the will, or word that there is none."""
    handshake = gateway.handshakes.get(endpoint)
    if handshake is None:
        _unexpected(gateway, endpoint, message)
    elif message.topic_name is None:
        del gateway.handshakes[endpoint]
        _establish(gateway, endpoint, handshake.message, None)
    elif gateway.settings.policy.forbids_publication(handshake.message.client_id, message.topic_name):
        del gateway.handshakes[endpoint]
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "will not allowed")
    else:
        handshake.topic = message
        handshake.attempts = 1
        gateway.send(endpoint, WillMsgReq())


def will_message(gateway: GatewayCore, endpoint: Endpoint, message: WillMsg) -> None:
    """The second half of the will: the client is connected."""
    handshake = gateway.handshakes.get(endpoint)
    if handshake is None or handshake.topic is None or handshake.topic.topic_name is None:
        _unexpected(gateway, endpoint, message)
        return
    del gateway.handshakes[endpoint]
    topic = handshake.topic
    assert topic.topic_name is not None
    will = Will(topic.topic_name, message.payload, topic.qos, topic.retain)
    _establish(gateway, endpoint, handshake.message, will)


def update_will_topic(gateway: GatewayCore, session: Session, message: WillTopicUpd) -> None:
    """A new topic for the will, or none: then the will is deleted."""
    if message.topic_name is None:
        session.will = None
    elif gateway.settings.policy.forbids_publication(session.client_id, message.topic_name):
        gateway.counters.refused["will: not allowed"] += 1
        gateway.send(session.endpoint, WillTopicResp(ReturnCode.REJECTED_NOT_SUPPORTED))
        return
    else:
        payload = session.will.payload if session.will else b""
        session.will = Will(message.topic_name, payload, message.qos, message.retain)
    gateway.changes.put("sessions", *rows.session(session))
    gateway.send(session.endpoint, WillTopicResp(ReturnCode.ACCEPTED))


def update_will_message(gateway: GatewayCore, session: Session, message: WillMsgUpd) -> None:
    """A new payload for the will, if there is one."""
    if session.will is None:
        gateway.send(session.endpoint, WillMsgResp(ReturnCode.REJECTED_NOT_SUPPORTED))
        return
    session.will = replace(session.will, payload=message.payload)
    gateway.changes.put("sessions", *rows.session(session))
    gateway.send(session.endpoint, WillMsgResp(ReturnCode.ACCEPTED))


def _establish(gateway: GatewayCore, endpoint: Endpoint, message: Connect, will: Will | None) -> None:
    if gateway.settings.policy.forbids_connection(message.client_id):
        # Since its CONNECT, which may have waited for a will.
        _refuse(gateway, endpoint, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
        return
    gateway.counters.connects += 1
    other = gateway.by_endpoint.get(endpoint)
    if other is not None and other.client_id != message.client_id:
        lose(gateway, other)
    session = gateway.sessions.get(message.client_id)
    if session is not None and (message.clean_session or session.clean):
        end(gateway, session, "session cleaned")
        session = None
    if session is None:
        number = gateway.numbers.subscriber(message.client_id)
        link = link_for(gateway, message.client_id, message.clean_session)
        session = Session(
            message.client_id, number, endpoint, link, message.clean_session, message.duration_seconds
        )
        gateway.sessions[message.client_id] = session
        gateway.slots.add(session)
    else:
        session.duration_seconds = message.duration_seconds
        session.told.clear()
        gateway.deliver.requeue(session)
        if session.link.is_closed:
            session.link.open()
            for message_id, arrival in session.arrivals.items():
                if arrival.packet_id:
                    publishing.resume(session, message_id, arrival)
    if message.will:
        session.will = will
    move(gateway, session, endpoint)
    session.heard_ns = gateway.now_ns
    session.sleep_seconds = 0
    if gateway.settings.mode is Mode.TRANSPARENT and not session.link.available:
        session.state = SessionState.CONNECTING
        gateway.after(gateway.settings.connect_timeout_seconds, lambda: _connect_timeout(gateway, session))
        return
    _connected(gateway, session)


def _connected(gateway: GatewayCore, session: Session) -> None:
    session.state = SessionState.ACTIVE
    gateway.slots.changed(session)
    gateway.changes.put("sessions", *rows.session(session))
    gateway.present(session)
    gateway.send(session.endpoint, ConnAck(ReturnCode.ACCEPTED))
    supervise(gateway, session, session.duration_seconds)
    if session.buffer:
        session.draining = True
        gateway.deliver.pump(session)


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
    session.endpoint = endpoint
    gateway.by_endpoint[endpoint] = session
    session.link.forget_routes(session)


def supervise(gateway: GatewayCore, session: Session, seconds: float) -> None:
    """Lose the client when it is silent for longer than it promised; 0 promises nothing."""
    session.supervised_until_ns = 0
    if seconds > 0:
        allowed_ns = int(seconds * gateway.settings.keep_alive_tolerance * 1e9)
        _check_later(gateway, session, session.heard_ns + allowed_ns, allowed_ns)


def _check_later(gateway: GatewayCore, session: Session, due_ns: int, allowed_ns: int) -> None:
    session.supervised_until_ns = due_ns

    def check() -> None:
        if session.supervised_until_ns != due_ns or not session.connected:
            return
        if gateway.now_ns - session.heard_ns >= allowed_ns:
            lose(gateway, session)
        else:
            _check_later(gateway, session, session.heard_ns + allowed_ns, allowed_ns)

    gateway.schedule(due_ns, check)


def lose(gateway: GatewayCore, session: Session) -> None:
    """A client is gone without a word: its will is published."""
    gateway.counters.clients_lost += 1
    will = session.will
    if will is not None:
        # Without a broker QoS 0 would be lost here; as QoS 1 it waits.
        qos = will.qos if session.link.available else max(1, will.qos)
        session.link.publish(will.topic, will.payload, qos=qos, retain=will.retain)
    to_disconnected(gateway, session)


def to_disconnected(gateway: GatewayCore, session: Session) -> None:
    """The connection is over; a session that is not clean goes on, and QoS 1 and 2 messages are kept for it."""
    if session.clean:
        end(gateway, session, "disconnected")
        return
    session.state = SessionState.DISCONNECTED
    session.supervised_until_ns = 0
    session.publishing.clear()
    session.subscribing.clear()
    session.link.forget_routes(session)
    if gateway.by_endpoint.get(session.endpoint) is session:
        del gateway.by_endpoint[session.endpoint]
    gateway.deliver.requeue(session)
    gateway.slots.hand_back(session, ended=False)
    kept = session.buffer.clear()
    session.buffer.push_front(delivery for delivery in kept if delivery.qos)
    for delivery in kept:
        if not delivery.qos:
            gateway.deliver.give_up(session, delivery, Outcome.subscriber_gone, "disconnected")
    gateway.changes.put("sessions", *rows.session(session))
    gateway.act(Gone(session.client_id))
    if session.link is not gateway.link:
        session.link.close()
    expire_later(gateway, session)


def revoke(gateway: GatewayCore) -> None:
    """The policy has changed: end sessions that it forbids, and subscriptions and wills of the others."""
    policy = gateway.settings.policy
    for session in list(gateway.sessions.values()):
        client_id = session.client_id
        if policy.forbids_connection(client_id):
            if session.connected:
                gateway.send(session.endpoint, Disconnect())
            gateway.counters.refused["session: no longer allowed"] += 1
            end(gateway, session, "no longer allowed")
            continue
        for topic_filter in [
            one for one in session.subscriptions if policy.forbids_subscription(client_id, one)
        ]:
            gateway.counters.refused["subscription: no longer allowed"] += 1
            subscribing.drop(gateway, session, topic_filter)
        if session.will is not None and policy.forbids_publication(client_id, session.will.topic):
            session.will = None
            gateway.changes.put("sessions", *rows.session(session))


def expire_later(gateway: GatewayCore, session: Session) -> None:
    """Forget a client that stays away: it must not take a place for ever."""
    away_since_ns = session.away_since_ns = gateway.now_ns

    def expire() -> None:
        is_away = session.state is SessionState.DISCONNECTED and session.away_since_ns == away_since_ns
        if is_away and gateway.sessions.get(session.client_id) is session:
            end(gateway, session, "session expired")

    gateway.after(gateway.settings.session_expiry_seconds, expire)


def end(gateway: GatewayCore, session: Session, reason: str) -> None:
    """The session is over, with everything that belongs to it."""
    client_id = session.client_id
    del gateway.sessions[client_id]
    if gateway.by_endpoint.get(session.endpoint) is session:
        del gateway.by_endpoint[session.endpoint]
    if session.connected:
        gateway.act(Gone(client_id))
    session.state = SessionState.DISCONNECTED
    gateway.slots.remove(session)
    session.link.leave(session)
    gateway.deliver.requeue(session)
    gateway.slots.hand_back(session, ended=True)
    for delivery in session.buffer.clear():
        gateway.deliver.give_up(session, delivery, Outcome.subscriber_gone, reason)
    gateway.forget_topics(session)
    for topic_filter in session.subscriptions:
        gateway.changes.remove("subscriptions", (client_id, topic_filter))
    for message_id in session.arrivals:
        gateway.changes.remove("arrivals", (client_id, message_id))
    gateway.changes.remove("sessions", client_id)
    if session.link is not gateway.link:
        session.link.close()
        gateway.links.pop(client_id, None)


# The broker comes and goes.


def broker_reached(gateway: GatewayCore, link: Link) -> None:
    """Transparent mode: a client that waited for its broker connection is connected now."""
    session = gateway.sessions.get(link.key)
    if session is not None and session.link is link and session.state is SessionState.CONNECTING:
        _connected(gateway, session)


def broker_refused(gateway: GatewayCore, link: Link, answer: BrokerConnAck) -> None:
    """Transparent mode: the broker does not let this client in."""
    gateway.counters.refused[f"connect: broker, code {answer.code}"] += 1
    session = gateway.sessions.get(link.key)
    if session is None or session.link is not link:
        return
    if session.state is SessionState.CONNECTING:
        gateway.send(session.endpoint, ConnAck(ReturnCode.REJECTED_NOT_SUPPORTED))
    elif session.connected:
        gateway.send(session.endpoint, Disconnect())
    to_disconnected(gateway, session)


def broker_lost(gateway: GatewayCore, link: Link) -> None:
    """Clients are told when the broker stays away for longer than a restart takes."""
    gateway.counters.broker_losses += 1
    since_ns = link.is_down_since_ns

    def tell() -> None:
        if link.is_down_since_ns != since_ns:
            return
        for session in [one for one in gateway.sessions.values() if one.link is link]:
            if session.state is SessionState.ACTIVE:
                gateway.send(session.endpoint, Disconnect())
                to_disconnected(gateway, session)

    if gateway.settings.broker_loss is BrokerLoss.DISCONNECT:
        gateway.after(gateway.settings.broker_grace_seconds, tell)


def _broker_stays_away(gateway: GatewayCore, link: Link) -> bool:
    if gateway.settings.broker_loss is BrokerLoss.KEEP or link.is_down_since_ns is None:
        return False
    return gateway.now_ns - link.is_down_since_ns >= gateway.settings.broker_grace_seconds * 1e9


def _connect_timeout(gateway: GatewayCore, session: Session) -> None:
    if session.state is SessionState.CONNECTING:
        gateway.counters.refused["connect: no broker"] += 1
        gateway.send(session.endpoint, ConnAck(ReturnCode.REJECTED_CONGESTION))
        to_disconnected(gateway, session)


def _ask_again_later(gateway: GatewayCore, endpoint: Endpoint, handshake: Handshake) -> None:
    def ask_again() -> None:
        if gateway.handshakes.get(endpoint) is not handshake:
            return
        if handshake.attempts > gateway.settings.retries:
            del gateway.handshakes[endpoint]
            return
        handshake.attempts += 1
        gateway.counters.retries += 1
        gateway.send(endpoint, WillTopicReq() if handshake.topic is None else WillMsgReq())
        gateway.after(gateway.settings.retry_seconds, ask_again)

    gateway.after(gateway.settings.retry_seconds, ask_again)


def _refuse(gateway: GatewayCore, endpoint: Endpoint, code: ReturnCode, reason: str) -> None:
    gateway.counters.refused[f"connect: {reason}"] += 1
    gateway.send(endpoint, ConnAck(code))


def _unexpected(gateway: GatewayCore, endpoint: Endpoint, message: WillTopic | WillMsg) -> None:
    gateway.counters.rejected[f"unexpected_{message.message_type.name.lower()}"] += 1
    if endpoint not in gateway.by_endpoint:
        gateway.counters.unknown_senders += 1
        gateway.send(endpoint, Disconnect())
