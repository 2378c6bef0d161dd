"""Direct ways for promises: all there are, none with a loop, the shortest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.scenario import (
    Brokers,
    Discipline,
    OutputPorts,
    Publications,
    Publishers,
    Scenario,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
    direct_paths,
    switch_links,
)
from triagemq.scenario.model import filled


def meshed(
    switches: int, links: Sequence[tuple[int, int]], *, fair: Sequence[int] = (), target: int = 0
) -> Scenario:
    """Switches with one-way links; the publisher is at switch 0, the subscriber at a port of `target`, the last one."""
    at = [source for source, _ in links] + [target]
    count = len(at)
    return Scenario.of(
        name="mesh",
        topics=Topics(("alarm",)),
        brokers=filled(Brokers, 1, name=("hall",)),
        switches=filled(Switches, switches, name=tuple(f"s{number:04d}" for number in range(switches))),
        ports=filled(
            OutputPorts,
            count,
            name=tuple(f"p{number:06d}" for number in range(count)),
            switch=at,
            bandwidth_bps=1e9,
            to_switch=[end for _, end in links] + [-1],
            discipline=[Discipline.FAIR if port in fair else Discipline.PRIORITY for port in range(count)],
        ),
        publishers=filled(Publishers, 1, name=("sensor",), broker=0, access_switch=0),
        publications=filled(Publications, 1, publisher=0, topic=0, rate_per_second=1.0, size_bytes=60.0),
        subscribers=filled(Subscribers, 1, name=("commander",), broker=0, port=count - 1),
        subscriptions=filled(Subscriptions, 1, subscriber=0, topic=0, utility_weight=1.0),
    )


def every_way(links: Sequence[tuple[int, int]], target: int) -> Iterator[tuple[int, ...]]:
    """By trying everything."""

    def further(switch: int, crossed: tuple[int, ...], path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if switch == target:
            yield (*path, len(links))
            return
        for port, (source, end) in enumerate(links):
            if source == switch and end not in crossed:
                yield from further(end, (*crossed, end), (*path, port))

    return further(0, (0,), ())


@st.composite
def networks(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]], int]:
    switches = draw(st.integers(1, 6))
    ends = st.tuples(st.integers(0, switches - 1), st.integers(0, switches - 1)).filter(
        lambda ab: ab[0] != ab[1]
    )
    links = draw(st.lists(ends, max_size=14)) if switches > 1 else []
    return switches, links, draw(st.integers(0, switches - 1))


@settings(max_examples=200, deadline=None)
@given(networks())
def test_every_way_without_a_loop_comes_once_and_the_shortest_first(
    network: tuple[int, list[tuple[int, int]], int],
) -> None:
    switches, links, target = network
    found = list(direct_paths(meshed(switches, links, target=target), 0, 0))
    assert found == sorted(every_way(links, target), key=lambda path: (len(path), path))


def test_the_tree_is_a_way_too_and_leads_away_from_the_brokers_only() -> None:
    scenario = meshed(3, [(0, 1), (1, 2)], target=2)
    tree = scenario.with_tables(
        switches=filled(Switches, 3, name=scenario.switches.name, fed_by_port=[-1, 0, 1]),
        ports=filled(OutputPorts, 3, name=scenario.ports.name, switch=[0, 1, 2], bandwidth_bps=1e9),
    )
    assert list(direct_paths(tree, 0, 0)) == [(0, 1, 2)]


def test_a_publisher_that_is_plugged_in_nowhere_has_no_way() -> None:
    scenario = meshed(1, [])
    nowhere = scenario.with_tables(publishers=filled(Publishers, 1, name=("sensor",), broker=0))
    assert list(direct_paths(scenario, 0, 0)) == [(0,)]
    assert list(direct_paths(nowhere, 0, 0)) == []


def test_no_way_leads_over_a_port_of_another_discipline() -> None:
    links = [(0, 2), (0, 1), (1, 2)]
    assert list(direct_paths(meshed(3, links, fair=[0], target=2), 0, 0)) == [(1, 2, 3)]
    assert list(direct_paths(meshed(3, links, fair=[3], target=2), 0, 0)) == []


def test_ways_are_looked_for_when_asked_for_so_that_a_mesh_of_100_switches_is_no_burden() -> None:
    links = [(a, b) for a in range(100) for b in range(100) if a != b and (b - a) % 100 in (1, 7, 93, 99)]
    scenario = meshed(100, links, target=53)
    paths = list(islice(direct_paths(scenario, 0, 0, switch_links(scenario)), 20))
    lengths = np.array([len(path) for path in paths])
    assert len(set(paths)) == 20
    assert (np.diff(lengths) >= 0).all()
