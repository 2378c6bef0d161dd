"""Layouts of generated scenarios: nothing clashes, and every subscriber is at the end of exactly one path."""

from __future__ import annotations

import ipaddress
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.box.campuses import TWO_SWITCHES, Campus, campuses, path_to

from triagemq.errors import NetworkError
from triagemq.lab.box import Host, Layout, Link, lay_out
from triagemq.lab.box.box import ForwardingEntry, active_links, forwarding
from triagemq.lab.generators import prototype
from triagemq.scenario import loads, port_paths
from triagemq.scenario.conditions import Condition, Conditions, situations

KINDS = st.sampled_from(["bridge", "openvswitch"])


def drawn(campus: Campus, kind: str, run: str = "abcdef") -> Layout:
    return lay_out(campus.scenario, run, switches=kind, backups=campus.backups, ipv6=True)


def ends(layout: Layout) -> list[tuple[str, str, int, str]]:
    return [
        (end.namespace, end.interface, end.index, end.mac)
        for link in layout.links
        for end in (link.near, link.far)
    ]


@given(campuses(), KINDS)
def test_names_and_addresses_are_unique_and_fit(campus: Campus, kind: str) -> None:
    layout = drawn(campus, kind)
    interfaces = [name for _, name, _, _ in ends(layout)] + [bridge.name for bridge in layout.bridges]
    macs = [mac for *_, mac in ends(layout)] + [bridge.mac for bridge in layout.bridges]
    indices = [(space, index) for space, _, index, _ in ends(layout)]
    indices += [(layout.switch_namespace, bridge.index) for bridge in layout.bridges]
    for things in (interfaces, macs, indices, layout.namespaces, [host.ipv4 for host in layout.hosts]):
        assert max(Counter(things).values()) == 1
    assert len({host.ipv6 for host in layout.hosts}) == len(layout.hosts)
    assert all(len(name) <= 15 and name.startswith("tqabcdef") for name in interfaces)
    assert all(name.startswith("tqabcdef-") for name in layout.namespaces)
    assert all(ipaddress.ip_address(host.ipv4).is_private for host in layout.hosts)
    assert min(index for _, index in indices) > 1, "1 is the loopback interface"


def test_publishers_that_are_apart_have_a_host_of_their_own_behind_the_same_switch() -> None:
    layout = lay_out(loads(TWO_SWITCHES), "a1", apart=["smoke-1"])
    assert [host.members for host in layout.hosts if host.kind == "publishers"] == [("door-1",), ("smoke-1",)]
    smoke = layout.publishers["smoke-1"]
    (link,) = (link for link in layout.links if link.far.namespace == smoke.namespace)
    (bridge,) = (bridge for bridge in layout.bridges if bridge.name == link.near.bridge)
    assert bridge.subject == "sensors"


PROMISING = """
name: Ward
brokers: {hall: {}}
switches: {bed: {}, desk: {}}
ports:
  over: {switch: bed, bandwidth_bps: 1e7, to: desk}
  monitor: {switch: desk, bandwidth_bps: 1e7}
publishers:
  ecg: {access: bed, access_bps: 1e6, publishes: {pulse: {rate_per_second: 1, size_bytes: 9}}}
  door: {publishes: {bell: {rate_per_second: 1, size_bytes: 9}}}
subscribers: {nurse: {port: monitor, subscribes: {pulse: log:1}}}
"""


@pytest.mark.parametrize("kind", ["bridge", "openvswitch"])
def test_a_publisher_that_is_plugged_in_has_an_access_link_beside_its_way_to_the_broker(kind: str) -> None:
    layout = lay_out(loads(PROMISING), "a1", switches=kind, plugged=["ecg"])  # type: ignore[arg-type]
    host, access = layout.publishers["ecg"], layout.access["ecg"]
    assert host.members == ("ecg",)
    assert (access.namespace, access.bps) == (host.namespace, 1e6)
    assert access.ipv4 not in {each.ipv4 for each in layout.hosts}
    (link,) = (link for link in layout.links if link.far.interface == access.interface)
    assert (link.access, link.near.bridge) == ("ecg", layout.switches["bed"].name)
    # Nothing but what is promised goes over it, or from switch to switch beside the tree.
    beside = [link for link in layout.links if link not in active_links(layout, layout.feeding)]
    assert {(link.access, link.port, link.feeds) for link in beside} == {
        ("ecg", None, None),
        (None, "over", "desk"),
    }
    for name in ("ecg", "door", "nurse"):
        other = (layout.publishers | layout.subscribers)[name]
        assert delivered(layout, forwarding(layout, layout.feeding), layout.brokers["hall"], other)


@given(campuses(), KINDS)
def test_everyone_has_a_host_and_every_port_its_interface(campus: Campus, kind: str) -> None:
    scenario, layout = campus.scenario, drawn(campus, kind)
    assert set(layout.brokers) == set(scenario.brokers.name)
    assert set(layout.publishers) == set(scenario.publishers.name)
    assert set(layout.subscribers) == set(scenario.subscribers.name)
    assert set(layout.port) == set(scenario.ports.name)
    assert set(layout.switches) == set(scenario.switches.name)
    bridges = {bridge.name: bridge for bridge in layout.bridges}
    near = {link.near.interface: link for link in layout.links}
    for port in layout.ports:
        # The queues are at the egress of a member of a kernel bridge, never at a host or at Open vSwitch.
        owner = bridges[near[port.interface].near.bridge or ""]
        assert owner.role == ("queues" if kind == "openvswitch" else "switch")
        assert not owner.open_vswitch
        assert near[port.switch_interface].near.bridge == layout.switches[port.switch].name


@given(campuses(), KINDS)
def test_exactly_one_path_leads_to_each_subscriber_over_the_ports_of_the_scenario(
    campus: Campus, kind: str
) -> None:
    scenario, layout = campus.scenario, drawn(campus, kind)
    expected = port_paths(scenario)
    shaped = {port.interface: port.name for port in layout.ports}
    for row, name in enumerate(scenario.subscribers.name):
        host = layout.subscribers[name]
        paths = list(all_paths(layout, host))
        assert len(paths) == 1
        assert paths[0] == path_to(layout, host)
        crossed = [shaped[link.near.interface] for link in paths[0] if link.near.interface in shaped]
        ports = expected[scenario.subscribers.port[row]]
        assert crossed == [scenario.ports.name[port] for port in ports if port >= 0]


@given(campuses(), KINDS)
def test_frames_that_follow_the_tables_arrive_and_return(campus: Campus, kind: str) -> None:
    layout = drawn(campus, kind)
    table = forwarding(layout, layout.feeding)
    for broker in layout.brokers.values():
        for host in (*layout.subscribers.values(), *layout.publishers.values()):
            assert delivered(layout, table, broker, host)
            assert delivered(layout, table, host, broker)


@given(campuses(), KINDS, st.data())
@settings(max_examples=60)
def test_with_any_links_down_the_tables_reach_whom_the_situation_says(
    campus: Campus, kind: str, data: st.DataObject
) -> None:
    scenario, layout = campus.scenario, drawn(campus, kind)
    ports, switches = scenario.ports, scenario.switches
    # A backup beside the link that it replaces has the same ends, which name the latter.
    feeders = dict(zip(switches.name, (ports.name[port] for port in switches.fed_by_port), strict=True))
    ends_of: dict[tuple[str, ...], str] = {}
    for switch, port in (*feeders.items(), *campus.backups.items()):
        if switches.fed_by_port[switches.name.index(switch)] >= 0:
            ends_of.setdefault((switches.name[ports.switch[ports.name.index(port)]], switch), port)
    links = sorted(
        {link.port for link in layout.links if link.feeds is not None and link.port} & {*ends_of.values()}
    )
    down = data.draw(st.sets(st.sampled_from(links))) if links else set()
    failing = tuple(
        Condition(1.0, link=ends, state="fails") for ends, port in ends_of.items() if port in down
    )
    now = situations(scenario, Conditions(failing, campus.backups))[-1]
    in_use = now.feeding_ports(scenario)
    assert not in_use & down
    table = forwarding(layout, in_use)
    for row, name in enumerate(scenario.subscribers.name):
        reached = bool(now.switch_reached[scenario.ports.switch[scenario.subscribers.port[row]]])
        for broker in layout.brokers.values():
            assert delivered(layout, table, broker, layout.subscribers[name]) == reached
            assert not reached or delivered(layout, table, layout.subscribers[name], broker)


def test_subscribers_of_a_shared_port_are_behind_its_queues() -> None:
    layout = lay_out(loads(TWO_SWITCHES), "a")
    radio = layout.port["radio"].interface
    for name in ("engine-1", "engine-2", "engine-3"):
        path = path_to(layout, layout.subscribers[name])
        assert [link.port for link in path if link.port] == ["trunk", "radio"]
        assert path[-2].near.interface == radio
        assert path[-1].port is None, "the wire behind the shared segment is nobody's bottleneck"


def test_one_subscriber_alone_hangs_at_its_port_directly() -> None:
    layout = lay_out(loads(TWO_SWITCHES), "a")
    path = path_to(layout, layout.subscribers["commander"])
    assert path[-1].port == "desk"


@pytest.mark.parametrize("run", ["", "toolong", "UPPER", "a-b", "a/b", "é"])
def test_a_run_has_a_short_plain_name(run: str) -> None:
    with pytest.raises(NetworkError, match="a-z and 0-9"):
        lay_out(loads(TWO_SWITCHES), run)


def test_more_members_than_a_bridge_takes_are_refused() -> None:
    with pytest.raises(NetworkError, match="spread the subscribers"):
        lay_out(prototype(subscribers=1100), "a")


def all_paths(layout: Layout, host: Host) -> list[list[Link]]:
    """Every way from the backbone down to a host, found without the code under test."""
    (backbone,) = (bridge.name for bridge in layout.bridges if bridge.role == "backbone")
    finished, waiting = [], [(backbone, [])]
    while waiting:
        node, path = waiting.pop()
        for link in active_links(layout, layout.feeding):
            if link.near.bridge != node:
                continue
            if link.far.bridge is None and link.far.namespace == host.namespace:
                finished.append([*path, link])
            elif link.far.bridge is not None:
                waiting.append((link.far.bridge, [*path, link]))
    return finished


def delivered(layout: Layout, table: frozenset[ForwardingEntry], source: Host, target: Host) -> bool:
    """Follow a frame from bridge to bridge; queue boxes pass it from one member to the other."""
    other_end = {}
    for link in layout.links:
        other_end[link.near.interface] = link.far
        other_end[link.far.interface] = link.near
    routes = {(entry.bridge, entry.mac): entry.interface for entry in table}
    assert len(routes) == len(table), "one way out of a bridge for each address"
    end = other_end[source.interface]
    for _ in range(len(layout.links) + 1):
        if end.bridge is None:
            return end.namespace == target.namespace
        way = routes.get((end.bridge, target.mac))
        if way is None:
            return False
        assert way != end.interface, "a bridge never sends a frame back"
        end = other_end[way]
    raise AssertionError("a loop")
