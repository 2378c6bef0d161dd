"""Messages to one client: in which order, how many at once, and until they are answered or given up.

What a client has not answered after Tretry is sent again, Nretry times. A client that is silent for as long as that
takes is lost. One that is heard, but does not answer a message after all retries, stays, and the message is given up:
only those retries count after which the client was heard, so that a radio out of reach for a while costs nothing.
Events of QoS 0 wait for the answer to a REGISTER, and one that is lost would make them as late as Tretry is long: until
then it is repeated, after half a second and ever longer pauses. That costs little, and does not count.
"""

from __future__ import annotations

from functools import partial

from triagemq import mqttsn
from triagemq.gateway.core.messages import (
    Delivery,
    DeliveryStage,
    Registering,
)
from triagemq.gateway.core.sessions import Copy, Session, SessionCopy, SessionState, TopicReference
from triagemq.gateway.core.state import GatewayState, SendPublish
from triagemq.gateway.core.thinning import Thinning
from triagemq.mqttsn import ReturnCode, encode_publish
from triagemq.plan.dataplane import NEVER_NS, Treatment
from triagemq.trace.schema import Outcome

_SOON_SECONDS = 0.5
_LONGEST_WAIT_NS = 60_000_000_000
_PURGE_AGAIN_NS = 1_000_000_000


def deliver(
    gateway: GatewayState, copy: SessionCopy, qos: int, *, retain: bool = False, drawn: bool = False
) -> None:
    """Queue a message for a client, and send it if it is its turn.

    Planned drops come before it takes a place; `drawn`: that has been decided already.
    """
    session, subscription, publication = copy
    if session.state is SessionState.DISCONNECTED and qos == 0:
        gateway.settle(copy, Outcome.subscriber_gone, "not connected")
        return
    treatment = gateway.settings.policy.treatment(session.client_id, publication.topic)
    if treatment.terms is not None and treatment.terms.properties:
        publication = publication.with_properties()
    delivery = Delivery(
        session.next_sequence, publication, subscription, qos, retain, treatment.priority_class
    )
    if treatment.terms is not None or publication.expires_ns != NEVER_NS:
        delivery.heed(treatment.terms)
    length_ns = 0 if drawn or retain else interval_ns(treatment)
    if length_ns and not _passes(gateway, session, delivery, length_ns):
        return
    _queue(gateway, session, delivery, treatment, drawn=drawn)


def _queue(
    gateway: GatewayState, session: Session, delivery: Delivery, treatment: Treatment, *, drawn: bool = False
) -> None:
    copy = session, delivery.subscription, delivery.publication
    if not drawn and treatment.drop_rate > 0.0 and gateway.draw() < treatment.drop_rate:
        drop_as_planned(gateway, copy, treatment, delivery)
        return
    if delivery.newest_only:
        older = session.newest.get(delivery.publication.topic)
        if older is not None:
            _supersede(gateway, session, older, delivery)
            return
        session.newest[delivery.publication.topic] = delivery
    if delivery.expires_ns < session.purge_ns:
        session.purge_ns = delivery.expires_ns
    delivery.sequence = session.next_sequence
    session.next_sequence += 1
    limit = gateway.settings.buffer_messages
    if session.registering:
        limit = max(0, limit - len(session.unregistered))
    pushed_out = session.buffer.push(delivery, limit)
    if pushed_out is not None and gateway.now_ns >= session.purge_ns:
        _purge(gateway, session)
        pushed_out = session.buffer.push(pushed_out, limit)
    if pushed_out is not None:
        give_up(gateway, session, pushed_out, Outcome.dropped_by_buffer, "buffer full")
        if pushed_out is delivery:
            return
    if delivery.qos or session.state is not SessionState.ACTIVE:
        store(gateway, session, delivery)
    if session.state in (SessionState.ACTIVE, SessionState.AWAKE):
        pump(gateway, session)


def drop_as_planned(
    gateway: GatewayState, copy: Copy, treatment: Treatment, delivery: Delivery | None = None
) -> None:
    """The plan drops a copy: nothing behind the gateway drops on purpose."""
    gateway.counters.planned_drops[treatment.priority_class] += 1
    gateway.settle(copy, Outcome.dropped_by_policy, "planned", delivery)


# Terms of subscriptions.


def interval_ns(treatment: Treatment) -> int:
    """How far apart events of a topic are at least; 0 if they may come as they come."""
    return 0 if treatment.terms is None else int(1e9 / treatment.terms.max_rate_per_second)


def _passes(gateway: GatewayState, session: Session, delivery: Delivery, length_ns: int) -> bool:
    """Whether a copy goes on, or waits for the end of the interval in which one of its topic has."""
    if session.thinning is None:
        session.thinning = Thinning(
            lambda due_ns, what: gateway.schedule(due_ns, lambda: what(gateway.now_ns)),
            gateway.timers.cancel,
            partial(_interval_ended, gateway, session),
        )
    topic = delivery.publication.topic
    if session.thinning.passes(topic, length_ns, gateway.now_ns):
        return True
    thinned = session.thinning.hold(topic, delivery)
    session.next_sequence += 1
    if thinned is not None:
        give_up(gateway, session, thinned, Outcome.thinned, "max_rate_per_second")
    if delivery.qos or session.state is not SessionState.ACTIVE:
        store(gateway, session, delivery)
    return False


def _interval_ended(gateway: GatewayState, session: Session, delivery: Delivery) -> int:
    """The newest of an interval goes on, as the plan of now wants it; how long the next one is."""
    treatment = gateway.settings.policy.treatment(session.client_id, delivery.publication.topic)
    delivery.priority_class = treatment.priority_class
    delivery.heed(treatment.terms)
    gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
    _queue(gateway, session, delivery, treatment)
    return interval_ns(treatment)


def _supersede(gateway: GatewayState, session: Session, older: Delivery, newer: Delivery) -> None:
    """A newer event takes the place of one that waits."""
    newer.take_place(older)
    if older.qos or session.state is not SessionState.ACTIVE:
        store(gateway, session, older)
    else:
        gateway.changes.remove("deliveries", (session.client_id, older.sequence))
    copy = session, newer.subscription, newer.publication
    gateway.settle(copy, Outcome.superseded, "newest_only", newer)


def _no_longer_waits(session: Session, delivery: Delivery) -> None:
    topic = delivery.publication.topic
    if session.newest.get(topic) is delivery:
        del session.newest[topic]


def _purge(gateway: GatewayState, session: Session) -> None:
    """Give up what has expired in a full buffer."""
    session.purge_ns = NEVER_NS
    for delivery in session.buffer.clear():
        if delivery.has_expired(gateway.now_ns):
            give_up(gateway, session, delivery, Outcome.expired, "expires_seconds")
        else:
            session.buffer.push_back(delivery)
            session.purge_ns = min(session.purge_ns, delivery.expires_ns)
    session.purge_ns = max(session.purge_ns, gateway.now_ns + _PURGE_AGAIN_NS)


def rerank(gateway: GatewayState, session: Session) -> None:
    """A new plan: what waits for a client, also for the answer to a REGISTER or a PUBLISH, goes in the order and by the
    terms that it wants.
    """
    policy = gateway.settings.policy
    if session.thinning is not None:
        session.thinning.fit(
            lambda topic: interval_ns(policy.treatment(session.client_id, topic)), gateway.now_ns
        )
    waiting = session.buffer.clear() if session.buffer else []
    session.newest.clear()
    for delivery in (*session.in_flight.values(), *session.unregistered, *waiting):
        treatment = policy.treatment(session.client_id, delivery.publication.topic)
        delivery.priority_class = treatment.priority_class
        delivery.heed(treatment.terms)
        if delivery.newest_only and not delivery.attempts:
            session.newest[delivery.publication.topic] = delivery
        session.purge_ns = min(session.purge_ns, delivery.expires_ns)
    for delivery in waiting:
        session.buffer.push_back(delivery)


def store(gateway: GatewayState, session: Session, delivery: Delivery) -> None:
    """Keep a message across a restart."""
    if gateway.changes.enabled:
        gateway.changes.put("deliveries", delivery.row(session.client_id))


def give_up(
    gateway: GatewayState, session: Session, delivery: Delivery, outcome: Outcome, reason: str
) -> None:
    """A message will never be delivered; it must not be queued any more."""
    _no_longer_waits(session, delivery)
    session.reserved.pop(delivery.message_id, None)
    gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
    gateway.settle((session, delivery.subscription, delivery.publication), outcome, reason, delivery)


def pump(gateway: GatewayState, session: Session) -> None:
    """Send what is queued, as far as the client may get it now."""
    settings = gateway.settings
    burst = 0
    while session.buffer and not session.pump_is_due:
        if session.state is SessionState.AWAKE and session.awake_budget <= 0:
            break
        delivery = session.buffer.peek()
        if delivery.expires_ns <= gateway.now_ns and delivery.has_expired(gateway.now_ns):
            session.awake_budget -= 1
            give_up(gateway, session, session.buffer.pop(), Outcome.expired, "expires_seconds")
            continue
        topic_name = delivery.publication.topic
        reference = session.topics.reference(delivery.subscription, topic_name)
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
    if not session.buffer and not session.registering and not session.pump_is_due and session.draining:
        session.draining = False
        gateway.routes.forget(session)
    if session.state is SessionState.AWAKE:
        gateway.end_wake_up(session)


def _window_is_full(session: Session, delivery: Delivery, most: int) -> bool:
    """Each class has an in-flight window: what waits in the network behind it must not hold back a better one."""
    if len(session.in_flight) < most:
        return False
    level = delivery.priority_class
    return sum(other.priority_class <= level for other in session.in_flight.values()) >= most


def _pump_again(gateway: GatewayState, session: Session) -> None:
    session.pump_is_due = False
    if session.state in (SessionState.ACTIVE, SessionState.AWAKE):
        pump(gateway, session)


def _register(gateway: GatewayState, session: Session, topic_name: str) -> bool:
    """Tell the client the id of the topic of the next message, and set that message aside until it knows."""
    known = session.topics.named(topic_name)
    registering = None if known is None else session.registering.get(known.topic_id)
    if registering is None:
        if len(session.registering) >= gateway.settings.in_flight_messages:
            return False
        known = session.topics.assign(topic_name)
    delivery = session.buffer.pop()
    session.awake_budget -= 1
    if known is None:
        give_up(gateway, session, delivery, Outcome.limited, "no more topic ids")
        return True
    if registering is None:
        registering = Registering(known.topic_id, session.message_id(), topic_name, gateway.now_ns)
        session.registering[known.topic_id] = registering
        _send_register(gateway, session, registering)
        _expect_answer(gateway, session)
        _repeat_after(gateway, session, registering, _SOON_SECONDS)
    registering.waiting.append(delivery)
    return True


def _send_register(gateway: GatewayState, session: Session, registering: Registering) -> None:
    """Send a REGISTER, for the first time or again."""
    message = mqttsn.Register(registering.topic_id, registering.message_id, registering.topic_name)
    gateway.send(session.endpoint, message)


def _repeat_after(
    gateway: GatewayState, session: Session, registering: Registering, pause_seconds: float
) -> None:
    def repeat() -> None:
        unanswered = session.registering.get(registering.topic_id) is registering
        if unanswered and registering.attempts == 1 and session.state is SessionState.ACTIVE:
            gateway.counters.retries += 1
            _send_register(gateway, session, registering)
            _repeat_after(gateway, session, registering, 2 * pause_seconds)

    if pause_seconds < gateway.settings.retry_seconds:
        gateway.after(pause_seconds, repeat)


def _expect_answer(gateway: GatewayState, session: Session) -> None:
    """Something was sent that the client has to answer."""
    if not session.retry_is_due:
        session.retry_is_due = True
        gateway.after(gateway.settings.retry_seconds, lambda: _answer_due(gateway, session))


def _send(gateway: GatewayState, session: Session, delivery: Delivery, reference: TopicReference) -> None:
    if delivery.newest_only:
        _no_longer_waits(session, delivery)
    if delivery.qos == 0:
        gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
    else:
        if not delivery.message_id or delivery.message_id in session.in_flight:
            delivery.message_id = session.message_id()
        session.in_flight[delivery.message_id] = delivery
        delivery.sent_ns = gateway.now_ns
        _expect_answer(gateway, session)
        if delivery.stage is DeliveryStage.RELEASED:
            gateway.send(session.endpoint, mqttsn.PubRel(delivery.message_id))
            return
        if delivery.qos == 2 and delivery.stage is DeliveryStage.QUEUED:
            # The client knows it by this id from now on, also after a restart.
            delivery.stage = DeliveryStage.SENT
            session.reserved[delivery.message_id] = None
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


def transmitted(
    gateway: GatewayState,
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
            copy = session, delivery.subscription, delivery.publication
            gateway.settle(copy, outcome, delivery=delivery)
    elif delivery.qos == 0:
        give_up(gateway, session, delivery, outcome, "output port")
    elif (
        outcome in (Outcome.expired, Outcome.superseded)
        and session.in_flight.get(delivery.message_id) is delivery
    ):
        del session.in_flight[delivery.message_id]
        give_up(gateway, session, delivery, outcome, "output port")
        pump(gateway, session)


# Answers of the client.


def pub_ack(gateway: GatewayState, session: Session, message: mqttsn.PubAck) -> None:
    """QoS 1 has arrived, or a PUBLISH of any QoS was refused."""
    delivery = session.in_flight.get(message.message_id)
    if message.return_code is ReturnCode.REJECTED_INVALID_TOPIC_ID:
        known = session.topics.get(message.topic_id)
        if known is not None:
            gateway.confirm_topic(session, known, False)
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


def pub_rec(gateway: GatewayState, session: Session, message: mqttsn.PubRec) -> None:
    """QoS 2 has arrived; the client waits for PUBREL, also for one that we have forgotten."""
    delivery = session.in_flight.get(message.message_id)
    if delivery is not None and delivery.qos == 2:
        delivery.stage = DeliveryStage.RELEASED
        delivery.sent_ns = gateway.now_ns
        delivery.attempts = 1
        store(gateway, session, delivery)
    gateway.send(session.endpoint, mqttsn.PubRel(message.message_id))


def pub_comp(gateway: GatewayState, session: Session, message: mqttsn.PubComp) -> None:
    """QoS 2 is finished."""
    delivery = session.in_flight.get(message.message_id)
    if delivery is not None and delivery.stage is DeliveryStage.RELEASED:
        _arrived(gateway, session, delivery)
        pump(gateway, session)


def _arrived(gateway: GatewayState, session: Session, delivery: Delivery) -> None:
    del session.in_flight[delivery.message_id]
    session.reserved.pop(delivery.message_id, None)
    gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
    copy = session, delivery.subscription, delivery.publication
    gateway.settle(copy, Outcome.delivered, delivery=delivery)


def reg_ack(gateway: GatewayState, session: Session, message: mqttsn.RegAck) -> None:
    """The client knows a topic id, or does not want it."""
    registering = session.registering.get(message.topic_id)
    if registering is None or registering.message_id != message.message_id:
        return
    if message.return_code is ReturnCode.REJECTED_CONGESTION:
        return
    del session.registering[message.topic_id]
    waiting = registering.waiting
    known = session.topics.get(message.topic_id)
    if message.return_code is ReturnCode.ACCEPTED and known is not None:
        gateway.confirm_topic(session, known)
        session.awake_budget += len(waiting)
        session.buffer.push_front(waiting)
    else:
        for delivery in waiting:
            give_up(gateway, session, delivery, Outcome.limited, "topic refused by the client")
    pump(gateway, session)


def send_again(gateway: GatewayState, session: Session, delivery: Delivery | Registering) -> None:
    """The client has not answered a message."""
    if isinstance(delivery, Registering) or delivery.stage is DeliveryStage.RELEASED:
        delivery.attempts += 1
        delivery.sent_ns = gateway.now_ns
        if isinstance(delivery, Registering):
            _send_register(gateway, session, delivery)
        else:
            gateway.send(session.endpoint, mqttsn.PubRel(delivery.message_id))
        return
    reference = session.topics.reference(delivery.subscription, delivery.publication.topic)
    del session.in_flight[delivery.message_id]
    if reference is None:
        session.buffer.push_front([delivery])
        pump(gateway, session)
    else:
        _send(gateway, session, delivery, reference)


# What is not answered.


def _answer_due(gateway: GatewayState, session: Session) -> None:
    """A client has had Tretry to answer what was sent to it."""
    session.retry_is_due = False
    if session.state not in (SessionState.ACTIVE, SessionState.AWAKE):
        return
    settings = gateway.settings
    retry_ns = int(settings.retry_seconds * 1e9)
    oldest_ns = gateway.now_ns - retry_ns
    late = [one for one in _unanswered(session) if one.sent_ns <= oldest_ns and not _is_at_port(gateway, one)]
    silent_ns = gateway.now_ns - session.heard_ns
    most_attempts = max((one.attempts for one in late), default=0)
    if most_attempts > settings.retries and silent_ns >= retry_ns * (settings.retries + 1):
        gateway.end_silence(session)
        return
    given_up = False
    for one in late:
        if isinstance(one, Delivery) and session.in_flight.get(one.message_id) is not one:
            continue
        if isinstance(one, Delivery) and one.has_expired(gateway.now_ns):
            given_up = True
            del session.in_flight[one.message_id]
            give_up(gateway, session, one, Outcome.expired, "expires_seconds")
            continue
        if session.heard_ns > one.sent_ns:
            # A client that is there has left it without an answer.
            one.ignored += 1
        if one.ignored > settings.retries:
            given_up = True
            _give_up_unanswered(gateway, session, one)
        else:
            gateway.counters.retries += 1
            send_again(gateway, session, one)
    sent_ns = [gateway.now_ns if _is_at_port(gateway, one) else one.sent_ns for one in _unanswered(session)]
    if sent_ns:
        session.retry_is_due = True
        gateway.schedule(min(sent_ns) + retry_ns, lambda: _answer_due(gateway, session))
    if given_up:
        # Its place in the window is free.
        pump(gateway, session)


def _unanswered(session: Session) -> list[Delivery | Registering]:
    return [*session.in_flight.values(), *session.registering.values()]


def _is_at_port(gateway: GatewayState, one: Delivery | Registering) -> bool:
    """Does a message still wait in an output port? Its client cannot have answered it.

    Ports behind the gateway may never report: then it is sent again all the same.
    """
    is_new = gateway.now_ns - one.sent_ns < _LONGEST_WAIT_NS
    return is_new and isinstance(one, Delivery) and one.waits_for_port


def _give_up_unanswered(gateway: GatewayState, session: Session, delivery: Delivery | Registering) -> None:
    if isinstance(delivery, Registering):
        del session.registering[delivery.topic_id]
        for one in delivery.waiting:
            give_up(gateway, session, one, Outcome.unacknowledged, "REGISTER not answered")
    elif delivery.stage is DeliveryStage.RELEASED:
        # The client has said by PUBREC that it has the message: only the end of the exchange is missing.
        _arrived(gateway, session, delivery)
    else:
        del session.in_flight[delivery.message_id]
        give_up(gateway, session, delivery, Outcome.unacknowledged, f"QoS {delivery.qos}")
