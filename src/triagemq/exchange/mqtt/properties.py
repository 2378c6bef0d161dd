"""MQTT 5 properties (section 2.2.2): identifiers, their types, and both directions between them and octets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from triagemq.errors import MqttError

SUBSCRIPTION_IDENTIFIER = 0x0B
SESSION_EXPIRY = 0x11
SERVER_KEEP_ALIVE = 0x13
REASON_STRING = 0x1F
RECEIVE_MAXIMUM = 0x21
MAXIMUM_QOS = 0x24
RETAIN_AVAILABLE = 0x25
USER_PROPERTY = 0x26
MAXIMUM_PACKET_SIZE = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
SUBSCRIPTION_IDENTIFIERS_AVAILABLE = 0x29

_ONE_OCTET = {0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A}
_TWO_OCTETS = {0x13, 0x21, 0x22, 0x23}
_FOUR_OCTETS = {0x02, 0x11, 0x18, 0x27}
_OCTETS = {0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F}


def encode_length(length: int) -> bytes:
    """A variable byte integer (1.5.5).

    >>> encode_length(321).hex()
    'c102'
    """
    octets = bytearray()
    while length > 0x7F:
        octets.append(length & 0x7F | 0x80)
        length >>= 7
    octets.append(length)
    return bytes(octets)


def encode_properties(properties: Sequence[tuple[int, Any]]) -> bytes:
    """Properties with their total length in front.

    >>> encode_properties([(SESSION_EXPIRY, 60)]).hex()
    '05110000003c'
    """
    octets = bytearray()
    for identifier, value in properties:
        octets.append(identifier)
        if identifier in _ONE_OCTET:
            octets.append(value)
        elif identifier in _TWO_OCTETS:
            octets += value.to_bytes(2)
        elif identifier in _FOUR_OCTETS:
            octets += value.to_bytes(4)
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            octets += encode_length(value)
        elif identifier == USER_PROPERTY:
            for text in value:
                octets += len(text.encode()).to_bytes(2) + text.encode()
        else:
            octets += len(value).to_bytes(2) + value
    return encode_length(len(octets)) + bytes(octets)


def parse_properties(body: bytes, position: int) -> tuple[list[tuple[int, Any]], int]:
    """The properties at a position of a packet, and where they end.

    >>> parse_properties(bytes.fromhex("05110000003c"), 0)
    ([(17, 60)], 6)
    """
    length, position = _length(body, position)
    end = position + length
    if end > len(body):
        raise MqttError("properties of a packet end behind it")
    properties: list[tuple[int, Any]] = []
    while position < end:
        identifier = body[position]
        value: Any
        if identifier in _ONE_OCTET:
            value, position = _number(body, position + 1, 1)
        elif identifier in _TWO_OCTETS:
            value, position = _number(body, position + 1, 2)
        elif identifier in _FOUR_OCTETS:
            value, position = _number(body, position + 1, 4)
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            value, position = _length(body, position + 1)
        elif identifier == USER_PROPERTY:
            name, position = _octets(body, position + 1)
            text, position = _octets(body, position)
            value = (name.decode(errors="replace"), text.decode(errors="replace"))
        elif identifier in _OCTETS:
            value, position = _octets(body, position + 1)
        else:
            raise MqttError(f"unknown property 0x{identifier:02X}")
        properties.append((identifier, value))
    if position != end:
        raise MqttError("a property ends behind the properties")
    return properties, end


def _length(body: bytes, position: int) -> tuple[int, int]:
    length = 0
    for shift in (0, 7, 14, 21):
        if position >= len(body):
            break
        octet = body[position]
        position += 1
        length |= (octet & 0x7F) << shift
        if not octet & 0x80:
            return length, position
    raise MqttError("a variable byte integer does not end")


def _number(body: bytes, position: int, octets: int) -> tuple[int, int]:
    end = position + octets
    if end > len(body):
        raise MqttError("a property ends behind its packet")
    return int.from_bytes(body[position:end]), end


def _octets(body: bytes, position: int) -> tuple[bytes, int]:
    length, position = _number(body, position, 2)
    end = position + length
    if end > len(body):
        raise MqttError("a property ends behind its packet")
    return body[position:end], end
