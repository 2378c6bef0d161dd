"""Messages on their way to one client: in which order, how many at once, and until they are answered.

What a client has not answered after Tretry is looked at then (retrying.py). Events of QoS 0 wait for the answer to a
REGISTER, and one that is lost would make them as late as Tretry is long: until then it is repeated, after half a second
and ever longer pauses. That costs little, and does not count.
"""

from __future__ import annotations

from triagemq.exchange.gateway import naming
from triagemq.exchange.gateway.actions import SendPublish
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.model import rows
from triagemq.exchange.gateway.model.messages import (
    Delivery,
    DeliveryStage,
    Publication,
    Registering,
    Subscription,
)
from triagemq.exchange.gateway.model.sessions import Session, SessionState
from triagemq.mqttsn import (
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    RegAck,
    Register,
    ReturnCode,
    TopicIdType,
    encode_publish,
)
from triagemq.plan.dataplane import Treatment
from triagemq.trace.schema import Outcome

_AWAY = (SessionState.ASLEEP, SessionState.AWAKE, SessionState.DISCONNECTED, SessionState.CONNECTING)
_SOON_SECONDS = 0.5


def deliver(
    gateway: GatewayCore,
    session: Session,
    subscription: Subscription,
    publication: Publication,
    qos: int,
    *,
    retain: bool = False,
    drawn: bool = False,
) -> None:
    """Queue a message for a client, and send it if it is its turn.

    It is dropped as the plan wants before it takes a place; `drawn`: that has been decided already.
    """
    if session.state is SessionState.DISCONNECTED and qos == 0:
        gateway.settle(session, subscription, publication, Outcome.subscriber_gone, "not connected")
        return
    treatment = gateway.settings.policy.treatment(session.client_id, publication.topic)
    delivery = Delivery(
        session.next_sequence, publication, subscription, qos, retain, treatment.priority_class
    )
    if not drawn and treatment.drop_rate > 0.0 and gateway.draw() < treatment.drop_rate:
        drop_as_planned(gateway, session, subscription, publication, treatment, delivery)
        return
    session.next_sequence += 1
    limit = gateway.settings.buffer_messages
    if session.unregistered:
        limit = max(0, limit - sum(map(len, session.unregistered.values())))
    pushed_out = session.buffer.push(delivery, limit)
    if pushed_out is not None:
        give_up(gateway, session, pushed_out, Outcome.dropped_by_buffer, "buffer full")
        if pushed_out is delivery:
            return
    if qos or session.state in _AWAY:
        store(gateway, session, delivery)
    if session.state in (SessionState.ACTIVE, SessionState.AWAKE):
        pump(gateway, session)


def drop_as_planned(
    gateway: GatewayCore,
    session: Session,
    subscription: Subscription,
    publication: Publication,
    treatment: Treatment,
    delivery: Delivery | None = None,
) -> None:
    """A copy that the plan does not want to be sent: nothing behind the gateway drops on purpose."""
    gateway.counters.planned_drops[treatment.priority_class] += 1
    gateway.settle(session, subscription, publication, Outcome.dropped_by_policy, "planned", delivery)


def rerank(gateway: GatewayCore, session: Session) -> None:
    """A new plan: what waits for a client goes in the order that it wants."""
    if not session.buffer:
        return
    policy = gateway.settings.policy
    for delivery in session.buffer.clear():
        treatment = policy.treatment(session.client_id, delivery.publication.topic)
        delivery.priority_class = treatment.priority_class
        session.buffer.push_back(delivery)


def store(gateway: GatewayCore, session: Session, delivery: Delivery) -> None:
    """Keep a message across a restart."""
    if gateway.changes.enabled:
        gateway.changes.put("deliveries", rows.delivery(session, delivery))


def give_up(
    gateway: GatewayCore, session: Session, delivery: Delivery, outcome: Outcome, reason: str
) -> None:
    """A message will never be delivered; it must not be queued any more."""
    session.reserved.discard(delivery.message_id)
    gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
    gateway.settle(session, delivery.subscription, delivery.publication, outcome, reason, delivery)


def pump(gateway: GatewayCore, session: Session) -> None:
    """Send what is queued, as far as the client may get it now."""
    settings = gateway.settings
    burst = 0
    while session.buffer and not session.pump_is_due:
        if session.state is SessionState.AWAKE and session.awake_budget <= 0:
            break
        delivery = session.buffer.peek()
        topic_name = delivery.publication.topic
        reference = naming.reference(gateway, session, delivery.subscription, topic_name)
        if delivery.qos and _window_is_full(session, delivery, settings.in_flight_messages):
            break
        if reference is None:
            if not _register(gateway, session, topic_name):
                break
            continue
        if not delivery.qos:
            if burst >= settings.burst_messages:
                session.pump_is_due = True
                gateway.after(settings.burst_pause_seconds, lambda: _pump_again(gateway, session))
                break
            burst += 1
        session.buffer.pop()
        session.awake_budget -= 1
        _send(gateway, session, delivery, reference)
    if not session.buffer and not session.unregistered and not session.pump_is_due and session.draining:
        session.draining = False
        session.link.routes.forget(session)
    if session.state is SessionState.AWAKE:
        gateway.handlers.awake_served(gateway, session)


def _window_is_full(session: Session, delivery: Delivery, most: int) -> bool:
    """Each class has an in-flight window: what waits in the network behind it must not hold back a better one."""
    if len(session.in_flight) < most:
        return False
    level = delivery.priority_class
    return sum(other.priority_class <= level for other in session.in_flight.values()) >= most


def _pump_again(gateway: GatewayCore, session: Session) -> None:
    session.pump_is_due = False
    if session.state in (SessionState.ACTIVE, SessionState.AWAKE):
        pump(gateway, session)


def ids_rested(gateway: GatewayCore, session: Session) -> None:
    """Messages may have waited for a topic id."""
    if session.buffer and session.state in (SessionState.ACTIVE, SessionState.AWAKE):
        pump(gateway, session)


def _register(gateway: GatewayCore, session: Session, topic_name: str) -> bool:
    """Tell the client the id of the topic of the next message, and set that message aside until it knows."""
    known = session.topics.named(topic_name)
    if known is None or known.topic_id not in session.registering:
        if len(session.registering) >= gateway.settings.in_flight_messages:
            return False
        known = naming.assign(gateway, session, topic_name)
        if known is None:
            return _without_id(gateway, session)
        message_id = session.message_id()
        registering = Registering(message_id, topic_name, gateway.now_ns)
        _tell_id(gateway, session, known.topic_id, registering)
    delivery = session.buffer.pop()
    session.awake_budget -= 1
    session.unregistered.setdefault(known.topic_id, []).append(delivery)
    return True


def _without_id(gateway: GatewayCore, session: Session) -> bool:
    """The client has no id left for the topic of the next message: it waits for one, if there ever will be any."""
    if session.topics.is_full(gateway.settings.topic_ids):
        delivery = session.buffer.pop()
        session.awake_budget -= 1
        give_up(gateway, session, delivery, Outcome.limited, "no more topic ids")
        return True
    return False


def _tell_id(gateway: GatewayCore, session: Session, topic_id: int, registering: Registering) -> None:
    """Tell a client the id of a topic, again and again until it answers."""
    session.registering[topic_id] = registering
    tell_id(gateway, session, topic_id, registering)
    _expect_answer(gateway, session)
    _repeat_after(gateway, session, topic_id, _SOON_SECONDS)


def tell_id(gateway: GatewayCore, session: Session, topic_id: int, registering: Registering) -> None:
    """Send a REGISTER, for the first time or again."""
    gateway.send(session.endpoint, Register(topic_id, registering.message_id, registering.topic_name))


def _repeat_after(gateway: GatewayCore, session: Session, topic_id: int, pause_seconds: float) -> None:
    registering = session.registering[topic_id]

    def repeat() -> None:
        unanswered = session.registering.get(topic_id) is registering and registering.attempts == 1
        if unanswered and session.state is SessionState.ACTIVE:
            gateway.counters.retries += 1
            tell_id(gateway, session, topic_id, registering)
            _repeat_after(gateway, session, topic_id, 2 * pause_seconds)

    if pause_seconds < gateway.settings.retry_seconds:
        gateway.after(pause_seconds, repeat)


def _expect_answer(gateway: GatewayCore, session: Session) -> None:
    """Something was sent that the client has to answer."""
    if not session.retry_is_due:
        session.retry_is_due = True
        gateway.after(gateway.settings.retry_seconds, lambda: gateway.handlers.answer_due(gateway, session))


def _send(
    gateway: GatewayCore, session: Session, delivery: Delivery, reference: tuple[TopicIdType, int]
) -> None:
    if delivery.qos == 0:
        gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
    else:
        if not delivery.message_id or delivery.message_id in session.in_flight:
            delivery.message_id = session.message_id()
        session.in_flight[delivery.message_id] = delivery
        delivery.sent_ns = gateway.now_ns
        _expect_answer(gateway, session)
        if delivery.stage is DeliveryStage.RELEASED:
            gateway.send(session.endpoint, PubRel(delivery.message_id))
            return
        if delivery.qos == 2 and delivery.stage is DeliveryStage.QUEUED:
            # The client knows it by this id from now on, also after a restart.
            delivery.stage = DeliveryStage.SENT
            session.reserved.add(delivery.message_id)
            store(gateway, session, delivery)
    delivery.stage = DeliveryStage.SENT
    delivery.attempts += 1
    datagram = encode_publish(
        *reference,
        delivery.publication.payload,
        delivery.qos,
        delivery.retain,
        delivery.attempts > 1,
        delivery.message_id,
    )
    delivery.waits_for_port = True
    gateway.act(SendPublish(session, delivery, gateway.framed(session.endpoint, datagram)))


def fate(
    gateway: GatewayCore,
    session: Session,
    delivery: Delivery,
    outcome: Outcome,
    enqueued_ns: int,
    dequeued_ns: int,
) -> None:
    """What the network did with a PUBLISH to one client."""
    delivery.enqueued_ns, delivery.dequeued_ns = enqueued_ns, dequeued_ns
    delivery.waits_for_port = False
    if outcome is Outcome.delivered:
        gateway.counters.sent += 1
        # The client has Tretry from now on.
        delivery.sent_ns = gateway.now_ns
        if delivery.qos == 0:
            gateway.settle(session, delivery.subscription, delivery.publication, outcome, delivery=delivery)
    elif delivery.qos == 0:
        give_up(gateway, session, delivery, outcome, "output port")


# Answers of the client.


def pub_ack(gateway: GatewayCore, session: Session, message: PubAck) -> None:
    """QoS 1 has arrived, or a PUBLISH of any QoS was refused."""
    delivery = session.in_flight.get(message.message_id)
    if message.return_code is ReturnCode.REJECTED_INVALID_TOPIC_ID:
        naming.unknown_to_client(gateway, session, message.topic_id)
        # A client that has forgotten the id gets it again at once. One that refuses it once more gets the message by
        # the retry timer, which gives up in the end.
        if delivery is not None and delivery.stage is DeliveryStage.SENT and delivery.attempts == 1:
            del session.in_flight[message.message_id]
            session.buffer.push_front([delivery])
    elif delivery is None or message.return_code is ReturnCode.REJECTED_CONGESTION:
        return
    elif message.return_code is ReturnCode.REJECTED_NOT_SUPPORTED:
        del session.in_flight[message.message_id]
        give_up(gateway, session, delivery, Outcome.limited, "refused by the client")
    elif delivery.qos == 1:
        _arrived(gateway, session, delivery)
    pump(gateway, session)


def pub_rec(gateway: GatewayCore, session: Session, message: PubRec) -> None:
    """QoS 2 has arrived; the client waits for PUBREL, also for one that we have forgotten."""
    delivery = session.in_flight.get(message.message_id)
    if delivery is not None and delivery.qos == 2:
        delivery.stage = DeliveryStage.RELEASED
        delivery.sent_ns = gateway.now_ns
        delivery.attempts = 1
        store(gateway, session, delivery)
    gateway.send(session.endpoint, PubRel(message.message_id))


def pub_comp(gateway: GatewayCore, session: Session, message: PubComp) -> None:
    """QoS 2 is finished."""
    delivery = session.in_flight.get(message.message_id)
    if delivery is not None and delivery.stage is DeliveryStage.RELEASED:
        _arrived(gateway, session, delivery)
        pump(gateway, session)
    elif delivery is None:
        finished(gateway, session, message.message_id)


def _arrived(gateway: GatewayCore, session: Session, delivery: Delivery) -> None:
    del session.in_flight[delivery.message_id]
    session.reserved.discard(delivery.message_id)
    gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
    gateway.settle(session, delivery.subscription, delivery.publication, Outcome.delivered, delivery=delivery)


def reg_ack(gateway: GatewayCore, session: Session, message: RegAck) -> None:
    """The client knows a topic id, or does not want it."""
    registering = session.registering.get(message.topic_id)
    if registering is None or registering.message_id != message.message_id:
        return
    if message.return_code is ReturnCode.REJECTED_CONGESTION:
        return
    del session.registering[message.topic_id]
    waiting = session.unregistered.pop(message.topic_id, [])
    known = session.topics.get(message.topic_id)
    if message.return_code is ReturnCode.ACCEPTED and known is not None:
        naming.confirmed(gateway, session, known)
        session.awake_budget += len(waiting)
        session.buffer.push_front(waiting)
    else:
        for delivery in waiting:
            give_up(gateway, session, delivery, Outcome.limited, "topic refused by the client")
    pump(gateway, session)


def finished(gateway: GatewayCore, session: Session, message_id: int) -> None:
    """PUBCOMP of an exchange that was given up: the client knows the message id no more."""
    if session.abandoned and message_id in session.abandoned:
        sequence = session.abandoned.pop(message_id)
        session.reserved.discard(message_id)
        gateway.changes.remove("deliveries", (session.client_id, sequence))


def send_again(gateway: GatewayCore, session: Session, delivery: Delivery) -> None:
    """The client has not answered a message."""
    if delivery.stage is DeliveryStage.RELEASED:
        delivery.attempts += 1
        delivery.sent_ns = gateway.now_ns
        gateway.send(session.endpoint, PubRel(delivery.message_id))
        return
    reference = naming.reference(gateway, session, delivery.subscription, delivery.publication.topic)
    del session.in_flight[delivery.message_id]
    if reference is None:
        session.buffer.push_front([delivery])
        pump(gateway, session)
    else:
        _send(gateway, session, delivery, reference)
