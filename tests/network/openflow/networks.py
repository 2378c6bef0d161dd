"""Networks for pure tests, and random ones."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from triagemq.network.openflow.rule_sets import FlowRules, LimitedFlow
from triagemq.network.openflow.rules import RateLimit
from triagemq.network.openflow.topology import HostPlace, PortId, Topology
from triagemq.plan.dataplane import FlowKey, SetFlow

HOST_PORT = 100
"""Hosts are at this port and the next of their switch; links have lower ones."""


def make_network(
    switches: int, joined: list[tuple[int, int]], hosts: dict[str, tuple[int, int]] | None = None
) -> Topology:
    """Switches 1, 2, ...; the n-th pair of `joined` uses port n at both its ends; hosts by address: switch, port."""
    links: dict[PortId, PortId] = {}
    for number, (one, other) in enumerate(joined, 1):
        links[PortId(one, number)] = PortId(other, number)
        links[PortId(other, number)] = PortId(one, number)
    ports = {
        switch: frozenset([HOST_PORT, HOST_PORT + 1, *(here.port for here in links if here.switch == switch)])
        for switch in range(1, switches + 1)
    }
    placed = {
        address: (HostPlace(f"02:00:00:00:{switch:02x}:{port:02x}", PortId(switch, port)),)
        for address, (switch, port) in (hosts or {}).items()
    }
    return Topology(ports, links, placed)


TOPIC = FlowKey("239.1.2.3", 5000)


def edge(switch: int, port: int = HOST_PORT) -> str:
    """The name of a port to hosts in plans."""
    return f"edge {switch} {port}"


def edges(network: Topology) -> dict[str, PortId]:
    """The ports to hosts of a network, as plans call them."""
    return {
        edge(switch, port): PortId(switch, port)
        for switch in network.ports
        for port in (HOST_PORT, HOST_PORT + 1)
    }


def at_edges(key: FlowKey, switches: Iterable[int], priority_class: int = 0) -> FlowRules:
    """Events of a topic leave by the first port to hosts of some switches; they enter by the second."""
    return tuple(
        LimitedFlow(SetFlow(key, edge(switch), 7, priority_class, 0.0)) for switch in sorted(switches)
    )


def topic(limit: RateLimit | None = None, **classes: int) -> tuple[LimitedFlow, ...]:
    """The flows of a multicast key, by port."""
    return tuple(LimitedFlow(SetFlow(TOPIC, port, 7, rank, 0.0), limit) for port, rank in classes.items())


BROKER = "10.0.0.1"
LINE = make_network(
    3,
    [(1, 2), (2, 3)],
    {BROKER: (1, HOST_PORT), "10.0.0.2": (3, HOST_PORT), "fd00::3": (3, HOST_PORT + 1)},
)


@st.composite
def networks(draw: st.DrawFn) -> Topology:
    """Up to five switches with any links between them (also two between the same), and some hosts."""
    switches = draw(st.integers(1, 5))
    pairs = [(one, other) for one in range(1, switches + 1) for other in range(one + 1, switches + 1)]
    joined = draw(st.lists(st.sampled_from(pairs), max_size=8)) if pairs else []
    places = st.tuples(st.integers(1, switches), st.integers(HOST_PORT, HOST_PORT + 1))
    hosts = draw(st.lists(places, unique=True, min_size=2, max_size=2 * switches))
    return make_network(
        switches, joined, {f"10.0.0.{number}": place for number, place in enumerate(hosts, 1)}
    )


@st.composite
def topics_of(draw: st.DrawFn, network: Topology) -> dict[FlowKey, FlowRules]:
    keys = st.builds(FlowKey, st.sampled_from(["239.1.2.3", "ff15::7"]), st.integers(2000, 2002))
    switches = st.sets(st.sampled_from(sorted(network.ports)), min_size=1)
    wanted = draw(st.dictionaries(keys, st.tuples(switches, st.integers(0, 6)), max_size=4))
    return {key: at_edges(key, at, priority_class) for key, (at, priority_class) in wanted.items()}
