"""The packets with which a set of rules is tried in the table model, and where each must come out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.network.openflow.table_model import Probe

from triagemq.network.openflow.rule_sets import LimitedFlow, address_fields
from triagemq.network.openflow.rules import CONTROL_MARK, class_mark
from triagemq.network.openflow.topology import PortId, Routes


def all_probes(
    routes: Routes, flows: Mapping[str, Sequence[LimitedFlow]], sources: Iterable[str]
) -> Iterator[Probe]:
    """Everything that must pass: flows, packets to each host from every switch, and packets to all."""
    sources = list(sources)
    for address, some in flows.items():
        yield from flow_probes(routes, address, some, sources)
    edges = {
        switch: [PortId(switch, port) for port in sorted(routes.edge_ports(switch))]
        for switch in routes.network.ports
    }
    for ethernet, home in sorted({host for hosts in routes.network.hosts.values() for host in hosts}):
        for entry in _entries(routes, edges, home):
            yield Probe({"eth_type": 0, "eth_dst": ethernet}, entry, frozenset({home}))
    for switch, ports in edges.items():
        together = routes.towards(switch)
        for entry in ports[:1]:
            others = frozenset(each for near in together for each in edges[near] if each != entry)
            yield Probe({"eth_type": 0, "eth_dst": "ff:ff:ff:ff:ff:ff"}, entry, others)


def flow_probes(
    routes: Routes, address: str, flows: Sequence[LimitedFlow], sources: Iterable[str]
) -> Iterator[Probe]:
    """A PUBLISH message and a control packet of every flow to one address, from every source that is known."""
    if not flows:
        return
    edges = {
        switch: [PortId(switch, port) for port in sorted(routes.edge_ports(switch))]
        for switch in routes.network.ports
    }
    origins = [at for source in sources for at in routes.places(source)]
    for ethernet, home in routes.network.hosts.get(address, ()):
        part = routes.towards(home.switch)
        entries = [at for at in origins if at.switch in part] or list(_entries(routes, edges, home))
        for entry in entries:
            if entry == home:
                continue
            for each in flows:
                packet = {
                    **address_fields(address),
                    "eth_dst": ethernet,
                    "udp_dst": each.flow.key.udp_port,
                    "ip_dscp": 0,
                }
                leaves = frozenset({home})
                yield Probe(packet, entry, leaves, class_mark(each.flow.priority_class))
                yield Probe({**packet, "ip_dscp": CONTROL_MARK}, entry, leaves, CONTROL_MARK)


def _entries(routes: Routes, edges: Mapping[int, Sequence[PortId]], home: PortId) -> Iterator[PortId]:
    """One edge port of each switch that can reach a host, but not the host's own."""
    for switch in routes.towards(home.switch):
        entry = next((each for each in edges[switch] if each != home), None)
        if entry is not None:
            yield entry
