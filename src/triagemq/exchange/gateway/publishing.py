"""PUBLISH of a client, on its way to the broker, and its will, which goes there when the client is lost.

QoS 1: the client gets PUBACK when the broker has acknowledged; until then it is the client that keeps the message.
QoS 2: the gateway stores the message before PUBREC, publishes it at PUBREL under a packet id that is stored, too, and
answers PUBCOMP when the broker has it: a restart in between neither loses nor repeats it.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import NamedTuple

from triagemq.exchange.gateway import broker_link, naming
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.model import rows
from triagemq.exchange.gateway.model.messages import Arrival, LastWill
from triagemq.exchange.gateway.model.sessions import Endpoint, Session
from triagemq.exchange.mqtt.packets import REFUSED
from triagemq.mqttsn import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReturnCode,
    WillMsgResp,
    WillMsgUpd,
    WillTopicResp,
    WillTopicUpd,
    is_brokers_own,
)
from triagemq.mqttsn.timestamps import DIRECT_SLOT, split_generation

_REMEMBERED_ANSWERS = 64


class _Token(NamedTuple):
    client_id: str
    message_id: int
    topic_id: int
    qos: int


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
    name = naming.name_of(gateway, session, message.topic_id_type, message.topic_id)
    if message.qos == 2 and not gateway.can_store:
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "cannot be stored")
        return
    if message.qos == 2 and _is_stored(session, message, name):
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
    elif gateway.settings.policy.refuses_publication(session.client_id, name, gateway.now_ns):
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "policy")
    elif message.qos <= 0:
        if not broker_link.publish(gateway, session, name, message.payload, qos=0, retain=message.retain):
            # QoS 0 has no answer but this one; -1 has none at all.
            _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "no broker")
    elif lane.backlog + len(session.arrivals) >= gateway.settings.broker_backlog or not lane.has_room:
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "too many wait for the broker")
    elif message.qos == 2 and _holds_too_much(gateway, session, message):
        _refuse(gateway, session, message, ReturnCode.REJECTED_CONGESTION, "too many not released")
    elif message.qos == 1:
        session.publishing.add(message.message_id)
        session.answered[message.message_id] = (message.topic_id, zlib.crc32(message.payload))
        token = _Token(session.client_id, message.message_id, message.topic_id, 1)
        broker_link.publish(
            gateway, session, name, message.payload, qos=1, retain=message.retain, token=token
        )
    else:
        arrival = Arrival(name, message.payload, message.retain)
        keep(gateway, session, message.message_id, arrival)
        gateway.changes.put("arrivals", rows.arrival(session, message.message_id, arrival))
        gateway.send_after_commit(session.endpoint, PubRec(message.message_id))


def _holds_too_much(gateway: GatewayCore, session: Session, message: Publish) -> bool:
    """QoS 2: may the client have no more messages here? One it may always have, whatever others do."""
    settings = gateway.settings
    return bool(session.arrivals) and (
        len(session.arrivals) >= settings.arrival_messages
        or gateway.arrival_bytes + len(message.payload) > settings.arrival_bytes
    )


def keep(gateway: GatewayCore, session: Session, message_id: int, arrival: Arrival) -> None:
    """QoS 2: have a message until the broker has it."""
    forget(gateway, session, message_id)
    session.arrivals[message_id] = arrival
    gateway.arrival_bytes += len(arrival.payload)


def forget(gateway: GatewayCore, session: Session, message_id: int) -> Arrival | None:
    """QoS 2: have it no longer."""
    arrival = session.arrivals.pop(message_id, None)
    if arrival is not None:
        gateway.arrival_bytes -= len(arrival.payload)
    return arrival


def pub_rel(gateway: GatewayCore, session: Session, message: PubRel) -> None:
    """QoS 2: the client will not send the message again, so now it goes to the broker."""
    arrival = session.arrivals.get(message.message_id)
    if arrival is None:
        gateway.send(session.endpoint, PubComp(message.message_id))
    elif arrival.packet_id:
        gateway.counters.duplicates += 1
    elif gateway.can_store and session.link.lanes[0].has_room:
        # Else the client asks again: under a packet id that a kill makes us forget it might be published twice.
        arrival.packet_id = session.link.lanes[0].reserve()
        gateway.changes.put("arrivals", rows.arrival(session, message.message_id, arrival))
        resume(gateway, session, message.message_id, arrival)


def resume(gateway: GatewayCore, session: Session, message_id: int, arrival: Arrival) -> None:
    """Hand a released QoS 2 message to the broker, perhaps for the second time after a restart."""
    token = _Token(session.client_id, message_id, 0, 2)
    broker_link.note_publisher(gateway, session.link, arrival.topic, arrival.payload, session.publisher)
    session.link.lanes[0].publish(
        arrival.topic.encode(),
        arrival.payload,
        qos=2,
        retain=arrival.retain,
        sender=session.client_id,
        publisher=session.publisher,
        token=token,
        packet_id=arrival.packet_id,
        released=arrival.broker_holds_it,
    )


def broker_holds(gateway: GatewayCore, token: object, holds: bool) -> None:
    """QoS 2: the broker has answered PUBREC. After a restart only PUBREL is sent: it may have had that already.

    Not `holds`: it was killed since, so that the message is sent again.
    """
    session = gateway.sessions.get(token.client_id) if isinstance(token, _Token) else None
    if session is None or not isinstance(token, _Token):
        return
    arrival = session.arrivals.get(token.message_id)
    if arrival is not None:
        arrival.broker_holds_it = holds
        gateway.changes.put("arrivals", rows.arrival(session, token.message_id, arrival))


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
        arrival = forget(gateway, session, token.message_id)
        if arrival is None:
            return
        gateway.changes.remove("arrivals", (session.client_id, token.message_id))
        session.answered.pop(token.message_id, None)
        answer: PubAck | PubComp = PubComp(token.message_id)
        if code < REFUSED:
            session.answered[token.message_id] = _finished(arrival.topic, arrival.payload)
            _forget_old_answers(session)
        else:
            # PUBCOMP has no return code. A client that does not take this for the end gets PUBCOMP for its next PUBREL.
            answer = PubAck(token.topic_id, token.message_id, ReturnCode.REJECTED_NOT_SUPPORTED)
        if session.connected:
            gateway.send(session.endpoint, answer)
        return
    session.publishing.discard(token.message_id)
    accepted = code < REFUSED
    if not accepted:
        session.answered.pop(token.message_id, None)
    _forget_old_answers(session)
    if session.connected:
        return_code = ReturnCode.ACCEPTED if accepted else ReturnCode.REJECTED_NOT_SUPPORTED
        gateway.send(session.endpoint, PubAck(token.topic_id, token.message_id, return_code))


def _is_stored(session: Session, message: Publish, name: str | None) -> bool:
    """QoS 2, sent again or late. A new message may come under the id of one that the client will never release:
    such a one is left when the client has forgotten its messages.
    """
    arrival = session.arrivals.get(message.message_id)
    if name is None:
        return arrival is not None
    if arrival is None:
        # A copy that comes after PUBCOMP: a late copy of PUBREL would have it published once more.
        return message.dup and session.answered.get(message.message_id) == _finished(name, message.payload)
    return arrival.packet_id != 0 or (arrival.topic, arrival.payload) == (name, message.payload)


def _finished(topic: str, payload: bytes) -> tuple[int, int]:
    """What is remembered of a QoS 2 message; no topic id is negative."""
    return -1, zlib.crc32(payload, zlib.crc32(topic.encode()))


def _forget_old_answers(session: Session) -> None:
    while len(session.answered) > _REMEMBERED_ANSWERS + len(session.publishing):
        del session.answered[next(iter(session.answered))]


def _is_duplicate(gateway: GatewayCore, session: Session, message: Publish) -> bool:
    """Sent again because our answer is late, or was lost; message ids of a client come round again in time."""
    if message.message_id in session.publishing:
        gateway.counters.duplicates += 1
        return True
    if message.dup and session.answered.get(message.message_id) == (
        message.topic_id,
        zlib.crc32(message.payload),
    ):
        gateway.counters.duplicates += 1
        gateway.send(session.endpoint, PubAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
        return True
    return False


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
    gateway.changes.put("sessions", rows.session(session))
    gateway.answer(session, WillTopicResp(ReturnCode.ACCEPTED))


def update_will_message(gateway: GatewayCore, session: Session, message: WillMsgUpd) -> None:
    """A new payload for the will, if there is one."""
    if session.will is None:
        gateway.send(session.endpoint, WillMsgResp(ReturnCode.REJECTED_NOT_SUPPORTED))
        return
    session.will = replace(session.will, payload=message.payload)
    gateway.changes.put("sessions", rows.session(session))
    gateway.answer(session, WillMsgResp(ReturnCode.ACCEPTED))


def publish_will(gateway: GatewayCore, session: Session) -> None:
    """The client is lost: its will is published, if it has one."""
    will = session.will
    if will is not None:
        # Without a broker QoS 0 would be lost here; as QoS 1 it waits.
        qos = will.qos if session.link.available else max(1, will.qos)
        broker_link.publish(gateway, session, will.topic, will.payload, qos=qos, retain=will.retain)
