"""Rules made from networks and flows: ways, marks, limits, and what they do to packets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.network.openflow.networks import (
    BROKER,
    HOST_PORT,
    LINE,
    TOPIC,
    edges,
    make_network,
    networks,
    topic,
    topics_of,
)
from tests.network.openflow.probes import all_probes
from tests.network.openflow.table_model import TableModel

from triagemq.network.openflow.rule_sets import (
    LimitedFlow,
    RuleBook,
    base_rules,
    prefix_rules,
    topic_rules,
)
from triagemq.network.openflow.rules import MARKS, Kind, OutputAction, RateLimit, Rule
from triagemq.network.openflow.topology import HostPlace, PortId, ShortestPaths, Topology
from triagemq.plan.dataplane import FlowKey, SetFlow

CLIENT = "10.0.0.2"


def kinds(rules: dict[int, dict[object, Rule]], switch: int, kind: Kind) -> list[Rule]:
    return [rule for rule in rules.get(switch, {}).values() if rule.kind is kind]


@given(st.data())
@settings(deadline=None)
def test_every_network_gets_rules_that_pass_the_model(data: st.DataObject) -> None:
    network = data.draw(networks())
    topics, places = data.draw(topics_of(network)), edges(network)
    routes = ShortestPaths(network)
    rules = base_rules(routes)
    for key, flows in topics.items():
        for switch, more in topic_rules(routes, key, flows, places).items():
            rules[switch].update(more)
    TableModel(network.links, rules).check(all_probes(routes, topics, places))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_whatever_changes_the_book_has_rules_that_pass_the_model_and_each_change_can_be_undone(
    data: st.DataObject,
) -> None:
    book = RuleBook()
    first = data.draw(networks())
    book.fit(first, edges(first))
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            other = data.draw(networks())
            book.fit(other, edges(other))
        before = {switch: dict(rules) for switch, rules in book.wanted.items()}
        gone = data.draw(st.sets(st.sampled_from(sorted(book.topics, key=str)))) if book.topics else set()
        changes = {**dict.fromkeys(gone, ()), **data.draw(topics_of(book.network))}
        undoing, touched = book.change(changes)
        changed = {
            switch: {key for key in {*before[switch], *now} if before[switch].get(key) != now.get(key)}
            for switch, now in book.wanted.items()
        }
        assert all(keys <= set(touched.get(switch, ())) for switch, keys in changed.items())
        TableModel(book.network.links, book.wanted).check(all_probes(book.routes, book.topics, book.places))
        if data.draw(st.booleans()):
            book.change(undoing)
            assert book.wanted == before


def test_marks_fall_with_the_class_and_stay_below_control() -> None:
    assert [*MARKS] == sorted(MARKS, reverse=True)
    assert len(set(MARKS)) == 7
    assert max(MARKS) < 48


PLACES = {
    "one": PortId(1, HOST_PORT),
    "onward": PortId(1, 1),
    "last": PortId(2, 2),
    "three": PortId(3, HOST_PORT),
    "more": PortId(3, HOST_PORT + 1),
}
"""Ports along the line of three switches, each leading to the next."""


def test_copies_of_a_topic_leave_by_its_ports_with_the_marks_of_their_classes() -> None:
    flows = topic(one=3, onward=0, last=1, three=0, more=6)
    rules = topic_rules(ShortestPaths(LINE), TOPIC, flows, PLACES)
    (first,), (second,), (third,) = (kinds(rules, switch, Kind.FLOW) for switch in (1, 2, 3))
    assert first.copies == (OutputAction(1, MARKS[0]), OutputAction(HOST_PORT, MARKS[3]))
    assert second.copies == (OutputAction(2, MARKS[1]),)
    assert third.copies == (OutputAction(HOST_PORT, MARKS[0]), OutputAction(HOST_PORT + 1, MARKS[6]))
    # Whoever is sent copies has its rule before who sends them.
    assert [rule.hops for rule in (first, second, third)] == [2, 1, 0]
    assert all(dict(rule.match)["ipv4_dst"] == TOPIC.address for rule in (first, second, third))
    assert topic_rules(ShortestPaths(LINE), TOPIC, flows, {}) == {}
    elsewhere = {"one": PortId(9, 1)}
    assert topic_rules(ShortestPaths(LINE), TOPIC, topic(one=0), elsewhere) == {}


def test_a_topic_is_limited_where_hosts_send_and_not_where_switches_do() -> None:
    limited = (*topic(RateLimit(64, 12), onward=0), *topic(last=0, three=0))
    rules = topic_rules(ShortestPaths(LINE), TOPIC, limited, PLACES)
    assert [rule.limit for rule in kinds(rules, 1, Kind.FLOW)] == [RateLimit(64, 12)]
    (from_second,) = kinds(rules, 1, Kind.FLOW_FROM_LINK)
    assert (dict(from_second.match)["in_port"], from_second.limit, from_second.copies) == (
        1,
        None,
        (OutputAction(1, MARKS[0]),),
    )
    assert from_second.priority > Kind.FLOW.priority
    assert [rule.limit for switch in (2, 3) for rule in rules[switch].values()] == [None, None]


def of_source(flows: tuple[LimitedFlow, ...], source: str = BROKER) -> tuple[LimitedFlow, ...]:
    return tuple(replace(each, flow=replace(each.flow, source=source)) for each in flows)


def entries(book: RuleBook, switch: int) -> list[tuple[object, object]]:
    """Where and from whom copies of the topic are made: ports of FLOW and FLOW_FROM_LINK, and the source."""
    return [
        (dict(rule.match).get("in_port"), dict(rule.match).get("ipv4_src"))
        for rule in book.wanted[switch].values()
        if rule.kind in (Kind.FLOW, Kind.FLOW_FROM_LINK)
    ]


def foreign(book: RuleBook) -> list[int]:
    return [switch for switch in book.wanted if kinds(book.wanted, switch, Kind.FOREIGN)]


def test_a_topic_is_taken_from_its_source_where_that_is_and_from_nobody_else_on_any_switch() -> None:
    book = RuleBook()
    book.fit(replace(LINE, hosts={}), PLACES)
    flows = of_source((*topic(RateLimit(64, 12), onward=0), *topic(last=0)))
    book.change({TOPIC: flows})
    assert entries(book, 1) == [(None, BROKER), (1, BROKER)]
    assert foreign(book) == [1, 2, 3]
    assert book.topic_sources == {BROKER}
    # As soon as the publisher is found, where it comes in counts, too; switches behind take it from links.
    book.fit(LINE)
    assert entries(book, 1) == [(HOST_PORT, BROKER), (1, BROKER)]
    assert entries(book, 2) == [(1, BROKER), (2, BROKER)]
    (drop,) = kinds(book.wanted, 3, Kind.FOREIGN)
    assert drop.copies == ()
    assert drop.hops > max(rule.hops for rule in kinds(book.wanted, 1, Kind.FLOW))
    limits = [rule.limit for rule in kinds(book.wanted, 1, Kind.FLOW_FROM_LINK)]
    assert limits == [None]


def test_a_device_that_claims_the_address_of_a_publisher_takes_its_place_only_when_that_is_free() -> None:
    book = RuleBook()
    book.fit(LINE, PLACES)
    book.change({TOPIC: of_source(topic(onward=0, last=0))})
    claimed = replace(LINE, hosts={**LINE.hosts, BROKER: (HostPlace("02::66", PortId(1, HOST_PORT + 1)),)})
    book.fit(claimed)
    assert entries(book, 1)[0] == (HOST_PORT, BROKER)
    # The port of the publisher goes down: whoever has its address now is it.
    down = {**claimed.ports, 1: claimed.ports[1] - {HOST_PORT}}
    book.fit(replace(claimed, ports=down))
    assert entries(book, 1)[0] == (HOST_PORT + 1, BROKER)
    # The same device elsewhere has moved. Where there are no copies it is flooded until there is a plan for it.
    moved = replace(LINE, hosts={BROKER: (HostPlace("02::66", PortId(3, HOST_PORT)),)})
    book.fit(moved)
    assert entries(book, 1) == [(1, BROKER)]
    assert foreign(book) == [1, 2]


def test_the_book_knows_topics_and_forgets_them() -> None:
    book = RuleBook()
    book.fit(LINE, PLACES)
    before = {switch: dict(rules) for switch, rules in book.wanted.items()}
    undoing, touched = book.change({TOPIC: topic(onward=0, last=0, three=0)})
    assert {switch: len(keys) for switch, keys in touched.items()} == {1: 1, 2: 1, 3: 1}
    after = {switch: dict(rules) for switch, rules in book.wanted.items()}
    assert after[2].keys() - before[2].keys() == set(touched[2])
    book.fit(LINE)
    assert book.wanted == after
    undoing, _ = book.change(undoing)
    assert book.wanted == before
    book.change(undoing)
    assert book.wanted == after
    book.change({TOPIC: ()})
    assert TOPIC not in book.topics


def test_flooding_follows_a_tree() -> None:
    ring = make_network(3, [(1, 2), (2, 3), (3, 1)])
    routes = ShortestPaths(ring)
    links = [port for switch in (1, 2, 3) for port in routes.flood_ports(switch) if port < HOST_PORT]
    assert len(links) == 4


def test_ways_are_shortest_and_go_round_a_failure() -> None:
    ring = make_network(4, [(1, 2), (2, 3), (3, 4), (4, 1)])
    assert ShortestPaths(ring).towards(3)[1] == (1, 2)
    without = make_network(4, [(1, 2), (3, 4), (4, 1)])
    assert ShortestPaths(without).towards(3)[1] == (3, 2)
    assert 1 not in ShortestPaths(make_network(4, [(1, 2)])).towards(3)


def test_a_host_seen_from_two_parts_has_rules_in_both() -> None:
    both = (
        HostPlace("02:00:00:00:00:01", PortId(1, HOST_PORT)),
        HostPlace("02:00:00:00:00:01", PortId(2, HOST_PORT)),
    )
    network = Topology(make_network(2, []).ports, {}, {CLIENT: both})
    rules = base_rules(ShortestPaths(network))
    assert [len(kinds(rules, switch, Kind.UNICAST)) for switch in (1, 2)] == [1, 1]


@pytest.mark.parametrize(("bps", "expected"), [(1, 1), (1000, 1), (1001, 2), (2e6, 2000)])
def test_limits_are_rounded_up(bps: float, expected: int) -> None:
    assert RateLimit.of(bps, 1500).kilobits_per_second == expected


WIDE, NARROW, OTHER = (FlowKey(each, 7400) for each in ("ff1e:8000::/18", "ff1e:a000::/20", "ff1e:c000::/20"))
EDGES = {name: PortId(switch, port) for name, switch, port in (("a", 1, 7), ("b", 1, 8), ("c", 2, 7))}


def wanted_at(key: FlowKey, **classes: int) -> tuple[LimitedFlow, ...]:
    return tuple(LimitedFlow(SetFlow(key, port, 7, each, 0.0)) for port, each in classes.items())


def matches(rules: dict[int, dict[object, Rule]], switch: int) -> dict[int, tuple[object, ...]]:
    """By length, where events leave; 0 is for those that match nothing."""
    found = {rule.priority - Kind.PREFIX.priority: rule.copies for rule in kinds(rules, switch, Kind.PREFIX)}
    found.update((0, rule.copies) for rule in kinds(rules, switch, Kind.UNMATCHED))
    return found


def test_a_longer_prefix_has_the_ports_of_all_that_cover_it_and_the_rest_goes_nowhere() -> None:
    flows = {
        WIDE: wanted_at(WIDE, a=2),
        NARROW: wanted_at(NARROW, b=2, c=0),
        OTHER: wanted_at(OTHER, c=1),
    }
    rules = prefix_rules(ShortestPaths(LINE), flows, EDGES)
    third = MARKS[2]
    assert matches(rules, 1) == {
        0: (),
        18: (OutputAction(7, third),),
        20: (OutputAction(7, third), OutputAction(8, third)),
    }
    assert sorted(rule.copies for rule in kinds(rules, 2, Kind.PREFIX)) == [
        (OutputAction(7, MARKS[1]),),
        (OutputAction(7, MARKS[0]),),
    ]
    # Also where nobody wants anything.
    assert matches(rules, 3) == {0: ()}
    assert prefix_rules(ShortestPaths(LINE), {}, EDGES) == {}
    # A port of a switch that has not been seen yet comes later.
    assert matches(prefix_rules(ShortestPaths(LINE), flows, {"a": EDGES["a"]}), 1) == {
        0: (),
        18: (OutputAction(7, third),),
    }


def test_events_leave_each_port_in_the_class_of_the_longest_prefix_there() -> None:
    flows = {WIDE: wanted_at(WIDE, a=2, b=5), NARROW: wanted_at(NARROW, b=0)}
    rules = prefix_rules(ShortestPaths(LINE), flows, EDGES)
    assert matches(rules, 1) == {
        0: (),
        18: (OutputAction(7, MARKS[2]), OutputAction(8, MARKS[5])),
        20: (OutputAction(7, MARKS[2]), OutputAction(8, MARKS[0])),
    }
    # Another UDP port is another key: neither covers the other.
    elsewhere = FlowKey(NARROW.address, 7401)
    rules = prefix_rules(
        ShortestPaths(LINE), {WIDE: flows[WIDE], elsewhere: wanted_at(elsewhere, b=0)}, EDGES
    )
    assert matches(rules, 1)[20] == (OutputAction(8, MARKS[0]),)


def test_the_book_changes_prefixes_as_a_whole_and_all_rules_of_them_are_touched() -> None:
    book = RuleBook()
    book.fit(LINE, EDGES)
    without = {switch: dict(rules) for switch, rules in book.wanted.items()}
    _, touched = book.change({WIDE: wanted_at(WIDE, a=0)})
    assert {switch: len(keys) for switch, keys in touched.items()} == {1: 2, 2: 1, 3: 1}
    book.fit(LINE, EDGES)
    assert matches(book.wanted, 1) == {0: (), 18: (OutputAction(7, MARKS[0]),)}
    undoing, touched = book.change({NARROW: wanted_at(NARROW, b=0), WIDE: wanted_at(WIDE, a=1)})
    assert matches(book.wanted, 1)[20] == (OutputAction(7, MARKS[1]), OutputAction(8, MARKS[0]))
    book.change(undoing)
    assert matches(book.wanted, 1) == {0: (), 18: (OutputAction(7, MARKS[0]),)}
    book.change({WIDE: ()})
    assert book.wanted == without
