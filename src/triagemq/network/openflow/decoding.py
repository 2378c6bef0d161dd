"""OpenFlow 1.3 messages from octets, with os-ken's codec where they have many forms.

What a switch sends may be anything: lengths inside are checked here before os-ken sees them, because it follows a
length of 0 for ever. All functions may raise ValueError, struct.error or what os-ken raises: the session ends then.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from triagemq.network.openflow.encoding import library
from triagemq.network.openflow.rules import RateLimit, Rule, matching

__all__ = [
    "FlowEntry",
    "PacketIn",
    "PortCounts",
    "PortDescription",
    "decode_error",
    "decode_flow_counts",
    "decode_flow_entries",
    "decode_meter_drops",
    "decode_meter_limits",
    "decode_packet_in",
    "decode_port_counts",
    "decode_port_status",
    "decode_ports",
]

_FLOW_ENTRY = struct.Struct("!HBxIIHHHH4xQQQ")
_PORT_COUNTS = struct.Struct("!I4x6Q56x")
_UNKNOWN = (1 << 64) - 1
_HEADER_BYTES = 8


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


def decode_ports(bodies: Sequence[bytes]) -> list[PortDescription]:
    parser = library().ofproto_parser
    ports = []
    for body in bodies:
        if len(body) % 64:
            raise ValueError("a description of ports ends in the middle of one")
        ports += [_port(parser.OFPPort.parser(body, offset)) for offset in range(0, len(body), 64)]
    return ports


def decode_port_status(message: bytes) -> tuple[bool, PortDescription]:
    """Whether the port has gone, and the port."""
    codec = library()
    reason = message[_HEADER_BYTES]
    port = codec.ofproto_parser.OFPPort.parser(message, _HEADER_BYTES + 8)
    return reason == codec.ofproto.OFPPR_DELETE, _port(port)


def _port(port: Any) -> PortDescription:
    protocol = library().ofproto
    down = port.config & protocol.OFPPC_PORT_DOWN or port.state & protocol.OFPPS_LINK_DOWN
    return PortDescription(port.port_no, port.name.decode("utf-8", "replace"), not down)


def decode_packet_in(message: bytes) -> PacketIn:
    codec = library()
    _check_match(message, 24)
    packet = codec.ofproto_parser.OFPPacketIn.parser(codec, 4, message[1], len(message), 0, message)
    return PacketIn(packet.match["in_port"], packet.cookie, bytes(packet.data))


def decode_error(message: bytes) -> str:
    """The words for an error's type and code, as the specification has them."""
    kind, code = struct.unpack_from("!HH", message, _HEADER_BYTES)
    protocol = library().ofproto
    name = _constant(protocol, "OFPET_", kind)
    prefix = "".join(word[0] for word in name.split("_")) if name else ""
    reason = _constant(protocol, f"OFP{prefix}C_", code)
    return f"{name.replace('_', ' ').lower() or f'error type {kind}'}: {reason.replace('_', ' ').lower() or code}"


def _constant(module: Any, prefix: str, value: int) -> str:
    return next(
        (
            name.removeprefix(prefix)
            for name in dir(module)
            if name.startswith(prefix) and getattr(module, name) == value
        ),
        "",
    )


def decode_flow_entries(bodies: Sequence[bytes]) -> list[FlowEntry]:
    entries = []
    for body in bodies:
        offset = 0
        while offset < len(body):
            length, table, _, _, priority, _, _, _, cookie, _, _ = _FLOW_ENTRY.unpack_from(body, offset)
            if length < 56 or offset + length > len(body):
                raise ValueError("a rule's description has an impossible length")
            entries.append(_flow_entry(body[offset : offset + length], table, priority, cookie))
            offset += length
    return entries


def _flow_entry(octets: bytes, table: int, priority: int, cookie: int) -> FlowEntry:
    parser = library().ofproto_parser
    behind = _check_match(octets, _FLOW_ENTRY.size)
    _check_parts(octets, behind)
    flow = parser.OFPFlowStats.parser(octets, 0)
    fields = dict(flow.match.items())
    strange = any(isinstance(value, tuple) for value in fields.values())
    outputs: list[int] = []
    mark = queue = meter = next_table = None
    for instruction in flow.instructions:
        match instruction:
            case parser.OFPInstructionMeter():
                meter = instruction.meter_id
            case parser.OFPInstructionGotoTable():
                next_table = instruction.table_id
            case parser.OFPInstructionActions(type=4):
                for action in instruction.actions:
                    match action:
                        case parser.OFPActionSetField(key="ip_dscp") if not outputs and queue is None:
                            mark = action.value
                        case parser.OFPActionSetQueue() if not outputs:
                            queue = action.queue_id
                        case parser.OFPActionOutput():
                            outputs.append(action.port)
                        case _:
                            strange = True
            case _:
                strange = True
    rule = Rule(
        table,
        priority,
        matching(**{name: _plain(value) for name, value in fields.items()}),
        outputs=tuple(outputs),
        mark=mark,
        queue=queue,
        next_table=next_table,
        strange=strange or bool(flow.idle_timeout or flow.hard_timeout),
    )
    return FlowEntry(cookie, rule, meter)


def _plain(value: Any) -> int | str:
    """Masked values stay readable, and never equal one of ours."""
    if isinstance(value, tuple):
        return "/".join(str(part) for part in value)
    if isinstance(value, str) and value.count(":") > 1 and len(value) != 17:
        return str(ipaddress.IPv6Address(value))
    return value if isinstance(value, int) else str(value)


def decode_meter_limits(bodies: Sequence[bytes]) -> dict[int, RateLimit | None]:
    """Meters by number; None for one that no rate limit describes."""
    limits: dict[int, RateLimit | None] = {}
    for body in bodies:
        offset = 0
        while offset < len(body):
            length, flags, meter = struct.unpack_from("!HHI", body, offset)
            if length < 8 or offset + length > len(body):
                raise ValueError("a meter's description has an impossible length")
            limits[meter] = None
            if length == 24 and flags & 0b1101 == 0b1101:
                kind, _, rate, burst = struct.unpack_from("!HHII", body, offset + 8)
                limits[meter] = RateLimit(rate, burst) if kind == 1 else None
            offset += length
    return limits


def _check_match(octets: bytes, offset: int) -> int:
    """The offset behind a match and its padding; ValueError if it does not fit."""
    kind, length = struct.unpack_from("!HH", octets, offset)
    end = offset + (length + 7) // 8 * 8
    if kind != 1 or length < 4 or end > len(octets):
        raise ValueError("a match has an impossible length")
    at = offset + 4
    while at < offset + length:
        at += 4 + octets[at + 3]
    if at != offset + length:
        raise ValueError("a field of a match has an impossible length")
    return int(end)


def _check_parts(octets: bytes, offset: int) -> None:
    """Instructions, and the actions in them, have lengths that fill what they are in."""
    while offset < len(octets):
        kind, length = struct.unpack_from("!HH", octets, offset)
        if length < 8 or length % 8 or offset + length > len(octets):
            raise ValueError("an instruction has an impossible length")
        if kind in (3, 4):
            at = offset + 8
            while at < offset + length:
                size = struct.unpack_from("!H", octets, at + 2)[0]
                if size < 8 or size % 8 or at + size > offset + length:
                    raise ValueError("an action has an impossible length")
                at += size
        offset += length


class PortCounts(NamedTuple):
    """Packets and bytes at a port since it was made; `dropped` counts both directions."""

    received_packets: int
    sent_packets: int
    received_bytes: int
    sent_bytes: int
    dropped: int


def decode_flow_counts(bodies: Sequence[bytes]) -> dict[int, tuple[int, int]]:
    """Packets and bytes of rules by cookie; much faster than reading the rules."""
    counts = {}
    for body in bodies:
        offset = 0
        while offset < len(body):
            length, *_, cookie, packets, octets = _FLOW_ENTRY.unpack_from(body, offset)
            if length < _FLOW_ENTRY.size:
                raise ValueError("a rule's description has an impossible length")
            counts[cookie] = packets, octets
            offset += length
    return counts


def decode_port_counts(bodies: Sequence[bytes]) -> dict[int, PortCounts]:
    counts = {}
    for body in bodies:
        for number, *values in _PORT_COUNTS.iter_unpack(body):
            packets_in, packets_out, bytes_in, bytes_out, dropped_in, dropped_out = (
                0 if value == _UNKNOWN else value for value in values
            )
            counts[number] = PortCounts(
                packets_in, packets_out, bytes_in, bytes_out, dropped_in + dropped_out
            )
    return counts


def decode_meter_drops(bodies: Sequence[bytes]) -> dict[int, int]:
    """Packets that exceeded their limit, by meter."""
    drops = {}
    for body in bodies:
        offset = 0
        while offset < len(body):
            meter, length = struct.unpack_from("!IH", body, offset)
            if length < 40 or length % 8:
                raise ValueError("a meter's statistics have an impossible length")
            drops[meter] = sum(
                struct.unpack_from("!Q", body, band)[0] for band in range(offset + 40, offset + length, 16)
            )
            offset += length
    return drops
