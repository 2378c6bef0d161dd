"""MQTT 3.1.1 and 5 as a client speaks them: pure functions between values and octets, and packets out of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from triagemq.errors import MqttError
from triagemq.mqttsn.timestamps import PUBLISHER_PROPERTY
from triagemq.mqttsn.topics import is_plain_text

REFUSED = 0x80
"""Codes of SUBACK, PUBACK and PUBREC from here on are refusals."""

LARGEST_PACKET_BYTES = 5 + 0x0FFF_FFFF
"""What the length of a packet can say."""

# Of MQTT 3.1.1 and of MQTT 5, each for a wrong user or password, and for one that may not connect.
_DENIED = {0x04, 0x05, 0x86, 0x87}
# No datagram holds more than a sixteenth of it. What is larger the broker need not send, nor we have in memory.
_MOST_RECEIVED_BYTES = 1 << 20
_LARGEST_CACHED_PROPERTIES = 5
_IDENTIFIER_FIRST = b"\x0b"
# An MQTT-SN datagram with its topic, and some properties.
_LARGEST_FROM_CLIENTS_BYTES = 2 << 16


class PacketTooLargeError(MqttError):
    """Its length says that a packet is larger than this end takes."""


class PacketType(IntEnum):
    """The upper half of a packet's first octet."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class ReasonCode(IntEnum):
    """Those of MQTT 5 (2.4) that a client gives or explains."""

    SUCCESS = 0x00
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    SERVER_UNAVAILABLE = 0x88
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    SERVER_SHUTTING_DOWN = 0x8B
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_NAME_INVALID = 0x90
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What CONNACK says that the broker takes (MQTT 5, 3.2.2.3). One of 3.1.1 cannot say, and has none here."""

    receive_maximum: int = 0xFFFF
    maximum_qos: int = 2
    retain_available: bool = True
    maximum_packet_bytes: int = LARGEST_PACKET_BYTES
    wildcard_subscriptions: bool = True

    def __str__(self) -> str:
        """What a client of the gateway may miss; nothing if that is nothing.

        >>> str(BrokerLimits(maximum_qos=1, retain_available=False))
        'QoS 1 at most, no retained messages'
        """
        missing = [f"QoS {self.maximum_qos} at most"] if self.maximum_qos < 2 else []
        missing += [] if self.retain_available else ["no retained messages"]
        missing += [] if self.wildcard_subscriptions else ["no wildcards in topic filters"]
        if self.maximum_packet_bytes < _LARGEST_FROM_CLIENTS_BYTES:
            missing.append(f"packets of {self.maximum_packet_bytes} octets at most")
        return ", ".join(missing)


@dataclass(frozen=True, slots=True)
class ConnectAnswer:
    """The broker's answer to CONNECT; the last fields are MQTT 5's and as 3.1.1 implies them otherwise."""

    session_present: bool
    code: int
    reason: str = ""
    server_keep_alive: int | None = None
    subscription_identifiers: bool = False
    limits: BrokerLimits = BrokerLimits()

    @property
    def refusal(self) -> str:
        """Why the broker does not let us in, where it does not.

        >>> ConnectAnswer(False, 5).refusal, ConnectAnswer(False, 3).refusal
        ('wrong user or password', 'code 3')
        """
        return "wrong user or password" if self.code in _DENIED else f"code {self.code} {self.reason}".strip()


class PublishProperties(NamedTuple):
    """What MQTT 5 says of a message besides its user properties (3.3.2.3): the seconds after which it expires, what its
    payload is, and to where an answer goes, with what the requester knows it by."""

    expiry_seconds: int | None = None
    content_type: str = ""
    response_topic: str = ""
    correlation_data: bytes = b""


NO_PROPERTIES = PublishProperties()


class Message(NamedTuple):
    """A PUBLISH from the broker. `identifiers` name the subscriptions it is for (MQTT 5)."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    identifiers: tuple[int, ...] = ()
    user_properties: tuple[tuple[str, str], ...] = ()
    properties: PublishProperties = NO_PROPERTIES


def encode_packet(first: int, body: bytes) -> bytes:
    """Its first octet, its length, and what follows."""
    return bytes((first,)) + encode_length(len(body)) + body


def encode_text(text: str | bytes) -> bytes:
    """Octets with their length in front."""
    octets = text.encode() if isinstance(text, str) else text
    return len(octets).to_bytes(2) + octets


def encode_connect(
    version: int,
    client_id: str,
    *,
    clean: bool,
    keep_alive_seconds: int,
    user: str | None = None,
    password: str | None = None,
    session_expiry_seconds: int = 0,
) -> bytes:
    """CONNECT. Wills are the gateway's own affair: it knows when its clients are gone, the broker does not.

    >>> encode_connect(4, "g", clean=True, keep_alive_seconds=60).hex()
    '100d00044d5154540402003c000167'
    """
    flags = 0x02 if clean else 0
    if user is not None:
        flags |= 0x80
    if password is not None:
        flags |= 0x40
    body = encode_text("MQTT") + bytes((version, flags)) + keep_alive_seconds.to_bytes(2)
    if version >= 5:
        body += encode_properties(
            [
                (SESSION_EXPIRY, session_expiry_seconds),
                (RECEIVE_MAXIMUM, 0xFFFF),
                (MAXIMUM_PACKET_SIZE, _MOST_RECEIVED_BYTES),
            ]
        )
    body += encode_text(client_id)
    if user is not None:
        body += encode_text(user)
    if password is not None:
        body += encode_text(password)
    return encode_packet(PacketType.CONNECT << 4, body)


def encode_publish(
    version: int,
    topic: bytes,
    payload: bytes,
    *,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    user_properties: Sequence[tuple[str, str]] = (),
) -> bytes:
    """PUBLISH.

    >>> encode_publish(4, b"a", b"x", qos=1, packet_id=7).hex()
    '3206000161000778'
    """
    first = PacketType.PUBLISH << 4 | (0x08 if dup else 0) | qos << 1 | retain
    head = len(topic).to_bytes(2) + topic
    if qos:
        head += packet_id.to_bytes(2)
    if version >= 5:
        head += encode_properties([(USER_PROPERTY, pair) for pair in user_properties])
    return bytes((first,)) + encode_length(len(head) + len(payload)) + head + payload


@lru_cache(4096)
def publisher_property(publisher: str) -> tuple[tuple[str, str], ...]:
    """The user property that names a publisher; none for a name that a broker might end the connection over."""
    return ((PUBLISHER_PROPERTY, publisher),) if publisher and is_plain_text(publisher) else ()


def encode_subscribe(
    version: int,
    packet_id: int,
    topic_filter: str,
    qos: int,
    *,
    identifier: int | None = None,
    with_retained: bool = True,
) -> bytes:
    """SUBSCRIBE to one filter. `with_retained=False` (MQTT 5) when its retained messages are known already.

    >>> encode_subscribe(4, 1, "a/#", 1).hex()
    '820800010003612f2301'
    """
    body = packet_id.to_bytes(2)
    options = qos
    if version >= 5:
        named = [] if identifier is None else [(SUBSCRIPTION_IDENTIFIER, identifier)]
        body += encode_properties(named)
        options |= 0 if with_retained else 0x20
    return encode_packet(
        PacketType.SUBSCRIBE << 4 | 0b0010, body + encode_text(topic_filter) + bytes((options,))
    )


def encode_unsubscribe(version: int, packet_id: int, topic_filter: str) -> bytes:
    """UNSUBSCRIBE from one filter."""
    body = packet_id.to_bytes(2) + (b"\0" if version >= 5 else b"") + encode_text(topic_filter)
    return encode_packet(PacketType.UNSUBSCRIBE << 4 | 0b0010, body)


def encode_acknowledgement(packet_type: PacketType, packet_id: int) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP of success, alike in both versions.

    >>> encode_acknowledgement(PacketType.PUBREL, 7).hex()
    '62020007'
    """
    first = packet_type << 4 | (0b0010 if packet_type is PacketType.PUBREL else 0)
    return bytes((first, 2)) + packet_id.to_bytes(2)


PING = b"\xc0\0"
"""PINGREQ."""

DISCONNECT = b"\xe0\0"
"""DISCONNECT of a client that leaves on purpose, alike in both versions."""


def parse_connack(version: int, body: bytes) -> ConnectAnswer:
    """CONNACK. A broker of 3.1.1 refuses a CONNECT of MQTT 5 with a CONNACK of 3.1.1: two octets."""
    if len(body) < 2:
        raise MqttError("the broker's CONNACK is too short")
    present, code = bool(body[0] & 1), body[1]
    if version < 5 or len(body) == 2:
        return ConnectAnswer(present, code)
    found: dict[int, Any] = dict(parse_properties(body, 2)[0])
    return ConnectAnswer(
        present,
        code,
        reason=found.get(REASON_STRING, b"").decode(errors="replace"),
        server_keep_alive=found.get(SERVER_KEEP_ALIVE),
        subscription_identifiers=bool(found.get(SUBSCRIPTION_IDENTIFIERS_AVAILABLE, 1)),
        limits=BrokerLimits(
            receive_maximum=found.get(RECEIVE_MAXIMUM, 0xFFFF) or 0xFFFF,
            maximum_qos=found.get(MAXIMUM_QOS, 2),
            retain_available=bool(found.get(RETAIN_AVAILABLE, 1)),
            maximum_packet_bytes=found.get(MAXIMUM_PACKET_SIZE) or LARGEST_PACKET_BYTES,
            wildcard_subscriptions=bool(found.get(WILDCARD_SUBSCRIPTION_AVAILABLE, 1)),
        ),
    )


def parse_disconnect(version: int, body: bytes) -> str:
    """Why the broker ends the connection, in words.

    >>> parse_disconnect(5, bytes((0x8E,)))
    'session taken over (0x8e)'
    """
    if version < 5 or not body:
        return "no reason given"
    try:
        words = ReasonCode(body[0]).name.lower().replace("_", " ").replace("qos", "QoS")
    except ValueError:
        words = "reason"
    found: dict[int, Any] = dict(parse_properties(body, 1)[0]) if len(body) > 1 else {}
    more = found.get(REASON_STRING, b"").decode(errors="replace")
    return f"{words} ({body[0]:#04x}{': ' if more else ''}{more})"


def parse_publish(version: int, first: int, body: bytes) -> Message:
    """PUBLISH, from its first octet and what follows its length."""
    qos = (first >> 1) & 0b11
    if len(body) < 2 or qos == 3:
        raise MqttError("the broker sent a malformed PUBLISH")
    position = 2 + ((body[0] << 8) | body[1])
    topic = body[2:position]
    packet_id = 0
    if qos:
        packet_id = int.from_bytes(body[position : position + 2])
        position += 2
    if position > len(body):
        raise MqttError("the broker sent a PUBLISH that ends in its topic")
    identifiers: tuple[int, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    properties = NO_PROPERTIES
    if version >= 5:
        if position == len(body):
            raise MqttError("the broker sent a PUBLISH without properties")
        length = body[position]
        if length == 0:
            position += 1
        elif length <= _LARGEST_CACHED_PROPERTIES and body.startswith(_IDENTIFIER_FIRST, position + 1):
            # Nearly always nothing but the identifier of a subscription, and one of a few.
            identifiers = _identifiers(body[position : position + 1 + length])
            position += 1 + length
        else:
            found, position = parse_properties(body, position)
            identifiers = tuple(value for name, value in found if name == SUBSCRIPTION_IDENTIFIER)
            pairs = tuple(value for name, value in found if name == USER_PROPERTY)
            properties = _publish_properties(dict(found))
    retain, dup = bool(first & 1), bool(first & 8)
    return Message(topic, body[position:], qos, retain, dup, packet_id, identifiers, pairs, properties)


def _publish_properties(found: dict[int, Any]) -> PublishProperties:
    return PublishProperties(
        found.get(MESSAGE_EXPIRY),
        found.get(CONTENT_TYPE, b"").decode(errors="replace"),
        found.get(RESPONSE_TOPIC, b"").decode(errors="replace"),
        found.get(CORRELATION_DATA, b""),
    )


@lru_cache(65536)
def _identifiers(octets: bytes) -> tuple[int, ...]:
    """The identifiers among properties of at most five octets that begin with one: no other has room for anything."""
    found, _ = parse_properties(octets, 0)
    return tuple(value for name, value in found if name == SUBSCRIPTION_IDENTIFIER)


def parse_acknowledgement(body: bytes) -> tuple[int, int]:
    """Packet id and reason code of PUBACK, PUBREC, PUBREL, PUBCOMP; 0 where the code is left out."""
    if len(body) < 2:
        raise MqttError("the broker sent an acknowledgement without a packet id")
    return (body[0] << 8) | body[1], body[2] if len(body) > 2 else 0


def parse_suback(version: int, body: bytes) -> tuple[int, int]:
    """Packet id and the one return code of SUBACK: a granted QoS, or 0x80 and more for a refusal."""
    position = 2
    if version >= 5:
        _, position = parse_properties(body, 2)
    if len(body) != position + 1:
        raise MqttError("the broker's SUBACK does not answer one filter")
    return (body[0] << 8) | body[1], body[position]


class PacketStream:
    """From a TCP stream to whole packets, wherever the stream is cut: collects octets until they make packets.

    >>> stream = PacketStream()
    >>> list(stream.feed(bytes.fromhex("d0"))), list(stream.feed(bytes.fromhex("00 4002 0007 40")))
    ([], [(208, b''), (64, b'\\x00\\x07')])
    """

    __slots__ = ("_needed", "_rest", "most_bytes")

    def __init__(self, most_bytes: int = LARGEST_PACKET_BYTES) -> None:
        self._rest = bytearray()
        self.most_bytes = most_bytes
        # How long `_rest` has to be before parsing it again makes sense: a large packet that arrives in many
        # pieces is looked at once, not once a piece.
        self._needed = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The packets that `data` completes: first octet (type and flags) and everything behind the length."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest = bytearray()
        self._needed = 0
        position = 0
        size = len(data)
        while size - position >= 2:
            length = data[position + 1]
            start = position + 2
            if length & 0x80:
                length &= 0x7F
                shift = 7
                while True:
                    if start >= size:
                        self._rest = bytearray(data[position:])
                        return
                    octet = data[start]
                    start += 1
                    length |= (octet & 0x7F) << shift
                    if not octet & 0x80:
                        break
                    shift += 7
                    if shift > 21:
                        raise MqttError("a packet has a malformed length")
            if length > self.most_bytes:
                raise PacketTooLargeError(f"a packet has {length} octets, and {self.most_bytes} are allowed")
            end = start + length
            if end > size:
                self._needed = end - position
                break
            first = data[position]
            position = end
            yield first, data[start:end]
        if position < size:
            self._rest = bytearray(data[position:])


# Properties of MQTT 5 (2.2.2): identifiers, their types, and both directions between them and octets.

MESSAGE_EXPIRY = 0x02
CONTENT_TYPE = 0x03
RESPONSE_TOPIC = 0x08
CORRELATION_DATA = 0x09
SUBSCRIPTION_IDENTIFIER = 0x0B
SESSION_EXPIRY = 0x11
ASSIGNED_CLIENT_IDENTIFIER = 0x12
SERVER_KEEP_ALIVE = 0x13
REASON_STRING = 0x1F
RECEIVE_MAXIMUM = 0x21
TOPIC_ALIAS_MAXIMUM = 0x22
MAXIMUM_QOS = 0x24
RETAIN_AVAILABLE = 0x25
USER_PROPERTY = 0x26
MAXIMUM_PACKET_SIZE = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
SUBSCRIPTION_IDENTIFIERS_AVAILABLE = 0x29

# Of numbers, the length; the others are octets with their length in front.
_NUMBERS = (
    dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), 1)
    | dict.fromkeys((0x13, 0x21, 0x22, 0x23), 2)
    | dict.fromkeys((0x02, 0x11, 0x18, 0x27), 4)
)
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
        if identifier in _NUMBERS:
            octets += value.to_bytes(_NUMBERS[identifier])
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            octets += encode_length(value)
        elif identifier == USER_PROPERTY:
            octets += b"".join(map(encode_text, value))
        else:
            octets += encode_text(value)
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
        if identifier in _NUMBERS:
            value, position = _number(body, position + 1, _NUMBERS[identifier])
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            value, position = _length(body, position + 1)
        elif identifier == USER_PROPERTY:
            name, position = parse_text(body, position + 1)
            text, position = parse_text(body, position)
            value = (name.decode(errors="replace"), text.decode(errors="replace"))
        elif identifier in _OCTETS:
            value, position = parse_text(body, position + 1)
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


def parse_text(body: bytes, position: int) -> tuple[bytes, int]:
    """Octets with their length in front, at a position of a packet, and where they end."""
    length, position = _number(body, position, 2)
    end = position + length
    if end > len(body):
        raise MqttError("a property ends behind its packet")
    return body[position:end], end
