"""Where events travel: the paths between brokers, the output ports from the broker to each subscriber, and for promises
the direct paths from publishers to subscribers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario.kinds import Discipline
from triagemq.scenario.model import Floats, Integers, Scenario


@dataclass(frozen=True, slots=True, eq=False)
class BrokerRoutes:
    """Shortest paths between brokers, fewest hops first, then the least propagation delay.

    `next_link[a, b]` is the link that broker a uses towards broker b, -1 where a is b or no path exists.
    `reach[a, b]` is the share of events that survives the links of the path, 0 where no path exists.
    """

    next_link: Integers
    hops: Integers
    reach: Floats

    def path(self, source: int, target: int, link_target: Integers) -> list[int]:
        """The links from one broker to another, in order."""
        links = []
        while source != target:
            link = int(self.next_link[source, target])
            links.append(link)
            source = int(link_target[link])
        return links


def broker_routes(scenario: Scenario) -> BrokerRoutes:
    """Floyd and Warshall over (hops, propagation); ties go to the lower link number."""
    count = len(scenario.brokers)
    links = scenario.broker_links
    hops = np.full((count, count), np.iinfo(np.int32).max // 4, dtype=np.int64)
    delay = np.full((count, count), np.inf)
    reach = np.zeros((count, count))
    next_link = np.full((count, count), -1, dtype=np.int32)
    everyone = np.arange(count)
    hops[everyone, everyone], delay[everyone, everyone], reach[everyone, everyone] = 0, 0.0, 1.0
    for link in range(len(links)):
        source, target = int(links.source_broker[link]), int(links.target_broker[link])
        if (1, links.propagation_seconds[link]) < (hops[source, target], delay[source, target]):
            hops[source, target] = 1
            delay[source, target] = links.propagation_seconds[link]
            reach[source, target] = 1 - links.error_rate[link]
            next_link[source, target] = link
    for middle in range(count):
        via_hops = hops[:, middle, None] + hops[None, middle, :]
        via_delay = delay[:, middle, None] + delay[None, middle, :]
        better = (via_hops < hops) | ((via_hops == hops) & (via_delay < delay))
        via_reach = reach[:, middle, None] * reach[None, middle, :]
        hops = np.where(better, via_hops, hops)
        delay = np.where(better, via_delay, delay)
        reach = np.where(better, via_reach, reach)
        next_link = np.where(better, next_link[:, middle, None], next_link)
    return BrokerRoutes(next_link, hops.astype(np.int32), reach)


def port_paths(scenario: Scenario) -> Integers:
    """Per port, the ports that an event to it crosses, from the broker down and the port itself last.

    One row per port, padded with -1 in front, so that the last column is the port and the columns before it
    are the ports upstream.
    """
    above = scenario.switches.fed_by_port[scenario.ports.switch]
    columns: list[NDArray[np.int32]] = [np.arange(len(scenario.ports), dtype=np.int32)]
    while True:
        upstream = np.where(columns[0] >= 0, np.append(above, np.int32(-1))[columns[0]], np.int32(-1))
        if (upstream < 0).all() or len(columns) > len(scenario.switches):
            return np.stack(columns, axis=1)
        columns.insert(0, upstream.astype(np.int32))


def port_depths(scenario: Scenario) -> Integers:
    """How many ports lie before each port on the path from the broker."""
    return np.asarray((port_paths(scenario) >= 0).sum(axis=1) - 1, dtype=np.int32)


def port_hops(scenario: Scenario) -> Integers:
    """Per port, the ports that an event to it crosses, hop by hop from the broker, padded with -1 behind.

    A trunk stands in the same column for everything below it, however deep that lies.
    """
    return hop_by_hop(port_paths(scenario))


def hop_by_hop(paths: Integers) -> Integers:
    """Paths that are padded in front, padded behind.

    >>> hop_by_hop(np.array([[-1, 4], [2, 3]], dtype=np.int32)).tolist()
    [[4, -1], [2, 3]]
    """
    length = paths.shape[1]
    column = np.arange(length) + (paths < 0).sum(axis=1)[:, None]
    padded = np.concatenate([paths, np.full_like(paths, -1)], axis=1)
    return np.asarray(np.take_along_axis(padded, column, axis=1), dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class SwitchLinks:
    """Per switch, its links to and from other switches: the output port, and the switch at the other end."""

    leaving: tuple[tuple[tuple[int, int], ...], ...]
    arriving: tuple[tuple[tuple[int, int], ...], ...]


def switch_links(scenario: Scenario) -> SwitchLinks:
    """The links that promises may take, in the order of their ports: of the tree, and others.

    A port of another discipline than priority keeps no promise, and is left out.
    """
    ports = scenario.ports
    leaving: list[list[tuple[int, int]]] = [[] for _ in range(len(scenario.switches))]
    arriving: list[list[tuple[int, int]]] = [[] for _ in range(len(scenario.switches))]
    next_switch = ports.to_switch.copy()
    fed = np.flatnonzero(scenario.switches.fed_by_port >= 0)
    next_switch[scenario.switches.fed_by_port[fed]] = fed
    usable = (next_switch >= 0) & (ports.discipline == Discipline.PRIORITY)
    for port in np.flatnonzero(usable).tolist():
        source, target = int(ports.switch[port]), int(next_switch[port])
        leaving[source].append((port, target))
        arriving[target].append((port, source))
    return SwitchLinks(tuple(map(tuple, leaving)), tuple(map(tuple, arriving)))


def direct_paths(
    scenario: Scenario, publisher: int, subscriber: int, links: SwitchLinks | None = None
) -> Iterator[tuple[int, ...]]:
    """The ports of every path from a publisher's access switch to a subscriber, the subscriber's own port last.

    Fewest ports first, then the lower port numbers; no path crosses a switch twice. Each is searched for when it is
    requested; callers with many requests pass `links`.
    """
    source, last = (
        int(scenario.publishers.access_switch[publisher]),
        int(scenario.subscribers.port[subscriber]),
    )
    if source < 0 or last < 0 or scenario.ports.discipline[last] != Discipline.PRIORITY:
        return
    links = switch_links(scenario) if links is None else links
    target = int(scenario.ports.switch[last])
    waiting: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = [(0, (), (source,))]
    while waiting:
        _, path, switches = heapq.heappop(waiting)
        if switches[-1] == target:
            yield (*path, last)
            continue
        # Every step that is taken leads on to a path: its length is known before it is followed.
        left = _distances(links, target, switches)
        for port, following in links.leaving[switches[-1]]:
            if following in left:
                length = len(path) + 1 + left[following]
                heapq.heappush(waiting, (length, (*path, port), (*switches, following)))


def _distances(links: SwitchLinks, target: int, crossed: tuple[int, ...]) -> dict[int, int]:
    """How many ports lead from each switch to the target, by switches that are not crossed yet."""
    distance, front = {target: 0}, [target]
    for following in front:
        for _, switch in links.arriving[following]:
            if switch not in distance and switch not in crossed:
                distance[switch] = distance[following] + 1
                front.append(switch)
    return distance
