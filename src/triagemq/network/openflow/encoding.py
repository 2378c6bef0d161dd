"""OpenFlow 1.3 messages to octets, with os-ken's codec; nothing else of os-ken is used, and it is loaded late.

Messages are made with transaction id 0; the session writes its own into them.
"""

from __future__ import annotations

import functools
import struct
from types import SimpleNamespace
from typing import Any

from triagemq.errors import MissingDependencyError
from triagemq.network.openflow.rules import CONTROLLER, Match, RateLimit, Rule

__all__ = [
    "delete_flow",
    "delete_marked_flows",
    "delete_meter",
    "library",
    "packet_out",
    "put_flow",
    "put_meter",
    "request_flows",
    "request_meter_counts",
    "request_meter_limits",
    "request_port_counts",
    "request_ports",
    "set_asynchronous",
]

SEEN_BYTES = 128
"""Of a packet from an unknown host the controller sees this much."""

_FLOW_MOD = struct.Struct("!BBHIQQBBHHHIIIH2x")
_VERSION, _FLOW_MOD_TYPE = 4, 14
_ADD, _DELETE_STRICT = 0, 4
_NO_BUFFER = _ANY = 0xFFFFFFFF
_ALL_BITS = (1 << 64) - 1


@functools.cache
def library() -> Any:
    """os-ken's codec for OpenFlow 1.3, loaded when the first message is made."""
    try:
        from os_ken.ofproto import ofproto_v1_3, ofproto_v1_3_parser
    except ImportError:
        raise MissingDependencyError("os-ken", "network") from None
    return SimpleNamespace(ofproto=ofproto_v1_3, ofproto_parser=ofproto_v1_3_parser)


def _octets(message: Any) -> bytes:
    message.set_xid(0)
    message.serialize()
    return bytes(message.buf)


def put_flow(rule: Rule, cookie: int, meter: int | None) -> bytes:
    """Add a rule, or replace the one with the same key; its counters go on."""
    return _flow_mod(rule, _ADD, cookie, meter)


def delete_flow(rule: Rule, cookie: int) -> bytes:
    """Delete a rule if it still has this cookie."""
    return _flow_mod(rule, _DELETE_STRICT, cookie, None)


def delete_marked_flows(cookie: int, cookie_mask: int) -> bytes:
    """Delete the rules of all tables whose cookie has these bits."""
    codec = library()
    protocol, parser = codec.ofproto, codec.ofproto_parser
    return _octets(
        parser.OFPFlowMod(
            codec,
            cookie=cookie,
            cookie_mask=cookie_mask,
            table_id=protocol.OFPTT_ALL,
            command=protocol.OFPFC_DELETE,
            out_port=protocol.OFPP_ANY,
            out_group=protocol.OFPG_ANY,
            match=parser.OFPMatch(),
        )
    )


def _flow_mod(rule: Rule, command: int, cookie: int, meter: int | None) -> bytes:
    """A message of parts that many messages share: os-ken takes 150 microseconds for a whole one."""
    body = _match_octets(rule.match)
    if command == _ADD:
        body += _instruction_octets(rule.mark, rule.queue, rule.outputs, rule.next_table, meter)
    cookie_mask = 0 if command == _ADD else _ALL_BITS
    return (
        _FLOW_MOD.pack(
            *(_VERSION, _FLOW_MOD_TYPE, _FLOW_MOD.size + len(body), 0, cookie, cookie_mask),
            *(rule.table, command, 0, 0, rule.priority, _NO_BUFFER, _ANY, _ANY, 0),
        )
        + body
    )


@functools.lru_cache(1 << 16)
def _match_octets(match: Match) -> bytes:
    buffer = bytearray()
    library().ofproto_parser.OFPMatch(**dict(match)).serialize(buffer, 0)
    return bytes(buffer)


@functools.lru_cache(1 << 12)
def _instruction_octets(
    mark: int | None, queue: int | None, outputs: tuple[int, ...], next_table: int | None, meter: int | None
) -> bytes:
    codec = library()
    protocol, parser = codec.ofproto, codec.ofproto_parser
    instructions = [] if meter is None else [parser.OFPInstructionMeter(meter)]
    actions = []
    if mark is not None:
        actions.append(parser.OFPActionSetField(ip_dscp=mark))
    if queue is not None:
        actions.append(parser.OFPActionSetQueue(queue))
    actions += [parser.OFPActionOutput(port, SEEN_BYTES if port == CONTROLLER else 0) for port in outputs]
    if actions:
        instructions.append(parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, actions))
    if next_table is not None:
        instructions.append(parser.OFPInstructionGotoTable(next_table))
    buffer = bytearray()
    for instruction in instructions:
        instruction.serialize(buffer, len(buffer))
    return bytes(buffer)


def put_meter(meter: int, limit: RateLimit, *, there: bool) -> bytes:
    """Make a meter, or change it if it is `there`."""
    codec = library()
    protocol, parser = codec.ofproto, codec.ofproto_parser
    return _octets(
        parser.OFPMeterMod(
            codec,
            protocol.OFPMC_MODIFY if there else protocol.OFPMC_ADD,
            protocol.OFPMF_KBPS | protocol.OFPMF_BURST | protocol.OFPMF_STATS,
            meter,
            [parser.OFPMeterBandDrop(limit.kilobits_per_second, limit.burst_kilobits)],
        )
    )


def delete_meter(meter: int) -> bytes:
    codec = library()
    return _octets(codec.ofproto_parser.OFPMeterMod(codec, codec.ofproto.OFPMC_DELETE, 0, meter, []))


def packet_out(port: int, frame: bytes) -> bytes:
    codec = library()
    protocol, parser = codec.ofproto, codec.ofproto_parser
    return _octets(
        parser.OFPPacketOut(
            codec,
            buffer_id=protocol.OFP_NO_BUFFER,
            in_port=protocol.OFPP_CONTROLLER,
            actions=[parser.OFPActionOutput(port, 0)],
            data=frame,
        )
    )


def set_asynchronous() -> bytes:
    """Ask for packets and for changes of ports, also on connections that would not get them by themselves."""
    codec = library()
    return _octets(codec.ofproto_parser.OFPSetAsync(codec, [0b111, 0], [0b111, 0b111], [0, 0]))


def request_ports() -> bytes:
    codec = library()
    return _octets(codec.ofproto_parser.OFPPortDescStatsRequest(codec, 0))


def request_flows(cookie: int, cookie_mask: int) -> bytes:
    """Ask for the rules of all tables whose cookie has these bits, with their counters."""
    codec = library()
    protocol, parser = codec.ofproto, codec.ofproto_parser
    return _octets(
        parser.OFPFlowStatsRequest(
            codec,
            0,
            protocol.OFPTT_ALL,
            protocol.OFPP_ANY,
            protocol.OFPG_ANY,
            cookie,
            cookie_mask,
            parser.OFPMatch(),
        )
    )


def request_meter_limits() -> bytes:
    codec = library()
    return _octets(codec.ofproto_parser.OFPMeterConfigStatsRequest(codec, 0, codec.ofproto.OFPM_ALL))


def request_port_counts() -> bytes:
    codec = library()
    return _octets(codec.ofproto_parser.OFPPortStatsRequest(codec, 0, codec.ofproto.OFPP_ANY))


def request_meter_counts() -> bytes:
    codec = library()
    return _octets(codec.ofproto_parser.OFPMeterStatsRequest(codec, 0, codec.ofproto.OFPM_ALL))
