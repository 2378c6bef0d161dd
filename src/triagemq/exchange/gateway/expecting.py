"""Clients on their way from another gateway: a session stores what comes for them until they are here.

Publishers may be here before their subscribers are. What is acknowledged to them must not be lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from triagemq.exchange.gateway import broker_link, connecting, leaving
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.model import rows
from triagemq.exchange.gateway.model.messages import Subscription
from triagemq.exchange.gateway.model.sessions import Session, SessionState
from triagemq.exchange.gateway.model.topics import ClientTopics
from triagemq.exchange.mqtt.packets import REFUSED
from triagemq.mqttsn import TopicIdType

_NOWHERE = ("0.0.0.0", 0)


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
        session = _disconnected_session(gateway, client_id)
    new = {
        each: qos
        for each, qos in filters.items()
        if each not in session.subscriptions and not policy.forbids_subscription(client_id, each)
    }
    for topic_filter, qos in new.items():
        _subscribe(gateway, session, topic_filter, qos, answered)
    return len(new)


def _disconnected_session(gateway: GatewayCore, client_id: str) -> Session:
    session = Session(
        client_id,
        gateway.numbers.subscriber(client_id),
        _NOWHERE,
        connecting.link_for(gateway, client_id, clean=False),
        ClientTopics(gateway.topics),
        clean=False,
        duration_seconds=0,
        state=SessionState.DISCONNECTED,
        heard_ns=gateway.now_ns,
    )
    gateway.sessions[client_id] = session
    gateway.places.enter(session)
    gateway.name(session)
    gateway.changes.put("sessions", rows.session(session))
    leaving.expire_later(gateway, session)
    return session


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
            gateway.changes.put("subscriptions", rows.subscription(session, subscription))
        answered()

    broker_link.subscribe(gateway, session, subscription, taken)
