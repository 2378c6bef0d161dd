"""From a network and the flows of a plan to the rules of every switch, and the book in which they stand. No I/O.

Every switch carries all of a pipeline's parts: discovery, known hosts, copies of multicast keys, paths of everything
else. A switch that loses its controller goes on with them; hosts find each other (ARP, IPv6 neighbours) without it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from triagemq.network.openflow.rules import (
    CONTROLLER,
    Kind,
    Match,
    OutputAction,
    RateLimit,
    Rule,
    RuleKey,
    class_mark,
    matching,
)
from triagemq.network.openflow.topology import HostPlace, PortId, ShortestPaths, Topology
from triagemq.plan.dataplane import FlowKey, SetFlow
from triagemq.topic_codes.address import CODES, Prefix

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


FlowRules = tuple[LimitedFlow, ...]
"""The flows of a multicast key, one for each of its ports; none for a key that goes."""


_Owner = FlowKey | None
"""Whose rules some are: a multicast key's, or those of all prefixes together, which cover each other."""


def _rule(kind: Kind, match: Match = (), **actions: object) -> Rule:
    return Rule(kind.table, kind.priority, match, **actions)  # type: ignore[arg-type]


DISCOVERY_RULE = _rule(Kind.DISCOVERY, matching(eth_type=LINK_DISCOVERY), copies=(OutputAction(CONTROLLER),))
"""What a switch needs first: without it no link is found."""

_LEARN_RULE = _rule(Kind.LEARN, copies=(OutputAction(CONTROLLER),), next_table=1)


def base_rules(routes: ShortestPaths) -> _Rules:
    """All rules but those of flows."""
    network = routes.network
    rules: dict[int, list[Rule]] = {
        switch: [
            DISCOVERY_RULE,
            _LEARN_RULE,
            _rule(Kind.FLOOD, copies=tuple(map(OutputAction, sorted(routes.flood_ports(switch))))),
            *(
                _rule(Kind.LINK, matching(in_port=here.port), next_table=1)
                for here in sorted({*network.links, *network.reserved})
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
                    copies=(OutputAction(home_port if at_home else port),),
                    hops=hops,
                    first_output=home_port if at_home else routes.tree_port(switch, home),
                )
            )
    return {switch: {rule.key: rule for rule in some} for switch, some in rules.items()}


def known_host(address: str, ethernet: str, port: int) -> list[Rule]:
    """Rules that pass a host's packets without the controller; a new controller reads from them where the host is.

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


def topic_rules(
    routes: ShortestPaths,
    key: FlowKey,
    flows: Collection[LimitedFlow],
    places: Mapping[str, PortId],
    entries: Collection[PortId] = (),
) -> _Rules:
    """The rules of a multicast key: on each switch copies leave by the ports that flows name, marked by their classes.

    Limits act on what hosts send; what comes from another switch has met them there. Ports are where `places` says.

    Where flows have a source, copies are made of what comes from its address, at one of its `entries` (anywhere if
    there are none) or from another switch. All else to the key goes nowhere, on every switch: none passes on what
    pretends to be the source's. What comes from a source that has moved to a switch without copies is flooded until
    there is a plan for it.
    """
    copies: dict[int, list[tuple[OutputAction, LimitedFlow]]] = {}
    for each in flows:
        at = places.get(each.flow.port)
        if at is not None and at.switch in routes.network.ports:
            copy = OutputAction(at.port, class_mark(each.flow.priority_class))
            copies.setdefault(at.switch, []).append((copy, each))
    outputs = {switch: [copy for copy, _ in some] for switch, some in copies.items()}
    fields = {**address_fields(key.address), "udp_dst": key.udp_port}
    source = _source_of(flows)
    rules: _Rules = {}
    for switch, some in copies.items():
        some.sort(key=lambda one: one[0].port)
        limits = [each.limit for _, each in some if each.limit is not None]
        actions = {
            "copies": tuple(copy for copy, _ in some),
            "hops": _switches_behind(routes, outputs, switch),
            "rank": max(each.flow.priority_class for _, each in some),
        }
        limit = limits[0] if limits else None
        made = [
            _rule(Kind.FLOW, matching(**fields, **entry), **actions, limit=limit)
            for entry in _entry_fields(source, entries, switch)
        ]
        if limits or source:
            made += [
                _rule(Kind.FLOW_FROM_LINK, matching(**fields, **_from(source), in_port=here.port), **actions)
                for here in routes.network.links
                if here.switch == switch
            ]
        rules[switch] = {rule.key: rule for rule in made}
    if source and rules:
        foreign = _rule(Kind.FOREIGN, matching(**fields), hops=len(routes.network.ports))
        strayed = any(at.switch not in copies for at in entries)
        for switch in copies if strayed else routes.network.ports:
            rules.setdefault(switch, {})[foreign.key] = foreign
    return rules


def _source_of(flows: Iterable[LimitedFlow]) -> str:
    """The address of a multicast key's publisher, as hosts are known; "" for any."""
    source = next((each.flow.source for each in flows), "")
    return str(ipaddress.ip_address(source)) if source else ""


def _from(source: str) -> dict[str, int | str]:
    """What packets of a source have."""
    if not source:
        return {}
    return {"ipv6_src" if ":" in source else "ipv4_src": source}


def _entry_fields(source: str, entries: Collection[PortId], switch: int) -> list[dict[str, int | str]]:
    """How packets of a source are known where they enter a switch; none if they enter at another."""
    if not entries:
        return [_from(source)]
    return [{**_from(source), "in_port": at.port} for at in entries if at.switch == switch]


def prefix_rules(
    routes: ShortestPaths, flows: Mapping[FlowKey, Collection[LimitedFlow]], places: Mapping[str, PortId]
) -> _Rules:
    """The rules of prefixes of topics' codes; none if there are no prefixes.

    A switch takes the rule with the longest prefix that fits: it has the ports of all that fit, each in the class of
    the longest. What fits none goes nowhere, and is counted by a rule of its own, on every switch; that is put last.
    """
    if not flows:
        return {}
    prefixes = {key: Prefix.parse(key.address) for key in flows}
    there = {name: at for name, at in places.items() if at.switch in routes.network.ports}
    classes = {
        key: {there[one.flow.port]: one.flow.priority_class for one in some if one.flow.port in there}
        for key, some in flows.items()
    }
    unmatched = _rule(
        Kind.UNMATCHED,
        matching(eth_type=IPV6, ip_proto=UDP, ipv6_dst=_masked(f"{CODES:x}::", 16)),
        hops=len(routes.network.ports),
    )
    rules = {switch: {unmatched.key: unmatched} for switch in routes.network.ports}
    for key, prefix in prefixes.items():
        at_ports: dict[PortId, int] = {}
        covering = (each for each in flows if each.udp_port == key.udp_port and prefixes[each].covers(prefix))
        for other in sorted(covering, key=lambda each: prefixes[each].length):
            at_ports |= classes[other]
        copies: dict[int, list[OutputAction]] = {}
        for at in sorted(at_ports):
            copies.setdefault(at.switch, []).append(OutputAction(at.port, class_mark(at_ports[at])))
        for switch in {at.switch for at in classes[key]}:
            rule = Rule(
                Kind.PREFIX.table,
                Kind.PREFIX.priority + prefix.length,
                matching(
                    eth_type=IPV6,
                    ip_proto=UDP,
                    ipv6_dst=_masked(prefix.address, prefix.length),
                    udp_dst=key.udp_port,
                ),
                copies=tuple(copies[switch]),
                hops=_switches_behind(routes, copies, switch),
            )
            rules[switch][rule.key] = rule
    return rules


def _masked(address: str, length: int) -> str:
    """A prefix as a switch gives it back: with a mask where not all bits count.

    >>> _masked("ff1e:8000::", 20)
    'ff1e:8000::/ffff:f000::'
    """
    if length == 128:
        return address
    return f"{address}/{ipaddress.IPv6Address((1 << 128) - (1 << 128 - length))}"


def _switches_behind(
    routes: ShortestPaths, copies: Mapping[int, Collection[OutputAction]], switch: int
) -> int:
    """How many switches copies pass after this one, at most."""
    seen, frontier, count = {switch}, [switch], -1
    while frontier:
        count += 1
        reached = {
            there.switch
            for here in frontier
            for copy in copies.get(here, ())
            if (there := routes.network.links.get(PortId(here, copy.port))) is not None
        }
        frontier = sorted(each for each in reached - seen if each in copies)
        seen |= reached
    return count


def address_fields(address: str) -> Mapping[str, int | str]:
    """What UDP packets to an address have: fields in the names of OpenFlow."""
    if ":" in address:
        return {
            "eth_type": IPV6,
            "ip_proto": UDP,
            "ipv6_dst": str(ipaddress.IPv6Address(address)),
        }
    return {"eth_type": IPV4, "ip_proto": UDP, "ipv4_dst": address}


class RuleBook:
    """`wanted` are the rules by switch and key. A change of flows costs as much as its own keys have flows."""

    def __init__(self) -> None:
        self.network = Topology()
        self.routes = ShortestPaths(self.network)
        self.wanted: _Rules = {}
        self.topics: dict[FlowKey, FlowRules] = {}
        self.places: Mapping[str, PortId] = {}
        """Where the ports of a plan are, as far as is known."""
        self._rules_of: dict[_Owner, _Rules] = {}
        # Where publishers of multicast keys were found.
        self._found: dict[str, tuple[HostPlace, ...]] = {}

    def fit(self, network: Topology, places: Mapping[str, PortId] | None = None) -> None:
        """Make all rules anew for a network."""
        self.network, self.routes = network, ShortestPaths(network)
        self.places = self.places if places is None else places
        self.wanted = base_rules(self.routes)
        self._found = {source: self._found[source] for source in self.topic_sources & self._found.keys()}
        self._rules_of = {owner: self._rules(owner) for owner in dict.fromkeys(map(_owner_of, self.topics))}
        for some in self._rules_of.values():
            for switch, rules in some.items():
                self.wanted[switch].update(rules)

    def change(
        self, flows: Mapping[FlowKey, FlowRules]
    ) -> tuple[Mapping[FlowKey, FlowRules], Mapping[int, Collection[RuleKey]]]:
        """Set the flows of keys; gives the change of flows that undoes this, and what is touched.

        Touched are rules, by switch and key: those that were there and those that are there now.
        """
        undoing = {key: self.topics.pop(key, ()) for key in flows}
        self.topics |= {key: some for key, some in flows.items() if some}
        touched: dict[int, set[RuleKey]] = {}
        for owner in dict.fromkeys(map(_owner_of, flows)):
            for switch, rules in self._rules_of.pop(owner, {}).items():
                touched.setdefault(switch, set()).update(rules)
                for rule in rules:
                    del self.wanted[switch][rule]
            self._rules_of[owner] = self._rules(owner)
            for switch, rules in self._rules_of[owner].items():
                touched.setdefault(switch, set()).update(rules)
                self.wanted[switch].update(rules)
        return undoing, touched

    @property
    def topic_sources(self) -> set[str]:
        """The addresses of the publishers of multicast keys."""
        return {source for flows in self.topics.values() if (source := _source_of(flows))}

    def _entries_of(self, source: str) -> list[PortId]:
        """Where a publisher is. Another device that claims its address elsewhere does not take its place while the port
        where it was found is up."""
        now, before = self.network.hosts.get(source, ()), self._found.get(source, ())
        is_there = any(host.at.port in self.network.ports.get(host.at.switch, ()) for host in before)
        if not is_there or {host.ethernet for host in now} & {host.ethernet for host in before}:
            self._found[source] = before = now
        return [host.at for host in before]

    def _rules(self, owner: _Owner) -> _Rules:
        if owner is None:
            prefixes = {key: flows for key, flows in self.topics.items() if key.is_prefix}
            return prefix_rules(self.routes, prefixes, self.places)
        flows = self.topics.get(owner, ())
        entries = self._entries_of(_source_of(flows))
        return topic_rules(self.routes, owner, flows, self.places, entries)


def _owner_of(key: FlowKey) -> _Owner:
    return None if key.is_prefix else key
