"""Makes a network in a box, changes it during a run, and removes it."""

from __future__ import annotations

import asyncio
import secrets
import signal
import threading
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Literal, Self

from triagemq.errors import NetworkError
from triagemq.lab.box.interfaces import (
    Program,
    add_address,
    add_bridge,
    add_fifo,
    add_veth,
    await_links,
    go_by_groups,
    neighbour,
    run_commands,
    set_link,
    set_member,
    switch_offloads_off,
)
from triagemq.lab.box.journal import Journal, default_journal_directory
from triagemq.lab.box.layout import IPV4_NETWORK, IPV6_NETWORK, End, Host, Layout, Link
from triagemq.lab.box.losing import Losses, LostEvent, together
from triagemq.lab.box.namespaces import create_namespace, remove_namespace
from triagemq.lab.box.processes import Processes
from triagemq.lab.box.vswitch import VirtualSwitches, start_virtual_switches
from triagemq.network.linux.netlink import in_namespace, namespace_path


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


FASTEST_FIFO_BPS = 10e9
"""Above this a virtual link is no faster than its shaper, and there is nothing to shape."""

_KERNEL_COUNTS = Path("/proc/net/softnet_stat")

ACCESS_LATENESS_SECONDS = 50e-6
"""What the kernel's timers may be late at an access link without making it slower than it is."""


def packets_lost_by_machine() -> int:
    """Packets for which the kernel had no room between the ends of virtual links, since it runs. All boxes share it
    (net.core.netdev_max_backlog), so one that floods its links loses packets of another."""
    return sum(int(line.split()[1], 16) for line in _KERNEL_COUNTS.read_text(encoding="ascii").splitlines())


def new_run() -> str:
    """A name for a run that no other has."""
    return "".join(secrets.choice("abcdefghijklmnopqrstuvwxyz234567") for _ in range(5))


class Box:
    """A layout made real, from `with` (or `async with`) to its end.

    Everything is noted in the journal before it is made. What is removed is what was noted, nothing else. Ctrl-C during
    building or removing takes effect afterwards, and leaves nothing behind. Those of Open vSwitch are `switches`.
    """

    def __init__(self, layout: Layout, *, journal: Journal | None = None) -> None:
        self.layout = layout
        self.journal = journal or Journal(default_journal_directory())
        self.processes = Processes(self.journal)
        self.switches: VirtualSwitches | None = None
        self._notes: list[tuple[str, str]] = []
        self._entries: frozenset[ForwardingEntry] = frozenset()
        self._losses = Losses()
        self._error_rates: dict[tuple[str, str], float] = {}
        self._kernel_bridges = {bridge.name for bridge in layout.bridges if not bridge.open_vswitch}
        self._floods = {bridge.name for bridge in layout.bridges if bridge.role == "queues"}
        self._knows_groups = {
            bridge.name
            for bridge in layout.bridges
            if layout.plugged and bridge.role == "switch" and not bridge.open_vswitch
        }

    def __enter__(self) -> Self:
        try:
            with _interrupts_held():
                self._build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    async def __aenter__(self) -> Self:
        building = asyncio.create_task(asyncio.to_thread(self.__enter__))
        try:
            return await asyncio.shield(building)
        except asyncio.CancelledError:
            await asyncio.wait([building])
            await asyncio.to_thread(self.remove)
            raise

    async def __aexit__(self, *error: object) -> None:
        removing = asyncio.create_task(asyncio.to_thread(self.remove))
        try:
            await asyncio.shield(removing)
        except asyncio.CancelledError:
            await asyncio.wait([removing])
            raise

    def remove(self) -> None:
        """Take everything away again, last things first; idempotent. The first failure is raised at the end."""
        with _interrupts_held(), ExitStack() as last_to_first:
            while self._notes:
                last_to_first.callback(self._forget_namespace, *self._notes.pop(0))
            if self.switches is not None:
                last_to_first.callback(self.switches.close)
                self.switches = None
            last_to_first.callback(self._losses.close)
            last_to_first.callback(self.processes.close)

    def set_link(self, port: str, *, up: bool) -> None:
        """Let the link behind a port fail, or return. Who takes over is for `feed_by`, or the controller."""
        if port not in self.layout.port:
            raise NetworkError(f"the box has no port {port!r}; it has {', '.join(sorted(self.layout.port))}")
        links = [link for link in self.layout.links if link.port == port]
        self._run("ip", [set_link(link.near.interface, up=up) for link in links])
        if up:
            self._await(links)

    def feed_by(self, ports: Collection[str]) -> None:
        """Let these ports, and no others, feed the switches at their far ends."""
        entries = forwarding(self.layout, ports)
        remaining = {(entry.bridge, entry.mac) for entry in entries}
        gone = [entry for entry in self._entries if (entry.bridge, entry.mac) not in remaining]
        self._run("ip", self._member_settings(ports))
        added, removed = self._by_bridges(entries - self._entries), self._by_bridges(gone)
        self._run("bridge", [f"fdb replace {each.mac} dev {each.interface} master static" for each in added])
        self._run("bridge", [f"fdb del {each.mac} dev {each.interface} master" for each in removed])
        self._entries = entries

    def set_error_rate(
        self, of: Literal["port", "publisher", "subscriber"], name: str, error_rate: float
    ) -> None:
        """Let the link behind a port, or that of a client, lose this share of its packets before subscribers.

        A publisher loses by itself only if it is apart in the layout.
        """
        self._error_rates[of, name] = error_rate
        end, shares = self._where_lost(of, name)
        if end.bridge is not None and end.bridge not in self._kernel_bridges:
            raise NetworkError(
                f"the link behind port {name!r} cannot lose packets on purpose: Open vSwitch takes them before anybody "
                "can; remove its error_rate, or use --dataplane linux"
            )
        self._losses.set(end, together(*(self._error_rates.get(one, 0.0) for one in shares)))

    def set_copies(self, group: str, port: str, *, present: bool) -> None:
        """Let copies of what is for a multicast group leave by a port, or no longer. Open vSwitch has a controller."""
        managed = self.layout.port[port]
        bridge = self.layout.switches[managed.switch]
        if bridge.name in self._knows_groups:
            command = (
                f"mdb {'add' if present else 'del'} dev {bridge.name} port {managed.interface} grp {group}"
            )
            harmless = ("File exists",) if present else ("No such file", "Invalid argument")
            run_commands(
                self.layout.switch_namespace,
                "bridge",
                [f"{command} permanent" if present else command],
                harmless=harmless,
            )

    def lost_events(self) -> list[LostEvent]:
        """The events that links have lost since the last call."""
        return self._losses.lost_events()

    def _where_lost(self, of: str, name: str) -> tuple[End, list[tuple[str, str]]]:
        """The end at which packets of a link arrive, and whose errors happen on it: a port's only subscriber's, too."""
        if of == "publisher":
            host = self.layout.publishers[name]
            (link,) = (link for link in self.layout.links if link.far.interface == host.interface)
            return link.near, [(of, each) for each in host.members]
        if of == "subscriber":
            host = self.layout.subscribers[name]
            (link,) = (link for link in self.layout.links if link.far.namespace == host.namespace)
            return link.far, [(of, name)] + ([] if link.port is None else [("port", link.port)])
        queues = self.layout.port[name].interface
        (link,) = (link for link in self.layout.links if link.near.interface == queues)
        behind = [host for host in self.layout.hosts if host.namespace == link.far.namespace]
        return link.far, [(of, name), *(("subscriber", each) for host in behind for each in host.members)]

    def _build(self) -> None:
        ipv6 = any(host.ipv6 is not None for host in self.layout.hosts)
        for name in self.layout.namespaces:
            if namespace_path(name).exists():
                raise NetworkError(f"a namespace {name} exists already; give the run another name")
            self._notes.append((self.journal.note("namespace", name=name), name))
            create_namespace(name, ipv6=ipv6 and name != self.layout.switch_namespace)
        self._build_switches()
        for host in self.layout.hosts:
            self._build_host(host)
        self._await(self.layout.links)
        if self.layout.switch_kind == "openvswitch":
            self.switches = start_virtual_switches(self.layout, self.journal)

    def _build_switches(self) -> None:
        layout = self.layout
        commands, queues = [set_link("lo", up=True)], []
        for bridge in layout.bridges:
            if not bridge.open_vswitch:
                lldp, groups = bridge.role in ("switch", "queues"), bridge.name in self._knows_groups
                commands.append(
                    add_bridge(bridge.name, bridge.index, bridge.mac, passes_lldp=lldp, knows_groups=groups)
                )
                commands += [go_by_groups(bridge.name)] if groups else []
        for link in layout.links:
            namespace = link.far.namespace if link.far.bridge is None else None
            commands.append(
                add_veth(link.near, link.far, far_namespace=namespace, mtu_bytes=layout.mtu_of(link))
            )
        for link in layout.links:
            commands += [
                set_link(end.interface, up=True, master=self._master(end)) for end in _switch_ends(link)
            ]
            if link.fifo_bps is not None and link.fifo_bps < FASTEST_FIFO_BPS:
                queues.append(add_fifo(link.far.interface, link.fifo_bps))
            if link.downlink_bps < FASTEST_FIFO_BPS:
                queues.append(add_fifo(link.near.interface, link.downlink_bps))
        self._run("ip", commands)
        self._run("tc", queues)
        in_namespace(layout.switch_namespace, self._switch_offloads_off)
        self.feed_by(layout.feeding)

    def _build_host(self, host: Host) -> None:
        others = [
            other
            for other in self.layout.hosts
            if other is not host and (host.kind == "broker" or other.kind == "broker")
        ]
        name = host.interface
        commands = [
            set_link("lo", up=True),
            set_link(name, up=True),
            add_address(name, host.ipv4, IPV4_NETWORK.prefixlen),
            *(neighbour(name, other.ipv4, other.mac) for other in others),
        ]
        if host.ipv6 is not None:
            commands.append(add_address(name, host.ipv6, IPV6_NETWORK.prefixlen))
            commands.extend(neighbour(name, other.ipv6, other.mac) for other in others if other.ipv6)
        queues = [
            add_fifo(name, link.uplink_bps)
            for link in self.layout.links
            if link.far.interface == name and link.uplink_bps < FASTEST_FIFO_BPS
        ]
        plugged = [access for access in self.layout.plugged if access.namespace == host.namespace]
        for access in plugged:
            commands += [set_link(access.interface, up=True), add_address(access.interface, access.ipv4, 32)]
            if access.bps < FASTEST_FIFO_BPS:
                queues.append(add_fifo(access.interface, access.bps, ACCESS_LATENESS_SECONDS))
        run_commands(host.namespace, "ip", commands)
        run_commands(host.namespace, "tc", queues)
        for interface in (name, *(access.interface for access in plugged)):
            in_namespace(host.namespace, partial(switch_offloads_off, interface))

    def _switch_offloads_off(self) -> None:
        for link in self.layout.links:
            for end in _switch_ends(link):
                switch_offloads_off(end.interface)

    def _member_settings(self, ports: Collection[str]) -> Iterator[str]:
        """Members neither learn nor flood; links that could close a loop carry no broadcast either."""
        for link in self.layout.links:
            idle = link.feeds is not None and link.port not in ports
            for end in _switch_ends(link):
                if end.bridge in self._kernel_bridges:
                    # Between its two members a queue box passes everything on.
                    yield set_member(
                        end.interface,
                        floods_unknown=end.bridge in self._floods,
                        floods_broadcast=not idle or end.bridge in self._floods,
                        knows_groups=end.bridge in self._knows_groups,
                    )

    def _by_bridges(self, entries: Iterable[ForwardingEntry]) -> list[ForwardingEntry]:
        """Those that a bridge of the kernel has in its table."""
        return [
            entry
            for entry in entries
            if entry.bridge in self._kernel_bridges and entry.bridge not in self._floods
        ]

    def _master(self, end: End) -> str | None:
        """The bridge of a member; None for a member of Open vSwitch, which takes it by itself."""
        return end.bridge if end.bridge in self._kernel_bridges else None

    def _run(self, program: Program, commands: Iterable[str]) -> None:
        run_commands(self.layout.switch_namespace, program, commands)

    def _await(self, links: Iterable[Link]) -> None:
        """Until the kernel has noticed that both ends of links are up: a bridge sends nothing before."""
        ends = [end for link in links for end in _switch_ends(link)]
        members = [end.interface for end in ends if end.bridge in self._kernel_bridges]
        others = [end.interface for end in ends if end.bridge not in self._kernel_bridges]
        await_links(self.layout.switch_namespace, members, others)

    def _forget_namespace(self, note: str, name: str) -> None:
        remove_namespace(name)
        self.journal.done(note)


def _switch_ends(link: Link) -> list[End]:
    return [end for end in (link.near, link.far) if end.bridge is not None]


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """SIGINT and SIGTERM that arrive meanwhile take effect at the end. Elsewhere than in the main thread, nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    before = {number: signal.signal(number, hold) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first in arrived[:1]:
            signal.raise_signal(first)
