"""A broker without sockets that speaks MQTT 3.1.1 and 5 in octets, for tests in virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from triagemq.mqtt.packets import (
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RETAIN_AVAILABLE,
    SUBSCRIPTION_IDENTIFIER,
    WILDCARD_SUBSCRIPTION_AVAILABLE,
    PacketStream,
    PacketType,
    encode_length,
    encode_properties,
    encode_publish,
    parse_properties,
    parse_publish,
)
from triagemq.mqtt.session import MqttSession
from triagemq.mqttsn import matches

_Message = tuple[bytes, bytes, int, bool, Sequence[tuple[int, Any]]]
"""Topic, payload, QoS, whether it is retained, and properties."""


@dataclass
class _Subscriber:
    """What the broker remembers of one client id."""

    filters: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    waiting: deque[_Message] = field(default_factory=deque)
    unanswered: dict[int, _Message] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    next_packet_id: int = 1


@dataclass
class _Connection:
    session: MqttSession
    stream: PacketStream
    version: int = 0
    client_id: str = ""
    clean: bool = True
    output: bytearray = field(default_factory=bytearray)


class MemoryBroker:
    """One copy per matching filter, as Mosquitto sends them; retained messages at every SUBSCRIBE."""

    def __init__(self, *, versions: tuple[int, ...] = (4, 5)) -> None:
        self.versions = versions
        self.subscribers: dict[str, _Subscriber] = {}
        self.retained: dict[bytes, tuple[bytes, int]] = {}
        self.published: list[tuple[str, bytes, int, bool]] = []
        self.forbidden_filters: set[str] = set()
        self.forbidden_topics: set[str] = set()
        self.passwords: dict[str, str] | None = None
        self.holds_acknowledgements = False
        # Properties of its CONNACK: it ends a connection over what they exclude. And whose it has ended.
        self.limits: dict[int, int] = {}
        self.ended: list[MqttSession] = []
        self.losses = 0
        self._connections: list[_Connection] = []

    def connect(self, session: MqttSession) -> None:
        """A TCP connection is made."""
        self._connections.append(_Connection(session, PacketStream()))
        session.opened()

    def is_connected(self, session: MqttSession) -> bool:
        return any(connection.session is session for connection in self._connections)

    def lose(self, session: MqttSession) -> None:
        """The TCP connection breaks."""
        self._connections = [one for one in self._connections if one.session is not session]
        session.closed()

    def crash(self) -> list[MqttSession]:
        """Everything is forgotten, all connections break."""
        sessions = [connection.session for connection in self._connections]
        for session in sessions:
            self.lose(session)
        self.subscribers.clear()
        self.retained.clear()
        return sessions

    def exchange(self, pieces: int = 1 << 30) -> bool:
        """Move octets both ways once; `pieces` is the largest piece a session gets. Did anything move?"""
        moved = False
        for connection in list(self._connections):
            data = connection.session.take_output()
            for first, body in connection.stream.feed(data):
                moved = True
                if connection.version == 5 and self._excludes(first, body):
                    self.losses += 1
                    self.lose(connection.session)
                    self.ended.append(connection.session)
                    break
                self._packet(connection, first, body)
            while connection.output and connection in self._connections:
                moved = True
                piece = bytes(connection.output[:pieces])
                del connection.output[:pieces]
                try:
                    connection.session.receive(piece)
                except Exception:
                    self.lose(connection.session)
                    raise
        return moved

    def _excludes(self, first: int, body: bytes) -> bool:
        kind, limits = PacketType(first >> 4), self.limits
        if kind is not PacketType.CONNECT and len(body) + 2 > limits.get(MAXIMUM_PACKET_SIZE, 1 << 30):
            return True
        if kind is PacketType.PUBLISH:
            message = parse_publish(5, first, body)
            return message.qos > limits.get(MAXIMUM_QOS, 2) or message.retain > limits.get(
                RETAIN_AVAILABLE, 1
            )
        if kind is PacketType.SUBSCRIBE:
            _, position = parse_properties(body, 2)
            has_wildcard = bool({b"+"[0], b"#"[0]} & set(body[position + 2 : -1]))
            return has_wildcard > limits.get(WILDCARD_SUBSCRIPTION_AVAILABLE, 1)
        return False

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int = 0,
        retain: bool = False,
        properties: Sequence[tuple[int, Any]] = (),
    ) -> None:
        """Somebody publishes."""
        octets = topic.encode()
        if retain:
            if payload:
                self.retained[octets] = (payload, qos)
            else:
                self.retained.pop(octets, None)
        for client_id, subscriber in self.subscribers.items():
            for topic_filter, (granted, identifier) in subscriber.filters.items():
                if matches(topic_filter, topic):
                    named = (*_named(identifier), *properties)
                    self._queue(client_id, (octets, payload, min(qos, granted), False, named))

    def _queue(self, client_id: str, message: _Message) -> None:
        subscriber = self.subscribers[client_id]
        connection = next((one for one in self._connections if one.client_id == client_id), None)
        if connection is None:
            if message[2]:
                subscriber.waiting.append(message)
            return
        self._send(connection, subscriber, message)

    def _send(
        self,
        connection: _Connection,
        subscriber: _Subscriber,
        message: _Message,
        packet_id: int = 0,
    ) -> None:
        topic, payload, qos, retain, properties = message
        dup = bool(packet_id)
        if qos and not packet_id:
            packet_id = subscriber.next_packet_id
            subscriber.next_packet_id = packet_id % 0xFFFF + 1
        if qos:
            subscriber.unanswered[packet_id] = message
        packet = encode_publish(4, topic, b"", qos=qos, retain=retain, dup=dup, packet_id=packet_id)
        head = packet[1 + len(encode_length(len(packet) - 2)) :]
        if connection.version == 5:
            head += encode_properties(properties)
        connection.output += packet[:1] + encode_length(len(head) + len(payload)) + head + payload

    def _packet(self, connection: _Connection, first: int, body: bytes) -> None:
        kind = PacketType(first >> 4)
        subscriber = self.subscribers.get(connection.client_id)
        if kind is PacketType.CONNECT:
            self._connect(connection, body)
            return
        assert subscriber is not None
        if kind is PacketType.PUBLISH:
            message = parse_publish(connection.version, first, body)
            topic = message.topic.decode()
            allowed = topic not in self.forbidden_topics
            repeated = message.qos == 2 and message.packet_id in subscriber.received
            if message.qos == 2:
                subscriber.received.add(message.packet_id)
            if allowed and not repeated:
                self.published.append((topic, message.payload, message.qos, message.retain))
                self.publish(topic, message.payload, message.qos, message.retain)
            if message.qos and not self.holds_acknowledgements:
                reply = PacketType.PUBACK if message.qos == 1 else PacketType.PUBREC
                code = b"\x87" if not allowed and connection.version == 5 else b""
                connection.output += bytes((reply << 4, 2 + len(code))) + message.packet_id.to_bytes(2) + code
        elif kind is PacketType.PUBREL:
            subscriber.received.discard(int.from_bytes(body[:2]))
            connection.output += bytes((PacketType.PUBCOMP << 4, 2)) + body[:2]
        elif kind in (PacketType.PUBACK, PacketType.PUBCOMP):
            subscriber.unanswered.pop(int.from_bytes(body[:2]), None)
        elif kind is PacketType.PUBREC:
            connection.output += bytes((PacketType.PUBREL << 4 | 2, 2)) + body[:2]
        elif kind is PacketType.SUBSCRIBE:
            self._subscribe(connection, subscriber, body)
        elif kind is PacketType.UNSUBSCRIBE:
            start = 2 + (connection.version == 5)
            subscriber.filters.pop(body[start + 2 :].decode(), None)
            code = b"\0\0" if connection.version == 5 else b""
            connection.output += bytes((PacketType.UNSUBACK << 4, 2 + len(code))) + body[:2] + code
        elif kind is PacketType.PINGREQ:
            connection.output += b"\xd0\0"
        elif kind is PacketType.DISCONNECT:
            self._connections.remove(connection)

    def _connect(self, connection: _Connection, body: bytes) -> None:
        connection.version, flags = body[6], body[7]
        if connection.version not in self.versions:
            connection.output += b"\x20\x02\x00\x01"
            return
        position = 10
        if connection.version == 5:
            _, position = parse_properties(body, position)
        texts = []
        while position < len(body):
            end = position + 2 + int.from_bytes(body[position : position + 2])
            texts.append(body[position + 2 : end].decode())
            position = end
        properties = encode_properties(list(self.limits.items())) if connection.version == 5 else b""
        if self.passwords is not None and texts[1:] != [texts[1], self.passwords.get(texts[1], "")]:
            code = b"\x86" if connection.version == 5 else b"\x05"
            connection.output += bytes((0x20, 2 + len(properties), 0)) + code + properties
            return
        connection.client_id = texts[0]
        connection.clean = bool(flags & 2)
        present = connection.client_id in self.subscribers and not connection.clean
        if not present:
            self.subscribers[connection.client_id] = _Subscriber()
        connection.output += bytes((0x20, 2 + len(properties), present, 0)) + properties
        subscriber = self.subscribers[connection.client_id]
        for packet_id, message in list(subscriber.unanswered.items()):
            self._send(connection, subscriber, message, packet_id)
        while subscriber.waiting:
            self._send(connection, subscriber, subscriber.waiting.popleft())

    def _subscribe(self, connection: _Connection, subscriber: _Subscriber, body: bytes) -> None:
        position = 2
        identifier = None
        if connection.version == 5:
            found, position = parse_properties(body, 2)
            identifier = dict(found).get(SUBSCRIPTION_IDENTIFIER)
        topic_filter, options = body[position + 2 : -1].decode(), body[-1]
        qos = options & 3
        code = 0x80 if topic_filter in self.forbidden_filters else qos
        if code < 0x80:
            subscriber.filters[topic_filter] = (qos, identifier)
            if not options & 0x20:
                for topic, (payload, retained_qos) in self.retained.items():
                    if matches(topic_filter, topic.decode()):
                        message = (topic, payload, min(qos, retained_qos), True, _named(identifier))
                        self._send(connection, subscriber, message)
        properties = b"\0" if connection.version == 5 else b""
        connection.output += bytes((0x90, 3 + len(properties))) + body[:2] + properties + bytes((code,))


def _named(identifier: int | None) -> list[tuple[int, Any]]:
    return [] if identifier is None else [(SUBSCRIPTION_IDENTIFIER, identifier)]
