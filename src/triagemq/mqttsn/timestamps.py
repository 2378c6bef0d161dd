"""When an event was published, carried with it from publisher to subscriber.

Two ways, both optional and off for foreign clients: an MQTT 5 user property, or twelve octets in front of the
payload (the only way in MQTT-SN and MQTT 3.1.1). Times are Unix time in nanoseconds, as in the Trace.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

USER_PROPERTY: Final = "triage-published-ns"
"""Name of the MQTT 5 user property; its value is the time in decimal digits."""

PUBLISHER_PROPERTY: Final = "triage-publisher"
"""Name of the MQTT 5 user property in which a gateway says for whom it publishes."""

DIRECT_SLOT: Final = 999
"""The connection over which a publisher publishes what it has sent to some subscribers without a broker already."""

DIRECT_MARK: Final = f"~{DIRECT_SLOT}"
"""What is then behind its name."""

# 0xF7 begins no UTF-8 text and no JSON, so that a payload of a foreign client is not mistaken for a stamped one.
_MARK: Final = 0xF754_4D51
_PREFIX: Final = Struct(">IQ")
PREFIX_BYTES: Final = _PREFIX.size
_LATEST_NS: Final = (1 << 63) - 1


def stamp_payload(payload: bytes, published_ns: int) -> bytes:
    """The payload with its time in front.

    >>> split_payload(stamp_payload(b"42", 1_700_000_000_000_000_000))
    (1700000000000000000, b'42')
    """
    return _PREFIX.pack(_MARK, published_ns) + payload


def split_payload(payload: bytes) -> tuple[int | None, bytes]:
    """The time that a payload carries, and the payload without it; None for one that carries no time.

    >>> split_payload(b"42")
    (None, b'42')
    """
    published_ns = published_ns_of(payload)
    return (None, payload) if published_ns is None else (published_ns, payload[PREFIX_BYTES:])


def published_ns_of(payload: bytes) -> int | None:
    """The time that a payload carries."""
    if len(payload) < PREFIX_BYTES:
        return None
    mark, published_ns = _PREFIX.unpack_from(payload)
    return published_ns if mark == _MARK and published_ns <= _LATEST_NS else None
