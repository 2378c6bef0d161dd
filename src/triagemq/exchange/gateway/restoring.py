"""From the rows of the store to a gateway as it was before it was stopped or killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triagemq.exchange.gateway import broker_link, connecting, leaving, naming, publishing
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.delivering import deliver, pump
from triagemq.exchange.gateway.model.messages import Arrival, Delivery, DeliveryStage, LastWill, Subscription
from triagemq.exchange.gateway.model.rows import Row
from triagemq.exchange.gateway.model.sessions import Endpoint, Session, SessionState
from triagemq.exchange.gateway.model.topics import ClientTopics
from triagemq.exchange.mqtt.session import Receiving
from triagemq.mqttsn import TopicIdType
from triagemq.mqttsn.timestamps import DIRECT_SLOT
from triagemq.trace.schema import Outcome


def restore(gateway: GatewayCore, tables: Mapping[str, Sequence[Row]]) -> None:
    """Put everything back, into a gateway that has not started. Clients that were connected still are."""
    for table, stored in tables.items():
        for row in stored:
            gateway.changes.restored(table, row)
    if not any(tables.values()):
        # A new state, or one whose directory was lost: subscriptions of before would bring second copies.
        gateway.link.begin_anew()
    for row in tables["sessions"]:
        _session(gateway, row)
    for client_id, topic_id, name, flags in tables["client_topics"]:
        session = gateway.sessions.get(client_id)
        if session is not None:
            naming.restore(gateway, session, topic_id, name, flags)
    _subscriptions(gateway, tables)
    for row in tables["deliveries"]:
        _delivery(gateway, row)
    lanes = {
        lane.login.client_id: lane for link in (gateway.link, *gateway.links.values()) for lane in link.lanes
    }
    for client_id, packet_id, digest, stage in tables["receiving"]:
        if client_id in lanes:
            lanes[client_id].receiving[packet_id] = (digest, Receiving(stage))
        else:
            # Of a peer's broker, to which there is no link yet.
            unfinished = gateway.restored_receiving.setdefault(client_id, {})
            unfinished[packet_id] = (digest, Receiving(stage))
    for client_id, boot in tables["boots"]:
        if client_id in lanes:
            lanes[client_id].boot = boot
    for client_id, message_id, topic_name, payload, retain, packet_id in tables["arrivals"]:
        session = gateway.sessions.get(client_id)
        if session is not None:
            arrival = Arrival(topic_name, payload, bool(retain), abs(packet_id), packet_id < 0)
            publishing.keep(gateway, session, message_id, arrival)
            if packet_id:
                publishing.resume(gateway, session, message_id, arrival)
    for session in gateway.sessions.values():
        if session.connected:
            gateway.present(session)
    for session in list(gateway.sessions.values()):
        _gather(gateway, session)
    for session in list(gateway.sessions.values()):
        _resume(gateway, session)


def _session(gateway: GatewayCore, row: Row) -> None:
    client_id, host, port, node, state, clean, duration, sleep, topic, payload, qos, retain = row
    endpoint: Endpoint = (host, port) if node is None else (host, port, node)
    session = Session(
        client_id,
        gateway.numbers.subscriber(client_id),
        endpoint,
        connecting.link_for(gateway, client_id, bool(clean)),
        ClientTopics(gateway.topics),
        bool(clean),
        duration,
        state=SessionState(state),
        heard_ns=gateway.now_ns,
        sleep_seconds=sleep,
        will=None if topic is None else LastWill(topic, payload or b"", qos, bool(retain)),
    )
    if session.state is SessionState.AWAKE:
        session.state = SessionState.ASLEEP
    elif session.state is SessionState.CONNECTING:
        session.state = SessionState.DISCONNECTED
    gateway.sessions[client_id] = session
    gateway.places.enter(session)
    gateway.name(session)
    if session.connected:
        gateway.by_endpoint[endpoint] = session
    elif session.link is not gateway.link:
        gateway.close(session.link)


def _subscriptions(gateway: GatewayCore, tables: Mapping[str, Sequence[Row]]) -> None:
    identifiers = {(link, topic_filter): number for link, topic_filter, number in tables["filters"]}
    for client_id, topic_filter, qos, id_type, predefined_id in tables["subscriptions"]:
        session = gateway.sessions.get(client_id)
        if session is None:
            continue
        number = gateway.numbers.subscription(client_id, topic_filter)
        subscription = Subscription(topic_filter, qos, TopicIdType(id_type), number, predefined_id)
        session.subscriptions[topic_filter] = subscription
        identifier = identifiers.get((session.link.key, topic_filter), 0)
        broker_link.restore(gateway, session, subscription, identifier)


def _delivery(gateway: GatewayCore, row: Row) -> None:
    client_id, sequence, topic_filter, topic, payload, published_ns, received_ns = row[:7]
    qos, retain, priority_class, message_id, stage = row[7:]
    session = gateway.sessions.get(client_id)
    if session is None:
        return
    session.next_sequence = max(session.next_sequence, sequence + 1)
    if stage == DeliveryStage.ABANDONED:
        session.abandoned = (session.abandoned or {}) | {message_id: sequence}
        session.reserved.add(message_id)
        return
    owner = gateway.subscribers.get(session.subscriber, session)
    subscription = owner.subscriptions.get(topic_filter)
    if subscription is None:
        # Unsubscribed since; what was accepted for it is still delivered.
        number = gateway.numbers.subscription(client_id, topic_filter)
        subscription = Subscription(topic_filter, qos, TopicIdType.NORMAL, number)
    publication = gateway.publications.new(topic, payload, published_ns, received_ns)
    if gateway.observer is not None:
        gateway.observer.published(publication, qos)
    delivery = Delivery(sequence, publication, subscription, qos, bool(retain), priority_class)
    delivery.message_id, delivery.stage = message_id, DeliveryStage(stage)
    if message_id:
        delivery.attempts = 1
        session.reserved.add(message_id)
    session.buffer.push_back(delivery)


def _gather(gateway: GatewayCore, session: Session) -> None:
    """Subscribers had several connections once: what waits for one of these goes to the one over which they subscribe.

    A QoS 2 message of which PUBREC has come has arrived.
    """
    owner = gateway.subscribers.get(session.subscriber)
    if owner is None or session.slot in (0, DIRECT_SLOT):
        return
    waiting = sorted(session.buffer.clear(), key=lambda one: one.publication.publication_id)
    for delivery in waiting:
        subscription, publication = delivery.subscription, delivery.publication
        session.reserved.discard(delivery.message_id)
        gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
        if delivery.stage is DeliveryStage.RELEASED:
            gateway.settle(session, subscription, publication, Outcome.delivered, delivery=delivery)
        else:
            deliver(
                gateway, owner, subscription, publication, delivery.qos, retain=delivery.retain, drawn=True
            )


def _resume(gateway: GatewayCore, session: Session) -> None:
    # Old ids may still be on their way to the client or back.
    session.next_message_id = (gateway.now_ns >> 10) % 0xFFFF + 1
    if session.state is SessionState.ASLEEP:
        leaving.supervise(gateway, session, session.sleep_seconds)
    elif session.state is SessionState.DISCONNECTED:
        leaving.expire_later(gateway, session)
    elif session.state is SessionState.ACTIVE:
        leaving.supervise(gateway, session, session.duration_seconds)
        if session.buffer:
            session.draining = True
            pump(gateway, session)
