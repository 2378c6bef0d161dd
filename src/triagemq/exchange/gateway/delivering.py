"""Messages on their way to one client: in which order, how many at once, and until they are answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triagemq.exchange.gateway import naming, retrying, rows, sleeping
from triagemq.exchange.gateway.actions import SendPublish
from triagemq.exchange.gateway.model import (
    Delivery,
    Publication,
    Registering,
    Session,
    SessionState,
    Stage,
    Subscription,
)
from triagemq.exchange.gateway.routes import topic_reference
from triagemq.mqttsn import (
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    RegAck,
    ReturnCode,
    TopicIdType,
    encode_publish,
)
from triagemq.trace.schema import Outcome

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore

__all__ = ["Deliverer"]

_AWAY = (SessionState.ASLEEP, SessionState.AWAKE, SessionState.DISCONNECTED, SessionState.CONNECTING)


class Deliverer:
    """What is queued for clients, sent to them, and not answered yet."""

    def __init__(self, gateway: GatewayCore) -> None:
        self._gateway = gateway

    def deliver(
        self,
        session: Session,
        subscription: Subscription,
        publication: Publication,
        qos: int,
        *,
        retain: bool = False,
        drawn: bool = False,
    ) -> None:
        """Queue a message for a client, and send it if it is its turn.

        QoS 1 and 2 are dropped here as the plan wants, before they take a place; `drawn`: this one has been spared.
        """
        gateway = self._gateway
        if session.state is SessionState.DISCONNECTED and qos == 0:
            gateway.settle(session, subscription, publication, Outcome.subscriber_gone, "not connected")
            return
        policy = gateway.settings.policy
        if qos and not drawn:
            drop_rate = policy.drop_rate(session.client_id, publication.topic)
            if drop_rate > 0.0 and gateway.draw() < drop_rate:
                priority_class = policy.priority_class(session.client_id, publication.topic)
                dropped = Delivery(0, publication, subscription, qos, retain, priority_class)
                gateway.settle(
                    session, subscription, publication, Outcome.dropped_by_policy, "planned", dropped
                )
                return
        priority_class = policy.priority_class(session.client_id, publication.topic)
        delivery = Delivery(session.next_sequence, publication, subscription, qos, retain, priority_class)
        session.next_sequence += 1
        limit = gateway.settings.buffer_messages
        if session.unregistered:
            limit = max(0, limit - sum(map(len, session.unregistered.values())))
        pushed_out = session.buffer.push(delivery, limit)
        if pushed_out is not None:
            self.give_up(session, pushed_out, Outcome.dropped_by_buffer, "buffer full")
            if pushed_out is delivery:
                return
        if qos or session.state in _AWAY:
            self.store(session, delivery)
        if session.state in (SessionState.ACTIVE, SessionState.AWAKE):
            self.pump(session)

    def store(self, session: Session, delivery: Delivery) -> None:
        """Keep a message across a restart."""
        if self._gateway.changes.enabled:
            self._gateway.changes.put("deliveries", *rows.delivery(session, delivery))

    def give_up(self, session: Session, delivery: Delivery, outcome: Outcome, reason: str) -> None:
        """A message will never be delivered; it must not be queued any more."""
        session.reserved.discard(delivery.message_id)
        self._gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
        self._gateway.settle(session, delivery.subscription, delivery.publication, outcome, reason, delivery)

    def pump(self, session: Session) -> None:
        """Send what is queued, as far as the client may get it now."""
        settings = self._gateway.settings
        burst = 0
        while session.buffer and not session.pump_is_due:
            if session.state is SessionState.AWAKE and session.awake_budget <= 0:
                break
            delivery = session.buffer.peek()
            topic_name = delivery.publication.topic
            reference = self.reference(session, delivery.subscription, topic_name)
            if delivery.qos and len(session.in_flight) >= settings.in_flight_messages:
                break
            if reference is None:
                if not self._register(session, topic_name):
                    break
                continue
            if not delivery.qos:
                if burst >= settings.burst_messages:
                    session.pump_is_due = True
                    self._gateway.after(settings.burst_pause_seconds, lambda: self._pump_again(session))
                    break
                burst += 1
            session.buffer.pop()
            session.awake_budget -= 1
            self._send(session, delivery, reference)
        if not session.buffer and not session.unregistered and not session.pump_is_due and session.draining:
            session.draining = False
            session.link.routes.forget(session)
        if session.state is SessionState.AWAKE:
            sleeping.finish_awake(self._gateway, session)

    def _pump_again(self, session: Session) -> None:
        session.pump_is_due = False
        if session.state in (SessionState.ACTIVE, SessionState.AWAKE):
            self.pump(session)

    def _register(self, session: Session, topic_name: str) -> bool:
        """Tell the client the id of the topic of the next message, and set that message aside until it knows."""
        gateway = self._gateway
        known = session.topics.named(topic_name)
        if known is None or known.topic_id not in session.registering:
            if len(session.registering) >= gateway.settings.in_flight_messages:
                return False
            known = naming.assign(gateway, session, topic_name)
            if known is None:
                return self._without_id(session)
            message_id = session.message_id()
            registering = Registering(message_id, topic_name, gateway.now_ns)
            retrying.register(gateway, session, known.topic_id, registering)
        delivery = session.buffer.pop()
        session.awake_budget -= 1
        session.unregistered.setdefault(known.topic_id, []).append(delivery)
        return True

    def _without_id(self, session: Session) -> bool:
        """The client has no id left for the topic of the next message: it waits for one, if there ever will be any."""
        gateway = self._gateway
        if session.topics.is_full(gateway.settings.topic_ids):
            delivery = session.buffer.pop()
            session.awake_budget -= 1
            self.give_up(session, delivery, Outcome.limited, "no more topic ids")
            return True
        return False

    def _send(self, session: Session, delivery: Delivery, reference: tuple[TopicIdType, int]) -> None:
        gateway = self._gateway
        if delivery.qos == 0:
            gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
        else:
            if not delivery.message_id or delivery.message_id in session.in_flight:
                delivery.message_id = session.message_id()
            session.in_flight[delivery.message_id] = delivery
            delivery.sent_ns = gateway.now_ns
            retrying.supervise(gateway, session)
            if delivery.stage is Stage.RELEASED:
                gateway.send(session.endpoint, PubRel(delivery.message_id))
                return
            if delivery.qos == 2 and delivery.stage is Stage.QUEUED:
                # The client knows it by this id from now on, also after a restart.
                delivery.stage = Stage.SENT
                session.reserved.add(delivery.message_id)
                self.store(session, delivery)
        delivery.stage = Stage.SENT
        delivery.attempts += 1
        datagram = encode_publish(
            *reference,
            delivery.publication.payload,
            delivery.qos,
            delivery.retain,
            delivery.attempts > 1,
            delivery.message_id,
        )
        gateway.act(SendPublish(session, delivery, gateway.framed(session.endpoint, datagram)))

    def fate(
        self, session: Session, delivery: Delivery, outcome: Outcome, enqueued_ns: int, dequeued_ns: int
    ) -> None:
        """What the network did with a PUBLISH to one client."""
        gateway = self._gateway
        delivery.enqueued_ns, delivery.dequeued_ns = enqueued_ns, dequeued_ns
        if outcome is Outcome.delivered:
            gateway.counters.sent += 1
            if delivery.qos == 0:
                gateway.settle(
                    session, delivery.subscription, delivery.publication, outcome, delivery=delivery
                )
        elif delivery.qos == 0:
            self.give_up(session, delivery, outcome, "output port")
        elif outcome is Outcome.dropped_by_policy and session.in_flight.get(delivery.message_id) is delivery:
            # Sending it again would undo what the plan wants; a full buffer on the other hand may be free later.
            del session.in_flight[delivery.message_id]
            self.give_up(session, delivery, outcome, "output port")
            self.pump(session)

    def reference(
        self, session: Session, subscription: Subscription, topic_name: str
    ) -> tuple[TopicIdType, int] | None:
        """How to name a topic to a client; None if it has to be registered first."""
        reference = topic_reference(subscription, topic_name)
        if reference is None:
            known = session.topics.named(topic_name)
            if known is not None and known.told:
                known.topic.used_ns = self._gateway.now_ns
                return TopicIdType.NORMAL, known.topic_id
        return reference

    # Answers of the client.

    def pub_ack(self, session: Session, message: PubAck) -> None:
        """QoS 1 has arrived, or a PUBLISH of any QoS was refused."""
        delivery = session.in_flight.get(message.message_id)
        if message.return_code is ReturnCode.REJECTED_INVALID_TOPIC_ID:
            naming.unknown_to_client(self._gateway, session, message.topic_id)
            if delivery is not None:
                del session.in_flight[message.message_id]
                session.buffer.push_front([delivery])
        elif delivery is None or message.return_code is ReturnCode.REJECTED_CONGESTION:
            return
        elif message.return_code is ReturnCode.REJECTED_NOT_SUPPORTED:
            del session.in_flight[message.message_id]
            self.give_up(session, delivery, Outcome.limited, "refused by the client")
        elif delivery.qos == 1:
            self._arrived(session, delivery)
        self.pump(session)

    def pub_rec(self, session: Session, message: PubRec) -> None:
        """QoS 2 has arrived; the client waits for PUBREL, also for one that we have forgotten."""
        delivery = session.in_flight.get(message.message_id)
        if delivery is not None and delivery.qos == 2:
            delivery.stage = Stage.RELEASED
            delivery.sent_ns = self._gateway.now_ns
            delivery.attempts = 1
            self.store(session, delivery)
        self._gateway.send(session.endpoint, PubRel(message.message_id))

    def pub_comp(self, session: Session, message: PubComp) -> None:
        """QoS 2 is finished."""
        delivery = session.in_flight.get(message.message_id)
        if delivery is not None and delivery.stage is Stage.RELEASED:
            self._arrived(session, delivery)
            self.pump(session)
        elif delivery is None:
            retrying.finished(self._gateway, session, message.message_id)

    def _arrived(self, session: Session, delivery: Delivery) -> None:
        del session.in_flight[delivery.message_id]
        session.reserved.discard(delivery.message_id)
        self._gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
        self._gateway.settle(
            session, delivery.subscription, delivery.publication, Outcome.delivered, delivery=delivery
        )

    def reg_ack(self, session: Session, message: RegAck) -> None:
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
            naming.confirmed(self._gateway, session, known)
            session.awake_budget += len(waiting)
            session.buffer.push_front(waiting)
        else:
            for delivery in waiting:
                self.give_up(session, delivery, Outcome.limited, "topic refused by the client")
        self.pump(session)

    def requeue(self, session: Session) -> None:
        """Put back everything that was not answered: the client is away, or has come back."""
        waiting = [delivery for deliveries in session.unregistered.values() for delivery in deliveries]
        waiting += session.in_flight.values()
        for delivery in session.in_flight.values():
            # It has been sent, and may be sent as often again.
            delivery.attempts = 1
        session.unregistered.clear()
        session.in_flight.clear()
        session.registering.clear()
        session.buffer.push_front(sorted(waiting, key=lambda delivery: delivery.sequence))

    def forget(self, session: Session) -> None:
        """The session is over, and with it the exchanges that it never finished."""
        for message_id in list(session.abandoned or ()):
            retrying.finished(self._gateway, session, message_id)

    def send_again(self, session: Session, delivery: Delivery) -> None:
        """The client has not answered a message."""
        if delivery.stage is Stage.RELEASED:
            delivery.attempts += 1
            delivery.sent_ns = self._gateway.now_ns
            self._gateway.send(session.endpoint, PubRel(delivery.message_id))
            return
        reference = self.reference(session, delivery.subscription, delivery.publication.topic)
        del session.in_flight[delivery.message_id]
        if reference is None:
            session.buffer.push_front([delivery])
            self.pump(session)
        else:
            self._send(session, delivery, reference)
