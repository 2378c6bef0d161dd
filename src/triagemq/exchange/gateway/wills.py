"""The will of a client that is connected: changed, deleted, and published when the client is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from triagemq.exchange.gateway import rows
from triagemq.exchange.gateway.model import Session, Will
from triagemq.mqttsn import (
    ReturnCode,
    WillMsgResp,
    WillMsgUpd,
    WillTopicResp,
    WillTopicUpd,
    is_brokers_own,
)

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore

__all__ = ["publish", "update_message", "update_topic"]


def update_topic(gateway: GatewayCore, session: Session, message: WillTopicUpd) -> None:
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
        session.will = Will(message.topic_name, payload, message.qos, message.retain)
    gateway.changes.put("sessions", *rows.session(session))
    gateway.send(session.endpoint, WillTopicResp(ReturnCode.ACCEPTED))


def update_message(gateway: GatewayCore, session: Session, message: WillMsgUpd) -> None:
    """A new payload for the will, if there is one."""
    if session.will is None:
        gateway.send(session.endpoint, WillMsgResp(ReturnCode.REJECTED_NOT_SUPPORTED))
        return
    session.will = replace(session.will, payload=message.payload)
    gateway.changes.put("sessions", *rows.session(session))
    gateway.send(session.endpoint, WillMsgResp(ReturnCode.ACCEPTED))


def publish(session: Session) -> None:
    """The client is lost: its will is published, if it has one."""
    will = session.will
    if will is not None:
        # Without a broker QoS 0 would be lost here; as QoS 1 it waits.
        qos = will.qos if session.link.available else max(1, will.qos)
        session.link.publish(
            will.topic,
            will.payload,
            qos=qos,
            retain=will.retain,
            sender=session.client_id,
            publisher=session.subscriber,
        )
