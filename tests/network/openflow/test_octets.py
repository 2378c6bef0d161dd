"""Messages to octets and back, and octets that are no messages."""

from __future__ import annotations

import contextlib
import struct
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3, ofproto_v1_3_parser
from scapy.layers.inet6 import ICMPv6ND_NS, IPv6
from scapy.layers.l2 import ARP, Ether
from tests.network.openflow.fake_switch import flow_entry
from tests.network.openflow.networks import LINE, topic

from triagemq.network.openflow import decoding, discovery, encoding
from triagemq.network.openflow.rule_sets import (
    LimitedFlow,
    base_rules,
    prefix_rules,
    topic_rules,
)
from triagemq.network.openflow.rules import RateLimit, Rule, matching
from triagemq.network.openflow.topology import PortId, ShortestPaths
from triagemq.plan.dataplane import FlowKey, SetFlow

LIBRARY = SimpleNamespace(ofproto=ofproto_v1_3, ofproto_parser=ofproto_v1_3_parser)
"""os-ken, which has read and written OpenFlow for others."""

RULES = [
    *base_rules(ShortestPaths(LINE))[3].values(),
    *topic_rules(
        ShortestPaths(LINE),
        FlowKey("239.1.2.3", 5000),
        topic(a=0, b=2, c=2),
        {each: PortId(3, ord(each)) for each in "abc"},
    )[3].values(),
    *topic_rules(
        ShortestPaths(LINE),
        FlowKey("ff15::7", 5000),
        topic(a=0, b=0, c=2),
        {each: PortId(3, ord(each)) for each in "abc"},
    )[3].values(),
    *prefix_rules(
        ShortestPaths(LINE),
        {
            FlowKey(address, 7400): [LimitedFlow(SetFlow(FlowKey(address, 7400), port, 7, level, 0.0))]
            for address, port, level in (
                ("ff1e:a000::/20", "a", 0),
                ("ff1e::/16", "b", 2),
                ("ff1e:a000::7/128", "a", 1),
            )
        },
        {each: PortId(3, ord(each)) for each in "ab"},
    )[3].values(),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("meter", [None, 77])
def test_a_rule_comes_back_from_a_switch_as_it_was_sent(rule: Rule, meter: int | None) -> None:
    body = flow_entry(rule, 0x7154_0000_0000_0001, meter)
    assert decoding.decode_flow_entries([body]) == [decoding.FlowEntry(0x7154_0000_0000_0001, rule, meter)]
    assert decoding.decode_flow_counts([body]) == {0x7154_0000_0000_0001: (5, 500)}


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_orders_are_what_the_library_makes_of_them(rule: Rule) -> None:
    protocol, parser = LIBRARY.ofproto, LIBRARY.ofproto_parser
    for octets, command, mask in (
        (encoding.flow_mod(rule, 5, None), protocol.OFPFC_ADD, 0),
        (encoding.flow_mod_delete(rule, 5), protocol.OFPFC_DELETE_STRICT, (1 << 64) - 1),
    ):
        read = parser.OFPFlowMod.parser(LIBRARY, 4, 14, len(octets), 0, bytearray(octets))
        assert struct.unpack_from("!BBH", octets) == (4, 14, len(octets))
        assert (read.command, read.cookie, read.cookie_mask, read.table_id) == (command, 5, mask, rule.table)
        # The library has a mask beside its value.
        match = {
            name: tuple(value.split("/")) if "/" in str(value) else value
            for name, value in dict(rule.match).items()
        }
        assert (read.priority, dict(read.match.items())) == (rule.priority, match)
        assert (read.out_port, read.out_group) == (protocol.OFPP_ANY, protocol.OFPG_ANY)
        again = parser.OFPFlowMod(
            LIBRARY,
            *(5, mask, rule.table, command, 0, 0, rule.priority, protocol.OFP_NO_BUFFER),
            *(protocol.OFPP_ANY, protocol.OFPG_ANY, 0, read.match, read.instructions),
        )
        again.set_xid(0)
        again.serialize()
        assert bytes(again.buf) == octets


def test_all_other_messages_are_what_the_library_makes_of_them() -> None:
    protocol, parser = LIBRARY.ofproto, LIBRARY.ofproto_parser
    everything = parser.OFPMatch()
    drop = [parser.OFPMeterBandDrop(64, 12)]
    flags = protocol.OFPMF_KBPS | protocol.OFPMF_BURST | protocol.OFPMF_STATS
    expected: list[tuple[bytes, Any]] = [
        (
            encoding.flow_mod_delete_marked(5, 7),
            parser.OFPFlowMod(
                LIBRARY,
                cookie=5,
                cookie_mask=7,
                table_id=protocol.OFPTT_ALL,
                command=protocol.OFPFC_DELETE,
                priority=0,
                out_port=protocol.OFPP_ANY,
                out_group=protocol.OFPG_ANY,
                match=everything,
            ),
        ),
        (
            encoding.meter_mod(77, RateLimit(64, 12)),
            parser.OFPMeterMod(LIBRARY, protocol.OFPMC_ADD, flags, 77, drop),
        ),
        (encoding.meter_mod_delete(77), parser.OFPMeterMod(LIBRARY, protocol.OFPMC_DELETE, 0, 77, [])),
        (
            encoding.packet_out(3, b"frame"),
            parser.OFPPacketOut(
                LIBRARY,
                buffer_id=protocol.OFP_NO_BUFFER,
                in_port=protocol.OFPP_CONTROLLER,
                actions=[parser.OFPActionOutput(3, 0)],
                data=b"frame",
            ),
        ),
        (encoding.set_asynchronous(), parser.OFPSetAsync(LIBRARY, [0b111, 0], [0b111, 0b111], [0, 0])),
        (encoding.REQUEST_PORTS, parser.OFPPortDescStatsRequest(LIBRARY, 0)),
        (
            encoding.request_flows(5, 7),
            parser.OFPFlowStatsRequest(
                LIBRARY, 0, protocol.OFPTT_ALL, protocol.OFPP_ANY, protocol.OFPG_ANY, 5, 7, everything
            ),
        ),
        (encoding.REQUEST_METER_FEATURES, parser.OFPMeterFeaturesStatsRequest(LIBRARY, 0)),
        (
            encoding.REQUEST_METER_LIMITS,
            parser.OFPMeterConfigStatsRequest(LIBRARY, 0, protocol.OFPM_ALL),
        ),
        (encoding.REQUEST_METER_COUNTS, parser.OFPMeterStatsRequest(LIBRARY, 0, protocol.OFPM_ALL)),
    ]
    for octets, message in expected:
        message.set_xid(0)
        message.serialize()
        assert octets == bytes(message.buf), type(message).__name__


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("HELLO_FAILED", "HFC"),
        ("BAD_REQUEST", "BRC"),
        ("BAD_ACTION", "BAC"),
        ("BAD_INSTRUCTION", "BIC"),
        ("BAD_MATCH", "BMC"),
        ("FLOW_MOD_FAILED", "FMFC"),
        ("METER_MOD_FAILED", "MMFC"),
    ],
)
def test_errors_have_the_words_of_the_specification(name: str, codes: str) -> None:
    kind = getattr(ofproto_v1_3, f"OFPET_{name}")
    known = [each for each in dir(ofproto_v1_3) if each.startswith(f"OFP{codes}_")]
    assert known
    for each in known:
        message = bytes(8) + struct.pack("!HH", kind, getattr(ofproto_v1_3, each))
        said = f"{name} {each.partition('_')[2]}".replace("_", " ").lower()
        assert decoding.decode_error(message).replace(":", "") == said
    assert decoding.decode_error(bytes(8) + struct.pack("!HH", kind, 99)).endswith(": 99")
    assert decoding.decode_error(bytes(8) + struct.pack("!HH", 99, 1)) == "error type 99: 1"


def test_a_rule_that_is_not_expressible_is_strange_and_equals_none_of_ours() -> None:
    parser = LIBRARY.ofproto_parser
    wide = parser.OFPFlowMod(
        LIBRARY,
        table_id=1,
        priority=300,
        match=parser.OFPMatch(eth_type=0x0800, ipv4_dst=("10.0.0.0", "255.255.255.0")),
        instructions=[parser.OFPInstructionActions(4, [parser.OFPActionPopVlan()])],
    )
    wide.set_xid(0)
    wide.serialize()
    rest = bytes(wide.buf)[48:]
    head = struct.pack("!HBxIIHHHH4xQQQ", 48 + len(rest), 1, 0, 0, 300, 0, 0, 0, 9, 0, 0)
    ((cookie, rule, _),) = decoding.decode_flow_entries([head + rest])
    assert cookie == 9
    assert rule.is_foreign
    assert ("ipv4_dst", "10.0.0.0/255.255.255.0") in rule.match


@pytest.mark.parametrize("actions", [[(1, None), (2, 8)], [(1, 8), (None, 9)]])
def test_a_rule_that_marks_some_copies_or_none_is_strange(
    actions: list[tuple[int | None, int | None]],
) -> None:
    parser = LIBRARY.ofproto_parser
    done = []
    for port, mark in actions:
        done += [] if mark is None else [parser.OFPActionSetField(ip_dscp=mark)]
        done += [] if port is None else [parser.OFPActionOutput(port, 0)]
    made = parser.OFPFlowMod(
        LIBRARY, table_id=1, priority=300, instructions=[parser.OFPInstructionActions(4, done)]
    )
    made.set_xid(0)
    made.serialize()
    rest = bytes(made.buf)[48:]
    head = struct.pack("!HBxIIHHHH4xQQQ", 48 + len(rest), 1, 0, 0, 300, 0, 0, 0, 9, 0, 0)
    ((_, rule, _),) = decoding.decode_flow_entries([head + rest])
    assert rule.is_foreign


@pytest.mark.parametrize(
    ("bands", "capabilities", "meters"),
    [(0b10, 0b1101, 100), (0b110, 0b1111, 100), (0b100, 0b1111, 0), (0b10, 0b1001, 0)],
)
def test_meters_count_if_they_drop_and_have_what_is_needed(
    bands: int, capabilities: int, meters: int
) -> None:
    body = struct.pack("!IIIBB2x", 100, bands, capabilities, 1, 0)
    assert decoding.decode_meter_features([body]) == meters
    library = ofproto_v1_3_parser.OFPMeterFeaturesStats.parser(body, 0)
    assert (library.max_meter, library.band_types, library.capabilities) == (100, bands, capabilities)


def test_meters_come_back_as_they_were_sent() -> None:
    octets = encoding.meter_mod(77, RateLimit(64, 12))
    bands = octets[16:]
    body = struct.pack("!HHI", 8 + len(bands), 0b1101, 77) + bands
    assert decoding.decode_meter_limits([body, body]) == {77: RateLimit(64, 12)}
    assert decoding.decode_meter_limits([struct.pack("!HHI", 8, 0b0101, 78)]) == {78: None}
    counts = struct.pack("!IH6xIQQII", 77, 56, 1, 9, 900, 0, 0) + struct.pack("!QQ", 3, 300)
    assert decoding.decode_meter_drops([counts]) == {77: 3}


DECODERS = [
    decoding.decode_flow_entries,
    decoding.decode_flow_counts,
    decoding.decode_meter_features,
    decoding.decode_meter_limits,
    decoding.decode_meter_drops,
    decoding.decode_ports,
]


@given(st.data())
@settings(deadline=None)
def test_damaged_statistics_are_refused_and_never_hang(data: st.DataObject) -> None:
    """Whatever comes out, it does come out; the session turns any exception into the end of the connection."""
    whole = b"".join(
        flow_entry(rule, 1, 7) for rule in data.draw(st.lists(st.sampled_from(RULES), max_size=3))
    )
    octets = bytearray(data.draw(st.sampled_from([whole, whole[:-3]])) or data.draw(st.binary(max_size=200)))
    for _ in range(data.draw(st.integers(0, 4))):
        if octets:
            octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    for decode in DECODERS:
        with contextlib.suppress(Exception):
            decode([bytes(octets)])


@given(st.binary(max_size=120))
@settings(deadline=None)
def test_frames_of_any_kind_are_read_or_ignored(frame: bytes) -> None:
    discovery.read_speaker(frame)
    assert discovery.read_discovery(frame, b"nonce...") is None
    for cut in range(0, 60, 7):
        discovery.read_discovery(discovery.discovery_frame(PortId(1, 2), b"nonce...")[:cut], b"nonce...")


def test_questions_are_what_others_understand() -> None:
    question = Ether(discovery.arp_question("10.0.0.9"))
    assert (question[ARP].op, question[ARP].pdst, question[ARP].psrc) == (1, "10.0.0.9", "0.0.0.0")
    raw = discovery.neighbour_question("fd00::1:2")
    asked = Ether(raw)
    assert asked[ICMPv6ND_NS].tgt == "fd00::1:2"
    assert (asked.dst, asked[IPv6].dst) == ("33:33:ff:01:00:02", "ff02::1:ff01:2")
    del asked[ICMPv6ND_NS].cksum
    assert bytes(asked) == raw


def test_addresses_that_are_no_hosts_are_not_learned() -> None:
    for address in ("0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1"):
        frame = bytes(Ether(src="02:00:00:00:00:02", dst="ff:ff:ff:ff:ff:ff") / ARP(psrc=address))
        assert discovery.read_speaker(frame) is None
    assert discovery.read_speaker(discovery.arp_question("10.0.0.9")) is None


def test_matches_are_in_alphabetical_order() -> None:
    assert matching(udp_dst=1, eth_type=2) == matching(eth_type=2, udp_dst=1)
