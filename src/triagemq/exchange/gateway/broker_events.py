"""What clients hear of their broker: that it lets them in or not, stays away, or does not take a filter any more."""

from __future__ import annotations

from triagemq.exchange.gateway import connecting, leaving, subscribing
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.model.sessions import BrokerLink, Session, SessionState
from triagemq.exchange.gateway.settings import BrokerLoss
from triagemq.exchange.mqtt.packets import ConnectAnswer
from triagemq.mqttsn import ConnAck, Disconnect, ReturnCode


def reached(gateway: GatewayCore, link: BrokerLink) -> None:
    """Transparent mode: a client that waited for its broker connection is connected now."""
    session = gateway.sessions.get(link.key)
    if session is not None and session.link is link and session.state is SessionState.CONNECTING:
        connecting.connected(gateway, session)


def refused(gateway: GatewayCore, link: BrokerLink, answer: ConnectAnswer) -> None:
    """Transparent mode: the broker does not let this client in."""
    gateway.counters.refused[f"connect: broker, {answer.refusal}"] += 1
    session = gateway.sessions.get(link.key)
    if session is None or session.link is not link:
        return
    if session.state is SessionState.CONNECTING:
        gateway.send(session.endpoint, ConnAck(ReturnCode.REJECTED_NOT_SUPPORTED))
    elif session.connected:
        gateway.send(session.endpoint, Disconnect())
    leaving.to_disconnected(gateway, session)


def lost(gateway: GatewayCore, link: BrokerLink) -> None:
    """Clients are told when the broker stays away for longer than a restart takes."""
    gateway.counters.broker_losses += 1
    since_ns = link.is_down_since_ns

    def tell() -> None:
        if link.is_down_since_ns != since_ns:
            return
        for session in [one for one in gateway.sessions.values() if one.link is link]:
            if session.state is SessionState.ACTIVE:
                gateway.send(session.endpoint, Disconnect())
                leaving.to_disconnected(gateway, session)

    if gateway.settings.broker_loss is BrokerLoss.DISCONNECT:
        gateway.after(gateway.settings.broker_grace_seconds, tell)


def filter_refused(gateway: GatewayCore, session: Session, topic_filter: str) -> None:
    """The broker has refused a filter that it took before.

    MQTT-SN has no message for that: the client is sent away, and hears it when it comes back and subscribes.
    """
    gateway.counters.refused["subscribe: broker"] += 1
    subscribing.drop(gateway, session, topic_filter)
    if session.connected:
        gateway.send(session.endpoint, Disconnect())
        leaving.to_disconnected(gateway, session)
