"""Rows of the store, one function for each kind: key, and the values of its columns (see exchange/store.py)."""

from __future__ import annotations

from triagemq.exchange.gateway.changes import Row
from triagemq.exchange.gateway.model import Arrival, Delivery, Session, Stage, Subscription
from triagemq.exchange.gateway.topics import FORMER, KnownTopic

__all__ = ["abandoned", "arrival", "client_topic", "delivery", "gave_up_topics", "session", "subscription"]


def session(value: Session) -> tuple[str, Row]:
    """A client, its address and its will."""
    host, port, *node = value.endpoint
    will = value.will
    return value.client_id, (
        value.client_id,
        host,
        port,
        node[0] if node else None,
        int(value.state),
        int(value.clean),
        value.duration_seconds,
        value.sleep_seconds,
        None if will is None else will.topic,
        None if will is None else will.payload,
        0 if will is None else will.qos,
        0 if will is None else int(will.retain),
    )


def subscription(owner: Session, value: Subscription) -> tuple[tuple[str, str], Row]:
    """A client's filter."""
    key = (owner.client_id, value.topic_filter)
    return key, (*key, value.qos, int(value.id_type), value.predefined_id)


def client_topic(owner: Session, value: KnownTopic, flags: int) -> tuple[tuple[str, int], Row]:
    """What a topic id means, or has meant, to a client."""
    key = (owner.client_id, value.topic_id)
    return key, (*key, value.topic.name, flags)


def gave_up_topics(owner: Session) -> tuple[tuple[str, int], Row]:
    """That ids of a client have come to mean nothing, which another topic may be given since."""
    key = (owner.client_id, 0)
    return key, (*key, "", FORMER)


def delivery(owner: Session, value: Delivery) -> tuple[tuple[str, int], Row]:
    """A message that is kept for a client."""
    key = (owner.client_id, value.sequence)
    publication = value.publication
    return key, (
        *key,
        value.subscription.topic_filter,
        publication.topic,
        publication.payload,
        publication.published_ns,
        publication.received_ns,
        value.qos,
        int(value.retain),
        value.priority_class,
        value.message_id,
        int(value.stage),
    )


def abandoned(owner: Session, message_id: int, sequence: int) -> tuple[tuple[str, int], Row]:
    """A QoS 2 message that was given up: of the message itself nothing is kept but its id."""
    key = (owner.client_id, sequence)
    return key, (*key, "", "", b"", 0, 0, 2, 0, 0, message_id, int(Stage.ABANDONED))


def arrival(owner: Session, message_id: int, value: Arrival) -> tuple[tuple[str, int], Row]:
    """A QoS 2 message of a client that the broker does not have for sure; a negative packet id: it holds it."""
    key = (owner.client_id, message_id)
    packet_id = -value.packet_id if value.broker_holds_it else value.packet_id
    return key, (*key, value.topic, value.payload, int(value.retain), packet_id)
