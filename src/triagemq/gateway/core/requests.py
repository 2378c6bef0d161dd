"""Requests of clients: PUBLISH, the will, and REGISTER, SUBSCRIBE, UNSUBSCRIBE.

QoS 1: the client gets PUBACK when the broker has acknowledged; until then it is the client that keeps the message.
QoS 2: the gateway stores the message before PUBREC, publishes it at PUBREL under a packet id that is stored, too, and
answers PUBCOMP when the broker has it: a restart in between neither loses nor repeats it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from triagemq import mqttsn
from triagemq.gateway.core.broker_link import GatewayCore
from triagemq.gateway.core.messages import Answered, LastWill, Subscription
from triagemq.gateway.core.sessions import Endpoint, Session
from triagemq.gateway.core.topics import KnownTopic
from triagemq.mqtt.packets import REFUSED
from triagemq.mqtt.session import Packet
from triagemq.mqttsn import ReturnCode, TopicIdType, is_brokers_own, is_shared
from triagemq.mqttsn.filters import has_wildcard
from triagemq.mqttsn.timestamps import DIRECT_SLOT, split_generation

_REMEMBERED_ANSWERS = 64


class AnswerTo(NamedTuple):
    """Who gets the answer to a PUBLISH."""

    client_id: str
    message_id: int
    topic_id: int


def publish_unconnected(gateway: GatewayCore, endpoint: Endpoint, message: mqttsn.Publish) -> None:
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
    elif not gateway.publish(Packet(name.encode(), message.payload, 0, message.retain)):
        gateway.counters.refused["publish: no broker"] += 1


def publish(gateway: GatewayCore, session: Session, message: mqttsn.Publish) -> None:
    """A message from a client that is connected."""
    gateway.counters.client_messages += 1
    payload, message_id, qos = message.payload, message.message_id, message.qos
    if session.slot == DIRECT_SLOT:
        session.generation, payload = split_generation(payload)
    name = session.topics.name_of(message.topic_id_type, message.topic_id)
    if qos == 2 and not gateway.can_store:
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "cannot be stored")
        return
    if name is None:
        _refuse(gateway, session, message, ReturnCode.REJECTED_INVALID_TOPIC_ID, "unknown topic id")
        return
    sender = AnswerTo(session.client_id, message_id, message.topic_id)
    packet = Packet(name.encode(), payload, max(qos, 0), message.retain, session.publisher, sender)
    if qos > 0 and _is_duplicate(gateway, session, packet, dup=message.dup):
        gateway.counters.duplicates += 1
        return
    lane = gateway.link.lanes[0]
    inbound = session.inbound.get(message_id)
    if is_brokers_own(name):
        _refuse(gateway, session, message, ReturnCode.REJECTED_NOT_SUPPORTED, "topic of the broker")
    elif gateway.settings.policy.forbids_publication(session.client_id, name):
        _refuse(gateway, session, message, ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed")
    elif qos <= 0:
        packet.token = None
        if not gateway.publish(packet):
            # QoS 0 has no answer but this one; -1 has none at all.
            _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "no broker")
    elif lane.backlog + len(session.inbound) >= gateway.settings.broker_backlog or not lane.has_room:
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "too many wait for the broker")
    elif qos == 2 and inbound is not None and inbound.packet_id:
        # The client has forgotten that one, which the broker does not have yet.
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "message id in use")
    elif qos == 2 and _holds_too_much(gateway, session, packet):
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "too many not released")
    elif qos == 1:
        session.publishing[message_id] = packet
        gateway.publish(packet)
    else:
        drop_inbound(gateway, session, message_id)
        hold_inbound(gateway, session, packet)
        store_inbound(gateway, packet)
        gateway.send_after_commit(session.endpoint, mqttsn.PubRec(message_id))


def _holds_too_much(gateway: GatewayCore, session: Session, packet: Packet) -> bool:
    """QoS 2: may the client have no more messages here? One it may always have, whatever others do."""
    settings = gateway.settings
    return bool(session.inbound) and (
        len(session.inbound) >= settings.arrival_messages
        or gateway.inbound_bytes + len(packet.payload) > settings.arrival_bytes
    )


def hold_inbound(gateway: GatewayCore, session: Session, packet: Packet) -> None:
    """QoS 2: have a message until the broker has it."""
    assert isinstance(packet.token, AnswerTo)
    session.inbound[packet.token.message_id] = packet
    gateway.inbound_bytes += len(packet.payload)


def store_inbound(gateway: GatewayCore, packet: Packet) -> None:
    """QoS 2: what the store has of a message; a negative packet id: the broker holds it."""
    if not isinstance(sender := packet.token, AnswerTo):
        return
    session = gateway.sessions.get(sender.client_id)
    if session is not None and session.inbound.get(sender.message_id) is packet:
        packet_id = -packet.packet_id if packet.released else packet.packet_id
        row = (sender.client_id, sender.message_id, packet.topic.decode(), packet.payload, int(packet.retain))
        gateway.changes.put("arrivals", (*row, packet_id))


def drop_inbound(gateway: GatewayCore, session: Session, message_id: int) -> None:
    """QoS 2: have it no longer."""
    packet = session.inbound.pop(message_id, None)
    if packet is not None:
        gateway.inbound_bytes -= len(packet.payload)
        gateway.changes.remove("arrivals", (session.client_id, message_id))


def withdraw(gateway: GatewayCore, session: Session) -> None:
    """What waits for the broker and comes from a client that may not publish any more is not sent."""
    for packet in (*session.publishing.values(), *session.inbound.values()):
        gateway.link.lanes[0].withdraw(packet)


def pub_rel(gateway: GatewayCore, session: Session, message: mqttsn.PubRel) -> None:
    """QoS 2: the client will not send the message again, so now it goes to the broker."""
    packet, lane = session.inbound.get(message.message_id), gateway.link.lanes[0]
    if packet is None:
        gateway.send(session.endpoint, mqttsn.PubComp(message.message_id))
    elif packet.packet_id:
        gateway.counters.duplicates += 1
    elif gateway.can_store and lane.has_room:
        # Else the client asks again: under a packet id that a kill makes us forget it might be published twice.
        packet.packet_id = lane.reserve()
        store_inbound(gateway, packet)
        gateway.publish(packet)


def broker_answered(gateway: GatewayCore, packet: Packet, code: int) -> None:
    """The broker has a message of QoS 1 or 2, or has refused it."""
    sender, accepted = packet.token, code < REFUSED
    if not isinstance(sender, AnswerTo):
        return
    if not accepted:
        gateway.counters.refused["publish: broker"] += 1
    session = gateway.sessions.get(sender.client_id)
    if session is None:
        return
    message_id = sender.message_id
    if (session.inbound if packet.qos == 2 else session.publishing).get(message_id) is not packet:
        # The client has another message under this id by now.
        return
    session.answered.pop(message_id, None)
    if accepted:
        session.answered[message_id] = Answered(_digest(packet), gateway.now_ns)
        if len(session.answered) > _REMEMBERED_ANSWERS:
            del session.answered[next(iter(session.answered))]
    return_code = ReturnCode.ACCEPTED if accepted else ReturnCode.REJECTED_NOT_SUPPORTED
    answer: mqttsn.PubAck | mqttsn.PubComp = mqttsn.PubAck(sender.topic_id, message_id, return_code)
    if packet.qos == 1:
        del session.publishing[message_id]
    else:
        drop_inbound(gateway, session, message_id)
        if accepted:
            # It has no return code. A client that does not take PUBACK for the end gets it for its next PUBREL.
            answer = mqttsn.PubComp(message_id)
    if session.connected:
        gateway.send(session.endpoint, answer)


def _is_duplicate(gateway: GatewayCore, session: Session, packet: Packet, *, dup: bool) -> bool:
    """Is it sent again because our answer is late, or was lost, or does it come late? Then it is answered again.

    A new message may come under the id of one that the client will never release: such a one is omitted when the client
    has forgotten its messages. After Tretry an equal message is a new one: many clients use one id again and again, and
    what they repeat then is not what was answered before they sent it.
    """
    assert isinstance(packet.token, AnswerTo)
    _, message_id, topic_id = packet.token
    waiting = (session.inbound if packet.qos == 2 else session.publishing).get(message_id)
    is_waiting = waiting is not None and (waiting.topic, waiting.payload) == (packet.topic, packet.payload)
    answered = session.answered.get(message_id)
    is_late = (
        dup
        and (packet.qos == 1 or waiting is None)
        and answered is not None
        and answered.digest == _digest(packet)
        and gateway.now_ns - answered.at_ns <= gateway.settings.retry_seconds * 1e9
    )
    if packet.qos == 2 and (is_waiting or is_late):
        gateway.send_after_commit(session.endpoint, mqttsn.PubRec(message_id))
    elif is_late and not is_waiting:
        gateway.send(session.endpoint, mqttsn.PubAck(topic_id, message_id, ReturnCode.ACCEPTED))
    return is_waiting or is_late


def _digest(packet: Packet) -> int:
    return hash((packet.topic, packet.payload))


def _refuse(
    gateway: GatewayCore, session: Session, message: mqttsn.Publish, code: ReturnCode, reason: str
) -> None:
    gateway.counters.refused[f"publish: {reason}"] += 1
    if message.qos >= 0:
        gateway.send(session.endpoint, mqttsn.PubAck(message.topic_id, message.message_id, code))


# Wills.


def update_will_topic(gateway: GatewayCore, session: Session, message: mqttsn.WillTopicUpd) -> None:
    """A new topic for the will, or none: then the will is deleted."""
    if message.topic_name is None:
        session.will = None
    elif is_brokers_own(message.topic_name) or gateway.settings.policy.forbids_publication(
        session.client_id, message.topic_name
    ):
        gateway.counters.refused["will: not allowed"] += 1
        gateway.send(session.endpoint, mqttsn.WillTopicResp(ReturnCode.REJECTED_NOT_SUPPORTED))
        return
    else:
        payload = session.will.payload if session.will else b""
        session.will = LastWill(message.topic_name, payload, message.qos, message.retain)
    gateway.changes.put("sessions", session.row())
    gateway.answer(session, mqttsn.WillTopicResp(ReturnCode.ACCEPTED))


def update_will_message(gateway: GatewayCore, session: Session, message: mqttsn.WillMsgUpd) -> None:
    """A new payload for the will, if there is one."""
    if session.will is None:
        gateway.send(session.endpoint, mqttsn.WillMsgResp(ReturnCode.REJECTED_NOT_SUPPORTED))
        return
    session.will = replace(session.will, payload=message.payload)
    gateway.changes.put("sessions", session.row())
    gateway.answer(session, mqttsn.WillMsgResp(ReturnCode.ACCEPTED))


def publish_will(gateway: GatewayCore, session: Session) -> None:
    """The client is lost: its will is published, if it has one."""
    will = session.will
    if will is not None:
        # Without a broker QoS 0 would be lost here; as QoS 1 it waits.
        qos = will.qos if gateway.link.available else max(1, will.qos)
        gateway.publish(Packet(will.topic.encode(), will.payload, qos, will.retain, session.publisher))


# Topics and subscriptions.


def register(gateway: GatewayCore, session: Session, message: mqttsn.Register) -> None:
    """A client asks for the id of a topic name."""
    known = session.topics.assign(message.topic_name)
    if known is None:
        gateway.counters.refused["register: no more topic ids"] += 1
        code, topic_id = ReturnCode.REJECTED_CONGESTION, 0
    else:
        gateway.confirm_topic(session, known)
        code, topic_id = ReturnCode.ACCEPTED, known.topic_id
    gateway.send(session.endpoint, mqttsn.RegAck(topic_id, message.message_id, code))


def subscribe(gateway: GatewayCore, session: Session, message: mqttsn.Subscribe) -> None:
    """A client wants messages: the broker's SUBACK is the answer."""
    if message.message_id in session.subscribing:
        gateway.counters.duplicates += 1
        return
    topic_filter = _filter(gateway, message) or ""
    refusal = _refusal(gateway, session, topic_filter)
    known: KnownTopic | None = None
    if not refusal and message.topic_id_type is TopicIdType.NORMAL and not has_wildcard(topic_filter):
        known = session.topics.assign(topic_filter)
        refusal = None if known else (ReturnCode.REJECTED_CONGESTION, "no more topic ids")
    if refusal:
        code, reason = refusal
        gateway.counters.refused[f"subscribe: {reason}"] += 1
        gateway.send(session.endpoint, mqttsn.SubAck(0, message.message_id, code))
        return
    predefined_id = message.topic if isinstance(message.topic, int) else 0
    subscription = Subscription(topic_filter, message.qos, message.topic_id_type, predefined_id)
    session.subscribing[message.message_id] = topic_filter

    def answered(code: int) -> None:
        if not subscribed(gateway, session, subscription, message.message_id, code):
            if session.connected:
                answer = mqttsn.SubAck(0, message.message_id, ReturnCode.REJECTED_NOT_SUPPORTED)
                gateway.send(session.endpoint, answer)
            return
        gateway.present(session)
        topic_id = predefined_id
        if known is not None:
            gateway.confirm_topic(session, known)
            topic_id = known.topic_id
        gateway.answer(
            session, mqttsn.SubAck(topic_id, message.message_id, ReturnCode.ACCEPTED, subscription.qos)
        )

    gateway.subscribe(session, subscription, answered)


def subscribed(
    gateway: GatewayCore, session: Session, subscription: Subscription, message_id: int, code: int
) -> bool:
    """The broker has answered; False if it refuses the filter, or the session has ended."""
    session.subscribing.pop(message_id, None)
    if gateway.sessions.get(session.client_id) is not session:
        gateway.unsubscribe(session, subscription.topic_filter)
        return False
    if code >= REFUSED:
        gateway.counters.refused["subscribe: broker"] += 1
        return False
    subscription.qos = min(subscription.qos, code)
    session.subscriptions[subscription.topic_filter] = subscription
    gateway.routes.forget_topics_of(subscription.topic_filter)
    gateway.changes.put("subscriptions", subscription.row(session.client_id))
    return True


def unsubscribe(gateway: GatewayCore, session: Session, message: mqttsn.Unsubscribe) -> None:
    """A client no longer wants messages. It always succeeds, as in MQTT."""
    topic_filter = _filter(gateway, message)
    if topic_filter is not None:
        drop(gateway, session, topic_filter)
    gateway.answer(session, mqttsn.UnsubAck(message.message_id))


def drop(gateway: GatewayCore, session: Session, topic_filter: str) -> None:
    """A client gets no messages by a filter any more."""
    session.subscriptions.pop(topic_filter, None)
    if session.subscribing:
        waiting = [key for key, one in session.subscribing.items() if one == topic_filter]
        for message_id in waiting:
            del session.subscribing[message_id]
    gateway.unsubscribe(session, topic_filter)
    gateway.routes.forget(session)
    gateway.changes.remove("subscriptions", (session.client_id, topic_filter))
    if session.connected:
        gateway.present(session)


def _filter(gateway: GatewayCore, message: mqttsn.Subscribe | mqttsn.Unsubscribe) -> str | None:
    if isinstance(message.topic, int):
        return gateway.settings.predefined_topics.get(message.topic)
    return message.topic


def _refusal(gateway: GatewayCore, session: Session, topic_filter: str) -> tuple[ReturnCode, str] | None:
    """Why a client may not subscribe to a filter, "" for an id that means none."""
    policy, count = gateway.settings.policy, len(session.subscriptions) + len(session.subscribing)
    if not topic_filter:
        return ReturnCode.REJECTED_INVALID_TOPIC_ID, "unknown predefined topic"
    if is_shared(topic_filter):
        # It would take its share of the messages away from others, and no client here would get them.
        return ReturnCode.REJECTED_NOT_SUPPORTED, "shared subscription"
    if policy.forbids_subscription(session.client_id, topic_filter):
        return ReturnCode.REJECTED_NOT_SUPPORTED, "not allowed"
    is_new = topic_filter not in session.subscriptions
    if is_new and count >= policy.maximum_subscriptions:
        return ReturnCode.REJECTED_CONGESTION, "policy"
    if gateway.link.is_busy:
        return ReturnCode.REJECTED_CONGESTION, "too many wait for the broker"
    return None
