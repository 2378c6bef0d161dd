"""REGISTER, SUBSCRIBE and UNSUBSCRIBE of a client."""

from __future__ import annotations

from triagemq.exchange.gateway import broker_link, naming
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.model import rows
from triagemq.exchange.gateway.model.messages import Subscription
from triagemq.exchange.gateway.model.sessions import Session
from triagemq.exchange.gateway.model.topics import REGISTERED, SUBSCRIBED, KnownTopic
from triagemq.exchange.mqtt.packets import REFUSED
from triagemq.mqttsn import (
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicIdType,
    UnsubAck,
    Unsubscribe,
    is_shared,
)
from triagemq.mqttsn.filters import has_wildcard


def register(gateway: GatewayCore, session: Session, message: Register) -> None:
    """A client asks for the id of a topic name."""
    known = naming.assign(gateway, session, message.topic_name)
    if known is None:
        gateway.counters.refused["register: no more topic ids"] += 1
        code, topic_id = ReturnCode.REJECTED_CONGESTION, 0
    else:
        naming.hold(gateway, session, known, REGISTERED)
        naming.confirmed(gateway, session, known)
        code, topic_id = ReturnCode.ACCEPTED, known.topic_id
    gateway.send(session.endpoint, RegAck(topic_id, message.message_id, code))


def subscribe(gateway: GatewayCore, session: Session, message: Subscribe) -> None:
    """A client wants messages: the broker is asked, and its answer is the answer."""
    if message.message_id in session.subscribing:
        gateway.counters.duplicates += 1
        return
    topic_filter = _filter(gateway, message)
    if topic_filter is None:
        _refuse(gateway, session, message, ReturnCode.REJECTED_INVALID_TOPIC_ID, "unknown predefined topic")
        return
    if is_shared(topic_filter):
        # It would take its share of the messages away from others, and no client here would get them.
        _refuse(gateway, session, message, ReturnCode.REJECTED_NOT_SUPPORTED, "shared subscription")
        return
    policy = gateway.settings.policy
    is_new = topic_filter not in session.subscriptions
    needs_id = message.topic_id_type is TopicIdType.NORMAL and not has_wildcard(topic_filter)
    if policy.forbids_subscription(session.client_id, topic_filter):
        _refuse(gateway, session, message, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
        return
    count = len(session.subscriptions) + len(session.subscribing)
    if is_new and policy.refuses_subscription(session.client_id, topic_filter, count):
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "policy")
        return
    if session.link.is_busy:
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "too many wait for the broker")
        return
    known: KnownTopic | None = None
    if needs_id:
        known = naming.assign(gateway, session, topic_filter)
        if known is None:
            _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "no more topic ids")
            return
        naming.hold(gateway, session, known, SUBSCRIBED)
    former = session.subscriptions.get(topic_filter)
    number = (
        gateway.numbers.subscription(session.client_id, topic_filter) if former is None else former.number
    )
    predefined_id = message.topic if isinstance(message.topic, int) else 0
    subscription = Subscription(topic_filter, message.qos, message.topic_id_type, number, predefined_id)
    session.subscribing[message.message_id] = topic_filter
    broker_link.subscribe(
        gateway,
        session,
        subscription,
        lambda code: _answered(gateway, session, subscription, known, message.message_id, code),
    )


def _answered(
    gateway: GatewayCore,
    session: Session,
    subscription: Subscription,
    known: KnownTopic | None,
    message_id: int,
    code: int,
) -> None:
    session.subscribing.pop(message_id, None)
    if gateway.sessions.get(session.client_id) is not session or not session.connected:
        broker_link.unsubscribe(gateway, session, subscription.topic_filter)
        if subscription.topic_filter not in session.subscriptions:
            naming.let_go(gateway, session, subscription.topic_filter, SUBSCRIBED)
        return
    if code >= REFUSED:
        if subscription.topic_filter not in session.subscriptions:
            gateway.numbers.unsubscribed(session.client_id, subscription.topic_filter)
            naming.let_go(gateway, session, subscription.topic_filter, SUBSCRIBED)
        gateway.counters.refused["subscribe: broker"] += 1
        gateway.send(session.endpoint, SubAck(0, message_id, ReturnCode.REJECTED_NOT_SUPPORTED))
        return
    subscription.qos = min(subscription.qos, code)
    session.subscriptions[subscription.topic_filter] = subscription
    session.link.routes.forget(session)
    gateway.changes.put("subscriptions", rows.subscription(session, subscription))
    if len(session.subscriptions) == 1:
        gateway.present(session)
    topic_id = subscription.predefined_id
    if known is not None:
        naming.confirmed(gateway, session, known)
        topic_id = known.topic_id
    gateway.answer(session, SubAck(topic_id, message_id, ReturnCode.ACCEPTED, subscription.qos))


def unsubscribe(gateway: GatewayCore, session: Session, message: Unsubscribe) -> None:
    """A client no longer wants messages. It always succeeds, as in MQTT."""
    topic_filter = _filter(gateway, message)
    if topic_filter is not None:
        drop(gateway, session, topic_filter)
    gateway.answer(session, UnsubAck(message.message_id))


def drop(gateway: GatewayCore, session: Session, topic_filter: str) -> None:
    """A client gets no messages by a filter any more."""
    session.subscriptions.pop(topic_filter, None)
    gateway.numbers.unsubscribed(session.client_id, topic_filter)
    if session.subscribing:
        waiting = [key for key, one in session.subscribing.items() if one == topic_filter]
        for message_id in waiting:
            del session.subscribing[message_id]
    broker_link.unsubscribe(gateway, session, topic_filter)
    session.link.routes.forget(session)
    naming.let_go(gateway, session, topic_filter, SUBSCRIBED)
    gateway.changes.remove("subscriptions", (session.client_id, topic_filter))


def _filter(gateway: GatewayCore, message: Subscribe | Unsubscribe) -> str | None:
    if isinstance(message.topic, int):
        return gateway.topics.predefined.get(message.topic)
    return message.topic


def _refuse(
    gateway: GatewayCore, session: Session, message: Subscribe, code: ReturnCode, reason: str
) -> None:
    gateway.counters.refused[f"subscribe: {reason}"] += 1
    gateway.send(session.endpoint, SubAck(0, message.message_id, code))
