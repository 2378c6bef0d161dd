"""From a network and the flows of a plan to the rules of every switch, and the book in which they stand. No I/O.

Every switch carries all of a pipeline's parts: discovery, known hosts, marks and ways of flows, ways of everything
else. A switch that loses its controller goes on with them; hosts find each other (ARP, IPv6 neighbours) without it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from triagemq.network.openflow.rules import (
    CONTROL_MARK,
    CONTROLLER,
    Kind,
    Match,
    RateLimit,
    Rule,
    RuleKey,
    class_mark,
    matching,
)
from triagemq.network.openflow.topology import HostPlace, Routes, Topology
from triagemq.plan import FlowKey, SetFlow

LINK_DISCOVERY = 0x88CC
ARP = 0x0806
IPV4 = 0x0800
IPV6 = 0x86DD
UDP = 17


_Rules = dict[int, dict[RuleKey, Rule]]


@dataclass(frozen=True, slots=True)
class LimitedFlow:
    """A flow of a plan, and the rate limit it has, if any."""

    flow: SetFlow[FlowKey]
    limit: RateLimit | None = None


def _rule(kind: Kind, match: Match = (), **actions: object) -> Rule:
    return Rule(kind.table, kind.priority, match, **actions)  # type: ignore[arg-type]


DISCOVERY_RULE = _rule(Kind.DISCOVERY, matching(eth_type=LINK_DISCOVERY), outputs=(CONTROLLER,))
"""What a switch needs first: without it no link is found."""

_LEARN_RULE = _rule(Kind.LEARN, outputs=(CONTROLLER,), next_table=1)


def base_rules(routes: Routes) -> _Rules:
    """All rules but those of flows."""
    network = routes.network
    rules: dict[int, list[Rule]] = {
        switch: [
            DISCOVERY_RULE,
            _LEARN_RULE,
            _rule(Kind.FLOOD, outputs=tuple(sorted(routes.flood_ports(switch)))),
            *(
                _rule(Kind.LINK, matching(in_port=here.port), next_table=1)
                for here in network.links
                if here.switch == switch
            ),
        ]
        for switch in network.ports
    }
    places: set[HostPlace] = set()
    for address, hosts in network.hosts.items():
        for host in hosts:
            if host.at.switch in rules:
                places.add(host)
                rules[host.at.switch] += known_host(address, host.ethernet, host.at.port)
    for ethernet, (home, home_port) in sorted(places):
        for switch, (port, hops) in routes.towards(home).items():
            at_home = switch == home
            rules[switch].append(
                _rule(
                    Kind.UNICAST,
                    matching(eth_dst=ethernet),
                    outputs=(home_port if at_home else port,),
                    hops=hops,
                    first_output=home_port if at_home else routes.tree_port(switch, home),
                )
            )
    return {switch: {rule.key: rule for rule in some} for switch, some in rules.items()}


def known_host(address: str, ethernet: str, port: int) -> list[Rule]:
    """Rules that let a host's packets by without asking; they also tell a new controller where the host is.

    >>> [str(rule) for rule in known_host("10.0.0.2", "02:00:00:00:00:02", 3)]
    ['[table 0 priority 300 eth_src=02:00:00:00:00:02,eth_type=2048,in_port=3,ipv4_src=10.0.0.2]',
     '[table 0 priority 300 arp_spa=10.0.0.2,eth_src=02:00:00:00:00:02,eth_type=2054,in_port=3]']
    """
    if ":" in address:
        matches = [matching(in_port=port, eth_src=ethernet, eth_type=IPV6, ipv6_src=address)]
    else:
        matches = [
            matching(in_port=port, eth_src=ethernet, eth_type=IPV4, ipv4_src=address),
            matching(in_port=port, eth_src=ethernet, eth_type=ARP, arp_spa=address),
        ]
    return [_rule(Kind.HOST, match, next_table=1) for match in matches]


def address_rules(
    routes: Routes,
    address: str,
    flows: Collection[LimitedFlow],
    sources: Iterable[str] = (),
) -> _Rules:
    """The rules of all flows to one subscriber's address; none while it is not known where the subscriber is.

    They are on the switches between the `sources` (addresses of gateways) and the subscriber; on all, when it is not
    known where a source is. Limits act where flows enter the network, or at the subscriber's switch.
    """
    rules: _Rules = {}
    for home in routes.places(address) if flows else ():
        towards = routes.towards(home.switch)
        entries = _entries(routes, towards, sources)
        if entries is None:
            switches, limiting = set(towards), {home.switch}
        else:
            switches = {switch for entry in entries for switch in routes.way(entry, home.switch)}
            limiting = entries
        for switch in sorted(switches):
            port, hops = towards[switch]
            some = _rules_at(address, flows, home.port if switch == home.switch else port, hops)
            if switch not in limiting:
                some = [replace(rule, limit=None) for rule in some]
            rules[switch] = {rule.key: rule for rule in some}
    return rules


def _rules_at(address: str, flows: Collection[LimitedFlow], output: int, hops: int) -> list[Rule]:
    control = _rule(
        Kind.CONTROL,
        matching(**address_fields(address), ip_dscp=CONTROL_MARK),
        outputs=(output,),
        hops=hops,
    )
    return [
        control,
        *(
            _rule(
                Kind.FLOW,
                matching(**address_fields(address), udp_dst=each.flow.key.udp_port),
                mark=class_mark(each.flow.priority_class),
                limit=each.limit,
                outputs=(output,),
                hops=hops,
                rank=each.flow.priority_class,
            )
            for each in flows
        ),
    ]


def address_fields(address: str) -> Mapping[str, int | str]:
    """What UDP packets to an address have: fields in the names of OpenFlow."""
    if ":" in address:
        return {
            "eth_type": IPV6,
            "ip_proto": UDP,
            "ipv6_dst": str(ipaddress.IPv6Address(address)),
        }
    return {"eth_type": IPV4, "ip_proto": UDP, "ipv4_dst": address}


def _entries(routes: Routes, part: Mapping[int, object], sources: Iterable[str]) -> set[int] | None:
    """The switches of a part of the network at which packets of flows come in; None if that is not known."""
    entries: set[int] = set()
    sources = list(sources)
    for source in sources:
        here = {at.switch for at in routes.places(source) if at.switch in part}
        if not here:
            return None
        entries |= here
    return entries if sources else None


class RuleBook:
    """`wanted` are the rules by switch and key. A change of flows costs as much as its own addresses have flows."""

    def __init__(self, sources: Collection[str]) -> None:
        self.sources = sources
        self.network = Topology()
        self.routes = Routes(self.network)
        self.wanted: _Rules = {}
        self.flows: dict[str, dict[FlowKey, LimitedFlow]] = {}
        """By address, as it is written shortest."""
        self._rules_of: dict[str, _Rules] = {}

    def fit(self, network: Topology) -> None:
        """Make all rules anew for a network."""
        self.network, self.routes = network, Routes(network)
        self.wanted = base_rules(self.routes)
        self._rules_of = {address: self._rules(address) for address in self.flows}
        for some in self._rules_of.values():
            for switch, rules in some.items():
                self.wanted[switch].update(rules)

    def change(
        self, flows: Mapping[FlowKey, LimitedFlow | None]
    ) -> tuple[Mapping[FlowKey, LimitedFlow | None], Mapping[int, Collection[RuleKey]]]:
        """Set flows, and remove those that are None; gives the change that undoes this, and what it touches.

        Touched are rules, by switch and key: those that were there and those that are there now.
        """
        undoing: dict[FlowKey, LimitedFlow | None] = {}
        addresses = set()
        for key, flow in flows.items():
            address = str(ipaddress.ip_address(key.address))
            addresses.add(address)
            there = self.flows.setdefault(address, {})
            undoing[key] = there.get(key)
            if flow is None:
                there.pop(key, None)
            else:
                there[key] = flow
        touched: dict[int, set[RuleKey]] = {}
        for address in addresses:
            for switch, rules in self._rules_of.pop(address, {}).items():
                touched.setdefault(switch, set()).update(rules)
                for rule in rules:
                    del self.wanted[switch][rule]
            if not self.flows[address]:
                del self.flows[address]
                continue
            self._rules_of[address] = self._rules(address)
            for switch, rules in self._rules_of[address].items():
                touched.setdefault(switch, set()).update(rules)
                self.wanted[switch].update(rules)
        return undoing, touched

    def _rules(self, address: str) -> _Rules:
        return address_rules(self.routes, address, self.flows[address].values(), self.sources)
