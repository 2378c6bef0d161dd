"""What a network in a box is made of: hosts, bridges, links and managed ports. Plain data, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

__all__ = ["Bridge", "BridgeRole", "End", "Host", "HostKind", "Layout", "Link", "ManagedPort", "SwitchKind"]

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
    shapes what the far end sends towards the brokers: an unmanaged switch.
    """

    near: End
    far: End
    port: str | None = None
    feeds: str | None = None
    fifo_bps: float | None = None


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


@dataclass(frozen=True)
class Layout:
    """The whole box. Everything in it carries the run's name, so that two boxes never meet.

    `feeding` are the ports that feed a switch while no link is down.
    """

    run: str
    switch_kind: SwitchKind
    switch_namespace: str
    hosts: tuple[Host, ...]
    bridges: tuple[Bridge, ...]
    links: tuple[Link, ...]
    ports: tuple[ManagedPort, ...]
    feeding: frozenset[str]

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
    def switches(self) -> dict[str, Bridge]:
        return {bridge.subject: bridge for bridge in self.bridges if bridge.role == "switch"}

    @cached_property
    def port(self) -> dict[str, ManagedPort]:
        return {port.name: port for port in self.ports}

    def members(self, bridge: str) -> tuple[End, ...]:
        """The interfaces of a bridge. Those of a switch have the OpenFlow numbers 1, 2, ... in this order."""
        return tuple(end for link in self.links for end in (link.near, link.far) if end.bridge == bridge)

    def _by_member(self, kind: HostKind) -> dict[str, Host]:
        return {member: host for host in self.hosts if host.kind == kind for member in host.members}
