"""What is known of the network, from what switches report: decides what is a link, an edge, a host. No I/O.

A switch whose connection is lost keeps its place: it still forwards. A link goes when a port at one of its ends goes
down, or when discovery frames no longer come through while both its switches are connected.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from triagemq.network.openflow.rules import Kind, Rule
from triagemq.network.openflow.switch_table import SwitchTable
from triagemq.network.openflow.topology import HostPlace, PortId, Topology

MOST_HOSTS = 4096
"""More addresses than this are not believed: they are invented."""


class Discovery:
    """Switches, ports, links and hosts as last seen. Times are seconds on any clock that only goes forward."""

    def __init__(self, *, link_seconds: float = 5.0, forget_seconds: float = 60.0) -> None:
        self.counters: Counter[str] = Counter()
        self._link_seconds = link_seconds
        self._forget_seconds = forget_seconds
        self._ports: dict[int, dict[int, bool]] = {}
        self._connected: set[int] = set()
        self._left: dict[int, float] = {}
        # When a discovery frame last came from the first port to the second.
        self._seen: dict[tuple[PortId, PortId], float] = {}
        self._hosts: dict[str, list[HostPlace]] = {}
        self._places_of: dict[str, set[PortId]] = {}
        self._settled: set[PortId] = set()
        self._links: dict[PortId, PortId] | None = None
        self.reserved: frozenset[PortId] = frozenset()
        """Ports over which no host is found: see Topology."""

    @property
    def network(self) -> Topology:
        """Without the ports of which it is not known yet what they are: flooding them might close a circle."""
        links = self.links
        up = {
            switch: frozenset(
                port
                for port, is_up in ports.items()
                if is_up and ((at := PortId(switch, port)) in self._settled or at in links)
            )
            for switch, ports in self._ports.items()
        }
        return Topology(
            ports=up,
            links=links,
            hosts={
                address: places
                for address, hosts in sorted(self._hosts.items())
                if (places := self._places(hosts))
            },
            reserved=self.reserved,
        )

    @property
    def links(self) -> dict[PortId, PortId]:
        """Links in both directions; of several neighbours at one port the lowest."""
        if self._links is None:
            links: dict[PortId, PortId] = {}
            for here, there in sorted(self._seen):
                if (there, here) in self._seen and here not in links and there not in links:
                    links[here], links[there] = there, here
            self._links = links
        return self._links

    def unsettled(self) -> set[PortId]:
        """Ports that are up and of which it is not known yet whether they are links or edges."""
        links = self.links
        return {
            at
            for switch in self._connected
            for port, up in self._ports[switch].items()
            if up and (at := PortId(switch, port)) not in self._settled and at not in links
        }

    def settle(self, ports: Iterable[PortId]) -> None:
        """Nothing came over these ports although it was tried: they are edges, until something comes."""
        self._settled.update(ports)

    def joined(self, switch: int, ports: dict[int, bool], now: float) -> None:
        """A switch is connected (again)."""
        known = self._ports.get(switch, {})
        for port in set(known) - set(ports):
            self._unlink(PortId(switch, port))
        for port, up in ports.items():
            if not up or not known.get(port, False):
                self._unlink(PortId(switch, port))
        self._ports[switch] = dict(ports)
        self._connected.add(switch)
        self._left.pop(switch, None)
        for pair in self._seen:
            if switch in (pair[0].switch, pair[1].switch):
                self._seen[pair] = now

    def left(self, switch: int, now: float) -> None:
        """The connection to a switch was lost; the switch goes on."""
        self._connected.discard(switch)
        self._left[switch] = now

    def port_changed(self, switch: int, port: int, up: bool | None) -> None:
        """A port is up, down, or (None) gone."""
        at = PortId(switch, port)
        if up is None:
            self._ports[switch].pop(port, None)
        else:
            before = self._ports[switch].get(port)
            self._ports[switch][port] = up
            if before == up:
                return
        self._unlink(at)

    def frame_seen(self, left: PortId, came: PortId, now: float) -> None:
        """A discovery frame that left one port came in at another."""
        if not self._ports.get(left.switch, {}).get(left.port):
            return
        if not self._ports.get(came.switch, {}).get(came.port):
            return
        if (left, came) not in self._seen:
            self._links = None
            # Neither is an edge, whatever it was taken for.
            self._settled -= {left, came}
        self._seen[left, came] = now

    def half_seen(self) -> set[PortId]:
        """Ports between which frames came in one direction only, so far."""
        return {port for pair in self._seen for port in pair if port not in self.links}

    def speaker_seen(self, at: PortId, ethernet: str, address: str) -> bool:
        """A host spoke at a port; whether that is news. Ports that may still be links, or are, do not count."""
        if at in self.reserved:
            return False
        if at not in self._settled or at in self.links:
            self.counters["spoke too early"] += 1
            return False
        host = HostPlace(ethernet, at)
        known = self._hosts.get(address, [])
        if host in known:
            return False
        if not known and len(self._hosts) >= MOST_HOSTS:
            self.counters["hosts refused"] += 1
            return False
        here = self._tlv(at.switch)
        places = self._places_of.setdefault(ethernet, set())
        moved_from = {place for place in places if place != at and place.switch in here}
        if moved_from:
            # A host that speaks elsewhere has moved there with all its addresses.
            self.counters["hosts moved"] += 1
            for hosts in self._hosts.values():
                for number, each in enumerate(hosts):
                    if each.ethernet == ethernet and each.at in moved_from:
                        hosts[number] = host
        self._places_of[ethernet] = places - moved_from | {at}
        self._hosts[address] = [each for each in known if each.at.switch not in here] + [host]
        return True

    def rules_seen(self, switch: int, rules: Iterable[Rule]) -> None:
        """What an earlier controller knew of hosts can be read from the rules it left."""
        for rule in rules:
            if rule.kind is not Kind.HOST or rule.is_foreign:
                continue
            fields = dict(rule.match)
            address = fields.get("ipv4_src") or fields.get("ipv6_src")
            port, ethernet = fields.get("in_port"), fields.get("eth_src")
            if isinstance(address, str) and isinstance(port, int) and isinstance(ethernet, str):
                known = self._hosts.setdefault(address, [])
                if all(host.at.switch != switch for host in known):
                    known.append(HostPlace(ethernet, PortId(switch, port)))
                    self._places_of.setdefault(ethernet, set()).add(PortId(switch, port))

    def expire(self, now: float) -> bool:
        """Give up links and switches of which nothing has been heard for too long; whether there were any."""
        lost = [
            pair
            for pair, seen in self._seen.items()
            if now - seen > self._link_seconds and {pair[0].switch, pair[1].switch} <= self._connected
        ]
        for left, came in lost:
            self._unlink(left)
            self._unlink(came)
        gone = [switch for switch, since in self._left.items() if now - since > self._forget_seconds]
        for switch in gone:
            for port in self._ports.pop(switch):
                self._unlink(PortId(switch, port))
            del self._left[switch]
            self._hosts = {
                address: others
                for address, hosts in self._hosts.items()
                if (others := [host for host in hosts if host.at.switch != switch])
            }
        return bool(lost or gone)

    def _unlink(self, at: PortId) -> None:
        """What a port leads to is not known any more."""
        self._settled.discard(at)
        for pair in [pair for pair in self._seen if at in pair]:
            del self._seen[pair]
            self._links = None
            # The other end is to be tried again, too.
            self._settled.difference_update(pair)

    def _places(self, hosts: list[HostPlace]) -> tuple[HostPlace, ...]:
        """The places of a host that are still ports to hosts, the last seen in each connected part."""
        places: list[HostPlace] = []
        for host in reversed(hosts):
            known = self._ports.get(host.at.switch, {})
            if host.at.port not in known or host.at in self.links or host.at in self.reserved:
                continue
            if not any(host.at.switch in self._tlv(each.at.switch) for each in places):
                places.append(host)
        return tuple(sorted(places))

    def _tlv(self, switch: int) -> set[int]:
        """The switches that links join with this one, and itself."""
        part, frontier = {switch}, [switch]
        while frontier:
            here = frontier.pop()
            for near, far in self.links.items():
                if not self.reserved.isdisjoint((near, far)):
                    continue
                if near.switch == here and far.switch not in part:
                    part.add(far.switch)
                    frontier.append(far.switch)
        return part


_ETHERNET_BYTES = 14
_LINK_DISCOVERY = 0x88CC
# IEEE 802.1AB, "nearest bridge": an ordinary bridge between two switches keeps it, unless configured to pass it on.
_GROUP = bytes.fromhex("0180c200000e")
_CONTROLLER_ETHERNET = bytes.fromhex("025452494147")
_CONTROLLER_LINK_LOCAL = ipaddress.IPv6Address("fe80::54:52ff:fe49:4147").packed
_ORGANISATION = b"TRI\x01"


_DISCOVERY = struct.Struct("!6s6sH HBQ HBI HH H4s8s H")
"""LLDP: the Ethernet header; then headers and contents of chassis (switch), port, seconds to live and ours; the end."""
_DISCOVERY_HEADERS = (1 << 9 | 9, 7), (2 << 9 | 5, 7), (3 << 9 | 2, 120), (127 << 9 | 12, _ORGANISATION)


def discovery_frame(at: PortId, nonce: bytes) -> bytes:
    """LLDP that says which port it left. The nonce of eight octets is this controller's: others are not believed."""
    chassis, port, seconds, ours = _DISCOVERY_HEADERS
    header = (_GROUP, _CONTROLLER_ETHERNET, _LINK_DISCOVERY)
    return _DISCOVERY.pack(*header, *chassis, at.switch, *port, at.port, *seconds, *ours, nonce, 0)


def read_discovery(frame: bytes, nonce: bytes) -> PortId | None:
    """The port that a frame of ours left; None if it is not one.

    >>> read_discovery(discovery_frame(PortId(7, 3), b"a secret"), b"a secret")
    PortId(switch=7, port=3)
    >>> read_discovery(discovery_frame(PortId(7, 3), b"a secret"), b"another!")
    """
    if len(frame) < _DISCOVERY.size:
        return None
    fields = _DISCOVERY.unpack_from(frame)
    at = PortId(fields[5], fields[8])
    return at if frame.startswith(discovery_frame(at, nonce)) else None


def is_discovery(frame: bytes) -> bool:
    """Is it LLDP, from any sender?"""
    return len(frame) > _ETHERNET_BYTES and frame[12:14] == _LINK_DISCOVERY.to_bytes(2, "big")


def read_speaker(frame: bytes) -> tuple[str, str] | None:
    """The Ethernet and IP address of the host that sent a frame; None if it does not say both, and for our own.

    >>> read_speaker(bytes.fromhex("ffffffffffff 020000000002 0806 0001 0800 06 04 0001 020000000002 0a000002")
    ...     + bytes(10))
    ('02:00:00:00:00:02', '10.0.0.2')
    """
    if len(frame) < _ETHERNET_BYTES:
        return None
    source = frame[6:12]
    if source[0] & 1 or not any(source) or source == _CONTROLLER_ETHERNET:
        return None
    kind = int.from_bytes(frame[12:14], "big")
    if kind == 0x0806 and len(frame) >= 32 and frame[14:20] == b"\x00\x01\x08\x00\x06\x04":
        packed = frame[28:32]
    elif kind == 0x0800 and len(frame) >= 34 and frame[14] >> 4 == 4:
        packed = frame[26:30]
    elif kind == 0x86DD and len(frame) >= 54 and frame[14] >> 4 == 6:
        packed = frame[22:38]
    else:
        return None
    address = ipaddress.ip_address(packed)
    if address.is_unspecified or address.is_multicast or address.is_loopback or packed == b"\xff" * 4:
        return None
    return source.hex(":"), str(address)


def arp_question(address: str) -> bytes:
    """Who has this IPv4 address? Without an address of our own, so that no host stores a wrong one."""
    body = struct.pack("!HHBBH", 1, 0x0800, 6, 4, 1) + _CONTROLLER_ETHERNET + bytes(4) + bytes(6)
    return b"\xff" * 6 + _CONTROLLER_ETHERNET + b"\x08\x06" + body + ipaddress.IPv4Address(address).packed


def neighbour_question(address: str) -> bytes:
    """Who has this IPv6 address? (RFC 4861, section 4.3)"""
    target = ipaddress.IPv6Address(address).packed
    group = ipaddress.IPv6Address("ff02::1:ff00:0").packed[:13] + target[13:]
    message = b"\x87\x00\x00\x00" + bytes(4) + target + b"\x01\x01" + _CONTROLLER_ETHERNET
    pseudo = _CONTROLLER_LINK_LOCAL + group + struct.pack("!II", len(message), 58)
    total = sum(struct.unpack(f"!{(len(pseudo) + len(message)) // 2}H", pseudo + message))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    message = message[:2] + struct.pack("!H", ~total & 0xFFFF) + message[4:]
    header = struct.pack("!IHBB", 6 << 28, len(message), 58, 255) + _CONTROLLER_LINK_LOCAL + group
    return b"\x33\x33" + group[12:] + _CONTROLLER_ETHERNET + b"\x86\xdd" + header + message


_TRIES = 4
_MOST_TRIES = 50
"""For a port at which something came: it is no edge, unless nothing ever comes in the other direction."""

_NEVER = float("-inf")


class Search:
    """`tables` are the switches that are connected, as the controller keeps them."""

    def __init__(self, discovery: Discovery, tables: Mapping[int, SwitchTable], ask_seconds: float) -> None:
        self._discovery = discovery
        self._tables = tables
        self._ask_seconds = ask_seconds
        self._nonce = secrets.token_bytes(8)
        self._tries: dict[PortId, int] = {}
        self._requested: dict[str, float] = {}

    def origin(self, frame: bytes) -> PortId | None:
        """The port that a discovery frame of ours left; None for one of another controller."""
        return read_discovery(frame, self._nonce)

    def try_ports(self, ports: Iterable[PortId]) -> None:
        """Send a discovery frame out of each; those of switches that are not connected are left out."""
        for at in ports:
            table = self._tables.get(at.switch)
            if table is not None:
                table.session.packet_out(at.port, discovery_frame(at, self._nonce))

    def begin_again(self, port: PortId) -> None:
        """The port has changed: what was tried there counts no more."""
        self._tries.pop(port, None)

    async def settle(self) -> None:
        """Try ports of unknown nature. Those over which nothing comes, although all have answered since, are edges."""
        unsettled = self._discovery.unsettled()
        if unsettled:
            self.try_ports(unsettled)
            await asyncio.gather(
                *(table.session.drain() for table in self._tables.values()), return_exceptions=True
            )
        for port in unsettled:
            self._tries[port] = self._tries.get(port, 0) + 1
        half_seen = self._discovery.half_seen()
        done = [
            port
            for port in self._discovery.unsettled()
            if self._tries.get(port, 0) >= (_MOST_TRIES if port in half_seen else _TRIES)
        ]
        self._discovery.settle(done)
        for port in done:
            del self._tries[port]
            # Hosts may be behind it.
            self._requested.clear()

    def ask_for(self, addresses: Sequence[str], edges: Callable[[], Sequence[PortId]], now: float) -> None:
        """Request silent hosts where they are, and again when ports have come."""
        self._requested = {each: self._requested[each] for each in addresses if each in self._requested}
        for address in addresses:
            if now - self._requested.get(address, _NEVER) < self._ask_seconds:
                continue
            self._requested[address] = now
            frame = neighbour_question(address) if ":" in address else arp_question(address)
            for at in edges():
                self._tables[at.switch].session.packet_out(at.port, frame)
