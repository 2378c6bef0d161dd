"""How sessions end: a client that is silent, leaves, stays away for too long, or is no longer allowed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from triagemq.exchange.gateway import naming, publishing, rows, subscribing, wills
from triagemq.exchange.gateway.actions import Gone
from triagemq.exchange.gateway.model import Session, SessionState
from triagemq.mqttsn import Disconnect
from triagemq.trace.schema import Outcome

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore

__all__ = ["end", "expire_later", "lose", "revoke", "supervise", "to_disconnected"]


def supervise(gateway: GatewayCore, session: Session, seconds: float) -> None:
    """Lose the client when it is silent for longer than it promised; 0 promises nothing."""
    gateway.timers.cancel(session.timer)
    session.timer = None
    if seconds > 0:
        allowed_ns = int(seconds * gateway.settings.keep_alive_tolerance * 1e9)
        session.timer = gateway.schedule(
            session.heard_ns + allowed_ns, partial(_check, gateway, session, allowed_ns)
        )


def _check(gateway: GatewayCore, session: Session, allowed_ns: int) -> None:
    if gateway.now_ns - session.heard_ns >= allowed_ns:
        lose(gateway, session)
    else:
        due_ns = session.heard_ns + allowed_ns
        session.timer = gateway.schedule(due_ns, partial(_check, gateway, session, allowed_ns))


def lose(gateway: GatewayCore, session: Session) -> None:
    """A client is gone without a word: its will is published."""
    gateway.counters.clients_lost += 1
    wills.publish(session)
    to_disconnected(gateway, session)


def to_disconnected(gateway: GatewayCore, session: Session) -> None:
    """The connection is over; a session that is not clean goes on, and QoS 1 and 2 messages are kept for it."""
    if session.clean:
        end(gateway, session, "disconnected")
        return
    session.state = SessionState.DISCONNECTED
    session.publishing.clear()
    session.link.withdraw(session)
    session.link.routes.forget(session)
    if gateway.by_endpoint.get(session.endpoint) is session:
        del gateway.by_endpoint[session.endpoint]
    gateway.deliver.requeue(session)
    gateway.slots.hand_back(session, ended=False)
    kept = session.buffer.clear()
    session.buffer.push_front(delivery for delivery in kept if delivery.qos)
    for delivery in kept:
        if not delivery.qos:
            gateway.deliver.give_up(session, delivery, Outcome.subscriber_gone, "disconnected")
    gateway.changes.put("sessions", *rows.session(session))
    gateway.act(Gone(session.client_id))
    if session.link is not gateway.link:
        session.link.close()
    expire_later(gateway, session)
    gateway.places.kept(session)


def expire_later(gateway: GatewayCore, session: Session) -> None:
    """Forget a client that stays away: it must not take a place for ever."""
    gateway.timers.cancel(session.timer)
    session.timer = gateway.after(
        gateway.settings.session_expiry_seconds, partial(end, gateway, session, "session expired")
    )


def end(gateway: GatewayCore, session: Session, reason: str) -> None:
    """The session is over, with everything that belongs to it."""
    client_id = session.client_id
    del gateway.sessions[client_id]
    gateway.timers.cancel(session.timer)
    session.timer = None
    gateway.places.leave(session)
    if gateway.by_endpoint.get(session.endpoint) is session:
        del gateway.by_endpoint[session.endpoint]
    if session.connected:
        gateway.act(Gone(client_id))
    session.state = SessionState.DISCONNECTED
    gateway.slots.remove(session)
    session.link.leave(session)
    gateway.deliver.requeue(session)
    gateway.slots.hand_back(session, ended=True)
    for delivery in session.buffer.clear():
        gateway.deliver.give_up(session, delivery, Outcome.subscriber_gone, reason)
    naming.forget(gateway, session)
    gateway.deliver.forget(session)
    for topic_filter in session.subscriptions:
        gateway.changes.remove("subscriptions", (client_id, topic_filter))
        gateway.numbers.unsubscribed(client_id, topic_filter)
    for message_id in list(session.arrivals):
        publishing.forget(gateway, session, message_id)
        gateway.changes.remove("arrivals", (client_id, message_id))
    gateway.changes.remove("sessions", client_id)
    gateway.numbers.left(client_id)
    if session.link is not gateway.link:
        session.link.close()
        gateway.links.pop(client_id, None)


def revoke(gateway: GatewayCore) -> None:
    """The policy has changed: end sessions that it forbids, and subscriptions and wills of the others.

    While it is closed, clients are sent away and what is kept for them stays: they may well be allowed.
    """
    policy = gateway.settings.policy
    for session in list(gateway.sessions.values()):
        client_id = session.client_id
        if policy.closed:
            if session.connected:
                gateway.send(session.endpoint, Disconnect())
                to_disconnected(gateway, session)
            continue
        if policy.forbids_connection(client_id):
            if session.connected:
                gateway.send(session.endpoint, Disconnect())
            gateway.counters.refused["session: no longer allowed"] += 1
            end(gateway, session, "no longer allowed")
            for lane in session.link.lanes:
                lane.withdraw(client_id)
            continue
        for topic_filter in [
            one for one in session.subscriptions if policy.forbids_subscription(client_id, one)
        ]:
            gateway.counters.refused["subscription: no longer allowed"] += 1
            subscribing.drop(gateway, session, topic_filter)
        if session.will is not None and policy.forbids_publication(client_id, session.will.topic):
            session.will = None
            gateway.changes.put("sessions", *rows.session(session))
