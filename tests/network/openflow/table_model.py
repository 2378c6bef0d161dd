"""A model of the flow tables of all switches, for sets of rules to pass.

It looks packets up as a switch does, in one table of values for each combination of fields in use, follows them over
links, and refuses rules that could never be reached or that others could replace, packets that go in a circle, and
flows that do not end at their subscriber.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from triagemq.network.openflow.rules import CONTROLLER, Rule, RuleKey, RuleSets, switch_name
from triagemq.network.openflow.topology import PortId

Packet = Mapping[str, int | str]
"""The fields of a packet, in the names of OpenFlow; `in_port` is added on the way."""


_ANY = "any"


class RuleError(Exception):
    """A set of rules would not do what it is for."""

    def __init__(self, switch: str, rule: str, problem: str) -> None:
        super().__init__(f"switch {switch}, rule {rule}: {problem}")


class Probe(NamedTuple):
    """A packet that enters at a port, where it must come out and nowhere else, and with which mark (None: any)."""

    packet: Packet
    enters: PortId
    leaves: frozenset[PortId]
    mark: int | None = None


class _Exit(NamedTuple):
    at: PortId
    mark: int | str | None


class TableModel:
    """The rules of all switches and the links between them."""

    def __init__(self, links: Mapping[PortId, PortId], rules: RuleSets) -> None:
        self._links = links
        self._switches: dict[int, dict[int, _Table]] = {}
        for switch, some in rules.items():
            self._switches[switch] = {}
            for rule in some.values():
                self._put(switch, rule)

    def check(self, probes: Iterable[Probe]) -> None:
        """RuleError if any rule of any switch can never be reached, or a probe does not end where it must."""
        for switch, tables in self._switches.items():
            for table in tables.values():
                for rule in table:
                    _require_sound(switch, table, rule)
        self._check_probes(probes)

    def change(
        self, removed: Mapping[int, Iterable[RuleKey]], put: RuleSets, probes: Iterable[Probe] = ()
    ) -> None:
        """Take rules away, put others (or change them), and check what that touches; unchanged after a RuleError."""
        undo: list[tuple[int, RuleKey, Rule | None]] = []
        try:
            for switch, keys in removed.items():
                undo += [(switch, key, self._take(switch, key)) for key in keys]
            for switch, some in put.items():
                for key, rule in some.items():
                    undo.append((switch, key, self._take(switch, key)))
                    self._put(switch, rule)
            for switch, some in put.items():
                for rule in some.values():
                    table = self._switches[switch][rule.table]
                    _require_sound(switch, table, rule)
                    for hidden in table.hidden_by(rule):
                        raise RuleError(
                            switch_name(switch), str(hidden), f"is never reached because of {rule}"
                        )
            self._check_probes(probes)
        except RuleError:
            for switch, key, before in reversed(undo):
                self._take(switch, key)
                if before is not None:
                    self._put(switch, before)
            raise

    def exits(self, packet: Packet, enters: PortId) -> list[tuple[PortId, int | str | None]]:
        """Every port at which copies of a packet leave the network, with their marks; RuleError if one circles."""
        exits: list[_Exit] = []
        self._follow(dict(packet), enters, (), exits)
        return [(each.at, each.mark) for each in exits]

    def _check_probes(self, probes: Iterable[Probe]) -> None:
        for probe in probes:
            exits: list[_Exit] = []
            last = self._follow(dict(probe.packet), probe.enters, (), exits)
            found = [each.at for each in exits]
            if len(found) != len(probe.leaves) or set(found) != probe.leaves:
                raise RuleError(
                    switch_name(probe.enters.switch),
                    str(last or "(none)"),
                    f"a packet to {_destination(probe.packet)} ends at {_ports(found)}, not at {_ports(probe.leaves)}",
                )
            for each in exits:
                if probe.mark is not None and each.mark != probe.mark:
                    raise RuleError(
                        switch_name(each.at.switch),
                        str(last or "(none)"),
                        f"a packet to {_destination(probe.packet)} comes with mark {each.mark}, not {probe.mark}",
                    )

    def _follow(
        self,
        packet: dict[str, int | str],
        at: PortId,
        path: tuple[tuple[PortId, int | str | None], ...],
        exits: list[_Exit],
    ) -> Rule | None:
        """Follow all copies of a packet that comes in at a port; the rule that sent it on here, or the last it met."""
        step = (at, packet.get("ip_dscp"))
        packet["in_port"] = at.port
        deciding: Rule | None = None
        table: int | None = 0
        while table is not None:
            tables = self._switches.get(at.switch, {})
            rule = tables[table].lookup(packet) if table in tables else None
            if rule is None:
                break
            if deciding is None or rule.copies:
                deciding = rule
            if step in path:
                raise RuleError(
                    switch_name(at.switch), str(rule), "sends packets in a circle: they pass here again"
                )
            for port, mark in rule.copies:
                if mark is not None:
                    packet["ip_dscp"] = mark
                if port in (CONTROLLER, at.port):
                    continue
                out = PortId(at.switch, port)
                there = self._links.get(out)
                if there is None:
                    exits.append(_Exit(out, packet.get("ip_dscp")))
                else:
                    self._follow(dict(packet), there, (*path, step), exits)
            table = rule.next_table
            if table is not None and table <= rule.table:
                raise RuleError(
                    switch_name(at.switch), str(rule), "goes on to a table that is not behind its own"
                )
        return deciding

    def _put(self, switch: int, rule: Rule) -> None:
        self._switches.setdefault(switch, {}).setdefault(rule.table, _Table()).put(rule)

    def _take(self, switch: int, key: RuleKey) -> Rule | None:
        table = self._switches.get(switch, {}).get(key.table)
        return None if table is None else table.take(key)


class _Table:
    """Rules by the fields they look at, then by the values they want there, then by priority."""

    def __init__(self) -> None:
        self._by_fields: dict[tuple[str, ...], dict[tuple[int | str, ...], dict[int, Rule]]] = {}
        # How many rules want each Ethernet type: rules of different types are never rivals.
        self._types: dict[tuple[tuple[str, ...], int], Counter[int | str]] = {}

    def __iter__(self) -> Iterator[Rule]:
        for by_values in self._by_fields.values():
            for by_priority in by_values.values():
                yield from by_priority.values()

    def put(self, rule: Rule) -> None:
        fields, values = _split(rule)
        self._by_fields.setdefault(fields, {}).setdefault(values, {})[rule.priority] = rule
        self._types.setdefault((fields, rule.priority), Counter())[
            dict(rule.match).get("eth_type", _ANY)
        ] += 1

    def take(self, key: RuleKey) -> Rule | None:
        fields, values = tuple(name for name, _ in key.match), tuple(value for _, value in key.match)
        by_priority = self._by_fields.get(fields, {}).get(values)
        if by_priority is None or key.priority not in by_priority:
            return None
        rule = by_priority.pop(key.priority)
        types = self._types[fields, key.priority]
        types[dict(key.match).get("eth_type", _ANY)] -= 1
        self._types[fields, key.priority] = +types
        if not by_priority:
            del self._by_fields[fields][values]
            if not self._by_fields[fields]:
                del self._by_fields[fields]
        return rule

    def lookup(self, packet: Packet) -> Rule | None:
        best: Rule | None = None
        for fields, by_values in self._by_fields.items():
            try:
                values = tuple([packet[name] for name in fields])
            except KeyError:
                continue
            by_priority = by_values.get(values)
            if by_priority is not None:
                rule = by_priority[max(by_priority)]
                if best is None or rule.priority > best.priority:
                    best = rule
        return best

    def hiding(self, rule: Rule) -> Rule | None:
        """A rule that takes every packet that this one could have.

        One is enough to look for: values have so many possibilities that several rules never take all between them.
        """
        wanted = dict(rule.match)
        for fields, by_values in self._by_fields.items():
            if all(name in wanted for name in fields):
                by_priority = by_values.get(tuple([wanted[name] for name in fields]), {})
                for priority, other in by_priority.items():
                    if priority > rule.priority or (priority == rule.priority and other.match != rule.match):
                        return other
        return None

    def hidden_by(self, rule: Rule) -> Iterator[Rule]:
        """Rules that are never reached because of this one."""
        own, values = _split(rule)
        for priority, other in self._by_fields[own][values].items():
            if priority < rule.priority:
                yield other
        for fields, by_values in self._by_fields.items():
            if len(fields) > len(own) and set(own) < set(fields):
                for by_priority in by_values.values():
                    for priority, other in by_priority.items():
                        if priority <= rule.priority and set(rule.match) <= set(other.match):
                            yield other

    def rivals(self, rule: Rule) -> Iterator[Rule]:
        """Rules of the same priority that want some of the same packets: a switch may take either."""
        own = dict(rule.match)
        own_type = own.get("eth_type", _ANY)
        mine, _ = _split(rule)
        for fields, by_values in self._by_fields.items():
            types = self._types.get((fields, rule.priority))
            if fields == mine or not types or (own_type != _ANY and not types.keys() & {own_type, _ANY}):
                continue
            for by_priority in by_values.values():
                other = by_priority.get(rule.priority)
                if other is not None and all(own.get(name, value) == value for name, value in other.match):
                    yield other


def _split(rule: Rule) -> tuple[tuple[str, ...], tuple[int | str, ...]]:
    return tuple(name for name, _ in rule.match), tuple(value for _, value in rule.match)


def _require_sound(switch: int, table: _Table, rule: Rule) -> None:
    other = table.hiding(rule)
    if other is not None:
        raise RuleError(switch_name(switch), str(rule), f"is never reached because of {other}")
    for rival in table.rivals(rule):
        raise RuleError(switch_name(switch), str(rule), f"wants packets that {rival} wants as much")


def _destination(packet: Packet) -> str:
    address = packet.get("ipv4_dst") or packet.get("ipv6_dst") or packet.get("eth_dst")
    port = packet.get("udp_dst")
    return f"{address}" if port is None else f"{address} port {port}"


def _ports(ports: Iterable[PortId]) -> str:
    return (
        ", ".join(f"switch {switch_name(each.switch)} port {each.port}" for each in sorted(ports))
        or "no port"
    )
