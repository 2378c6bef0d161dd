"""What is known of the network, from what switches report: decides what is a link, an edge, a host. No I/O.

A switch whose connection is lost keeps its place: it still forwards. A link goes when a port at one of its ends goes
down, or when discovery frames no longer come through while both its switches are connected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from triagemq.network.openflow.rules import Kind, Rule
from triagemq.network.openflow.topology import HostPlace, PortId, Topology

MOST_HOSTS = 4096
"""More addresses than this are not believed: somebody invents them."""


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
        """Ports over which nobody is to be found: see Topology."""

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
        here = self._part(at.switch)
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
            if rule.kind is not Kind.HOST or rule.strange:
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
            if not any(host.at.switch in self._part(each.at.switch) for each in places):
                places.append(host)
        return tuple(sorted(places))

    def _part(self, switch: int) -> set[int]:
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
