"""What clients hear of their broker: that it lets them in or not, stays away, or ends the connection over a packet.

All clients may share that connection. The MQTT session finds such a packet (mqtt/suspicion.py); its sender is answered
as if the broker had refused it, and what it sends to that topic later is refused for a while; a sender of several of
them is refused altogether. The rest flows.
"""

from __future__ import annotations

from triagemq.exchange.gateway import broker_link, connecting, leaving, publishing, subscribing
from triagemq.exchange.gateway.actions import Say
from triagemq.exchange.gateway.core import GatewayCore
from triagemq.exchange.gateway.model.limits import SetAside
from triagemq.exchange.gateway.model.sessions import BrokerLink, SessionState
from triagemq.exchange.gateway.settings import BrokerLoss
from triagemq.exchange.mqtt.packets import REFUSED, ConnectAnswer, PacketType
from triagemq.exchange.mqtt.session import MqttSession
from triagemq.exchange.mqtt.suspicion import Packet
from triagemq.hiding import without_key
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


def rejected(gateway: GatewayCore, link: BrokerLink, lane: MqttSession, packet: Packet) -> None:
    """The broker has ended connections over this packet."""
    topic = packet.topic.decode()
    _record(gateway, packet)
    until_ns = gateway.now_ns + int(gateway.settings.quarantine_seconds * 1e9)
    if packet.kind is not PacketType.PUBLISH:
        gateway.quarantine.hold_filter(topic, until_ns)
        for session in broker_link.reject(gateway, link, topic):
            subscribing.drop(gateway, session, topic)
        return
    is_repeated = gateway.quarantine.hold_publications(packet.sender, topic, until_ns)
    withdrawn = lane.withdraw(packet.sender, None if is_repeated else packet.topic)
    for one in withdrawn:
        _record(gateway, one)
    for one in (packet, *withdrawn):
        publishing.broker_answered(gateway, one.token, REFUSED)


def _record(gateway: GatewayCore, packet: Packet) -> None:
    gateway.counters.quarantined += 1
    name = without_key(gateway.slots.name_of(packet.sender)) if packet.sender else ""
    record = SetAside(
        gateway.now_ns, name, packet.kind.name, packet.topic.decode(), packet.qos, packet.payload
    )
    gateway.quarantine.records.append(record)
    gateway.act(Say(str(record)))
