"""Prefixes of topics' codes: Open vSwitch and the kernel's classifier say the same of the same packets."""

from __future__ import annotations

import ipaddress
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest
from tests.network.openflow.lab import Lab, eventually, ip

from triagemq.network.linux import Interface, LinuxDataPlane
from triagemq.network.linux.netlink import in_namespace
from triagemq.network.openflow import OpenFlowSwitches
from triagemq.network.openflow.rules import class_mark
from triagemq.plan.dataplane import FlowKey, Instruction, RemoveFlow, SetFlow, SetPort
from triagemq.topic_codes import (
    EVENT_PORT,
    CodeBook,
    EventAddress,
    Prefix,
    event_address,
    subtree_prefix,
)

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")

PORTS = ("east", "west")
CLASSES = 7
EVENTS = 300
FORMER_PLAN_SECONDS = 0.3
"""For so long Open vSwitch may go on with former decisions after it has said that a rule is in force."""
_IPV6_HEADER, _NUMBER = 14, struct.Struct("!I")
_SO_RCVBUFFORCE = 33


@dataclass(frozen=True)
class Drawn:
    """A seeded tree of topics with codes, who wants what, and the addresses to which events are sent."""

    prefixes: dict[str, list[Prefix]]
    addresses: list[str]


def draw(seed: int) -> Drawn:
    source = random.Random(seed)
    book = CodeBook()
    topics = [
        "/".join(f"{name}{source.randrange(width)}" for name, width in zip("bfrs", (2, 5, 9, 4), strict=True))
        for _ in range(120)
    ]
    book.add(topics)
    book.add_type("alarm")
    filters = {port: set() for port in PORTS}
    for port, wanted in filters.items():
        for _ in range(12):
            levels = source.choice(topics).split("/")[: source.choice((2, 3, 3, 4))]
            wanted.add("/".join(levels) + source.choice(("", "/#", "/#")))
        # One subtree within another, at the other port: copies leave by both.
        wanted.add("b0/f1/#" if port == "east" else "b0/#")
    addresses = [
        event_address(book, EventAddress(source.choice(topics), source.choice(("", "alarm"))))
        for _ in range(EVENTS - 20)
    ]
    # And some that are no topic's: codes nobody has, other multicast addresses near them.
    addresses += [str(ipaddress.IPv6Address(0xFF1E << 112 | source.getrandbits(112))) for _ in range(20)]
    return Drawn(
        {
            port: sorted({subtree_prefix(book, each) for each in wanted}, key=str)
            for port, wanted in filters.items()
        },
        addresses,
    )


class Sides:
    """A publisher and two members at each of an Open vSwitch and a kernel bridge, whose ports have the prefixes."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.switches = OpenFlowSwitches(
            [1],
            listen=[lab.switches.controller],
            ports={port: (1, f"p-o{port}") for port in PORTS},
        )
        ports = [lab.host(f"o{name}", f"fd00::{n}/64") for n, name in enumerate(("publisher", *PORTS), 1)]
        lab.switches.add_switch("s1", 1, ports)
        self._bridge(["kpublisher", *(f"k{port}" for port in PORTS)])
        self.plane = LinuxDataPlane(
            {port: Interface(f"p-k{port}", namespace=lab.namespace) for port in PORTS},
        )
        self.switches.wait_until_ready()
        self.senders = {side: self._sender(f"{side}publisher") for side in "ok"}
        self.captures = {(side, port): self._capture(f"{side}{port}") for side in "ok" for port in PORTS}

    def _bridge(self, hosts: list[str]) -> None:
        near = [self.lab.host(name, f"fd01::{n}/64") for n, name in enumerate(hosts, 1)]
        lines = ["link add bridge type bridge mcast_snooping 0", "link set bridge up"]
        ip(*lines, *(f"link set {each} master bridge" for each in near), namespace=self.lab.namespace)

    def _sender(self, host: str) -> socket.socket:
        ip("route add multicast ff00::/8 dev eth0 table local", namespace=f"{self.lab.name}-{host}")
        made = in_namespace(
            f"{self.lab.name}-{host}", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        )
        index = in_namespace(f"{self.lab.name}-{host}", lambda: socket.if_nametoindex("eth0"))
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        return made

    def _capture(self, host: str) -> socket.socket:
        made = in_namespace(
            f"{self.lab.name}-{host}", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        )
        made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 1 << 22)
        made.bind(("eth0", 0x86DD))
        made.setblocking(False)
        return made

    def apply(self, instructions: list[Instruction]) -> None:
        self.plane.apply(instructions)
        self.switches.apply(instructions)

    def send(self, side: str, number: int, address: str) -> None:
        self.senders[side].sendto(_NUMBER.pack(number) + bytes(60), (address, EVENT_PORT))

    def came(self, side: str, port: str) -> dict[int, tuple[str, int]]:
        """Events by number: address and mark; each once."""
        found: dict[int, tuple[str, int]] = {}
        while True:
            try:
                frame, _, _, where = self.captures[side, port].recvmsg(2048)
            except BlockingIOError:
                return found
            packet = frame[_IPV6_HEADER:]
            if where[2] == socket.PACKET_OUTGOING or packet[6] != 17 or packet[24:26] != b"\xff\x1e":
                continue
            (number,) = _NUMBER.unpack_from(packet, 48)
            assert number not in found
            mark = (packet[0] & 0x0F) << 2 | packet[1] >> 6
            found[number] = str(ipaddress.IPv6Address(packet[24:40])), mark

    def have_come(
        self, came: dict[tuple[str, str], dict[int, tuple[str, int]]], expected: dict[str, set[int]]
    ) -> bool:
        for each in came:
            came[each] |= self.came(*each)
        return all(found.keys() >= expected[port] for (_, port), found in came.items())

    def counted_by_the_switch(self, prefixes: list[Prefix]) -> dict[Prefix, int]:
        flows = self.switches.counters()[1].flows
        return {each: flows[key(each)].packets for each in prefixes}

    def close(self) -> None:
        self.plane.close()
        self.switches.close()
        for each in (*self.senders.values(), *self.captures.values()):
            each.close()


@pytest.fixture
def sides(lab: Lab) -> Iterator[Sides]:
    made = Sides(lab)
    yield made
    made.close()


def key(prefix: Prefix) -> FlowKey:
    return FlowKey(str(prefix), EVENT_PORT)


def flow(prefix: Prefix, port: str) -> SetFlow[FlowKey]:
    """In a class by the length of the prefix, and another one at each port."""
    return SetFlow(key(prefix), port, 7, class_of(prefix, port), 0.0)


def class_of(prefix: Prefix, port: str) -> int:
    return (prefix.length + PORTS.index(port)) % CLASSES


def wanted_at(prefixes: list[Prefix], address: str) -> bool:
    """The oracle: Python's own networks."""
    return any(ipaddress.IPv6Address(address) in ipaddress.IPv6Network(str(each)) for each in prefixes)


def test_prefixes_match_in_open_vswitch_and_in_the_kernel_alike(sides: Sides) -> None:
    drawn = draw(17)
    sides.apply(
        [
            *(SetPort(port, 1e9, 1000, CLASSES) for port in PORTS),
            *(flow(prefix, port) for port, some in drawn.prefixes.items() for prefix in some),
        ]
    )
    expected = {
        port: {
            number
            for number, address in enumerate(drawn.addresses)
            if wanted_at(drawn.prefixes[port], address)
        }
        for port in PORTS
    }
    nowhere = EVENTS - len(expected["east"] | expected["west"])
    assert (
        min(len(expected["east"] & expected["west"]), len(expected["east"] ^ expected["west"]), nowhere) > 20
    )
    came: dict[tuple[str, str], dict[int, tuple[str, int]]] = {each: {} for each in sides.captures}
    for number, address in enumerate(drawn.addresses):
        for side in "ok":
            sides.send(side, number, address)
        if number % 50 == 49:
            # A switch in user space reads from a small buffer of the kernel's.
            until_now = {port: {each for each in some if each <= number} for port, some in expected.items()}
            eventually(partial(sides.have_come, came, until_now), "what was wanted comes")
    classes = {
        port: {
            number: class_of(longest_of(drawn.prefixes[port], drawn.addresses[number]), port)
            for number in expected[port]
        }
        for port in PORTS
    }
    for (side, port), found in came.items():
        assert found.keys() == expected[port], (side, port)
        assert {number: address for number, (address, _) in found.items()} == {
            number: str(ipaddress.IPv6Address(drawn.addresses[number])) for number in expected[port]
        }
        if side == "o":
            marks = {number: class_mark(classes[port][number]) for number in found}
            assert {number: mark for number, (_, mark) in found.items()} == marks
    counters = sides.plane.counters()
    for port in PORTS:
        counted = Counter(classes[port].values())
        assert [each.packets_out for each in counters.ports[port].queues] == [
            counted[each] for each in range(CLASSES)
        ]
        assert counters.ports[port].discarded == EVENTS - len(expected[port])
        copies = sides.plane.flow_counters()
        matched = {each: copies[key(each), port].packets_out for each in drawn.prefixes[port]}
        assert sum(matched.values()) == len(expected[port])
        assert matched == longest(
            drawn.prefixes[port], [drawn.addresses[number] for number in expected[port]]
        )
    both = sorted({each for some in drawn.prefixes.values() for each in some}, key=str)
    everywhere = [drawn.addresses[number] for number in expected["east"] | expected["west"]]
    # Open vSwitch adds its counters up now and then.
    eventually(lambda: sides.switches.counters()[1].discarded == nowhere, "what goes nowhere is counted")
    matched = longest(both, everywhere)
    eventually(lambda: sides.counted_by_the_switch(both) == matched, "what matches is counted")
    assert sum(matched.values()) + nowhere == EVENTS


def longest(prefixes: list[Prefix], addresses: list[str]) -> dict[Prefix, int]:
    """How many addresses each prefix is the longest of that fit."""
    found = dict.fromkeys(prefixes, 0)
    for address in addresses:
        found[longest_of(prefixes, address)] += 1
    return found


def longest_of(prefixes: list[Prefix], address: str) -> Prefix:
    fit = [each for each in prefixes if wanted_at([each], address)]
    return max(fit, key=lambda each: each.length)


def test_a_prefix_that_is_taken_away_takes_no_other_with_it(sides: Sides) -> None:
    wide, narrow = Prefix.parse("ff1e:8000::/18"), Prefix.parse("ff1e:a000::/20")
    ports = [SetPort(port, 1e9, 1000, 3) for port in PORTS]

    def last(prefix: Prefix, port: str) -> SetFlow[FlowKey]:
        return SetFlow(key(prefix), port, 7, 2, 0.0)

    sides.apply([*ports, last(wide, "east"), last(narrow, "west"), last(narrow, "east")])
    steps: list[tuple[list[Instruction], set[str]]] = [
        ([], {"east", "west"}),
        ([RemoveFlow(key(narrow), "east")], {"east", "west"}),
        ([RemoveFlow(key(wide), "east")], {"west"}),
        ([RemoveFlow(key(narrow), "west"), last(wide, "east")], {"east"}),
    ]
    came: dict[tuple[str, str], dict[int, tuple[str, int]]] = {each: {} for each in sides.captures}
    expected: dict[str, set[int]] = {port: set() for port in PORTS}
    for number, (instructions, wanted) in enumerate(steps):
        sides.apply(instructions)
        time.sleep(FORMER_PLAN_SECONDS)
        for port in wanted:
            expected[port].add(number)
        for side in "ok":
            sides.send(side, number, "ff1e:a800::4")
        eventually(partial(sides.have_come, came, expected), f"step {number}")
    counters = sides.plane.counters()
    assert [each.packets_out for each in counters.ports["east"].queues] == [0, 0, 3]
    assert (counters.ports["east"].discarded, counters.ports["west"].discarded) == (1, 1)
    assert {each: found.keys() for each, found in came.items()} == {each: expected[each[1]] for each in came}


def test_a_new_controller_finds_the_rules_of_the_last_and_changes_none(lab: Lab) -> None:
    ports = [lab.host(name, f"fd00::{number}/64") for number, name in enumerate(PORTS, 1)]
    lab.switches.add_switch("s1", 1, ports)
    wanted: list[Instruction] = [SetPort("east", 1e9, 1000, 7)]
    wanted += [flow(Prefix.parse(text), "east") for text in ("ff1e:8000::/18", "ff1e:a000::7/128")]
    found = []
    for _ in range(2):
        switches = OpenFlowSwitches(
            [1], listen=[lab.switches.controller], ports={"east": (1, "p-east")}, keep_rules=True
        )
        switches.wait_until_ready()
        switches.apply(wanted)
        found.append((lab.switches.dump_flows("s1"), switches.changes["rules put"]))
        switches.close()
    (first, _), (second, put) = found
    assert first == second
    assert put == 0
    assert sum("ipv6_dst=ff1e:" in line for line in second) == 3
