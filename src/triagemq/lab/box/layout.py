"""The layout of a network in a box: which namespaces, bridges and links stand for a scenario. Plain data, no I/O.

All switches live in one namespace, so that one netlink socket reads every queue. Brokers, groups of publishers (one
per unmanaged switch, and each whose own link loses packets alone) and subscribers have a namespace each.

    broker ---- backbone ---- switch === port ---- subscriber
                 |               ||
    publishers --+               === port ---- distribution ---- several subscribers
                                 ||
                                 === port ---- switch === ...

A managed port (`===`) is the egress of a bridge's member, never a host's own interface: a sender whose own interface
is full would see it, and wait. With Open vSwitch, whose userspace ports keep no priorities, a switch is followed
by a kernel bridge per port ("queues") whose member does the queueing. Packets towards the brokers are not shaped,
except by unmanaged switches.

A publisher that is plugged into a managed switch has a host of its own with a second interface, its access link, by
which promised messages leave; all else goes to the broker by the first. Links between switches outside the tree are for
promised messages, too.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from triagemq.errors import NetworkError
from triagemq.scenario import Scenario

IPV4_NETWORK = ipaddress.IPv4Network("10.77.0.0/16")
IPV6_NETWORK = ipaddress.IPv6Network("fd74:6d71::/64")
MOST_HOSTS = IPV4_NETWORK.num_addresses - 2
MOST_MEMBERS = 1000
"""A kernel bridge takes 1,023 interfaces."""

ETHERNET_MTU = 1500

RUN = re.compile(r"[a-z0-9]{1,6}")

_ETHERNET_BYTES = 14

SwitchKind = Literal["bridge", "openvswitch"]
HostKind = Literal["broker", "publishers", "subscriber"]
BridgeRole = Literal["backbone", "unmanaged", "switch", "queues", "distribution"]


@dataclass(frozen=True, slots=True)
class Host:
    """A namespace with one interface. `members` are the scenario's names of those who live in it."""

    kind: HostKind
    members: tuple[str, ...]
    namespace: str
    interface: str
    index: int
    mac: str
    ipv4: str
    ipv6: str | None


@dataclass(frozen=True, slots=True)
class Bridge:
    """What joins links in the namespace of the switches. `subject` is the scenario's name of what it stands for."""

    role: BridgeRole
    subject: str
    name: str
    index: int
    mac: str
    open_vswitch: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link: a member of a bridge, or (`bridge` is None) the interface of the host in `namespace`."""

    namespace: str
    interface: str
    index: int
    mac: str
    bridge: str | None


@dataclass(frozen=True, slots=True)
class Link:
    """Two interfaces joined by a wire; `near` is the end on the brokers' side, always a member of a bridge.

    `port` is the scenario's port whose link this is, and `feeds` the switch at its far end if there is one. `fifo_bps`
    shapes what the far end sends towards the brokers: an unmanaged switch. `downlink_bps` and
    `uplink_bps` are those of a broker of a cluster at the far end, where they are shaped. `access` is the publisher
    whose access link this is: nothing but promised messages goes over it.
    """

    near: End
    far: End
    port: str | None = None
    feeds: str | None = None
    fifo_bps: float | None = None
    downlink_bps: float = np.inf
    uplink_bps: float = np.inf
    access: str | None = None


@dataclass(frozen=True, slots=True)
class ManagedPort:
    """Where a port of the scenario is: the queues go on `interface`, in the namespace of the switches.

    With Open vSwitch `switch_interface` is the member of the switch that leads into the port's queues, else it is
    `interface` itself.
    """

    name: str
    switch: str
    namespace: str
    interface: str
    index: int
    switch_interface: str


@dataclass(frozen=True, slots=True)
class Access:
    """The access link of a publisher, seen from its host."""

    publisher: str
    namespace: str
    interface: str
    index: int
    ipv4: str
    bps: float


@dataclass(frozen=True)
class Layout:
    """The whole box. Everything in it carries the run's name, so that two boxes never meet.

    `feeding` are the ports that feed a switch while no link is down. Promised packets may be longer than others:
    `mtu_bytes`, wherever they go.
    """

    run: str
    switch_kind: SwitchKind
    switch_namespace: str
    hosts: tuple[Host, ...]
    bridges: tuple[Bridge, ...]
    links: tuple[Link, ...]
    ports: tuple[ManagedPort, ...]
    feeding: frozenset[str]
    plugged: tuple[Access, ...] = ()
    mtu_bytes: int = ETHERNET_MTU

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespace of the switches, then one per host."""
        return (self.switch_namespace, *(host.namespace for host in self.hosts))

    @cached_property
    def brokers(self) -> dict[str, Host]:
        return self._by_member("broker")

    @cached_property
    def publishers(self) -> dict[str, Host]:
        return self._by_member("publishers")

    @cached_property
    def subscribers(self) -> dict[str, Host]:
        return self._by_member("subscriber")

    @cached_property
    def access(self) -> dict[str, Access]:
        return {access.publisher: access for access in self.plugged}

    @cached_property
    def switches(self) -> dict[str, Bridge]:
        return {bridge.subject: bridge for bridge in self.bridges if bridge.role == "switch"}

    @cached_property
    def port(self) -> dict[str, ManagedPort]:
        return {port.name: port for port in self.ports}

    def mtu_of(self, link: Link) -> int:
        """Hosts that send other packets than promised ones send them as short as they would elsewhere."""
        if self.mtu_bytes == ETHERNET_MTU:
            return ETHERNET_MTU
        others = {host.interface for host in self.hosts if host.kind != "subscriber"}
        return ETHERNET_MTU if link.far.interface in others else self.mtu_bytes

    def members(self, bridge: str) -> tuple[End, ...]:
        """The interfaces of a bridge. Those of a switch have the OpenFlow numbers 1, 2, ... in this order."""
        return tuple(end for link in self.links for end in (link.near, link.far) if end.bridge == bridge)

    def reserved(self, backups: Collection[str]) -> list[tuple[str, str]]:
        """Switches and their interfaces that carry promised messages and nothing else: those of access links, and of
        links outside the tree that are no backups either."""
        found, subject = [], {bridge.name: bridge.subject for bridge in self.bridges}
        for link in self.links:
            if link.access is not None:
                found.append((subject[link.near.bridge or ""], link.near.interface))
            elif link.feeds is not None and link.port not in {*self.feeding, *backups}:
                port = self.port[link.port or ""]
                found += [(port.switch, port.switch_interface), (link.feeds, link.far.interface)]
        return found

    def _by_member(self, kind: HostKind) -> dict[str, Host]:
        return {member: host for host in self.hosts if host.kind == kind for member in host.members}


def lay_out(
    scenario: Scenario,
    run: str,
    *,
    switches: SwitchKind = "bridge",
    backups: Mapping[str, str] | None = None,
    ipv6: bool = False,
    apart: Collection[str] = (),
    plugged: Collection[str] = (),
) -> Layout:
    """The layout of a scenario under the name of a run: one to six of a-z and 0-9.

    `backups` names, per switch, a port whose link to it is used while the link it is fed by is down. Publishers that
    are `apart` have a host of their own, and those that are `plugged` an access link, too.

    >>> from triagemq.lab.generators import prototype
    >>> layout = lay_out(prototype(subscribers=2), "a1")
    >>> layout.namespaces
    ('tqa1-switches', 'tqa1-broker', 'tqa1-publishers', 'tqa1-subscriber-0', 'tqa1-subscriber-1')
    >>> layout.ports[0].interface, layout.hosts[3].ipv4
    ('tqa1p0', '10.77.0.4')
    """
    if not RUN.fullmatch(run):
        raise NetworkError(f"a run cannot be called {run!r}; use one to six of a-z and 0-9")
    alone = frozenset(apart) | frozenset(plugged)
    return _Drawing(scenario, run, switches, dict(backups or {}), ipv6, alone, frozenset(plugged)).layout()


@dataclass
class _Drawing:
    """Collects the parts of a layout and numbers them."""

    scenario: Scenario
    run: str
    switch_kind: SwitchKind
    backups: dict[str, str]
    ipv6: bool
    apart: frozenset[str]
    plugged: frozenset[str]
    hosts: list[Host] = field(default_factory=list)
    bridges: list[Bridge] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    ports: list[ManagedPort] = field(default_factory=list)
    access: list[Access] = field(default_factory=list)
    next_index: int = 2
    members: dict[str, int] = field(default_factory=dict)

    def layout(self) -> Layout:
        hosts = len(self.scenario.brokers) + len(self.scenario.subscribers) + 1
        hosts += len(self.apart) + len(self.plugged)
        if hosts > MOST_HOSTS:
            raise NetworkError(
                f"{hosts} hosts do not fit into the {MOST_HOSTS} addresses of a box; use fewer subscribers"
            )
        backbone = self.bridge("backbone", "", "bb")
        self.draw_brokers(backbone)
        self.draw_publishers(backbone)
        self.draw_switches(backbone)
        return Layout(
            self.run,
            self.switch_kind,
            self.switch_namespace,
            tuple(self.hosts),
            tuple(self.bridges),
            tuple(self.links),
            tuple(self.ports),
            frozenset(
                self.scenario.ports.name[row] for row in self.scenario.switches.fed_by_port if row >= 0
            ),
            tuple(self.access),
            self.mtu_bytes,
        )

    @property
    def mtu_bytes(self) -> int:
        """What the longest packets of the switches have, that of Ethernet at least."""
        longest = self.scenario.switches.packet_bytes.max(initial=0.0) if self.plugged else 0.0
        return max(ETHERNET_MTU, int(longest) - _ETHERNET_BYTES)

    def draw_brokers(self, backbone: Bridge) -> None:
        brokers = self.scenario.brokers
        names = brokers.name
        for number, name in enumerate(names):
            label = "broker" if len(names) == 1 else f"broker-{number}"
            host = self.host("broker", (name,), label)
            downlink_bps, uplink_bps = float(brokers.downlink_bps[number]), float(brokers.uplink_bps[number])
            if not brokers.cluster[number]:
                downlink_bps = uplink_bps = np.inf
            elif not brokers.head[number]:
                # What an edge sends to its subscribers its gateway paces, before queues that it can see.
                uplink_bps = np.inf
            self.attach(host, backbone, f"k{number}", downlink_bps, uplink_bps)

    def draw_publishers(self, backbone: Bridge) -> None:
        publishers, unmanaged = self.scenario.publishers, self.scenario.unmanaged_switches
        for number in np.unique(publishers.unmanaged_switch).tolist():
            rows = np.flatnonzero(publishers.unmanaged_switch == number)
            bridge, group = backbone, ""
            if number >= 0:
                bridge, group = self.bridge("unmanaged", unmanaged.name[number], f"m{number}"), f"{number}"
                fifo_bps = float(unmanaged.bandwidth_bps[number])
                self.join(backbone, bridge, f"e{number}", f"f{number}", fifo_bps=fifo_bps)
            names = tuple(publishers.name[row] for row in rows if publishers.name[row] not in self.apart)
            if names:
                label = f"publishers-{group}" if group else "publishers"
                self.attach(self.host("publishers", names, label), bridge, f"g{group}")
            for row in rows.tolist():
                if publishers.name[row] in self.apart:
                    self.attach(
                        self.host("publishers", (publishers.name[row],), f"publisher-{row}"),
                        bridge,
                        f"w{row}",
                    )

    def draw_switches(self, backbone: Bridge) -> None:
        switches, ports = self.scenario.switches, self.scenario.ports
        bridges = [
            self.bridge("switch", name, f"s{number}", self.switch_kind == "openvswitch")
            for number, name in enumerate(switches.name)
        ]
        fed: dict[int, Bridge] = {}
        for number, bridge in enumerate(bridges):
            feeder = int(switches.fed_by_port[number])
            if feeder < 0:
                self.join(backbone, bridge, f"u{number}", f"r{number}")
            else:
                fed[feeder] = bridge
        for switch, port in self.backups.items():
            fed[ports.name.index(port)] = bridges[switches.name.index(switch)]
        for number in np.flatnonzero(ports.to_switch >= 0).tolist():
            fed.setdefault(number, bridges[int(ports.to_switch[number])])
        subscribers = [
            self.host("subscriber", (name,), f"subscriber-{number}")
            for number, name in enumerate(self.scenario.subscribers.name)
        ]
        for number in range(len(ports)):
            behind = [subscribers[row] for row in np.flatnonzero(self.scenario.subscribers.port == number)]
            self.draw_port(number, bridges[int(ports.switch[number])], fed.get(number), behind)
        self.draw_access(bridges)

    def draw_access(self, bridges: list[Bridge]) -> None:
        publishers = self.scenario.publishers
        hosts = {member: host for host in self.hosts if host.kind == "publishers" for member in host.members}
        for row, name in enumerate(publishers.name):
            if name not in self.plugged:
                continue
            near = self.end(bridges[int(publishers.access_switch[row])], f"a{row}")
            index = self.index()
            far = End(hosts[name].namespace, self.name(f"b{row}"), index, _mac(3, index), None)
            self.links.append(Link(near, far, access=name))
            # From the other end of the addresses than those of hosts.
            address, bps = str(IPV4_NETWORK[-2 - len(self.access)]), float(publishers.access_bps[row])
            self.access.append(Access(name, far.namespace, far.interface, index, address, bps))

    def draw_port(self, number: int, switch: Bridge, fed: Bridge | None, behind: list[Host]) -> None:
        name = self.scenario.ports.name[number]
        owner, switch_interface = switch, self.name(f"p{number}")
        if switch.open_vswitch:
            owner = self.bridge("queues", name, f"z{number}")
            self.join(switch, owner, f"x{number}", f"y{number}", port=name)
            switch_interface = self.name(f"x{number}")
        near = self.end(owner, f"p{number}")
        self.ports.append(
            ManagedPort(
                name, switch.subject, self.switch_namespace, near.interface, near.index, switch_interface
            )
        )
        if fed is not None:
            self.links.append(Link(near, self.end(fed, f"q{number}"), name, fed.subject))
        elif len(behind) == 1:
            self.links.append(Link(near, _end_of(behind[0]), name))
        else:
            segment = self.bridge("distribution", name, f"d{number}")
            self.links.append(Link(near, self.end(segment, f"q{number}"), name))
            for host in behind:
                self.attach(host, segment, f"c{host.index}")

    @property
    def switch_namespace(self) -> str:
        return f"tq{self.run}-switches"

    def name(self, rest: str) -> str:
        """At most 2 + 6 + 1 + 6 characters, the 15 that Linux allows."""
        return f"tq{self.run}{rest}"

    def index(self) -> int:
        self.next_index += 1
        return self.next_index - 1

    def host(self, kind: HostKind, members: tuple[str, ...], label: str) -> Host:
        number = len(self.hosts) + 1
        ipv4 = IPV4_NETWORK[number]
        index = self.index()
        host = Host(
            kind,
            members,
            f"tq{self.run}-{label}",
            self.name(f"h{index}"),
            index,
            _mac(0, int(ipv4)),
            str(ipv4),
            str(IPV6_NETWORK[number]) if self.ipv6 else None,
        )
        self.hosts.append(host)
        return host

    def bridge(self, role: BridgeRole, subject: str, rest: str, open_vswitch: bool = False) -> Bridge:
        index = self.index()
        bridge = Bridge(role, subject, self.name(rest), index, _mac(1, index), open_vswitch)
        self.bridges.append(bridge)
        return bridge

    def end(self, bridge: Bridge, rest: str) -> End:
        self.members[bridge.name] = self.members.get(bridge.name, 0) + 1
        if self.members[bridge.name] > MOST_MEMBERS:
            raise NetworkError(
                f"more than {MOST_MEMBERS} links at one switch or shared port do not fit into a bridge; "
                "spread the subscribers over more ports and switches"
            )
        index = self.index()
        return End(self.switch_namespace, self.name(rest), index, _mac(2, index), bridge.name)

    def attach(
        self,
        host: Host,
        bridge: Bridge,
        rest: str,
        downlink_bps: float = np.inf,
        uplink_bps: float = np.inf,
    ) -> None:
        near, far = self.end(bridge, rest), _end_of(host)
        self.links.append(Link(near, far, downlink_bps=downlink_bps, uplink_bps=uplink_bps))

    def join(
        self,
        near: Bridge,
        far: Bridge,
        near_rest: str,
        far_rest: str,
        port: str | None = None,
        fifo_bps: float | None = None,
    ) -> None:
        self.links.append(Link(self.end(near, near_rest), self.end(far, far_rest), port, fifo_bps=fifo_bps))


def _end_of(host: Host) -> End:
    return End(host.namespace, host.interface, host.index, host.mac, None)


def _mac(kind: int, number: int) -> str:
    """A locally administered address, its kind in the second octet and the number in the last four.

    >>> _mac(1, 300)
    '02:01:00:00:01:2c'
    """
    return ":".join(f"{octet:02x}" for octet in (2, kind, *number.to_bytes(4, "big")))
