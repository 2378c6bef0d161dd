"""When an event was published, sent with it from publisher to subscriber.

Two formats, both optional and off for foreign clients: an MQTT 5 user property, or twelve octets in front of the
payload (the only one in MQTT-SN and MQTT 3.1.1). Times are Unix time in nanoseconds, as in the Trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

USER_PROPERTY: Final = "triage-published-ns"
"""Name of the MQTT 5 user property; its value is the time in decimal digits."""

PUBLISHER_PROPERTY: Final = "triage-publisher"
"""Name of the MQTT 5 user property in which a gateway says for whom it publishes."""

DIRECT_SLOT: Final = 999
"""The connection over which a publisher publishes what it has sent to some subscribers without a broker already. In
front of the payload is then the generation of the orders that it follows, which the gateway takes away."""

MARK: Final = 0xF754_4D51
"""What stands before the time. 0xF7 begins no UTF-8 text and no JSON, so that a payload of a foreign client is not
mistaken for a stamped one."""
_PREFIX: Final = Struct(">IQ")
PREFIX_BYTES: Final = _PREFIX.size
_LATEST_NS: Final = (1 << 63) - 1
_GENERATION: Final = Struct(">Q")
_DIRECT: Final = f"~{DIRECT_SLOT}:"


def stamp_payload(payload: bytes, published_ns: int) -> bytes:
    """The payload with its time in front.

    >>> split_payload(stamp_payload(b"42", 1_700_000_000_000_000_000))
    (1700000000000000000, b'42')
    """
    return _PREFIX.pack(MARK, published_ns) + payload


def split_payload(payload: bytes) -> tuple[int | None, bytes]:
    """The time that a payload carries, and the payload without it; None for one that carries no time.

    >>> split_payload(b"42")
    (None, b'42')
    """
    published_ns = published_ns_of(payload)
    return (None, payload) if published_ns is None else (published_ns, payload[PREFIX_BYTES:])


def with_generation(payload: bytes, generation: int) -> bytes:
    """What goes over the connection `DIRECT_SLOT`.

    >>> split_generation(with_generation(b"42", 7)), split_generation(b"42")
    ((7, b'42'), (0, b'42'))
    """
    return _GENERATION.pack(generation) + payload


def split_generation(payload: bytes) -> tuple[int, bytes]:
    """The generation and the payload that came over it; 0 where there is none."""
    if len(payload) < _GENERATION.size:
        return 0, payload
    return _GENERATION.unpack_from(payload)[0], payload[_GENERATION.size :]


def marked_publisher(name: str, generation: int) -> str:
    """A publisher's name in a message that some subscribers have already.

    >>> split_publisher(marked_publisher("ecg", 7)), split_publisher("ecg")
    (('ecg', 7), ('ecg', None))
    """
    return f"{name}{_DIRECT}{generation}"


def split_publisher(text: str) -> tuple[str, int | None]:
    """Its name, and the generation if some subscribers have the message already."""
    name, mark, generation = text.rpartition(_DIRECT)
    is_marked = mark and generation.isascii() and generation.isdigit() and len(generation) < 20
    return (name, int(generation)) if is_marked else (text, None)


def published_ns_of(payload: bytes) -> int | None:
    """The time that a payload carries."""
    if len(payload) < PREFIX_BYTES:
        return None
    mark, published_ns = _PREFIX.unpack_from(payload)
    return published_ns if mark == MARK and published_ns <= _LATEST_NS else None


def stamped_ns(payload: bytes, user_properties: Iterable[tuple[str, str]]) -> int | None:
    """The time that a message carries in a user property or in front of its payload.

    >>> stamped_ns(b"42", [(USER_PROPERTY, "1700000000000000000")]), stamped_ns(b"42", [])
    (1700000000000000000, None)
    """
    for name, value in user_properties:
        if name == USER_PROPERTY and value.isascii() and value.isdigit() and len(value) < 20:
            return int(value) if int(value) <= _LATEST_NS else None
    return published_ns_of(payload)
