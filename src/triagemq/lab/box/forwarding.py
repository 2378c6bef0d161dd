"""Which member of a bridge leads to which host: the forwarding tables of a box, from its layout alone.

Bridges of a box neither learn nor flood: a frame for one subscriber never queues on another's port, not even the first
one. The tables are those of a tree that hangs at the backbone; links to switches are in it as the caller says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from triagemq.lab.box.layout import End, Host, Layout, Link


@dataclass(frozen=True, slots=True, order=True)
class ForwardingEntry:
    """Frames to `mac` leave `bridge` by its member `interface`."""

    bridge: str
    mac: str
    interface: str


def active_links(layout: Layout, ports_in_use: Collection[str]) -> list[Link]:
    """All links but access links, and those that lead to a switch from a port that does not feed it now."""
    return [
        link
        for link in layout.links
        if link.access is None and (link.feeds is None or link.port in ports_in_use)
    ]


def forwarding(layout: Layout, ports_in_use: Collection[str]) -> frozenset[ForwardingEntry]:
    """Every bridge's table; `ports_in_use` are the ports that feed a switch now.

    Subscribers are known to the bridges between them and the backbone, brokers and publishers to all.
    """
    above = _tree(layout, ports_in_use)
    entries = set()
    for host in layout.hosts:
        for link in _up(above, host):
            entries.add(_entry(host, link.near))
    nearby = [host for host in layout.hosts if host.kind != "subscriber"]
    for bridge, link in above.items():
        if link.far.bridge is None:
            continue
        for host in nearby:
            if all(step.near.bridge != bridge for step in _up(above, host)):
                entries.add(_entry(host, link.far))
    return frozenset(entries)


def _entry(host: Host, member: End) -> ForwardingEntry:
    return ForwardingEntry(member.bridge or "", host.mac, member.interface)


def _tree(layout: Layout, ports_in_use: Collection[str]) -> dict[str, Link]:
    """Per bridge, and per namespace of a host, the link that leads towards the backbone."""
    below: dict[str, list[Link]] = {}
    for link in active_links(layout, ports_in_use):
        below.setdefault(link.near.bridge or "", []).append(link)
    above: dict[str, Link] = {}
    waiting = deque(bridge.name for bridge in layout.bridges if bridge.role == "backbone")
    while waiting:
        for link in below.get(waiting.popleft(), ()):
            node = _node(link.far)
            if node not in above:
                above[node] = link
                waiting.append(node)
    return above


def _up(above: dict[str, Link], host: Host) -> Iterator[Link]:
    node = host.namespace
    while node in above:
        link = above[node]
        yield link
        node = link.near.bridge or ""


def _node(end: End) -> str:
    return end.bridge or end.namespace
