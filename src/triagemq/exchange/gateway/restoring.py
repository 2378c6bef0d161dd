"""Sessions without a CONNECT: as they were before a restart, and of clients on their way from another gateway.

Publishers may be here before their subscribers are. What is acknowledged to them must not be lost meanwhile: a session
stores what comes for such a client until it is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from triagemq.exchange.gateway import broker_link, lifecycle, requests
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.delivery import deliver, pump
from triagemq.exchange.gateway.messages import Delivery, DeliveryStage, InboundQos2, LastWill, Subscription
from triagemq.exchange.gateway.sessions import Endpoint, Session, SessionState
from triagemq.exchange.mqtt.packets import REFUSED
from triagemq.exchange.mqtt.session import Receiving
from triagemq.exchange.store import Row
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
            session.topics.restore(topic_id, name, flags)
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
            inbound = InboundQos2(topic_name, payload, bool(retain), abs(packet_id), packet_id < 0)
            requests.store_inbound(gateway, session, message_id, inbound)
            if packet_id:
                requests.resume(gateway, session, message_id, inbound)
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
    former = SessionState(state)
    now = {
        SessionState.AWAKE: SessionState.ASLEEP,
        SessionState.CONNECTING: SessionState.DISCONNECTED,
    }.get(former, former)
    session = lifecycle.begin(gateway, client_id, endpoint, bool(clean), duration, now)
    session.sleep_seconds = sleep
    session.will = None if topic is None else LastWill(topic, payload or b"", qos, bool(retain))
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
        lifecycle.supervise(gateway, session, session.sleep_seconds)
    elif session.state is SessionState.DISCONNECTED:
        lifecycle.expire_later(gateway, session)
    elif session.state is SessionState.ACTIVE:
        lifecycle.supervise(gateway, session, session.duration_seconds)
        if session.buffer:
            session.draining = True
            pump(gateway, session)


def expect(
    gateway: GatewayCore, client_id: str, filters: Mapping[str, int], answered: Callable[[], None]
) -> int:
    """Have a session for a client that is not connected, with these filters and their QoS; idempotent.

    `answered` is called when the brokers have taken, or refused, one of them; how many that will be.
    """
    policy = gateway.settings.policy
    session = gateway.sessions.get(client_id)
    if policy.closed or policy.forbids_connection(client_id):
        return 0
    if session is None:
        if policy.refuses_connection(client_id, len(gateway.sessions)):
            return 0
        session = lifecycle.begin(gateway, client_id, lifecycle.NOWHERE, False, 0, SessionState.DISCONNECTED)
        gateway.changes.put("sessions", session.row())
        lifecycle.expire_later(gateway, session)
    new = {
        each: qos
        for each, qos in filters.items()
        if each not in session.subscriptions and not policy.forbids_subscription(client_id, each)
    }
    for topic_filter, qos in new.items():
        _subscribe(gateway, session, topic_filter, qos, answered)
    return len(new)


def _subscribe(
    gateway: GatewayCore, session: Session, topic_filter: str, qos: int, answered: Callable[[], None]
) -> None:
    number = gateway.numbers.subscription(session.client_id, topic_filter)
    subscription = Subscription(topic_filter, qos, TopicIdType.NORMAL, number)
    # Under a number that no message of a client has: peers are not waited for any longer than usual.
    message_id = min((0, *session.subscribing)) - 1
    session.subscribing[message_id] = topic_filter

    def taken(code: int) -> None:
        session.subscribing.pop(message_id, None)
        if gateway.sessions.get(session.client_id) is not session:
            broker_link.unsubscribe(gateway, session, topic_filter)
        elif code < REFUSED and topic_filter not in session.subscriptions:
            subscription.qos = min(qos, code)
            session.subscriptions[topic_filter] = subscription
            session.link.routes.forget_topics_of(topic_filter)
            gateway.changes.put("subscriptions", subscription.row(session.client_id))
        elif code >= REFUSED:
            gateway.counters.refused["subscribe: broker"] += 1
        answered()

    broker_link.subscribe(gateway, session, subscription, taken)
