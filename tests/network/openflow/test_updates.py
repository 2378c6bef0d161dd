"""Updates: from one set of rules to another, without a moment in which a flow has none."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.network.openflow.networks import HOST_PORT, at_edges, edges, make_network, networks, topics_of
from tests.network.openflow.probes import all_probes
from tests.network.openflow.walker import walk

from triagemq.network.openflow.rule_sets import (
    FlowRules,
    LimitedFlow,
    address_fields,
    base_rules,
    topic_rules,
)
from triagemq.network.openflow.rules import Delete, Kind, Put, Rule, RuleKey, steps
from triagemq.network.openflow.topology import PortId, ShortestPaths, Topology
from triagemq.plan.dataplane import FlowKey, SetFlow

Rules = dict[int, dict[RuleKey, Rule]]


def all_rules(
    network: Topology,
    topics: Mapping[FlowKey, FlowRules] | None = None,
    places: Mapping[str, PortId] | None = None,
) -> Rules:
    routes = ShortestPaths(network)
    rules = base_rules(routes)
    for key, flows in (topics or {}).items():
        for switch, more in topic_rules(routes, key, flows, places or edges(network)).items():
            rules[switch].update(more)
    return rules


def follow(rules: Rules, change: Put | Delete) -> None:
    if isinstance(change, Put):
        rules.setdefault(change.switch, {})[change.rule.key] = change.rule
    else:
        del rules[change.switch][change.rule.key]


def exits(rules: Rules, network: Topology, packet: dict[str, object], enters: PortId) -> list[PortId]:
    plain = {switch: list(some.values()) for switch, some in rules.items()}
    return [at for at, _ in walk(plain, network.links, packet, enters)]


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_the_steps_lead_from_one_set_to_the_other(data: st.DataObject) -> None:
    one, other = data.draw(networks()), data.draw(networks())
    before, after = (all_rules(each, data.draw(topics_of(each))) for each in (one, other))
    rules = {switch: dict(some) for switch, some in before.items()}
    for step in steps(before, after):
        for change in step:
            follow(rules, change)
    assert {switch: some for switch, some in rules.items() if some} == after
    assert steps(after, after) == []
    puts = [change for step in steps(before, after) for change in step if isinstance(change, Put)]
    assert all(before.get(put.switch, {}).get(put.rule.key) != put.rule for put in puts)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_no_packet_is_lost_or_circles_while_the_network_grows_or_the_plan_changes(
    data: st.DataObject,
) -> None:
    """All links of both networks are there; switches do the changes of a step in any order."""
    whole = data.draw(networks())
    pairs = sorted({min(here, there) for here, there in whole.links.items()})
    kept = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    part = Topology(
        {
            switch: frozenset(
                port
                for port in ports
                if port >= HOST_PORT
                or PortId(switch, port) in kept
                or whole.links[PortId(switch, port)] in kept
            )
            for switch, ports in whole.ports.items()
        },
        {here: there for here, there in whole.links.items() if here in kept or there in kept},
        whole.hosts,
    )
    if data.draw(st.booleans()):
        old_network, new_network = part, whole
    else:
        old_network, new_network = whole, part
    topics = data.draw(topics_of(whole))
    others = {key: flows for key, flows in data.draw(topics_of(whole)).items() if key not in topics}
    rules = all_rules(old_network, topics)
    todo = steps(rules, all_rules(new_network, topics | others))
    probes = [
        probe
        for probe in all_probes(ShortestPaths(part), topics, edges(whole))
        if probe.packet.get("eth_dst") != "ff:ff:ff:ff:ff:ff"
    ]
    source = random.Random(data.draw(st.integers()))
    for step in todo:
        for change in source.sample(step, len(step)):
            follow(rules, change)
            for probe in probes:
                assert exits(rules, whole, dict(probe.packet), probe.enters) == sorted(probe.leaves)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_packets_to_all_never_circle_or_come_twice(data: st.DataObject) -> None:
    """Between any two trees over the same switches."""
    one = data.draw(networks())
    pairs = sorted({min(here, there) for here, there in one.links.items()})
    lost = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    other = Topology(
        one.ports,
        {here: there for here, there in one.links.items() if here not in lost and there not in lost},
        one.hosts,
    )
    # Ports of lost links are down.
    other = Topology(
        {
            switch: frozenset(
                port for port in ports if port >= HOST_PORT or PortId(switch, port) in other.links
            )
            for switch, ports in one.ports.items()
        },
        other.links,
        other.hosts,
    )
    before, after = (one, other) if data.draw(st.booleans()) else (other, one)
    rules = all_rules(before)
    packet = {"eth_type": 0, "eth_dst": "ff:ff:ff:ff:ff:ff"}
    source = random.Random(data.draw(st.integers()))
    for step in steps(rules, all_rules(after)):
        for change in source.sample(step, len(step)):
            follow(rules, change)
            for switch in one.ports:
                found = exits(rules, one, packet, PortId(switch, HOST_PORT))
                assert len(found) == len(set(found))


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_packets_come_once_while_a_host_becomes_known(data: st.DataObject) -> None:
    """It is flooded to before, and has its shortest way afterwards; switches do the changes of a step in any order."""
    known = data.draw(networks())
    new = data.draw(st.sampled_from(sorted(known.hosts)))
    ((ethernet, at),) = known.hosts[new]
    unknown = Topology(
        known.ports,
        known.links,
        {address: hosts for address, hosts in known.hosts.items() if address != new},
    )
    rules = all_rules(unknown)
    packet = {**address_fields(new), "udp_dst": 2000, "ip_dscp": 0, "eth_dst": ethernet}
    entries = [
        hosts[0].at
        for hosts in unknown.hosts.values()
        if hosts[0].at.switch in ShortestPaths(known).towards(at.switch)
    ]
    source = random.Random(data.draw(st.integers()))
    for step in steps(rules, all_rules(known)):
        for change in source.sample(step, len(step)):
            follow(rules, change)
            for enters in entries:
                assert exits(rules, known, packet, enters).count(at) == 1


def test_lower_classes_move_first_and_the_members_end_too() -> None:
    network = make_network(3, [(1, 2), (2, 3)])
    places = {"onward": PortId(1, 1), "last": PortId(2, 2), "three": PortId(3, HOST_PORT)}
    keys = [FlowKey("239.1.2.3", 2000 + each) for each in range(4)]

    def ranked(ranks: Sequence[int]) -> Rules:
        flows = {
            key: tuple(LimitedFlow(SetFlow(key, port, 7, rank, 0.0)) for port in places)
            for key, rank in zip(keys, ranks, strict=True)
        }
        return all_rules(network, flows, places)

    todo = steps(ranked(range(4)), ranked([6, 5, 4, 2]))
    assert [{change.switch for change in step} for step in todo] == [{3}, {2}, {1}]
    assert [change.rule.rank for change in todo[0]] == [6, 5, 4, 2]


def test_deletions_come_last() -> None:
    network = make_network(1, [])
    old, new = (FlowKey("239.1.2.3", port) for port in (2000, 2001))
    first, last = steps(
        all_rules(network, {old: at_edges(old, [1])}), all_rules(network, {new: at_edges(new, [1])})
    )
    assert [type(change) for change in (*first, *last)] == [Put, Delete]
    assert first[0].rule.kind is last[0].rule.kind is Kind.FLOW
