"""Sessions without a CONNECT: as they were before a restart, and of clients that move here from another gateway.

Publishers may be here before their subscribers are. What is acknowledged to them must not be lost meanwhile: a session
stores what comes for such a client until it is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from triagemq.gateway.core import lifecycle, requests
from triagemq.gateway.core.broker_link import GatewayCore
from triagemq.gateway.core.delivery import deliver
from triagemq.gateway.core.messages import Delivery, DeliveryStage, LastWill, Subscription
from triagemq.gateway.core.sessions import Endpoint, Session, SessionState
from triagemq.gateway.store import Row
from triagemq.mqtt.session import Packet
from triagemq.mqttsn import TopicIdType
from triagemq.mqttsn.timestamps import DIRECT_SLOT
from triagemq.trace.schema import Outcome

# In states of before: a client that waited for a broker connection of its own.
_CONNECTING = 4


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
    lanes = {lane.login.client_id: lane for lane in gateway.link.lanes}
    for client_id, packet_id, _, finished in tables["receiving"]:
        if finished:
            # The version before stored these, too.
            gateway.changes.remove("receiving", (client_id, packet_id))
        elif client_id in lanes:
            lanes[client_id].receiving.add(packet_id)
        else:
            # Of a peer's broker, to which there is no link yet.
            gateway.restored_receiving.setdefault(client_id, set()).add(packet_id)
    for client_id, boot in tables["boots"]:
        if client_id in lanes:
            lanes[client_id].boot = boot
    for client_id, message_id, topic_name, payload, retain, packet_id in tables["arrivals"]:
        session = gateway.sessions.get(client_id)
        if session is not None:
            sender = requests.AnswerTo(client_id, message_id, 0)
            packet = Packet(
                topic_name.encode(), payload, 2, bool(retain), session.publisher, sender, abs(packet_id)
            )
            packet.released = packet_id < 0
            requests.hold_inbound(gateway, session, packet)
            if packet_id:
                gateway.publish(packet)
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
    now = {int(SessionState.AWAKE): SessionState.ASLEEP, _CONNECTING: SessionState.DISCONNECTED}.get(state)
    session = lifecycle.begin(
        gateway, client_id, endpoint, bool(clean), duration, SessionState(state) if now is None else now
    )
    session.sleep_seconds = sleep
    session.will = None if topic is None else LastWill(topic, payload or b"", qos, bool(retain))
    if session.connected:
        gateway.by_endpoint[endpoint] = session


def _subscriptions(gateway: GatewayCore, tables: Mapping[str, Sequence[Row]]) -> None:
    identifiers = {topic_filter: number for link, topic_filter, number in tables["filters"] if not link}
    for client_id, topic_filter, qos, id_type, predefined_id in tables["subscriptions"]:
        session = gateway.sessions.get(client_id)
        if session is None:
            continue
        subscription = Subscription(topic_filter, qos, TopicIdType(id_type), predefined_id)
        session.subscriptions[topic_filter] = subscription
        gateway.link.restore(session, subscription, identifiers.get(topic_filter, 0))


def _delivery(gateway: GatewayCore, row: Row) -> None:
    client_id, sequence, topic_filter, topic, payload, published_ns, received_ns = row[:7]
    qos, retain, priority_class, message_id, stage, expires_ns = row[7:]
    session = gateway.sessions.get(client_id)
    if session is None:
        return
    session.next_sequence = max(session.next_sequence, sequence + 1)
    if stage > DeliveryStage.RELEASED:
        # The version before stored what it had given up.
        gateway.changes.remove("deliveries", (client_id, sequence))
        return
    owner = gateway.subscribers.get(session.subscriber, session)
    subscription = owner.subscriptions.get(topic_filter)
    if subscription is None:
        # Unsubscribed since; what was accepted for it is still delivered.
        subscription = Subscription(topic_filter, qos, TopicIdType.NORMAL)
    publication = gateway.publications.new(topic, payload, published_ns, received_ns)
    if gateway.observer is not None:
        gateway.observer.published(publication, qos)
    delivery = Delivery(sequence, publication, subscription, qos, bool(retain), priority_class)
    delivery.message_id, delivery.stage = message_id, DeliveryStage(stage)
    if expires_ns is not None:
        delivery.expires_ns = publication.expires_ns = expires_ns
    if message_id:
        delivery.attempts = 1
        session.reserved[message_id] = None
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
        copy = owner, delivery.subscription, delivery.publication
        session.reserved.pop(delivery.message_id, None)
        gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
        if delivery.stage is DeliveryStage.RELEASED:
            gateway.settle(copy, Outcome.delivered, delivery=delivery)
        else:
            deliver(gateway, copy, delivery.qos, retain=delivery.retain, drawn=True)


def _resume(gateway: GatewayCore, session: Session) -> None:
    # Old ids may still be in transit to the client or back.
    session.next_message_id = (gateway.now_ns >> 10) % 0xFFFF + 1
    if session.state is SessionState.ASLEEP:
        lifecycle.supervise(gateway, session, session.sleep_seconds)
    elif session.state is SessionState.DISCONNECTED:
        lifecycle.expire_later(gateway, session)
    elif session.state is SessionState.ACTIVE:
        lifecycle.supervise(gateway, session, session.duration_seconds)
        lifecycle.resume_delivery(gateway, session)


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
        if len(gateway.sessions) >= policy.maximum_clients:
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
    subscription = Subscription(topic_filter, qos, TopicIdType.NORMAL)
    # Under a number that no message of a client has: peers are not waited for any longer than usual.
    message_id = min((0, *session.subscribing)) - 1
    session.subscribing[message_id] = topic_filter

    def taken(code: int) -> None:
        if topic_filter in session.subscriptions:
            session.subscribing.pop(message_id, None)
        else:
            requests.subscribed(gateway, session, subscription, message_id, code)
        answered()

    gateway.subscribe(session, subscription, taken)
