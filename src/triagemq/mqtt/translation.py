"""Packets of a client as a proxy reads them, and between MQTT 3.1.1 and 5: one version at each side.

A client of 3.1.1 whose broker is to be spoken to in MQTT 5 gets what it would get from the broker directly: its
CONNECT has a session expiry in place of `clean session`, and codes and properties that it does not know are taken away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from triagemq.errors import MqttError
from triagemq.mqtt.packets import (
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    REFUSED,
    SESSION_EXPIRY,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
    PacketType,
    encode_length,
    encode_packet,
    encode_properties,
    encode_text,
    parse_properties,
    parse_text,
)

OLD_PROTOCOL = 3
"""MQTT 3.1: on the wire like 3.1.1, but for its name."""

_CLEAN, _WILL, _USER = 0x02, 0x04, 0x80
_FOREVER = 0xFFFF_FFFF
# CONNACK codes of MQTT 5 and what 3.1.1 says in their place (3.2.2.3); any other is "not authorized".
_RETURN_CODES = {
    0x00: 0,
    0x01: 1,
    0x84: 1,
    0x85: 2,
    0x80: 3,
    0x88: 3,
    0x89: 3,
    0x8B: 3,
    0x97: 3,
    0x9F: 3,
    0x86: 4,
    0x8C: 4,
}
_NOT_AUTHORIZED = 5


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A client's CONNECT. `rest` is what follows the client id: the will, the user, the password."""

    version: int
    flags: int
    keep_alive_seconds: int
    properties: tuple[tuple[int, Any], ...]
    client_id: bytes
    rest: bytes

    @property
    def receive_maximum(self) -> int:
        """So many unacknowledged messages at QoS 1 and 2 the client takes."""
        return next((value for name, value in self.properties if name == RECEIVE_MAXIMUM), 0xFFFF)

    @property
    def user(self) -> str:
        """The user name; nothing if there is none."""
        position = 0
        if not self.flags & _USER:
            return ""
        if self.flags & _WILL:
            if self.version == 5:
                _, position = parse_properties(self.rest, position)
            for _ in ("topic", "payload"):
                _, position = parse_text(self.rest, position)
        return parse_text(self.rest, position)[0].decode(errors="replace")

    def encode(self, version: int) -> bytes:
        """For the broker, in this version: with the largest Receive Maximum, and without topic aliases, which could not
        be understood any more when messages overtake each other.
        """
        head = encode_text("MQIsdp" if version == OLD_PROTOCOL else "MQTT")
        head += bytes((version, self.flags)) + self.keep_alive_seconds.to_bytes(2)
        rest = self.rest
        if version >= 5:
            own = {RECEIVE_MAXIMUM, TOPIC_ALIAS_MAXIMUM}
            properties = [pair for pair in self.properties if pair[0] not in own]
            if self.version < 5:
                expiry = 0 if self.flags & _CLEAN else _FOREVER
                properties = [(SESSION_EXPIRY, expiry)]
                rest = b"\0" + rest if self.flags & _WILL else rest
            head += encode_properties([*properties, (RECEIVE_MAXIMUM, 0xFFFF)])
        return encode_packet(PacketType.CONNECT << 4, head + encode_text(self.client_id) + rest)


def speaks_known_version(body: bytes) -> bool:
    """Is a CONNECT of a version that can be spoken here, as far as it says one?

    >>> [speaks_known_version(bytes.fromhex(f"00044d515454{version}02003c000167")) for version in ("05", "84")]
    [True, False]
    """
    _, position = parse_text(body, 0)
    return body[position : position + 1] in (b"", bytes((OLD_PROTOCOL,)), b"\4", b"\5")


def parse_connect(body: bytes) -> ConnectRequest:
    """
    >>> parse_connect(bytes.fromhex("00044d5154540402003c000167"))
    ConnectRequest(version=4, flags=2, keep_alive_seconds=60, properties=(), client_id=b'g', rest=b'')
    """
    name, position = parse_text(body, 0)
    if len(body) < position + 4 or name not in (b"MQTT", b"MQIsdp"):
        raise MqttError("a CONNECT is malformed")
    version, flags = body[position], body[position + 1]
    if version not in (OLD_PROTOCOL, 4, 5) or flags & 0x01:
        raise MqttError(f"a CONNECT is of version {version}")
    keep_alive_seconds = int.from_bytes(body[position + 2 : position + 4])
    position += 4
    properties: Sequence[tuple[int, Any]] = ()
    if version == 5:
        properties, position = parse_properties(body, position)
    client_id, position = parse_text(body, position)
    rest = body[position:]
    if flags & _WILL and not rest:
        raise MqttError("a CONNECT has no will in it")
    found = ConnectRequest(version, flags, keep_alive_seconds, tuple(properties), client_id, rest)
    # Whether it can be read at all.
    found.user  # noqa: B018
    if found.receive_maximum == 0 or any(pair == (MAXIMUM_PACKET_SIZE, 0) for pair in properties):
        raise MqttError("a CONNECT has a limit of 0")
    return found


class SubscribeRequest(NamedTuple):
    """Filters with their options, and the user properties (MQTT 5)."""

    packet_id: int
    filters: tuple[tuple[str, int], ...]
    user_properties: tuple[tuple[str, str], ...] = ()


def parse_subscribe(version: int, body: bytes) -> SubscribeRequest:
    """
    >>> parse_subscribe(4, bytes.fromhex("00010003612f2301"))
    SubscribeRequest(packet_id=1, filters=(('a/#', 1),), user_properties=())
    """
    packet_id, position, properties = _request(version, body)
    filters = []
    while position < len(body):
        octets, position = parse_text(body, position)
        if position >= len(body):
            raise MqttError("a SUBSCRIBE lacks the options of a filter")
        filters.append((octets.decode(errors="replace"), body[position]))
        position += 1
    if not filters:
        raise MqttError("a SUBSCRIBE has no filter")
    pairs = tuple(value for name, value in properties if name == USER_PROPERTY)
    return SubscribeRequest(packet_id, tuple(filters), pairs)


def parse_unsubscribe(version: int, body: bytes) -> tuple[int, tuple[str, ...]]:
    """Packet id and filters of UNSUBSCRIBE."""
    packet_id, position, _ = _request(version, body)
    filters = []
    while position < len(body):
        octets, position = parse_text(body, position)
        filters.append(octets.decode(errors="replace"))
    if not filters:
        raise MqttError("an UNSUBSCRIBE has no filter")
    return packet_id, tuple(filters)


def parse_answers(version: int, body: bytes) -> tuple[int, bytes]:
    """Packet id of SUBACK, and a code for each filter."""
    packet_id, position, _ = _request(version, body)
    return packet_id, body[position:]


def _request(version: int, body: bytes) -> tuple[int, int, Sequence[tuple[int, Any]]]:
    if len(body) < 3:
        raise MqttError("a packet is too short")
    properties: Sequence[tuple[int, Any]] = ()
    position = 2
    if version >= 5:
        properties, position = parse_properties(body, position)
    return int.from_bytes(body[:2]), position, properties


def to_broker_of_5(first: int, body: bytes) -> bytes:
    """A packet of a client of 3.1.1, other than CONNECT, in MQTT 5."""
    kind = first >> 4
    if kind == PacketType.PUBLISH:
        position = _end_of_packet_id(first, body)
        return encode_packet(first, body[:position] + b"\0" + body[position:])
    if kind in (PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE):
        return encode_packet(first, body[:2] + b"\0" + body[2:])
    return encode_packet(first, body)


def to_client_of_4(first: int, body: bytes) -> bytes:
    """A packet of a broker of MQTT 5 for a client of 3.1.1; nothing where that has no such packet.

    >>> to_client_of_4(0x90, bytes.fromhex("00010087")).hex(), to_client_of_4(0x40, bytes.fromhex("000710")).hex()
    ('9003000180', '40020007')
    """
    match first >> 4:
        case PacketType.PUBLISH:
            position = _end_of_packet_id(first, body)
            if position >= len(body):
                raise MqttError("the broker sent a PUBLISH without properties")
            end = position + 1
            if body[position]:
                _, end = parse_properties(body, position)
            length = position + len(body) - end
            return bytes((first,)) + encode_length(length) + body[:position] + body[end:]
        case PacketType.CONNACK:
            code = body[1] if len(body) > 1 else 0x80
            return encode_packet(first, bytes((body[0] & 1, _RETURN_CODES.get(code, _NOT_AUTHORIZED))))
        case PacketType.SUBACK:
            packet_id, codes = parse_answers(5, body)
            codes = bytes(min(code, REFUSED) for code in codes)
            return encode_packet(first, packet_id.to_bytes(2) + codes)
        case (
            PacketType.PUBACK
            | PacketType.PUBREC
            | PacketType.PUBREL
            | PacketType.PUBCOMP
            | PacketType.UNSUBACK
        ):
            return encode_packet(first, body[:2])
        case PacketType.PINGRESP:
            return encode_packet(first, b"")
    return b""


def _end_of_packet_id(first: int, body: bytes) -> int:
    """Where the packet id of a PUBLISH ends, or its topic if it has none."""
    end = 2 + int.from_bytes(body[:2]) + (2 if first & 0x06 else 0)
    if end > len(body):
        raise MqttError("a PUBLISH ends in its topic")
    return end


def refusal(version: int, code: int) -> bytes:
    """CONNACK with one of the codes of MQTT 5, in the words of the client's version.

    >>> refusal(4, 0x88).hex(), refusal(5, 0x88).hex()
    ('20020003', '2003008800')
    """
    packet = bytes((0, code, 0))
    if version >= 5:
        return encode_packet(PacketType.CONNACK << 4, packet)
    return to_client_of_4(PacketType.CONNACK << 4, packet)


def farewell(code: int) -> bytes:
    """DISCONNECT of a server of MQTT 5; one of 3.1.1 just closes the connection."""
    return encode_packet(PacketType.DISCONNECT << 4, bytes((code,)))
