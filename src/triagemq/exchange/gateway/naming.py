"""What topic ids mean between the gateway and one client, and what the store has to know of it."""

from __future__ import annotations

from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.model import rows
from triagemq.exchange.gateway.model.messages import Subscription
from triagemq.exchange.gateway.model.sessions import Session
from triagemq.exchange.gateway.model.topics import FORMER, KnownTopic
from triagemq.mqttsn import TopicIdType, short_topic_id


def assign(gateway: GatewayCore, session: Session, name: str) -> KnownTopic | None:
    """The client's id for a topic, given now if it had none; None if there is none to be had now."""
    topics = session.topics
    known = topics.named(name)
    if known is not None:
        return known
    _end_rests(gateway, session)
    limit = gateway.settings.topic_ids
    if not topics.has_room(limit):
        least_used = topics.least_used(_busy(session))
        if least_used is None:
            return None
        _give_up(gateway, session, least_used)
    # What cannot be stored would be forgotten at a restart: then no id comes to mean another topic.
    known = topics.assign(name, gateway.now_ns, limit=limit, may_reuse=gateway.can_store)
    if known is not None:
        _store(gateway, session, known, known.flags)
    return known


def _busy(session: Session) -> set[str]:
    """Topics of messages that wait for an answer of the client."""
    busy = {delivery.publication.topic for delivery in session.in_flight.values()}
    busy.update(one.topic_name for one in session.registering.values())
    return busy


def _give_up(gateway: GatewayCore, session: Session, known: KnownTopic) -> None:
    if not session.topics.has_given_up and gateway.changes.enabled:
        # For as long as the session lasts: after a restart nobody knows any more which ids these were.
        gateway.changes.put("client_topics", rows.gave_up_topics(session))
    session.topics.give_up(known, gateway.now_ns)
    _store(gateway, session, known, FORMER)
    session.link.routes.forget_topics_of(known.topic.name)
    _look_later(gateway, session)


def _look_later(gateway: GatewayCore, session: Session) -> None:
    since_ns = session.topics.rests_since_ns
    if since_ns is not None and not session.rest_is_due:
        session.rest_is_due = True
        gateway.schedule(since_ns + _rest_ns(gateway), lambda: _rest_is_over(gateway, session))


def _rest_is_over(gateway: GatewayCore, session: Session) -> None:
    session.rest_is_due = False
    if gateway.sessions.get(session.client_id) is not session:
        return
    _end_rests(gateway, session)
    _look_later(gateway, session)
    gateway.handlers.ids_rested(gateway, session)


def _end_rests(gateway: GatewayCore, session: Session) -> None:
    for topic_id in session.topics.rested(gateway.now_ns - _rest_ns(gateway)):
        gateway.changes.remove("client_topics", (session.client_id, topic_id))


def confirmed(gateway: GatewayCore, session: Session, known: KnownTopic) -> None:
    """The client surely knows an id, or will with the answer that it gets now."""
    if not known.told:
        known.told = True
        if known.reused:
            # What it sent before it knew may come later than its answer.
            known.open_ns = gateway.now_ns + _rest_ns(gateway)
        _store(gateway, session, known, known.flags)
        session.link.routes.forget_topics_of(known.topic.name)


def unknown_to_client(gateway: GatewayCore, session: Session, topic_id: int) -> None:
    """The client has refused a message because of its id: it has to be told again."""
    known = session.topics.get(topic_id)
    if known is not None and known.told:
        known.told = False
        _store(gateway, session, known, known.flags)
        session.link.routes.forget_topics_of(known.topic.name)


def hold(gateway: GatewayCore, session: Session, known: KnownTopic, why: int) -> None:
    """The client relies on an id: it is not given up."""
    if not known.flags & why:
        session.topics.hold(known, why)
        _store(gateway, session, known, known.flags)


def let_go(gateway: GatewayCore, session: Session, name: str, why: int) -> None:
    """It no longer does, for this reason: without another it is given up."""
    known = session.topics.named(name)
    if known is not None and known.flags & why:
        session.topics.let_go(known, why)
        if known.is_held or name in _busy(session):
            _store(gateway, session, known, known.flags)
        else:
            _give_up(gateway, session, known)


def new_connection(gateway: GatewayCore, session: Session) -> None:
    """The client has connected again, and may have forgotten what it was told."""
    for known in session.topics.new_connection():
        _store(gateway, session, known, known.flags)


def name_of(gateway: GatewayCore, session: Session, id_type: TopicIdType, topic_id: int) -> str | None:
    """What a client means by the id of its PUBLISH; None if it means nothing, or cannot be told for sure."""
    if id_type is not TopicIdType.NORMAL:
        return gateway.topics.without_connection(id_type, topic_id)
    known = session.topics.get(topic_id)
    if known is None:
        session.topics.still_used(topic_id, gateway.now_ns)
        _look_later(gateway, session)
        return None
    if known.reused and (not known.told or gateway.now_ns < known.open_ns):
        return None
    known.topic.used_ns = gateway.now_ns
    return known.topic.name


def reference(
    gateway: GatewayCore, session: Session, subscription: Subscription, topic_name: str
) -> tuple[TopicIdType, int] | None:
    """How to name a topic to a client in a PUBLISH; None if it has to be registered first."""
    if subscription.id_type is TopicIdType.PREDEFINED:
        return TopicIdType.PREDEFINED, subscription.predefined_id
    if subscription.id_type is TopicIdType.SHORT:
        return TopicIdType.SHORT, short_topic_id(topic_name)
    if subscription.topic_filter != topic_name and len(topic_name.encode()) == 2:
        # By a wildcard: the client has no id yet, and needs none for a name of two octets.
        return TopicIdType.SHORT, short_topic_id(topic_name)
    known = session.topics.named(topic_name)
    if known is None or not known.told:
        return None
    known.topic.used_ns = gateway.now_ns
    return TopicIdType.NORMAL, known.topic_id


def forget(gateway: GatewayCore, session: Session) -> None:
    """The session is over: its ids mean nothing any more."""
    for topic_id in session.topics.clear():
        gateway.changes.remove("client_topics", (session.client_id, topic_id))


def restore(gateway: GatewayCore, session: Session, topic_id: int, name: str, flags: int) -> None:
    """What an id meant before a restart; one that rested does so again."""
    session.topics.restore(topic_id, name, flags, gateway.now_ns)
    _look_later(gateway, session)


def _rest_ns(gateway: GatewayCore) -> int:
    return int(gateway.settings.topic_id_rest_seconds * 1e9)


def _store(gateway: GatewayCore, session: Session, known: KnownTopic, flags: int) -> None:
    if gateway.changes.enabled:
        gateway.changes.put("client_topics", rows.client_topic(session, known, flags))
