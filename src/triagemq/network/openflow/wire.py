"""The frame around every OpenFlow message, the types of messages that a session handles itself, and the greeting."""

from __future__ import annotations

import struct
from enum import IntEnum

__all__ = [
    "HEADER",
    "VERSION",
    "MessageType",
    "NonsenseError",
    "check_hello",
    "hello_body",
    "with_transaction",
]

VERSION = 4
"""OpenFlow 1.3 on the wire."""

HEADER = struct.Struct("!BBHI")
"""Version, type, length of the whole message, transaction id."""

_VERSION_BITMAP = 1


class MessageType(IntEnum):
    """Types of messages (section A.1 of OpenFlow 1.3): those that a session looks at, and METER_MOD, the last."""

    HELLO = 0
    ERROR = 1
    ECHO_REQUEST = 2
    ECHO_REPLY = 3
    FEATURES_REQUEST = 5
    FEATURES_REPLY = 6
    PACKET_IN = 10
    PORT_STATUS = 12
    MULTIPART_REPLY = 19
    BARRIER_REQUEST = 20
    BARRIER_REPLY = 21
    METER_MOD = 29


class NonsenseError(Exception):
    """What a switch sent is not OpenFlow 1.3."""


def with_transaction(message: bytes, transaction: int) -> bytes:
    """A message that was made without a transaction id, with one.

    >>> with_transaction(bytes.fromhex("0402000800000000"), 7).hex()
    '0402000800000007'
    """
    return message[:4] + transaction.to_bytes(4, "big") + message[8:]


def hello_body() -> bytes:
    """We speak version 1.3 and no other; a switch that speaks only older ones answers with an error."""
    return struct.pack("!HHI", _VERSION_BITMAP, 8, 1 << VERSION)


def check_hello(version: int, message: bytes) -> None:
    """A switch begins with HELLO, and must be able to speak OpenFlow 1.3.

    >>> check_hello(VERSION, HEADER.pack(VERSION, 0, 16, 0) + hello_body())
    >>> check_hello(1, HEADER.pack(1, 0, 8, 0))
    Traceback (most recent call last):
    triagemq.network.openflow.wire.NonsenseError: OpenFlow, but not 1.3
    """
    versions = set(range(1, version + 1))
    offset = HEADER.size
    while offset + 4 <= len(message):
        element, length = struct.unpack_from("!HH", message, offset)
        if length < 4 or offset + length > len(message):
            raise NonsenseError("a hello with an impossible length")
        if element == _VERSION_BITMAP and length >= 8:
            bitmap = struct.unpack_from("!I", message, offset + 4)[0]
            versions = {number for number in range(32) if bitmap >> number & 1}
        offset += (length + 7) // 8 * 8
    if VERSION not in versions:
        raise NonsenseError("OpenFlow, but not 1.3")
