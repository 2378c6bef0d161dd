"""Tretry and Nretry: what a client has not answered is sent again, until it is given up or the client is lost.

A client that is silent for as long as the retries take is lost. One that is heard, but does not answer a message after
all retries, stays, and the message is given up: only those retries count after which the client was heard, so that
nothing is given up because a radio was out of reach for a while.
"""

from __future__ import annotations

from triagemq.exchange.gateway import leaving
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.delivering import finished, give_up, pump, send_again, tell_id
from triagemq.exchange.gateway.model import rows
from triagemq.exchange.gateway.model.messages import Delivery, DeliveryStage, Registering
from triagemq.exchange.gateway.model.sessions import Session, SessionState
from triagemq.trace.schema import Outcome

# Exchanges of QoS 2 that a client never finished, and whose message ids it may still know.
_MOST_ABANDONED = 1024
_LONGEST_WAIT_NS = 60_000_000_000


def answer_due(gateway: GatewayCore, session: Session) -> None:
    """A client has had Tretry to answer what was sent to it."""
    session.retry_is_due = False
    if session.state not in (SessionState.ACTIVE, SessionState.AWAKE):
        return
    settings = gateway.settings
    retry_ns = int(settings.retry_seconds * 1e9)
    oldest_ns = gateway.now_ns - retry_ns
    late = [
        delivery
        for delivery in session.in_flight.values()
        if delivery.sent_ns <= oldest_ns and not _is_at_port(gateway, delivery)
    ]
    unknown = {topic_id: one for topic_id, one in session.registering.items() if one.sent_ns <= oldest_ns}
    attempts = [one.attempts for one in late] + [one.attempts for one in unknown.values()]
    silent_ns = gateway.now_ns - session.heard_ns
    if max(attempts, default=0) > settings.retries and silent_ns >= retry_ns * (settings.retries + 1):
        if session.state is SessionState.AWAKE:
            leaving.back_to_sleep(gateway, session)
        else:
            leaving.lose(gateway, session)
        return
    given_up = False
    for delivery in late:
        if session.in_flight.get(delivery.message_id) is not delivery:
            continue
        if _is_ignored(session, delivery, settings.retries):
            given_up = True
            _give_up(gateway, session, delivery)
        else:
            gateway.counters.retries += 1
            send_again(gateway, session, delivery)
    for topic_id, registering in unknown.items():
        if _is_ignored(session, registering, settings.retries):
            given_up = True
            del session.registering[topic_id]
            for delivery in session.unregistered.pop(topic_id, ()):
                give_up(gateway, session, delivery, Outcome.unacknowledged, "REGISTER not answered")
        else:
            gateway.counters.retries += 1
            registering.attempts += 1
            registering.sent_ns = gateway.now_ns
            tell_id(gateway, session, topic_id, registering)
    waiting = [
        gateway.now_ns if _is_at_port(gateway, one) else one.sent_ns for one in session.in_flight.values()
    ]
    waiting += [one.sent_ns for one in session.registering.values()]
    if waiting:
        session.retry_is_due = True
        gateway.schedule(min(waiting) + retry_ns, lambda: answer_due(gateway, session))
    if given_up:
        # Its place in the window is free.
        pump(gateway, session)


def _is_at_port(gateway: GatewayCore, delivery: Delivery) -> bool:
    """Does a message still wait in an output port? Its client cannot have answered it.

    Ports behind the gateway may never tell: then it is sent again all the same.
    """
    return delivery.waits_for_port and gateway.now_ns - delivery.sent_ns < _LONGEST_WAIT_NS


def _is_ignored(session: Session, unanswered: Delivery | Registering, retries: int) -> bool:
    """Has a client that is there left every attempt without an answer?"""
    if session.heard_ns > unanswered.sent_ns:
        unanswered.ignored += 1
    return unanswered.ignored > retries


def _give_up(gateway: GatewayCore, session: Session, delivery: Delivery) -> None:
    del session.in_flight[delivery.message_id]
    if delivery.stage is DeliveryStage.RELEASED:
        # The client has said by PUBREC that it has the message: only the end of the exchange is missing.
        gateway.settle(
            session, delivery.subscription, delivery.publication, Outcome.delivered, delivery=delivery
        )
        gateway.changes.remove("deliveries", (session.client_id, delivery.sequence))
    else:
        give_up(gateway, session, delivery, Outcome.unacknowledged, f"QoS {delivery.qos}")
    if delivery.qos == 2:
        _abandon(gateway, session, delivery)


def _abandon(gateway: GatewayCore, session: Session, delivery: Delivery) -> None:
    """The client may know the message id for as long as the session lasts, and would take a new message under it for
    the old one: the id is not given to another, also after a restart.
    """
    if session.abandoned is None:
        session.abandoned = {}
    session.abandoned[delivery.message_id] = delivery.sequence
    session.reserved.add(delivery.message_id)
    gateway.changes.put("deliveries", rows.abandoned(session, delivery.message_id, delivery.sequence))
    if len(session.abandoned) > _MOST_ABANDONED:
        finished(gateway, session, next(iter(session.abandoned)))
