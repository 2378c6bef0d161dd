"""The network as known: switches, ports, links and hosts, and the paths through it. Plain data, no I/O.

All paths to a host are one tree with its switch as the root, so that packets that meet go on together and never in a
circle. Of equally short paths the one over the lowest switch and port is taken: the same network gives the same rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class PortId(NamedTuple):
    """A port of a switch (by datapath id)."""

    switch: int
    port: int


class HostPlace(NamedTuple):
    """Where an address lives, and its Ethernet address."""

    ethernet: str
    at: PortId


@dataclass(frozen=True, slots=True)
class Topology:
    """`ports` are those that are up; `links` has every link in both directions; `hosts` goes by IP address.

    Switches that no link joins may still see the same host, each over a bridge that is no switch of ours: a host has
    one place in each connected part of the network. `reserved` ports carry copies of multicast keys and nothing else:
    no path leads over them, and nothing is flooded there. A link parallel to a bridge that is no switch of ours would
    close a hidden circle.

    >>> both_ways = {PortId(1, 2): PortId(2, 1), PortId(2, 1): PortId(1, 2)}
    >>> ShortestPaths(Topology({1: frozenset({1, 2}), 2: frozenset({1, 2})}, both_ways)).towards(2)
    {2: (0, 0), 1: (2, 1)}
    """

    ports: Mapping[int, frozenset[int]] = field(default_factory=dict)
    links: Mapping[PortId, PortId] = field(default_factory=dict)
    hosts: Mapping[str, tuple[HostPlace, ...]] = field(default_factory=dict)
    reserved: frozenset[PortId] = frozenset()


class ShortestPaths:
    """Shortest paths through one network."""

    def __init__(self, network: Topology) -> None:
        self.network = network
        self._neighbours: dict[int, list[tuple[int, int, int]]] = {switch: [] for switch in network.ports}
        for here, there in network.links.items():
            if not network.reserved.isdisjoint((here, there)):
                continue
            if here.switch in self._neighbours and there.switch in self._neighbours:
                self._neighbours[here.switch].append((there.switch, there.port, here.port))
        for neighbours in self._neighbours.values():
            neighbours.sort()
        self._towards: dict[int, dict[int, tuple[int, int]]] = {}
        self._tree: dict[int, frozenset[int]] | None = None
        self._along_tree: dict[int, dict[int, int]] = {}

    def towards(self, target: int) -> Mapping[int, tuple[int, int]]:
        """For every switch that can reach `target`: the port to take (0 at the target) and the number of links left."""
        if target not in self._towards:
            self._towards[target] = self._search(target)
        return self._towards[target]

    def edge_ports(self, switch: int) -> frozenset[int]:
        """The ports that are up, lead to no other switch and are for everybody."""
        network = self.network
        return frozenset(
            port
            for port in network.ports[switch]
            if (at := PortId(switch, port)) not in network.links and at not in network.reserved
        )

    def flood_ports(self, switch: int) -> frozenset[int]:
        """The ports over which a packet to all leaves: all edges, and the links of a tree over all switches."""
        return self.edge_ports(switch) | self._tree_ports(switch)

    def tree_port(self, switch: int, target: int) -> int:
        """Where a packet to all leaves a switch towards another of the same part (0 at the target)."""
        if target not in self._along_tree:
            ports = {target: 0}
            frontier = [target]
            for here in frontier:
                for port in self._tree_ports(here):
                    there = self.network.links[PortId(here, port)]
                    if there.switch not in ports:
                        ports[there.switch] = there.port
                        frontier.append(there.switch)
            self._along_tree[target] = ports
        return self._along_tree[target][switch]

    def _tree_ports(self, switch: int) -> frozenset[int]:
        if self._tree is None:
            self._tree = self._span()
        return self._tree[switch]

    def _search(self, target: int) -> dict[int, tuple[int, int]]:
        """Breadth first from the target, so that every switch learns of the neighbour that is nearest to it."""
        if target not in self._neighbours:
            return {}
        found = {target: (0, 0)}
        frontier = [target]
        distance = 0
        while frontier:
            distance += 1
            nearer = set(frontier)
            frontier = []
            # Switches one link farther than those of the last round.
            for switch in sorted({there for here in nearer for there, _, _ in self._neighbours[here]}):
                if switch in found:
                    continue
                port = next((own for there, _, own in self._neighbours[switch] if there in nearer), None)
                if port is not None:
                    found[switch] = (port, distance)
                    frontier.append(switch)
        return found

    def _span(self) -> dict[int, frozenset[int]]:
        """Ports of the links of a spanning tree of every connected part, both ends of each."""
        tree: dict[int, set[int]] = {switch: set() for switch in self._neighbours}
        seen: set[int] = set()
        for root in sorted(self._neighbours):
            if root not in seen:
                seen |= self.towards(root).keys()
                for switch, (port, hops) in self.towards(root).items():
                    if hops:
                        there = self.network.links[PortId(switch, port)]
                        tree[switch].add(port)
                        tree[there.switch].add(there.port)
        return {switch: frozenset(ports) for switch, ports in tree.items()}
