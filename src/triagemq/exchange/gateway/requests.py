"""Requests of clients: PUBLISH, on its way to the broker, the will, and REGISTER, SUBSCRIBE, UNSUBSCRIBE.

QoS 1: the client gets PUBACK when the broker has acknowledged; until then it is the client that keeps the message.
QoS 2: the gateway stores the message before PUBREC, publishes it at PUBREL under a packet id that is stored, too, and
answers PUBCOMP when the broker has it: a restart in between neither loses nor repeats it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from triagemq.exchange.gateway import broker_link
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.messages import Answered, InboundQos2, LastWill, Subscription
from triagemq.exchange.gateway.sessions import Endpoint, Session
from triagemq.exchange.gateway.topics import KnownTopic
from triagemq.exchange.mqtt.packets import REFUSED
from triagemq.mqttsn import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    SubAck,
    Subscribe,
    TopicIdType,
    UnsubAck,
    Unsubscribe,
    WillMsgResp,
    WillMsgUpd,
    WillTopicResp,
    WillTopicUpd,
    is_brokers_own,
    is_shared,
)
from triagemq.mqttsn.filters import has_wildcard
from triagemq.mqttsn.timestamps import DIRECT_SLOT, split_generation

_REMEMBERED_ANSWERS = 64


class _Token(NamedTuple):
    client_id: str
    message_id: int
    topic_id: int
    qos: int
    digest: int = 0


def from_stranger(gateway: GatewayCore, endpoint: Endpoint, message: Publish) -> None:
    """QoS -1: no connection, no answer. Everything else is for clients only."""
    if message.qos != -1:
        gateway.send_away(endpoint)
        return
    gateway.counters.client_messages += 1
    name = gateway.topics.without_connection(message.topic_id_type, message.topic_id)
    if name is None:
        gateway.counters.refused["publish: unknown topic id"] += 1
    elif is_brokers_own(name):
        gateway.counters.refused["publish: topic of the broker"] += 1
    elif gateway.settings.policy.forbids_publication("", name):
        gateway.counters.refused["publish: not allowed"] += 1
    elif not broker_link.publish(gateway, None, name, message.payload, qos=0, retain=message.retain):
        gateway.counters.refused["publish: no broker"] += 1


def publish(gateway: GatewayCore, session: Session, message: Publish) -> None:
    """A message from a client that is connected."""
    gateway.counters.client_messages += 1
    if session.slot == DIRECT_SLOT:
        session.generation, payload = split_generation(message.payload)
        message = replace(message, payload=payload)
    name = session.topics.name_of(message.topic_id_type, message.topic_id)
    if message.qos == 2 and not gateway.can_store:
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "cannot be stored")
        return
    if message.qos == 2 and _is_stored(gateway, session, message, name):
        gateway.counters.duplicates += 1
        gateway.send_after_commit(session.endpoint, PubRec(message.message_id))
        return
    if message.qos == 1 and _is_duplicate(gateway, session, message):
        return
    lane = session.link.lanes[0]
    if name is None:
        _refuse(gateway, session, message, ReturnCode.REJECTED_INVALID_TOPIC_ID, "unknown topic id")
    elif is_brokers_own(name):
        _refuse(gateway, session, message, ReturnCode.REJECTED_NOT_SUPPORTED, "topic of the broker")
    elif gateway.settings.policy.forbids_publication(session.client_id, name):
        _refuse(gateway, session, message, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
    elif message.qos <= 0:
        if not broker_link.publish(gateway, session, name, message.payload, qos=0, retain=message.retain):
            # QoS 0 has no answer but this one; -1 has none at all.
            _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "no broker")
    elif (
        lane.outbox.backlog + len(session.inbound) >= gateway.settings.broker_backlog
        or not lane.outbox.has_room
    ):
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "too many wait for the broker")
    elif message.qos == 2 and _is_released(session, message.message_id):
        # The client has forgotten that one, which the broker does not have yet.
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "message id in use")
    elif message.qos == 2 and _holds_too_much(gateway, session, message):
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "too many not released")
    elif message.qos == 1:
        digest = _digest(message.topic_id, message.payload)
        token = _Token(session.client_id, message.message_id, message.topic_id, 1, digest)
        session.publishing[message.message_id] = token
        broker_link.publish(
            gateway, session, name, message.payload, qos=1, retain=message.retain, token=token
        )
    else:
        inbound = InboundQos2(name, message.payload, message.retain)
        store_inbound(gateway, session, message.message_id, inbound)
        gateway.changes.put("arrivals", inbound.row(session.client_id, message.message_id))
        gateway.send_after_commit(session.endpoint, PubRec(message.message_id))


def _holds_too_much(gateway: GatewayCore, session: Session, message: Publish) -> bool:
    """QoS 2: may the client have no more messages here? One it may always have, whatever others do."""
    settings = gateway.settings
    return bool(session.inbound) and (
        len(session.inbound) >= settings.arrival_messages
        or gateway.inbound_bytes + len(message.payload) > settings.arrival_bytes
    )


def store_inbound(gateway: GatewayCore, session: Session, message_id: int, inbound: InboundQos2) -> None:
    """QoS 2: have a message until the broker has it."""
    drop_inbound(gateway, session, message_id)
    session.inbound[message_id] = inbound
    gateway.inbound_bytes += len(inbound.payload)


def drop_inbound(gateway: GatewayCore, session: Session, message_id: int) -> InboundQos2 | None:
    """QoS 2: have it no longer."""
    inbound = session.inbound.pop(message_id, None)
    if inbound is not None:
        gateway.inbound_bytes -= len(inbound.payload)
    return inbound


def pub_rel(gateway: GatewayCore, session: Session, message: PubRel) -> None:
    """QoS 2: the client will not send the message again, so now it goes to the broker."""
    inbound = session.inbound.get(message.message_id)
    if inbound is None:
        gateway.send(session.endpoint, PubComp(message.message_id))
    elif inbound.packet_id:
        gateway.counters.duplicates += 1
    elif gateway.can_store and session.link.lanes[0].outbox.has_room:
        # Else the client asks again: under a packet id that a kill makes us forget it might be published twice.
        inbound.packet_id = session.link.lanes[0].outbox.reserve()
        gateway.changes.put("arrivals", inbound.row(session.client_id, message.message_id))
        resume(gateway, session, message.message_id, inbound)


def resume(gateway: GatewayCore, session: Session, message_id: int, inbound: InboundQos2) -> None:
    """Hand a released QoS 2 message to the broker, perhaps for the second time after a restart."""
    token = _Token(session.client_id, message_id, 0, 2)
    broker_link.note_publisher(gateway, session.link, inbound.topic, inbound.payload, session.publisher)
    session.link.lanes[0].publish(
        inbound.topic.encode(),
        inbound.payload,
        qos=2,
        retain=inbound.retain,
        sender=session.client_id,
        publisher=session.publisher,
        token=token,
        packet_id=inbound.packet_id,
        released=inbound.broker_holds_it,
    )


def broker_holds(gateway: GatewayCore, token: object, holds: bool) -> None:
    """QoS 2: the broker has answered PUBREC. After a restart only PUBREL is sent: it may have had that already.

    Not `holds`: it was killed since, so that the message is sent again.
    """
    session = gateway.sessions.get(token.client_id) if isinstance(token, _Token) else None
    if session is None or not isinstance(token, _Token):
        return
    inbound = session.inbound.get(token.message_id)
    if inbound is not None:
        inbound.broker_holds_it = holds
        gateway.changes.put("arrivals", inbound.row(session.client_id, token.message_id))


def broker_answered(gateway: GatewayCore, token: object, code: int) -> None:
    """The broker has a message of QoS 1 or 2, or has refused it."""
    if not isinstance(token, _Token):
        return
    if code >= REFUSED:
        gateway.counters.refused["publish: broker"] += 1
    session = gateway.sessions.get(token.client_id)
    if session is None:
        return
    if token.qos == 2:
        inbound = drop_inbound(gateway, session, token.message_id)
        if inbound is None:
            return
        gateway.changes.remove("arrivals", (session.client_id, token.message_id))
        session.answered.pop(token.message_id, None)
        answer: PubAck | PubComp = PubComp(token.message_id)
        if code < REFUSED:
            _remember(gateway, session, token.message_id, _digest(inbound.topic, inbound.payload))
        else:
            # PUBCOMP has no return code. A client that does not take this for the end gets PUBCOMP for its next PUBREL.
            answer = PubAck(token.topic_id, token.message_id, ReturnCode.REJECTED_NOT_SUPPORTED)
        if session.connected:
            gateway.send(session.endpoint, answer)
        return
    if session.publishing.get(token.message_id) is not token:
        # The client has another message under this id by now.
        return
    del session.publishing[token.message_id]
    accepted = code < REFUSED
    if accepted:
        _remember(gateway, session, token.message_id, token.digest)
    if session.connected:
        return_code = ReturnCode.ACCEPTED if accepted else ReturnCode.REJECTED_NOT_SUPPORTED
        gateway.send(session.endpoint, PubAck(token.topic_id, token.message_id, return_code))


def _is_released(session: Session, message_id: int) -> bool:
    inbound = session.inbound.get(message_id)
    return inbound is not None and inbound.packet_id != 0


def _is_stored(gateway: GatewayCore, session: Session, message: Publish, name: str | None) -> bool:
    """QoS 2, sent again or late. A new message may come under the id of one that the client will never release:
    such a one is left when the client has forgotten its messages.
    """
    inbound = session.inbound.get(message.message_id)
    if name is None:
        return inbound is not None
    if inbound is None:
        # A copy that comes after PUBCOMP: a late copy of PUBREL would have it published once more.
        return message.dup and _is_late_copy(
            gateway, session, message.message_id, _digest(name, message.payload)
        )
    return (inbound.topic, inbound.payload) == (name, message.payload)


def _is_duplicate(gateway: GatewayCore, session: Session, message: Publish) -> bool:
    """QoS 1, sent again because our answer is late, or was lost."""
    digest = _digest(message.topic_id, message.payload)
    waiting = session.publishing.get(message.message_id)
    if isinstance(waiting, _Token) and waiting.digest == digest:
        gateway.counters.duplicates += 1
        return True
    if message.dup and _is_late_copy(gateway, session, message.message_id, digest):
        gateway.counters.duplicates += 1
        _remember(gateway, session, message.message_id, digest)
        gateway.send(session.endpoint, PubAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
        return True
    return False


def _is_late_copy(gateway: GatewayCore, session: Session, message_id: int, digest: int) -> bool:
    """Was an equal message under this id answered within Tretry?

    Later it is a new one: many clients use one id again and again, and what they repeat after Tretry is not what was
    answered before they sent it.
    """
    answered = session.answered.get(message_id)
    within_ns = gateway.settings.retry_seconds * 1e9
    return answered is not None and answered.digest == digest and gateway.now_ns - answered.at_ns <= within_ns


def _remember(gateway: GatewayCore, session: Session, message_id: int, digest: int) -> None:
    session.answered.pop(message_id, None)
    session.answered[message_id] = Answered(digest, gateway.now_ns)
    while len(session.answered) > _REMEMBERED_ANSWERS:
        del session.answered[next(iter(session.answered))]


def _digest(topic: str | int, payload: bytes) -> int:
    return hash((topic, payload))


def _refuse(gateway: GatewayCore, session: Session, message: Publish, code: ReturnCode, reason: str) -> None:
    gateway.counters.refused[f"publish: {reason}"] += 1
    if message.qos >= 0:
        gateway.send(session.endpoint, PubAck(message.topic_id, message.message_id, code))


# Wills.


def update_will_topic(gateway: GatewayCore, session: Session, message: WillTopicUpd) -> None:
    """A new topic for the will, or none: then the will is deleted."""
    if message.topic_name is None:
        session.will = None
    elif is_brokers_own(message.topic_name) or gateway.settings.policy.forbids_publication(
        session.client_id, message.topic_name
    ):
        gateway.counters.refused["will: not allowed"] += 1
        gateway.send(session.endpoint, WillTopicResp(ReturnCode.REJECTED_NOT_SUPPORTED))
        return
    else:
        payload = session.will.payload if session.will else b""
        session.will = LastWill(message.topic_name, payload, message.qos, message.retain)
    gateway.changes.put("sessions", session.row())
    gateway.answer(session, WillTopicResp(ReturnCode.ACCEPTED))


def update_will_message(gateway: GatewayCore, session: Session, message: WillMsgUpd) -> None:
    """A new payload for the will, if there is one."""
    if session.will is None:
        gateway.send(session.endpoint, WillMsgResp(ReturnCode.REJECTED_NOT_SUPPORTED))
        return
    session.will = replace(session.will, payload=message.payload)
    gateway.changes.put("sessions", session.row())
    gateway.answer(session, WillMsgResp(ReturnCode.ACCEPTED))


def publish_will(gateway: GatewayCore, session: Session) -> None:
    """The client is lost: its will is published, if it has one."""
    will = session.will
    if will is not None:
        # Without a broker QoS 0 would be lost here; as QoS 1 it waits.
        qos = will.qos if session.link.available else max(1, will.qos)
        broker_link.publish(gateway, session, will.topic, will.payload, qos=qos, retain=will.retain)


# Topics and subscriptions.


def register(gateway: GatewayCore, session: Session, message: Register) -> None:
    """A client asks for the id of a topic name."""
    known = session.topics.assign(message.topic_name)
    if known is None:
        gateway.counters.refused["register: no more topic ids"] += 1
        code, topic_id = ReturnCode.REJECTED_CONGESTION, 0
    else:
        session.confirm_topic(known)
        code, topic_id = ReturnCode.ACCEPTED, known.topic_id
    gateway.send(session.endpoint, RegAck(topic_id, message.message_id, code))


def subscribe(gateway: GatewayCore, session: Session, message: Subscribe) -> None:
    """A client wants messages: the broker's SUBACK is the answer."""
    if message.message_id in session.subscribing:
        gateway.counters.duplicates += 1
        return
    topic_filter = _filter(gateway, message)
    if topic_filter is None:
        _refuse_subscription(
            gateway, session, message, ReturnCode.REJECTED_INVALID_TOPIC_ID, "unknown predefined topic"
        )
        return
    if is_shared(topic_filter):
        # It would take its share of the messages away from others, and no client here would get them.
        _refuse_subscription(
            gateway, session, message, ReturnCode.REJECTED_NOT_SUPPORTED, "shared subscription"
        )
        return
    policy = gateway.settings.policy
    is_new = topic_filter not in session.subscriptions
    needs_id = message.topic_id_type is TopicIdType.NORMAL and not has_wildcard(topic_filter)
    if policy.forbids_subscription(session.client_id, topic_filter):
        _refuse_subscription(gateway, session, message, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
        return
    count = len(session.subscriptions) + len(session.subscribing)
    if is_new and policy.refuses_subscription(session.client_id, topic_filter, count):
        _refuse_subscription(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "policy")
        return
    if session.link.is_busy:
        _refuse_subscription(
            gateway, session, message, ReturnCode.REJECTED_CONGESTION, "too many wait for the broker"
        )
        return
    known: KnownTopic | None = None
    if needs_id:
        known = session.topics.assign(topic_filter)
        if known is None:
            _refuse_subscription(
                gateway, session, message, ReturnCode.REJECTED_CONGESTION, "no more topic ids"
            )
            return
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
        lambda code: _subscribed(gateway, session, subscription, known, message.message_id, code),
    )


def _subscribed(
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
        return
    if code >= REFUSED:
        if subscription.topic_filter not in session.subscriptions:
            gateway.numbers.unsubscribed(session.client_id, subscription.topic_filter)
        gateway.counters.refused["subscribe: broker"] += 1
        gateway.send(session.endpoint, SubAck(0, message_id, ReturnCode.REJECTED_NOT_SUPPORTED))
        return
    subscription.qos = min(subscription.qos, code)
    session.subscriptions[subscription.topic_filter] = subscription
    session.link.routes.forget(session)
    gateway.changes.put("subscriptions", subscription.row(session.client_id))
    if len(session.subscriptions) == 1:
        gateway.present(session)
    topic_id = subscription.predefined_id
    if known is not None:
        session.confirm_topic(known)
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
    gateway.changes.remove("subscriptions", (session.client_id, topic_filter))


def _filter(gateway: GatewayCore, message: Subscribe | Unsubscribe) -> str | None:
    if isinstance(message.topic, int):
        return gateway.topics.predefined.get(message.topic)
    return message.topic


def _refuse_subscription(
    gateway: GatewayCore, session: Session, message: Subscribe, code: ReturnCode, reason: str
) -> None:
    gateway.counters.refused[f"subscribe: {reason}"] += 1
    gateway.send(session.endpoint, SubAck(0, message.message_id, code))
