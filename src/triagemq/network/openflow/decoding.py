"""OpenFlow 1.3 from octets: what switches answer, and what they say by themselves. No I/O.

What a switch sends may be anything: whatever does not fit raises ValueError, struct.error, IndexError or a
NonsenseError, and none of it goes round for ever.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from triagemq.network.openflow.encoding import (
    APPLY_ACTIONS,
    BASIC,
    DROP_BAND,
    FIELDS,
    GO_TO_TABLE,
    HEADER,
    LIMIT_FLAGS,
    MASKED,
    MATCH_OF_FIELDS,
    OUTPUT,
    SET_FIELD,
    USE_METER,
    VERSION,
    VERSION_BITMAP,
    WITH_MASK,
)
from triagemq.network.openflow.rules import OutputAction, RateLimit, Rule, matching

_FIELD_NAMES = {number: name for name, (number, _) in FIELDS.items()}
_NUMBERS = frozenset({"in_port", "eth_type", "ip_dscp", "ip_proto", "udp_dst"})
_MARK = struct.pack("!HBB", BASIC, FIELDS["ip_dscp"][0] << 1, 1)


class NonsenseError(Exception):
    """What a switch sent is not OpenFlow 1.3."""


class PortDescription(NamedTuple):
    """A port of a switch. `up` is false if it was switched off or has no carrier."""

    number: int
    name: str
    up: bool


class PacketIn(NamedTuple):
    """A packet that a switch shows to its controller: where it came in, and its beginning."""

    port: int
    cookie: int
    frame: bytes


class FlowEntry(NamedTuple):
    """A rule as a switch reports it. The rule's limit is not filled in: `meter` says where it stands."""

    cookie: int
    rule: Rule
    meter: int | None


class IncompatibleVersionError(NonsenseError):
    """A HELLO without OpenFlow 1.3 among its versions."""


def check_hello(version: int, message: bytes) -> None:
    """A switch begins with HELLO, and must be able to speak OpenFlow 1.3.

    >>> check_hello(VERSION, HEADER.pack(VERSION, 0, 16, 0) + struct.pack("!HHI", VERSION_BITMAP, 8, 1 << VERSION))
    >>> check_hello(1, HEADER.pack(1, 0, 8, 0))
    Traceback (most recent call last):
    triagemq.network.openflow.decoding.IncompatibleVersionError: this controller speaks OpenFlow 1.3 ...
    """
    versions = set(range(1, version + 1))
    offset = HEADER.size
    while offset + 4 <= len(message):
        element, length = struct.unpack_from("!HH", message, offset)
        if length < 4 or offset + length > len(message):
            raise NonsenseError("a hello with an impossible length")
        if element == VERSION_BITMAP and length >= 8:
            bitmap = struct.unpack_from("!I", message, offset + 4)[0]
            versions = {number for number in range(32) if bitmap >> number & 1}
        offset += (length + 7) // 8 * 8
    if VERSION not in versions:
        offered = ", ".join(f"0x{number:02x}" for number in sorted(versions)) or "none"
        raise IncompatibleVersionError(
            f"this controller speaks OpenFlow 1.3 (0x04), the switch offers {offered}"
        )


def _field_value(name: str, octets: bytes) -> int | str:
    if name in _NUMBERS:
        return int.from_bytes(octets, "big")
    if name.startswith("eth_"):
        return octets.hex(":")
    return str(ipaddress.ip_address(octets)) if name in FIELDS else octets.hex()


def _read_match(octets: bytes, begin: int) -> tuple[dict[str, int | str], bool, int]:
    """The fields, whether any is not like ours (masks and other fields stay readable), and where the match ends."""
    kind, length = struct.unpack_from("!HH", octets, begin)
    end = begin + length
    if kind != MATCH_OF_FIELDS or length < 4 or end > len(octets):
        raise ValueError("a match has an impossible length")
    fields: dict[str, int | str] = {}
    is_foreign = False
    at = begin + 4
    while at < end:
        kind, number, size = struct.unpack_from("!HBB", octets, at)
        value = octets[at + 4 : at + 4 + size]
        name = _FIELD_NAMES.get(number >> 1, "") if kind == BASIC else ""
        has_mask = bool(number & WITH_MASK)
        if name and size != FIELDS[name][1] << has_mask:
            raise ValueError("a field of a match has an impossible length")
        is_foreign |= (has_mask and name not in MASKED) or not name
        name = name or f"field {kind:#x}.{number >> 1}"
        half = size >> has_mask
        fields[name] = _field_value(name, value[:half])
        if has_mask:
            fields[name] = f"{fields[name]}/{_field_value(name, value[half:])}"
        at += 4 + size
    if at != end:
        raise ValueError("a field of a match has an impossible length")
    return fields, is_foreign, begin + (length + 7) // 8 * 8


def _read_parts(octets: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Kind, beginning and end of the content of instructions or actions, which fill all there is."""
    while begin < end:
        kind, length = struct.unpack_from("!HH", octets, begin)
        if length < 8 or length % 8 or begin + length > end:
            raise ValueError("an instruction or an action has an impossible length")
        yield kind, begin + 4, begin + length
        begin += length


# The bodies of the parts of answers (A.3.5).

_FLOW_ENTRY = struct.Struct("!HBxIIHHHH4xQQQ")
_PORT = struct.Struct("!I4x6x2x16sII24x")
_SWITCHED_OFF = _NO_CARRIER = 1


def decode_ports(bodies: Sequence[bytes]) -> list[PortDescription]:
    return [_port(*port) for body in bodies for port in _PORT.iter_unpack(body)]


def _port(number: int, name: bytes, settings: int, state: int) -> PortDescription:
    up = not (settings & _SWITCHED_OFF or state & _NO_CARRIER)
    return PortDescription(number, name.rstrip(b"\0").decode("utf-8", "replace"), up)


def _entries(body: bytes, layout: str, least: int, what: str) -> Iterator[tuple[int, int]]:
    """Where each entry of a body begins and ends, by the length that stands in it."""
    begin = 0
    while begin < len(body):
        (length,) = struct.unpack_from(layout, body, begin)
        if length < least or begin + length > len(body):
            raise ValueError(f"{what} has an impossible length")
        yield begin, begin + length
        begin += length


def decode_flow_entries(bodies: Sequence[bytes]) -> list[FlowEntry]:
    return [
        _flow_entry(body[begin:end])
        for body in bodies
        for begin, end in _entries(body, "!H", 56, "a rule's description")
    ]


def _flow_entry(octets: bytes) -> FlowEntry:
    _, table, _, _, priority, idle, hard, _, cookie, _, _ = _FLOW_ENTRY.unpack_from(octets)
    fields, is_foreign, behind = _read_match(octets, _FLOW_ENTRY.size)
    is_foreign |= bool(idle or hard)
    copies: list[OutputAction] = []
    mark = meter = next_table = None
    for kind, begin, end in _read_parts(octets, behind, len(octets)):
        if kind == USE_METER:
            (meter,) = struct.unpack_from("!I", octets, begin)
        elif kind == GO_TO_TABLE:
            next_table = octets[begin]
        elif kind == APPLY_ACTIONS:
            for action, first, _ in _read_parts(octets, begin + 4, end):
                if action == OUTPUT:
                    copies.append(OutputAction(struct.unpack_from("!I", octets, first)[0], mark))
                elif action == SET_FIELD and octets[first : first + 4] == _MARK:
                    mark = octets[first + 4]
                else:
                    is_foreign = True
        else:
            is_foreign = True
    # Ours mark all copies that leave, or none, and nothing after the last.
    is_foreign |= mark != (copies[-1].mark if copies else None)
    is_foreign |= len({copy.mark is None for copy in copies}) > 1
    rule = Rule(
        table, priority, matching(**fields), tuple(copies), next_table=next_table, is_foreign=is_foreign
    )
    return FlowEntry(cookie, rule, meter)


def decode_flow_counts(bodies: Sequence[bytes]) -> dict[int, tuple[int, int]]:
    """Packets and bytes of rules by cookie; much faster than reading the rules."""
    counts = {}
    for body in bodies:
        for begin, _ in _entries(body, "!H", _FLOW_ENTRY.size, "a rule's description"):
            *_, cookie, packets, octets = _FLOW_ENTRY.unpack_from(body, begin)
            counts[cookie] = packets, octets
    return counts


def decode_meter_features(bodies: Sequence[bytes]) -> int:
    """How many meters a switch has that drop what exceeds kilobits per second and a burst."""
    most, bands, able = struct.unpack_from("!III", bodies[0])
    return int(most) if bands >> DROP_BAND & 1 and able & LIMIT_FLAGS == LIMIT_FLAGS else 0


def decode_meter_limits(bodies: Sequence[bytes]) -> dict[int, RateLimit | None]:
    """Meters by number; None for one that no rate limit describes."""
    limits: dict[int, RateLimit | None] = {}
    for body in bodies:
        for begin, end in _entries(body, "!H", 8, "a meter's description"):
            _, flags, meter = struct.unpack_from("!HHI", body, begin)
            limits[meter] = None
            if end - begin == 24 and flags & LIMIT_FLAGS == LIMIT_FLAGS:
                kind, _, rate, burst = struct.unpack_from("!HHII", body, begin + 8)
                limits[meter] = RateLimit(rate, burst) if kind == DROP_BAND else None
    return limits


def decode_meter_drops(bodies: Sequence[bytes]) -> dict[int, int]:
    """Packets that exceeded their limit, by meter."""
    drops = {}
    for body in bodies:
        for begin, end in _entries(body, "!4xH", 40, "a meter's statistics"):
            bands = struct.iter_unpack("!QQ", body[begin + 40 : end])
            drops[struct.unpack_from("!I", body, begin)[0]] = sum(packets for packets, _ in bands)
    return drops


# What switches say by themselves (A.4).

_PORT_GONE = 1
_ERRORS: dict[int, tuple[str, str]] = {
    0: ("hello failed", "incompatible,eperm"),
    1: (
        "bad request",
        "bad version,bad type,bad multipart,bad experimenter,bad exp type,eperm,bad len,buffer empty,buffer unknown,"
        "bad table id,is slave,bad port,bad packet,multipart buffer overflow",
    ),
    2: (
        "bad action",
        "bad type,bad len,bad experimenter,bad exp type,bad out port,bad argument,eperm,too many,bad queue,"
        "bad out group,match inconsistent,unsupported order,bad tag,bad set type,bad set len,bad set argument",
    ),
    3: (
        "bad instruction",
        "unknown inst,unsup inst,bad table id,unsup metadata,unsup metadata mask,bad experimenter,bad exp type,"
        "bad len,eperm",
    ),
    4: (
        "bad match",
        "bad type,bad len,bad tag,bad dl addr mask,bad nw addr mask,bad wildcards,bad field,bad value,bad mask,"
        "bad prereq,dup field,eperm",
    ),
    5: (
        "flow mod failed",
        "unknown,table full,bad table id,overlap,eperm,bad timeout,bad command,bad flags",
    ),
    12: (
        "meter mod failed",
        "unknown,meter exists,invalid meter,unknown meter,bad command,bad flags,bad rate,bad burst,bad band,"
        "bad band value,out of meters,out of bands",
    ),
}
"""What our messages can be refused for (A.4.4), and the codes of each in order."""


def decode_error(message: bytes) -> str:
    """The words for an error's type and code, as the specification has them.

    >>> decode_error(HEADER.pack(VERSION, 1, 12, 0) + bytes([0, 5, 0, 1]))
    'flow mod failed: table full'
    """
    kind, code = struct.unpack_from("!HH", message, HEADER.size)
    name, codes = _ERRORS.get(kind, (f"error type {kind}", ""))
    reasons = codes.split(",") if codes else []
    return f"{name}: {reasons[code] if code < len(reasons) else code}"


def decode_port_status(message: bytes) -> tuple[bool, PortDescription]:
    """Whether the port has gone, and the port."""
    return message[HEADER.size] == _PORT_GONE, _port(*_PORT.unpack_from(message, HEADER.size + 8))


def decode_packet_in(message: bytes) -> PacketIn:
    length, cookie = struct.unpack_from("!H2xQ", message, HEADER.size + 4)
    fields, _, behind = _read_match(message, HEADER.size + 16)
    port = fields["in_port"]
    if not isinstance(port, int):
        raise ValueError("a packet comes from no single port")
    return PacketIn(port, cookie, message[behind + 2 :][:length])
