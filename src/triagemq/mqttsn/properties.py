"""What MQTT 5 says of a message, in front of its payload: MQTT-SN has no room for it elsewhere.

A gateway puts it there for subscriptions that ask for it, and for no others.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

MARK: Final = 0xF754_4D50
"""What stands before the properties; as with times, it begins no text."""
_HEAD: Final = Struct(">IH")
_LENGTH: Final = Struct(">H")


class EventProperties(NamedTuple):
    """What a publisher says of the payload, where an answer goes, and what else it adds (MQTT 5)."""

    content_type: str = ""
    response_topic: str = ""
    correlation_data: bytes = b""
    user_properties: tuple[tuple[str, str], ...] = ()


NOTHING_SAID: Final = EventProperties()


def with_properties(payload: bytes, properties: EventProperties) -> bytes:
    """The payload with its properties in front.

    >>> split_properties(with_properties(b"42", EventProperties("text/plain", user_properties=(("unit", "C"),))))
    (EventProperties(content_type='text/plain', ..., user_properties=(('unit', 'C'),)), b'42')
    """
    *texts, correlation_data, pairs = properties
    parts = [*(text.encode() for text in texts), correlation_data]
    parts += [text.encode() for pair in pairs for text in pair]
    octets = b"".join(_LENGTH.pack(len(part)) + part for part in parts)
    return _HEAD.pack(MARK, len(octets)) + octets + payload


def split_properties(payload: bytes) -> tuple[EventProperties | None, bytes]:
    """The properties that a payload carries, and the payload without them; None where it carries none.

    >>> split_properties(b"42")
    (None, b'42')
    """
    if len(payload) < _HEAD.size:
        return None, payload
    mark, length = _HEAD.unpack_from(payload)
    end = _HEAD.size + length
    if mark != MARK or end > len(payload):
        return None, payload
    parts, position = list[bytes](), _HEAD.size
    while position + _LENGTH.size <= end:
        begin = position + _LENGTH.size
        position = begin + _LENGTH.unpack_from(payload, position)[0]
        parts.append(payload[begin:position])
    if position != end or len(parts) < 3 or len(parts) % 2 == 0:
        return None, payload
    content_type, response_topic, *others = (part.decode(errors="replace") for part in parts)
    pairs = tuple(zip(others[1::2], others[2::2], strict=True))
    return EventProperties(content_type, response_topic, parts[2], pairs), payload[end:]
