"""The packets with which a set of rules is tried in the table model, and where each must come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.network.openflow.networks import HOST_PORT
from tests.network.openflow.table_model import Probe

from triagemq.network.openflow.rule_sets import FlowRules, address_fields
from triagemq.network.openflow.rules import class_mark
from triagemq.network.openflow.topology import PortId, ShortestPaths
from triagemq.plan.dataplane import FlowKey


def all_probes(
    routes: ShortestPaths,
    topics: Mapping[FlowKey, FlowRules] | None = None,
    places: Mapping[str, PortId] | None = None,
) -> Iterator[Probe]:
    """Everything that must pass: events of topics, packets to each host from every switch, and packets to all."""
    for key, flows in (topics or {}).items():
        for each in flows:
            at = (places or {}).get(each.flow.port)
            if at is not None and at.switch in routes.network.ports:
                packet = {**address_fields(key.address), "udp_dst": key.udp_port, "ip_dscp": 0}
                mark = class_mark(each.flow.priority_class)
                yield Probe(packet, PortId(at.switch, HOST_PORT + 1), frozenset({at}), mark)
    edges = {
        switch: [PortId(switch, port) for port in sorted(routes.edge_ports(switch))]
        for switch in routes.network.ports
    }
    for ethernet, home in sorted({host for hosts in routes.network.hosts.values() for host in hosts}):
        for switch in routes.towards(home.switch):
            entry = next((each for each in edges[switch] if each != home), None)
            if entry is not None:
                yield Probe({"eth_type": 0, "eth_dst": ethernet}, entry, frozenset({home}))
    for switch, ports in edges.items():
        together = routes.towards(switch)
        for entry in ports[:1]:
            others = frozenset(each for near in together for each in edges[near] if each != entry)
            yield Probe({"eth_type": 0, "eth_dst": "ff:ff:ff:ff:ff:ff"}, entry, others)
