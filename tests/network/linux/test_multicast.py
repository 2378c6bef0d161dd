"""Promised topics in the linux data plane: copies of one packet, with a class, a limiter and counters at each port."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyroute2 import NetNS
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from tests.network.contract import PromisedFlowContract
from tests.network.linux.wires import RECEIVER, RECEIVER_ON_CABLE, SENDER, Wires

from triagemq.errors import PlanError
from triagemq.network.linux import LinuxDataPlane, TrustedAddress
from triagemq.network.linux.netlink import in_namespace
from triagemq.plan.dataplane import (
    FlowCounters,
    FlowKey,
    RemoveFlow,
    RemoveLimiter,
    SetFlow,
    SetLimiter,
    SetPort,
)

pytestmark = pytest.mark.needs_root("it changes queues of the kernel")

STRANGER = "10.9.0.66"
TOPIC = FlowKey("239.1.2.3", 5000)
FOREIGN = FlowKey("239.9.9.9", 5000)
EVENT = bytes(100)
WIRE_BYTES = 142
PORTS = [SetPort(name, 1e8, 1000, 7) for name in ("radio", "cable")]
COPIES = [SetFlow(TOPIC, "radio", 7, 0, 0.0), SetFlow(TOPIC, "cable", 7, 3, 0.0)]


class Members:
    """A publisher that is not the gateway, a stranger, and a member of the topic behind each of two ports."""

    def __init__(self) -> None:
        self.wires = Wires()
        with NetNS(self.wires.sender) as sender:
            device = sender.link_lookup(ifname="eth0")[0]
            sender.addr("add", index=device, address=STRANGER, prefixlen=24)
        self.output, self.stranger = (self._sender(address) for address in (SENDER, STRANGER))
        self.members = [self._member(address) for address in (RECEIVER, RECEIVER_ON_CABLE)]
        self.plane = LinuxDataPlane(self.wires.interfaces)
        self.plane.trust([TrustedAddress("udp", "10.9.0.77", 1883)])

    def _sender(self, address: str) -> socket.socket:
        made = in_namespace(self.wires.sender, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.bind((address, 0))
        made.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
        return made

    def _member(self, address: str) -> socket.socket:
        made = in_namespace(self.wires.receiver, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # IP_MULTICAST_ALL: only what comes by the interface by which it is a member.
        made.setsockopt(socket.IPPROTO_IP, 49, 0)
        made.bind(("", TOPIC.udp_port))
        for group in (TOPIC, FOREIGN):
            membership = socket.inet_aton(group.address) + socket.inet_aton(address)
            made.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        made.settimeout(10.0)
        return made

    def send(self, count: int, key: FlowKey = TOPIC, *, stranger: bool = False) -> None:
        for _ in range(count):
            (self.stranger if stranger else self.output).sendto(EVENT, (key.address, key.udp_port))

    def pretend(self, ethernet: str, address: str = SENDER) -> None:
        """An event with a publisher's address, from a device behind the port `cable`."""
        frame = (
            Ether(src=ethernet, dst="01:00:5e:01:02:03")
            / IP(src=address, dst=TOPIC.address)
            / UDP(sport=9, dport=TOPIC.udp_port)
            / Raw(EVENT)
        )
        with in_namespace(
            self.wires.receiver, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        ) as device:
            device.bind(("eth1", 0))
            device.send(bytes(frame))

    def order(self, limiter_packets: int) -> None:
        flow = SetFlow(TOPIC, "radio", 7, 0, 0.0, SENDER)
        self.plane.apply([*PORTS, flow, SetLimiter(TOPIC, limiter_packets * WIRE_BYTES, 0.1)])

    def counted(self) -> tuple[int, int, int]:
        found = self.plane.counters().flows[TOPIC]
        return found.packets_in, found.limited, found.foreign

    def in_class(self) -> int:
        return self.plane.counters().ports["radio"].queues[0].packets_out

    def settled(self, came: int, foreign: int | None = None) -> FlowCounters:
        """What the topic has counted when so many packets have come and none waits any more.

        Foreign packets that come in elsewhere may take longer.
        """
        deadline = time.monotonic() + 20
        while True:
            counters = self.plane.counters()
            counted = counters.flows[TOPIC]
            complete = counted.packets_in == came and foreign in (None, counted.foreign)
            if complete and not counted.backlog_packets:
                return counted
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def close(self) -> None:
        self.plane.close()
        for each in (self.output, self.stranger, *self.members):
            each.close()
        self.wires.close()


@pytest.fixture
def members() -> Iterator[Members]:
    made = Members()
    yield made
    made.close()


@pytest.fixture
def promised(members: Members) -> Members:
    return members


class TestPromisedFlow(PromisedFlowContract):
    """The contract of promised topics."""


def test_what_a_stranger_sends_to_a_promised_topic_goes_last_at_every_port(members: Members) -> None:
    members.plane.apply([*PORTS, *(replace(copy, source=SENDER) for copy in COPIES)])
    members.send(10, stranger=True)
    members.send(5)
    assert members.settled(10) == FlowCounters(7, 10, packets_out=10, foreign=20)
    assert members.plane.counters().unmanaged.packets >= 20
    # A publisher that moves to another address is known there from the next plan on.
    members.plane.apply([replace(copy, source=STRANGER) for copy in COPIES])
    members.send(10, stranger=True)
    assert members.settled(30) == FlowCounters(7, 30, packets_out=30, foreign=20)
    with pytest.raises(PlanError, match="needs an IP address in digits for its source, not 'ward-3'"):
        members.plane.apply([replace(COPIES[0], source="ward-3")])


def test_who_pretends_to_be_the_publisher_at_another_interface_is_foreign(members: Members) -> None:
    members.plane.apply([*PORTS, SetFlow(TOPIC, "radio", 7, 0, 0.0, SENDER)])
    members.send(5)
    assert members.settled(5) == FlowCounters(7, 5, packets_out=5)
    # A host behind the other port takes the publisher's IP address.
    for _ in range(20):
        members.pretend("02:00:00:00:09:66")
    members.send(5)
    assert members.settled(10, foreign=20) == FlowCounters(7, 10, packets_out=10, foreign=20)
    counters = members.plane.counters()
    assert counters.unmanaged.packets >= 20
    # Hosts mark their reports of multicast groups.
    assert counters.ports["radio"].strange_marks < 10
    # The publisher's own device may move there, and is then the one.
    members.pretend("02:00:00:00:09:01")
    assert members.settled(11) == FlowCounters(7, 11, packets_out=11, foreign=20)
    # Another source is found where it first sends from.
    members.plane.apply([SetFlow(TOPIC, "radio", 7, 0, 0.0, STRANGER)])
    members.pretend("02:00:00:00:09:67", STRANGER)
    assert members.settled(12) == FlowCounters(7, 12, packets_out=12, foreign=20)


def test_copies_have_the_class_of_their_port_and_foreign_packets_go_last(members: Members) -> None:
    members.plane.apply([*PORTS, *COPIES])
    members.send(20)
    members.send(10, FOREIGN)
    for member in members.members:
        assert [len(member.recv(2048)) for _ in range(30)] == [100] * 30
    counters = members.plane.counters()
    radio, cable = counters.ports["radio"], counters.ports["cable"]
    assert [queue.packets_out for queue in radio.queues] == [20, 0, 0, 0, 0, 0, 0]
    assert [queue.packets_out for queue in cable.queues] == [0, 0, 0, 20, 0, 0, 0]
    assert counters.flows == {TOPIC: FlowCounters(7, 40, packets_out=40)}
    # What hosts say to be members of a group is nobody's, too.
    assert counters.unmanaged.packets >= 20
    assert counters.unmanaged.control_packets == 0
    assert radio.control.packets_in == cable.control.packets_in == 0


def test_each_port_limits_its_copies_by_its_own_terms_or_by_those_for_all(members: Members) -> None:
    members.plane.apply(
        [
            *PORTS,
            *COPIES,
            SetLimiter(TOPIC, 30 * WIRE_BYTES, 0.1),
            SetLimiter(TOPIC, 10 * WIRE_BYTES, 0.1, "cable"),
        ]
    )
    members.send(50)
    assert members.settled(100) == FlowCounters(7, 100, packets_out=40, limited=60)
    # Another class remembers what has passed; another limiter, too, though it may have room for more.
    members.plane.apply([SetFlow(TOPIC, "radio", 7, 2, 0.0), RemoveLimiter(TOPIC, "cable")])
    members.send(5)
    assert members.settled(110) == FlowCounters(7, 110, packets_out=45, limited=65)
    members.plane.apply([RemoveLimiter(TOPIC)])
    members.send(5)
    assert members.settled(120) == FlowCounters(7, 120, packets_out=55, limited=65)


def test_a_port_without_copies_any_more_serves_them_last(members: Members) -> None:
    members.plane.apply([*PORTS, *COPIES])
    members.send(10)
    assert members.settled(20).packets_out == 20
    members.plane.apply([RemoveFlow(TOPIC, "cable")])
    members.send(10)
    assert members.settled(20).packets_out == 20
    members.plane.apply([RemoveFlow(TOPIC)])
    assert members.plane.counters().flows == {}


def test_more_limiters_than_there_is_room_for_change_nothing(members: Members) -> None:
    members.plane.close()
    members.plane = LinuxDataPlane(members.wires.interfaces, most_limiters=2)
    tight, wide = SetLimiter(TOPIC, 5 * WIRE_BYTES, 0.1), SetLimiter(TOPIC, 1e6, 1e6)
    other = FlowKey("10.9.0.2", 9)
    members.plane.apply([*PORTS, *COPIES, tight, SetFlow(other, "radio", 1, 0, 0.0)])
    for _ in range(3):
        with pytest.raises(PlanError, match="room for 2 limiters, and all are in use"):
            members.plane.apply([wide, SetLimiter(other, 1e3, 1e3)])
    members.send(10)
    assert members.settled(20) == FlowCounters(7, 20, packets_out=10, limited=10)
    members.plane.apply([RemoveFlow(TOPIC, "cable")])
    members.plane.apply([SetLimiter(other, 1e3, 1e3)])
