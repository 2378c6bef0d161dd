"""OpenFlow 1.3 to octets: the few messages that a controller of ours sends, and what they are made of. No I/O.

Structures are those of section A of the specification. Messages are made with transaction id 0; the session writes its
own into them.
"""

from __future__ import annotations

import functools
import ipaddress
import struct
from enum import IntEnum

from triagemq.network.openflow.rules import CONTROLLER, Match, OutputAction, RateLimit, Rule

VERSION = 4
"""OpenFlow 1.3 on the wire."""

HEADER = struct.Struct("!BBHI")
"""Version, type, length of the whole message, transaction id."""

SEEN_BYTES = 128
"""Of a packet from an unknown host the controller sees this much."""


class OpenFlowType(IntEnum):
    """Types of messages (section A.1): those that are sent or looked at here. METER_MOD is the last there is."""

    HELLO = 0
    ERROR = 1
    ECHO_REQUEST = 2
    ECHO_REPLY = 3
    FEATURES_REQUEST = 5
    FEATURES_REPLY = 6
    PACKET_IN = 10
    PORT_STATUS = 12
    PACKET_OUT = 13
    FLOW_MOD = 14
    MULTIPART_REQUEST = 18
    MULTIPART_REPLY = 19
    BARRIER_REQUEST = 20
    BARRIER_REPLY = 21
    SET_ASYNC = 28
    METER_MOD = 29


VERSION_BITMAP = 1


def with_transaction(message: bytes, transaction: int) -> bytes:
    """A message that was made without a transaction id, with one.

    >>> with_transaction(bytes.fromhex("0402000800000000"), 7).hex()
    '0402000800000007'
    """
    return message[:4] + transaction.to_bytes(4, "big") + message[8:]


def hello_body() -> bytes:
    """We speak version 1.3 and no other; a switch that speaks only older ones answers with an error."""
    return struct.pack("!HHI", VERSION_BITMAP, 8, 1 << VERSION)


def hello_failed_body(explanation: str) -> bytes:
    """Of an ERROR with type HELLO_FAILED and code INCOMPATIBLE (A.4.4): no version in common.

    >>> hello_failed_body("1.3 only")
    b'\\x00\\x00\\x00\\x001.3 only'
    """
    return struct.pack("!HH", 0, 0) + explanation.encode("ascii", "replace")


# Fields of packets, by the names of OpenFlow, which matches and actions have as a header and a value (A.2.3).

FIELDS = {
    "in_port": (0, 4),
    "eth_dst": (3, 6),
    "eth_src": (4, 6),
    "eth_type": (5, 2),
    "ip_dscp": (8, 1),
    "ip_proto": (10, 1),
    "ipv4_src": (11, 4),
    "ipv4_dst": (12, 4),
    "udp_dst": (16, 2),
    "arp_spa": (22, 4),
    "ipv6_src": (26, 16),
    "ipv6_dst": (27, 16),
}
"""Their numbers, and how many octets they have."""
BASIC = 0x8000
WITH_MASK = 1
MASKED = frozenset({"ipv6_dst"})
"""Those that have masks in rules of ours."""
MATCH_OF_FIELDS = 1


def _field(name: str, value: int | str) -> bytes:
    number, length = FIELDS[name]
    if isinstance(value, str) and "/" in value:
        octets = b"".join(ipaddress.ip_address(each).packed for each in value.split("/"))
        return struct.pack("!HBB", BASIC, number << 1 | WITH_MASK, 2 * length) + octets
    if isinstance(value, int):
        octets = value.to_bytes(length, "big")
    elif name.startswith("eth_"):
        octets = bytes.fromhex(value.replace(":", ""))
    else:
        octets = ipaddress.ip_address(value).packed
    return struct.pack("!HBB", BASIC, number << 1, length) + octets


@functools.lru_cache(1 << 16)
def _match_octets(match: Match) -> bytes:
    # In the order of their numbers each comes after those that it needs.
    fields = b"".join(_field(*each) for each in sorted(match, key=lambda each: FIELDS[each[0]]))
    octets = struct.pack("!HH", MATCH_OF_FIELDS, 4 + len(fields)) + fields
    return octets + bytes(-len(octets) % 8)


# Rules (A.3.4.1) and what they do (A.2.4, A.2.5).

_FLOW_MOD = struct.Struct("!QQBBHHHIIIH2x")
_ADD, _DELETE, _DELETE_STRICT = 0, 3, 4
_NO_BUFFER = _ANY = 0xFFFFFFFF
_ALL_TABLES = 0xFF
_ALL_BITS = (1 << 64) - 1
GO_TO_TABLE, APPLY_ACTIONS, USE_METER = 1, 4, 6
OUTPUT, SET_FIELD = 0, 25


def _message(kind: OpenFlowType, body: bytes) -> bytes:
    return HEADER.pack(VERSION, kind, HEADER.size + len(body), 0) + body


def flow_mod(rule: Rule, cookie: int, meter: int | None) -> bytes:
    """Add a rule, or replace the one with the same key; its counters go on."""
    done = _instruction_octets(rule.copies, rule.next_table, meter)
    return _flow_mod(_ADD, cookie, 0, rule.table, rule.priority, _match_octets(rule.match) + done)


def flow_mod_delete(rule: Rule, cookie: int) -> bytes:
    """Delete a rule if it still has this cookie; a foreign one, which has no match here, by its cookie alone."""
    if rule.is_foreign:
        return flow_mod_delete_marked(cookie, _ALL_BITS)
    match = _match_octets(rule.match)
    return _flow_mod(_DELETE_STRICT, cookie, _ALL_BITS, rule.table, rule.priority, match)


def flow_mod_delete_marked(cookie: int, cookie_mask: int) -> bytes:
    """Delete the rules of all tables whose cookie has these bits."""
    return _flow_mod(_DELETE, cookie, cookie_mask, _ALL_TABLES, 0, _match_octets(()))


def _flow_mod(command: int, cookie: int, cookie_mask: int, table: int, priority: int, rest: bytes) -> bytes:
    fixed = _FLOW_MOD.pack(
        *(cookie, cookie_mask, table, command, 0, 0, priority),
        *(_NO_BUFFER, _ANY, _ANY, 0),
    )
    return _message(OpenFlowType.FLOW_MOD, fixed + rest)


@functools.lru_cache(1 << 12)
def _instruction_octets(copies: tuple[OutputAction, ...], next_table: int | None, meter: int | None) -> bytes:
    actions, before = b"", None
    for port, mark in copies:
        if mark is not None and mark != before:
            actions += _tlv(SET_FIELD, _field("ip_dscp", mark))
        actions += _tlv(OUTPUT, struct.pack("!IH6x", port, SEEN_BYTES if port == CONTROLLER else 0))
        before = mark
    octets = b"" if meter is None else _tlv(USE_METER, struct.pack("!I", meter))
    octets += _tlv(APPLY_ACTIONS, bytes(4) + actions) if actions else b""
    return octets + (b"" if next_table is None else _tlv(GO_TO_TABLE, struct.pack("!B3x", next_table)))


def _tlv(kind: int, content: bytes) -> bytes:
    """An instruction or an action."""
    padding = -(4 + len(content)) % 8
    return struct.pack("!HH", kind, 4 + len(content) + padding) + content + bytes(padding)


def set_asynchronous() -> bytes:
    """Ask for packets and for changes of ports, also on connections that would not get them by themselves."""
    return _message(OpenFlowType.SET_ASYNC, struct.pack("!6I", 0b111, 0, 0b111, 0b111, 0, 0))


def packet_out(port: int, frame: bytes) -> bytes:
    action = _tlv(OUTPUT, struct.pack("!IH6x", port, 0))
    return _message(
        OpenFlowType.PACKET_OUT, struct.pack("!IIH6x", _NO_BUFFER, CONTROLLER, len(action)) + action + frame
    )


# Meters (A.3.4.4).

_METER_ADD, _METER_DELETE = 0, 2
_KILOBITS, _WITH_BURST, _COUNTED = 1, 4, 8
LIMIT_FLAGS = _KILOBITS | _WITH_BURST | _COUNTED
DROP_BAND = 1
_ALL_METERS = 0xFFFFFFFF


def meter_mod(meter: int, limit: RateLimit) -> bytes:
    """Make a meter."""
    band = struct.pack("!HHII4x", DROP_BAND, 16, limit.kilobits_per_second, limit.burst_kilobits)
    return _message(OpenFlowType.METER_MOD, struct.pack("!HHI", _METER_ADD, LIMIT_FLAGS, meter) + band)


def meter_mod_delete(meter: int) -> bytes:
    return _message(OpenFlowType.METER_MOD, struct.pack("!HHI", _METER_DELETE, 0, meter))


# Questions (A.3.5).

_FLOWS, _METER_COUNTERS, _METERS, _METER_FEATURES, _PORTS = 1, 9, 10, 11, 13


def _question(kind: int, body: bytes = b"") -> bytes:
    return _message(OpenFlowType.MULTIPART_REQUEST, struct.pack("!HH4x", kind, 0) + body)


def request_flows(cookie: int, cookie_mask: int) -> bytes:
    """Ask for the rules of all tables whose cookie has these bits, with their counters."""
    fixed = struct.pack("!B3xII4xQQ", _ALL_TABLES, _ANY, _ANY, cookie, cookie_mask)
    return _question(_FLOWS, fixed + _match_octets(()))


REQUEST_PORTS = _question(_PORTS)
REQUEST_METER_FEATURES = _question(_METER_FEATURES)
REQUEST_METER_LIMITS = _question(_METERS, struct.pack("!I4x", _ALL_METERS))
REQUEST_METER_COUNTS = _question(_METER_COUNTERS, struct.pack("!I4x", _ALL_METERS))
