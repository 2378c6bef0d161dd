"""The table model against an independent walker, and what it refuses."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.network.openflow.networks import HOST_PORT, LINE, TOPIC, make_network, networks, topic
from tests.network.openflow.probes import all_probes
from tests.network.openflow.table_model import Probe, RuleError, TableModel
from tests.network.openflow.walker import CircleError, find, walk

from triagemq.network.openflow.rule_sets import address_fields, base_rules, topic_rules
from triagemq.network.openflow.rules import Kind, OutputAction, Rule, matching
from triagemq.network.openflow.topology import PortId, ShortestPaths, Topology

FIELDS = ("eth_type", "ip_dscp", "udp_dst")
FRESH = 9
"""A value that no rule of the tests wants: real fields always have one."""

matches = st.dictionaries(st.sampled_from(FIELDS), st.integers(0, 1)).map(lambda some: matching(**some))


@st.composite
def rules(draw: st.DrawFn) -> list[Rule]:
    return draw(
        st.lists(
            st.builds(Rule, st.just(0), st.integers(0, 3), matches),
            max_size=8,
            unique_by=lambda rule: rule.key,
        )
    )


def overlap(one: Rule, other: Rule) -> bool:
    wanted = dict(one.match)
    return all(wanted.get(name, value) == value for name, value in other.match)


@given(rules())
@settings(max_examples=150, deadline=None)
def test_it_refuses_just_the_rules_that_no_packet_reaches_or_that_are_rivals(some: list[Rule]) -> None:
    packets = [
        dict(zip(FIELDS, values, strict=True)) for values in itertools.product((0, 1, FRESH), repeat=3)
    ]
    rivals = any(
        one.priority == other.priority and overlap(one, other)
        for one, other in itertools.combinations(some, 2)
    )
    reached = {find(some, 0, packet) for packet in packets}
    sound = not rivals and set(some) <= reached
    model = TableModel({}, {1: {rule.key: rule for rule in some}})
    if sound:
        model.check(())
    else:
        with pytest.raises(RuleError):
            model.check(())


@given(rules(), st.permutations(range(8)))
@settings(deadline=None)
def test_putting_rules_one_by_one_comes_to_the_same_verdict(some: list[Rule], order: list[int]) -> None:
    def passes(whole: bool) -> bool:
        model = TableModel({}, {1: {rule.key: rule for rule in some}} if whole else {})
        try:
            if whole:
                model.check(())
            else:
                for number in order:
                    if number < len(some):
                        model.change({}, {1: {some[number].key: some[number]}})
        except RuleError:
            return False
        return True

    assert passes(whole=True) == passes(whole=False)


@st.composite
def wild_rules(draw: st.DrawFn, network: Topology) -> dict[int, list[Rule]]:
    """Rules of all kinds of nonsense for a network."""
    marks = st.sampled_from([None, 0, 1])
    copies = {
        switch: st.lists(
            st.builds(OutputAction, st.sampled_from(sorted(network.ports[switch])), marks),
            unique_by=lambda copy: copy.port,
            max_size=2,
        )
        for switch in network.ports
    }
    made = {}
    for switch in network.ports:
        made[switch] = draw(
            st.lists(
                st.builds(
                    Rule,
                    st.just(0),
                    # Different priorities, so that no two rules are rivals.
                    st.integers(0, 50),
                    matches,
                    copies=copies[switch].map(tuple),
                ),
                max_size=3,
                unique_by=lambda rule: rule.priority,
            )
        )
    return made


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_packets_end_where_the_walker_sees_them(data: st.DataObject) -> None:
    network = data.draw(networks())
    some = data.draw(wild_rules(network))
    model = TableModel(
        network.links, {switch: {rule.key: rule for rule in each} for switch, each in some.items()}
    )
    packet = {name: data.draw(st.integers(0, 1)) for name in FIELDS}
    enters = PortId(data.draw(st.sampled_from(sorted(network.ports))), HOST_PORT)
    try:
        expected = walk(some, network.links, packet, enters)
    except CircleError:
        with pytest.raises(RuleError, match="in a circle"):
            model.exits(packet, enters)
        return
    exits = model.exits(packet, enters)
    assert sorted(map(repr, exits)) == sorted(map(repr, expected))


def line_rules() -> tuple[ShortestPaths, dict[int, dict[object, Rule]]]:
    routes = ShortestPaths(LINE)
    some = base_rules(routes)
    for switch, more in topic_rules(routes, TOPIC, FLOWS, PLACES).items():
        some[switch].update(more)
    return routes, some


PLACES = {"onward": PortId(1, 1), "last": PortId(2, 2), "three": PortId(3, HOST_PORT)}
FLOWS = topic(onward=0, last=0, three=0)
PROBE = Probe(
    {**address_fields(TOPIC.address), "udp_dst": TOPIC.udp_port, "ip_dscp": 0},
    PortId(1, HOST_PORT),
    frozenset({PortId(3, HOST_PORT)}),
    46,
)
"""An event along the line."""


def test_errors_name_switch_and_rule() -> None:
    routes, some = line_rules()
    probes = [PROBE, *all_probes(routes)]
    wrong = next(rule for rule in some[2].values() if rule.kind is Kind.FLOW)
    some[2][wrong.key] = replace(wrong, copies=(OutputAction(99),))
    with pytest.raises(
        RuleError, match=r"ends at switch 0000000000000002 port 99, not at switch .*3 port 100"
    ):
        TableModel(LINE.links, some).check(probes)
    some[2][wrong.key] = replace(wrong, copies=())
    with pytest.raises(RuleError, match="ends at no port"):
        TableModel(LINE.links, some).check(probes)
    some[2][wrong.key] = replace(wrong, copies=tuple(OutputAction(copy.port, 3) for copy in wrong.copies))
    last = next(rule for rule in some[3].values() if rule.kind is Kind.FLOW)
    some[3][last.key] = replace(last, copies=tuple(OutputAction(copy.port) for copy in last.copies))
    with pytest.raises(RuleError, match="comes with mark 3, not 46"):
        TableModel(LINE.links, some).check(probes)


def test_a_circle_names_where_it_closes() -> None:
    ring = make_network(3, [(1, 2), (2, 3), (3, 1)])
    around = {switch: Rule(0, 0, (), (OutputAction(port),)) for switch, port in ((1, 1), (2, 2), (3, 3))}
    model = TableModel(ring.links, {switch: {rule.key: rule} for switch, rule in around.items()})
    with pytest.raises(RuleError, match=r"switch 000000000000000\d, rule .*in a circle"):
        model.exits({}, PortId(1, HOST_PORT))


def test_a_refused_change_leaves_the_model_as_it_was() -> None:
    routes, some = line_rules()
    model = TableModel(LINE.links, some)
    probes = [PROBE, *all_probes(routes)]
    everything = Rule(1, 1000, (), (OutputAction(1),))
    with pytest.raises(RuleError, match="is never reached because of"):
        model.change({}, {2: {everything.key: everything}})
    model.check(probes)
    keys = [key for key, rule in some[2].items() if rule.kind is Kind.UNICAST]
    with pytest.raises(RuleError, match="ends at"):
        model.change({2: keys}, {}, probes)
    model.check(probes)
