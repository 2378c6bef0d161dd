"""Promised topics on Open vSwitch: copies at the ports of a plan, marked for each, limited where hosts send."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.network.contract import PromisedFlowContract
from tests.network.openflow.lab import Lab, eventually

from triagemq.errors import PlanError
from triagemq.network.openflow import OpenFlowSwitches
from triagemq.plan.dataplane import FlowKey, RemoveFlow, RemoveLimiter, SetFlow, SetLimiter, SetPort

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")

TOPIC, FOREIGN = FlowKey("239.1.2.3", 5000), FlowKey("239.9.9.9", 5000)
HOSTS = {
    "publisher": "10.9.0.1",
    "near": "10.9.0.2",
    "far": "10.9.0.3",
    "second": "10.9.0.4",
    "stranger": "10.9.0.66",
}
PORTS = [SetPort(name, 1e8, 100, 7) for name in ("to near", "onward", "to far")]
COPIES = [
    SetFlow(TOPIC, "to near", 7, 3, 0.0),
    SetFlow(TOPIC, "onward", 7, 0, 0.0),
    SetFlow(TOPIC, "to far", 7, 1, 0.0),
]
EVENT = bytes(100)
WIRE_BYTES = 142


class Two:
    """Two switches: a publisher and a member at the first, another publisher and a member at the second."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.plane = OpenFlowSwitches(
            [1, 2],
            listen=[lab.switches.controller],
            ports={"to near": (1, "p-near"), "onward": (1, "l12"), "to far": (2, "p-far")},
        )
        ports = {name: lab.host(name, f"{address}/24") for name, address in HOSTS.items()}
        here, there = lab.link("l12", "l21")
        lab.switches.add_switch("s1", 1, [ports["publisher"], ports["near"], here, ports["stranger"]])
        lab.switches.add_switch("s2", 2, [there, ports["far"], ports["second"]])
        self.plane.wait_until_ready()
        self.senders = {name: self._sender(name) for name in ("publisher", "second", "stranger")}
        self.members = {name: self._member(name) for name in ("near", "far")}
        self.came = {name: Counter[tuple[str, int]]() for name in self.members}

    def _sender(self, name: str) -> socket.socket:
        made = self.lab.udp(name, HOSTS[name], 0)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(HOSTS[name]))
        return made

    def _member(self, name: str) -> socket.socket:
        made = self.lab.udp(name, "0.0.0.0", TOPIC.udp_port)
        made.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        for key in (TOPIC, FOREIGN):
            membership = socket.inet_aton(key.address) + socket.inet_aton(HOSTS[name])
            made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        return made

    def send(
        self,
        count: int,
        key: FlowKey = TOPIC,
        sender: str = "publisher",
        word: bytes = b"one",
        *,
        stranger: bool = False,
    ) -> None:
        """At most a hundred before somebody waits for them: a switch reads from a small buffer of the kernel's."""
        sender = "stranger" if stranger else sender
        for _ in range(count):
            self.senders[sender].sendto(word.ljust(100, b"."), (key.address, key.udp_port))
            self.receive()

    def receive(self) -> None:
        for name, member in self.members.items():
            while True:
                try:
                    event, ancillary, _, _ = member.recvmsg(2048, 100)
                except BlockingIOError:
                    break
                (octet,) = struct.unpack_from("B", ancillary[0][2])
                self.came[name][event.rstrip(b".").decode(), octet >> 2] += 1

    def have_come(self, name: str, expected: dict[tuple[str, int], int]) -> bool:
        self.receive()
        return self.came[name] == expected

    def rules(self, switch: str) -> list[str]:
        return [line for line in self.lab.switches.dump_flows(switch) if "nw_dst=239.1.2.3" in line]

    def goes_only_to_near(self, word: bytes) -> bool:
        """Send one; and one of another topic, by which it is known that the first would have come."""
        there, after = self.came["far"].total(), (f"after {word.decode()}", 0)
        seen = self.came["far"][after]
        self.send(1, word=word)
        self.send(1, FOREIGN, word=after[0].encode())
        eventually(lambda: self.came["far"][after] == seen + 1 or self.receive(), "what comes after it")
        return self.came["far"].total() == there + 1

    def order(self, limiter_packets: int) -> None:
        flow = SetFlow(TOPIC, "to near", 7, 0, 0.0, HOSTS["publisher"])
        self.plane.apply([*PORTS, flow, SetLimiter(TOPIC, limiter_packets * WIRE_BYTES, 1.0)])
        self.wait_for_entry()

    def wait_for_entry(self) -> None:
        """Until the rule of the topic's source is one for the port where it is."""
        eventually(
            lambda: (
                any("nw_src=10.9.0.1" in line and "in_port=" in line for line in self.rules("s1"))
                and not any("nw_src" in line and "in_port=" not in line for line in self.rules("s1"))
            ),
            "the publisher is found",
        )

    def counted(self) -> tuple[int, int, int]:
        found = self.plane.counters()[1].flows[TOPIC]
        return found.packets, found.limited, found.foreign

    def in_class(self) -> int:
        self.receive()
        return sum(count for (_, mark), count in self.came["near"].items() if mark == 46)

    def spoofer(self) -> socket.socket:
        """A socket of the stranger that sends as the publisher."""
        made = self.lab.in_host("stranger", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        assert isinstance(made, socket.socket)
        made.setsockopt(socket.IPPROTO_IP, 19, 1)  # IP_TRANSPARENT
        made.bind((HOSTS["publisher"], 0))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(HOSTS["stranger"]))
        return made

    def limited(self, switch: int) -> int:
        return self.plane.counters()[switch].flows[TOPIC].limited


@pytest.fixture
def two(lab: Lab) -> Iterator[Two]:
    made = Two(lab)
    yield made
    made.plane.close()


@pytest.fixture
def promised(two: Two) -> Two:
    return two


class TestPromisedFlow(PromisedFlowContract):
    """The contract of promised topics."""


def test_who_pretends_to_be_the_publisher_at_another_port_is_foreign(two: Two) -> None:
    source = HOSTS["publisher"]
    two.plane.apply([*PORTS, *(replace(copy, source=source) for copy in COPIES)])
    two.wait_for_entry()
    with two.spoofer() as spoofing:
        for _ in range(20):
            spoofing.sendto(b"spoofed".ljust(100, b"."), (TOPIC.address, TOPIC.udp_port))
        eventually(lambda: two.counted()[2] == 20, "what was spoofed is counted")
        two.send(20)
        eventually(lambda: two.have_come("near", {("one", 24): 20}), "the publisher's at the first switch")
        eventually(lambda: two.have_come("far", {("one", 40): 20}), "and at the second")
    # Open vSwitch adds what its cached flows have counted to its rules' counts twice a second.
    eventually(lambda: two.counted() == (20, 0, 20), "the publisher's are counted as its own")
    # Nor does it help to send where there are no copies but at the next switch.
    two.send(10, sender="second", word=b"two")
    eventually(
        lambda: two.plane.counters()[2].flows[TOPIC].foreign == 10, "the stranger at the second switch"
    )
    assert two.have_come("far", {("one", 40): 20})


def test_each_member_gets_each_event_once_with_the_mark_of_its_port(two: Two) -> None:
    two.plane.apply([*PORTS, *COPIES])
    two.send(50)
    eventually(lambda: two.have_come("near", {("one", 24): 50}), "copies at the first switch")
    eventually(lambda: two.have_come("far", {("one", 40): 50}), "copies at the second switch")
    # Others' topics are flooded with the marks they have; queues behind do not know them, and serve them last.
    two.send(5, FOREIGN, word=b"foreign")
    eventually(lambda: two.have_come("near", {("one", 24): 50, ("foreign", 0): 5}), "others' events")
    eventually(lambda: two.have_come("far", {("one", 40): 50, ("foreign", 0): 5}), "and at the second switch")
    two.plane.apply([RemoveFlow(TOPIC, "onward"), RemoveFlow(TOPIC, "to far")])
    # A switch may follow its former rules for a moment.
    eventually(lambda: two.goes_only_to_near(b"leaving"), "the way to far is gone")
    before = two.came["far"].copy()
    two.send(5, word=b"left")
    eventually(lambda: two.came["near"]["left", 24] == 5 or two.receive(), "who has stayed")
    # What is flooded goes the same way behind it: what had gone to far would be there before.
    two.send(1, FOREIGN, word=b"last")
    eventually(lambda: two.came["far"]["last", 0] == 1 or two.receive(), "what comes after it")
    assert two.came["far"] == before + Counter({("last", 0): 1})
    (first,) = [line for line in two.lab.switches.dump_flows("s1") if "nw_dst=239.1.2.3" in line]
    assert first.endswith("actions=set_field:24->ip_dscp,output:2")
    assert not [line for line in two.lab.switches.dump_flows("s2") if "nw_dst=239.1.2.3" in line]


def test_a_babbling_publisher_is_cut_at_its_own_switch_and_harms_no_other(two: Two) -> None:
    """The bucket of the first switch is nearly empty for good; what it lets pass is not limited at the second again."""
    terms = SetLimiter(TOPIC, 20.0 * WIRE_BYTES, 1.0, "onward")
    two.plane.apply([*PORTS, *COPIES, terms])
    begun = time.monotonic()
    two.send(100)
    eventually(lambda: two.plane.counters()[1].flows[TOPIC].packets == 100, "all are counted")
    passed = 100 - two.limited(1)
    # The least rate that a meter can have is 125 bytes per second.
    assert 20 <= passed <= 21 + (time.monotonic() - begun) * 125 / WIRE_BYTES
    eventually(lambda: two.have_come("near", {("one", 24): passed}), "what passed, at the first switch")
    eventually(lambda: two.have_come("far", {("one", 40): passed}), "what passed, at the second switch")
    assert two.limited(2) == 0
    two.send(30, sender="second", word=b"two")
    eventually(
        lambda: two.have_come("far", {("one", 40): passed, ("two", 40): 30}), "of the second publisher"
    )
    # For everybody, wherever they are: what comes over a link has met its limit before.
    two.plane.apply([RemoveLimiter(TOPIC, "onward"), SetLimiter(TOPIC, 10.0 * WIRE_BYTES, 1.0)])
    cut = two.limited(1)
    # A switch may follow its former rules for a moment.
    eventually(
        lambda: two.send(10, sender="second", word=b"three") or two.limited(2) >= 50,
        "the second publisher is cut, too",
    )
    here = two.limited(2)
    eventually(
        lambda: two.send(10, word=b"four") or two.limited(1) >= cut + 50, "and the first, by new terms"
    )
    assert two.limited(2) == here
    two.plane.apply([RemoveFlow(TOPIC)])
    eventually(
        lambda: not any("meter=" in two.lab.switches.dump_meters(name) for name in ("s1", "s2")),
        "no meter stays",
    )


def test_a_port_that_nobody_knows_is_refused_by_name(two: Two) -> None:
    with pytest.raises(PlanError, match="port 'cellar' is at no switch that is known here"):
        two.plane.apply([SetPort("cellar", 1e6, 10, 2), SetFlow(TOPIC, "cellar", 7, 0, 0.0)])
