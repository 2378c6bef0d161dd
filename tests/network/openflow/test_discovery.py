"""What the network is taken for, from what switches report."""

from __future__ import annotations

from triagemq.network.openflow.discovery import MOST_HOSTS, Discovery
from triagemq.network.openflow.rule_sets import base_rules, known_host
from triagemq.network.openflow.rules import matching
from triagemq.network.openflow.topology import HostPlace, PortId, ShortestPaths

A, B = PortId(1, 1), PortId(2, 1)
MAC = "02:00:00:00:00:02"


def two_switches(*, linked: bool = True) -> Discovery:
    """Two switches with a link between their first ports, and an edge at each second port."""
    discovery = Discovery(link_seconds=5.0, forget_seconds=60.0)
    for switch in (1, 2):
        discovery.joined(switch, {1: True, 2: True}, 0.0)
    if linked:
        link(discovery, 0.0)
    discovery.settle(discovery.unsettled())
    return discovery


def link(discovery: Discovery, now: float) -> None:
    discovery.frame_seen(A, B, now)
    discovery.frame_seen(B, A, now)


def places(discovery: Discovery, address: str) -> list[PortId]:
    return [host.at for host in discovery.network.hosts.get(address, ())]


def test_a_link_needs_frames_in_both_directions() -> None:
    discovery = two_switches(linked=False)
    discovery.frame_seen(A, B, 1.0)
    assert discovery.network.links == {}
    discovery.frame_seen(B, A, 1.0)
    assert discovery.network.links == {A: B, B: A}


def test_an_edge_at_which_a_frame_comes_is_none() -> None:
    discovery = two_switches(linked=False)
    discovery.frame_seen(A, B, 1.0)
    assert discovery.half_seen() == discovery.unsettled() == {A, B}
    discovery.frame_seen(B, A, 1.0)
    assert discovery.half_seen() == discovery.unsettled() == set()


def test_ports_of_unknown_nature_are_no_part_of_the_network() -> None:
    discovery = Discovery()
    discovery.joined(1, {1: True, 2: True, 3: False}, 0.0)
    assert discovery.unsettled() == {A, PortId(1, 2)}
    assert discovery.network.ports == {1: frozenset()}
    discovery.settle([A])
    assert discovery.network.ports == {1: frozenset({1})}


def test_a_port_that_goes_down_ends_the_link_at_once_and_is_tried_again_later() -> None:
    discovery = two_switches()
    discovery.port_changed(1, 1, up=False)
    assert discovery.network.links == {}
    assert discovery.unsettled() == {B}
    discovery.port_changed(1, 1, up=True)
    assert discovery.unsettled() == {A, B}
    link(discovery, 3.0)
    assert discovery.network.links == {A: B, B: A}


def test_a_link_without_frames_goes_but_not_while_a_switch_is_away() -> None:
    discovery = two_switches()
    discovery.left(2, 1.0)
    assert not discovery.expire(20.0)
    assert discovery.network.links == {A: B, B: A}
    discovery.joined(2, {1: True, 2: True}, 20.0)
    assert not discovery.expire(24.0)
    assert discovery.expire(26.0)
    assert discovery.network.links == {}
    assert discovery.unsettled() == {A, B}


def test_a_switch_that_stays_away_is_forgotten() -> None:
    discovery = two_switches()
    discovery.speaker_seen(PortId(2, 2), MAC, "10.0.0.2")
    discovery.left(2, 1.0)
    assert discovery.expire(62.0)
    assert discovery.network.ports == {1: frozenset({2})}
    assert discovery.network.hosts == {}


def test_hosts_are_learned_at_edges_only() -> None:
    discovery = two_switches()
    assert not discovery.speaker_seen(A, MAC, "10.0.0.2")
    assert discovery.speaker_seen(PortId(1, 2), MAC, "10.0.0.2")
    assert not discovery.speaker_seen(PortId(1, 2), MAC, "10.0.0.2")
    assert discovery.counters == {"spoke too early": 1}
    assert places(discovery, "10.0.0.2") == [PortId(1, 2)]


def test_a_host_moves_with_all_its_addresses() -> None:
    discovery = two_switches()
    for address in ("10.0.0.2", "fd00::2"):
        discovery.speaker_seen(PortId(1, 2), MAC, address)
    assert discovery.speaker_seen(PortId(2, 2), MAC, "10.0.0.2")
    assert places(discovery, "10.0.0.2") == places(discovery, "fd00::2") == [PortId(2, 2)]


def test_an_address_may_go_to_another_host() -> None:
    discovery = two_switches()
    discovery.speaker_seen(PortId(1, 2), MAC, "10.0.0.2")
    discovery.speaker_seen(PortId(2, 2), "02:00:00:00:00:09", "10.0.0.2")
    assert discovery.network.hosts == {"10.0.0.2": (HostPlace("02:00:00:00:00:09", PortId(2, 2)),)}


def test_parts_that_no_link_joins_each_see_a_host_at_a_place_of_their_own() -> None:
    discovery = two_switches(linked=False)
    discovery.speaker_seen(PortId(1, 2), MAC, "10.0.0.2")
    discovery.speaker_seen(B, MAC, "10.0.0.2")
    assert places(discovery, "10.0.0.2") == [PortId(1, 2), B]
    # The port turns out to be a link: what was seen there was seen from afar.
    link(discovery, 1.0)
    assert places(discovery, "10.0.0.2") == [PortId(1, 2)]


def test_over_a_reserved_link_nobody_is_found_and_nothing_is_flooded() -> None:
    discovery = two_switches()
    discovery.reserved = frozenset({A, B})
    # Both switches are at a bridge that is no switch of ours: a host is seen there from each.
    for switch in (1, 2):
        assert discovery.speaker_seen(PortId(switch, 2), MAC, "10.0.0.2")
    assert not discovery.speaker_seen(A, MAC, "10.0.0.2")
    assert places(discovery, "10.0.0.2") == [PortId(1, 2), PortId(2, 2)]
    routes = ShortestPaths(discovery.network)
    assert [routes.flood_ports(switch) for switch in (1, 2)] == [frozenset({2}), frozenset({2})]
    assert 1 not in routes.towards(2)
    # What comes over it goes on by the rules of its flow, and is told to no controller.
    assert matching(in_port=1) in [key.match for key in base_rules(routes)[2]]


def test_a_host_goes_with_its_port_but_not_with_its_carrier() -> None:
    discovery = two_switches()
    discovery.speaker_seen(PortId(1, 2), MAC, "10.0.0.2")
    discovery.port_changed(1, 2, up=False)
    assert places(discovery, "10.0.0.2") == [PortId(1, 2)]
    discovery.port_changed(1, 2, up=None)
    assert places(discovery, "10.0.0.2") == []


def test_rules_of_an_earlier_controller_tell_where_hosts_are() -> None:
    discovery = two_switches()
    discovery.rules_seen(1, [*known_host("10.0.0.2", MAC, 2), *known_host("fd00::2", MAC, 2)])
    assert places(discovery, "10.0.0.2") == places(discovery, "fd00::2") == [PortId(1, 2)]


def test_somebody_who_invents_addresses_does_not_fill_the_memory() -> None:
    discovery = two_switches()
    for number in range(MOST_HOSTS + 5):
        discovery.speaker_seen(PortId(1, 2), MAC, f"10.0.{number >> 8}.{number & 255}")
    assert discovery.counters["hosts refused"] == 5
    assert len(discovery.network.hosts) == MOST_HOSTS
