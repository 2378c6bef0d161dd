"""What clients hear of their broker: that it lets them in or not, and that it stays away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from triagemq.exchange.gateway import connecting, ending
from triagemq.exchange.gateway.model import SessionState
from triagemq.exchange.gateway.settings import BrokerLoss
from triagemq.mqttsn import ConnAck, Disconnect, ReturnCode

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore
    from triagemq.exchange.gateway.link import Link
    from triagemq.exchange.mqtt.packets import ConnAck as BrokerConnAck

__all__ = ["lost", "reached", "refused"]


def reached(gateway: GatewayCore, link: Link) -> None:
    """Transparent mode: a client that waited for its broker connection is connected now."""
    session = gateway.sessions.get(link.key)
    if session is not None and session.link is link and session.state is SessionState.CONNECTING:
        connecting.connected(gateway, session)


def refused(gateway: GatewayCore, link: Link, answer: BrokerConnAck) -> None:
    """Transparent mode: the broker does not let this client in."""
    gateway.counters.refused[f"connect: broker, {answer.refusal}"] += 1
    session = gateway.sessions.get(link.key)
    if session is None or session.link is not link:
        return
    if session.state is SessionState.CONNECTING:
        gateway.send(session.endpoint, ConnAck(ReturnCode.REJECTED_NOT_SUPPORTED))
    elif session.connected:
        gateway.send(session.endpoint, Disconnect())
    ending.to_disconnected(gateway, session)


def lost(gateway: GatewayCore, link: Link) -> None:
    """Clients are told when the broker stays away for longer than a restart takes."""
    gateway.counters.broker_losses += 1
    since_ns = link.is_down_since_ns

    def tell() -> None:
        if link.is_down_since_ns != since_ns:
            return
        for session in [one for one in gateway.sessions.values() if one.link is link]:
            if session.state is SessionState.ACTIVE:
                gateway.send(session.endpoint, Disconnect())
                ending.to_disconnected(gateway, session)

    if gateway.settings.broker_loss is BrokerLoss.DISCONNECT:
        gateway.after(gateway.settings.broker_grace_seconds, tell)
