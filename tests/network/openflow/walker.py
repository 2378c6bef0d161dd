"""An independent model of flow tables, as simple as can be: rules in a list, looked at one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from triagemq.network.openflow.rules import CONTROLLER, Rule
from triagemq.network.openflow.topology import PortId


class CircleError(Exception):
    pass


def find(rules: Sequence[Rule], table: int, packet: Mapping[str, object]) -> Rule | None:
    hits = [
        rule
        for rule in rules
        if rule.table == table and all(packet.get(name) == value for name, value in rule.match)
    ]
    return max(hits, key=lambda rule: rule.priority, default=None)


def walk(
    rules: Mapping[int, Sequence[Rule]],
    links: Mapping[PortId, PortId],
    packet: Mapping[str, object],
    enters: PortId,
    depth: int = 0,
    used: list[tuple[int, Rule]] | None = None,
) -> list[tuple[PortId, object]]:
    """Where all copies of a packet leave, with their marks. After so many links it must have been somewhere twice.

    `used` takes the switches on the way and the rules they used.
    """
    if depth > 40:
        raise CircleError
    exits: list[tuple[PortId, object]] = []
    packet = {**packet, "in_port": enters.port}
    table: int | None = 0
    while table is not None:
        rule = find(rules.get(enters.switch, ()), table, packet)
        if rule is None:
            break
        if used is not None:
            used.append((enters.switch, rule))
        for port, mark in rule.copies:
            if mark is not None:
                packet["ip_dscp"] = mark
            if port == CONTROLLER or port == enters.port:
                continue
            out = PortId(enters.switch, port)
            if out in links:
                exits += walk(rules, links, packet, links[out], depth + 1, used)
            else:
                exits.append((out, packet.get("ip_dscp")))
        table = rule.next_table
    return exits
