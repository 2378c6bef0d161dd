"""Updates: from one set of rules to another, without a moment in which a flow has none."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.network.openflow.networks import HOST_PORT, flow, flows_to, make_network, networks
from tests.network.openflow.probes import all_probes
from tests.network.openflow.walker import walk

from triagemq.network.openflow.rule_sets import LimitedFlow, address_fields, address_rules, base_rules
from triagemq.network.openflow.rules import Cookies, Delete, Kind, Put, Rule, RuleKey, steps
from triagemq.network.openflow.topology import PortId, Routes, Topology

Rules = dict[int, dict[RuleKey, Rule]]


def all_rules(network: Topology, flows: dict[str, list[LimitedFlow]], sources: Sequence[str] = ()) -> Rules:
    routes = Routes(network)
    rules = base_rules(routes)
    for address, some in flows.items():
        for switch, more in address_rules(routes, address, some, sources).items():
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
    before, after = all_rules(one, data.draw(flows_to(one))), all_rules(other, data.draw(flows_to(other)))
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
    old_flows, new_flows = data.draw(flows_to(whole)), data.draw(flows_to(whole))
    rules = all_rules(old_network, old_flows)
    todo = steps(rules, all_rules(new_network, new_flows))
    probes = [
        probe
        for probe in all_probes(Routes(part), {**old_flows, **new_flows}, [])
        if probe.packet.get("eth_dst") != "ff:ff:ff:ff:ff:ff"
    ]
    source = random.Random(data.draw(st.integers()))
    for step in todo:
        for change in source.sample(step, len(step)):
            follow(rules, change)
            for probe in probes:
                assert exits(rules, whole, dict(probe.packet), probe.enters) == sorted(probe.leaves)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_flow_has_a_rule_at_every_switch_on_its_way_at_any_time(data: st.DataObject) -> None:
    """A link of a ring comes or goes; flows have rules only between the broker and the subscriber."""
    size = data.draw(st.integers(3, 6))
    ring = [(switch, switch % size + 1) for switch in range(1, size + 1)]
    home = data.draw(st.integers(2, size))
    hosts = {"10.0.0.1": (1, HOST_PORT), "10.0.0.2": (home, HOST_PORT)}
    whole = make_network(size, ring, hosts)
    missing = PortId(*data.draw(st.sampled_from([(pair[0], number) for number, pair in enumerate(ring, 1)])))
    part = Topology(
        whole.ports,
        {here: there for here, there in whole.links.items() if missing not in (here, there)},
        whole.hosts,
    )
    flows = {"10.0.0.2": [flow("10.0.0.2", 2000, 2)]}
    sets = [all_rules(network, flows, ["10.0.0.1"]) for network in (part, whole)]
    before, after = sets if data.draw(st.booleans()) else reversed(sets)
    rules = {switch: dict(some) for switch, some in before.items()}
    packet = {**address_fields("10.0.0.2"), "udp_dst": 2000, "ip_dscp": 0}
    source = random.Random(data.draw(st.integers()))
    for step in steps(before, after):
        for change in source.sample(step, len(step)):
            follow(rules, change)
            used: list[tuple[int, Rule]] = []
            plain = {switch: list(some.values()) for switch, some in rules.items()}
            walk(plain, whole.links, packet, PortId(1, HOST_PORT), used=used)
            deciding = [rule.kind for _, rule in used if rule.table == 1]
            assert set(deciding) == {Kind.FLOW}
            assert used[-1][0] == home


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
    rules = all_rules(before, {})
    packet = {"eth_type": 0, "eth_dst": "ff:ff:ff:ff:ff:ff"}
    source = random.Random(data.draw(st.integers()))
    for step in steps(rules, all_rules(after, {})):
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
    flows = {new: [flow(new, 2000, 2)]}
    sources = data.draw(st.lists(st.sampled_from(sorted(unknown.hosts)), max_size=1))
    rules = all_rules(unknown, flows, sources)
    packet = {**address_fields(new), "udp_dst": 2000, "ip_dscp": 0, "eth_dst": ethernet}
    entries = [
        hosts[0].at for hosts in unknown.hosts.values() if Routes(known).path(hosts[0].at.switch, at.switch)
    ]
    source = random.Random(data.draw(st.integers()))
    for step in steps(rules, all_rules(known, flows, sources)):
        for change in source.sample(step, len(step)):
            follow(rules, change)
            for enters in entries:
                assert exits(rules, known, packet, enters).count(at) == 1


def test_lower_classes_move_first_and_the_subscribers_end_too() -> None:
    network = make_network(3, [(1, 2), (2, 3)], {"10.0.0.9": (3, HOST_PORT)})
    old = all_rules(network, {"10.0.0.9": [flow("10.0.0.9", 2000 + each, each) for each in range(4)]})
    new = all_rules(network, {"10.0.0.9": [flow("10.0.0.9", 2000 + each, 6 - each) for each in range(4)]})
    todo = steps(old, new)
    assert [{change.switch for change in step} for step in todo] == [{3}, {2}, {1}]
    assert [change.rule.rank for change in todo[0]] == [6, 5, 4]


def test_deletions_come_last() -> None:
    network = make_network(1, [], {"10.0.0.9": (1, HOST_PORT)})
    old = all_rules(network, {"10.0.0.9": [flow("10.0.0.9", 2000)]})
    new = all_rules(network, {"10.0.0.9": [flow("10.0.0.9", 2001)]})
    first, last = steps(old, new)
    assert [type(change) for change in (*first, *last)] == [Put, Delete]
    assert first[0].rule.kind is last[0].rule.kind is Kind.FLOW


def test_cookies_go_on_behind_those_of_an_earlier_process() -> None:
    old, new = Cookies(), Cookies()
    for _ in range(3):
        old.begin()
    cookies = [old.next(flow=True) for _ in range(5)]
    for cookie in cookies:
        new.seen(cookie)
    new.begin()
    assert new.next(flow=True) > max(cookies)
    assert len({*cookies, new.next(flow=True), new.next(flow=False)}) == 7
