"""What the broker has ended the connection over, which all clients share: set aside with its sender; the rest flows.

The MQTT session finds such a packet (mqtt/suspicion.py). Its sender is answered as if the broker had refused it, and
what it sends to that topic later is refused for a while; a sender of several of them is refused altogether.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from triagemq.exchange.gateway import publishing
from triagemq.exchange.gateway.actions import Say
from triagemq.exchange.mqtt.packets import REFUSED, PacketType
from triagemq.hiding import without_key

if TYPE_CHECKING:
    from triagemq.exchange.gateway.core import GatewayCore
    from triagemq.exchange.gateway.link import Link
    from triagemq.exchange.mqtt.session import MqttSession
    from triagemq.exchange.mqtt.suspicion import Packet

__all__ = ["Quarantine", "SetAside"]

_MOST_HELD = 10_000
_MOST_RECORDS = 100
_MOST_TOPIC_CHARACTERS = 200
# So many packets of one client were each more than a mistake.
_PACKETS_OF_ONE_SENDER = 3


class SetAside(NamedTuple):
    """A packet that is not sent to the broker any more. `sender` is a name, never a client id that is a secret."""

    at_ns: int
    sender: str
    kind: str
    topic: str
    qos: int
    payload: bytes

    def __str__(self) -> str:
        who = f" of {self.sender!r}" if self.sender else ""
        topic = self.topic[:_MOST_TOPIC_CHARACTERS]
        return (
            f"quarantined: {self.kind}{who} to {topic!r}, QoS {self.qos}, {len(self.payload)} bytes: "
            "the broker ends the connection over it"
        )


class Quarantine:
    """Which senders, topics and filters are refused until when, and the last packets that were set aside."""

    def __init__(self, gateway: GatewayCore) -> None:
        self._gateway = gateway
        self._until_ns: dict[tuple[str | None, str | None], int] = {}
        self._packets_of: dict[str, int] = {}
        self.records: deque[SetAside] = deque(maxlen=_MOST_RECORDS)

    def refuses(self, client_id: str, topic: str) -> bool:
        """Is what a client publishes to a topic not sent to the broker?"""
        return bool(self._until_ns) and (self._holds((client_id, topic)) or self._holds((client_id, None)))

    def refuses_filter(self, topic_filter: str) -> bool:
        """Is nobody to subscribe to a filter?"""
        return bool(self._until_ns) and self._holds((None, topic_filter))

    def rejected(self, link: Link, session: MqttSession, packet: Packet) -> None:
        """The broker has ended connections over this packet."""
        topic = packet.topic.decode()
        self._record(packet)
        if packet.kind is not PacketType.PUBLISH:
            self._hold((None, topic))
            link.reject(topic)
            return
        sender = packet.sender
        self._hold((sender, topic))
        packets = self._packets_of[sender] = self._packets_of.pop(sender, 0) + 1
        while len(self._packets_of) > _MOST_HELD:
            del self._packets_of[next(iter(self._packets_of))]
        is_repeated = bool(sender) and packets >= _PACKETS_OF_ONE_SENDER
        if is_repeated:
            self._hold((sender, None))
        withdrawn = session.withdraw(sender, None if is_repeated else packet.topic)
        for one in withdrawn:
            self._record(one)
        for one in (packet, *withdrawn):
            publishing.broker_answered(self._gateway, one.token, REFUSED)

    def _record(self, packet: Packet) -> None:
        gateway = self._gateway
        gateway.counters.quarantined += 1
        kind = packet.kind.name
        name = without_key(gateway.slots.name_of(packet.sender)) if packet.sender else ""
        record = SetAside(gateway.now_ns, name, kind, packet.topic.decode(), packet.qos, packet.payload)
        self.records.append(record)
        gateway.act(Say(str(record)))

    def _hold(self, key: tuple[str | None, str | None]) -> None:
        self._until_ns.pop(key, None)
        self._until_ns[key] = self._gateway.now_ns + int(self._gateway.settings.quarantine_seconds * 1e9)
        while len(self._until_ns) > _MOST_HELD:
            del self._until_ns[next(iter(self._until_ns))]

    def _holds(self, key: tuple[str | None, str | None]) -> bool:
        until_ns = self._until_ns.get(key)
        if until_ns is not None and until_ns <= self._gateway.now_ns:
            del self._until_ns[key]
            return False
        return until_ns is not None
