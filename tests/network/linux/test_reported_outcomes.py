"""What the gateway says became of its events, over queues of the kernel: delivered is what arrived, and no more."""

from __future__ import annotations

import struct
import time
from collections import Counter

import pytest
from tests.network.linux.wires import Wires, count_waiting

from triagemq.datagrams import DatagramSender
from triagemq.network import ReportedDataPlane
from triagemq.network.linux import LinuxDataPlane, TrustedAddress
from triagemq.network.linux.netlink import Netlink, interface_index
from triagemq.plan.dataplane import FlowKey, OutgoingPacket, SetFlow, SetPort, TransmitOutcome
from triagemq.trace import Outcome

pytestmark = pytest.mark.needs_root("it changes queues of the kernel")

PUBLISH = bytes([100, 0x0C]) + bytes(98)
CLASSES = (0, 1, 2, 2)
"""Of the flows."""
BANDWIDTH_BPS = 142 * 8 * 500
"""Five hundred of these packets a second."""


class Exchange:
    """What sends as a gateway does, queues that are read as `triage up` reads them, and four subscribers."""

    def __init__(self) -> None:
        self.wires = Wires()
        self.queues = LinuxDataPlane(self.wires.interfaces)
        self.output = self.wires.sending_socket()
        self.inputs = [self.wires.receiving_socket() for _ in CLASSES]
        self.keys = [FlowKey(*each.getsockname()) for each in self.inputs]
        self.outcomes: list[TransmitOutcome] = []
        self.sender = DatagramSender(self.output, marks_classes=True)
        self.queues.trust([TrustedAddress("udp", *self.output.getsockname())])
        self.plane = ReportedDataPlane(self.sender, self.outcomes.extend, clock=time.time_ns, seed=1)
        plan = [
            SetPort("radio", BANDWIDTH_BPS, 40, 3),
            *(SetFlow(key, "radio", number, CLASSES[number], 0.0) for number, key in enumerate(self.keys)),
        ]
        # The kernel needs no flows: copies say their class.
        self.queues.apply(plan[:1])
        self.plane.apply(plan)
        self.received = Counter[int]()

    def run(self, seconds: float, packets_per_second: float) -> None:
        """Events to all in turn; the queues are read, and the gateway told, every 50 ms."""
        begun, sent = time.monotonic(), 0
        while (passed := time.monotonic() - begun) < seconds:
            for number in range(sent, sent := int(passed * packets_per_second)):
                flow = number % len(self.keys)
                self.plane.send([OutgoingPacket(self.keys[flow], PUBLISH, False, flow)])
            self.report()
            time.sleep(0.05)

    def report(self) -> None:
        at_ns = time.time_ns()
        counters = self.queues.counters()
        self.plane.report(counters.ports, {}, at_ns)
        said = self.with_outcome(Outcome.delivered)
        # What is said to have left arrives in a moment: as soon as the kernel's own thread for packets has its turn.
        deadline = time.monotonic() + 30.0
        came = False
        while not came and time.monotonic() < deadline:
            time.sleep(0.002)
            for flow, each in enumerate(self.inputs):
                self.received[flow] += count_waiting(each)
            came = self._all_came(said)
        assert came

    def _all_came(self, said: Counter[int]) -> bool:
        """Whether no more are said to be delivered than arrived; those that share a class, together."""
        alone = all(said[flow] <= self.received[flow] for flow in (0, 1))
        return alone and said[2] + said[3] <= self.received[2] + self.received[3]

    def drain(self) -> None:
        while any(queue.backlog_packets for queue in self.queues.counters().ports["radio"].queues):
            time.sleep(0.02)
        for _ in range(3):
            time.sleep(0.06)
            self.report()

    def with_outcome(self, outcome: Outcome) -> Counter[int]:
        return Counter(
            flow for flow, found, _, _ in self.outcomes if found is outcome and isinstance(flow, int)
        )

    def set_link(self, *, up: bool) -> None:
        netlink = Netlink(self.wires.switch)
        # RTM_NEWLINK with the flag IFF_UP.
        index = interface_index(netlink, "radio")
        netlink.request(16, 0, struct.pack("=BxHiII", 0, 0, index, int(up), 1))
        netlink.close()

    def close(self) -> None:
        self.plane.close()
        self.queues.close()
        for each in (self.output, *self.inputs):
            each.close()
        self.wires.close()


def test_delivered_is_what_arrived_over_queues_that_drop_and_hold() -> None:
    exchange = Exchange()
    try:
        exchange.run(2.0, 1200)
        waiting = exchange.queues.counters().ports["radio"].queues[2].backlog_packets
        assert waiting > 20
        exchange.drain()
        delivered = exchange.with_outcome(Outcome.delivered)
        counted = exchange.queues.counters()
        for flow in (0, 1):
            assert delivered[flow] == exchange.received[flow]
        # Those that share a class share what it lost; their sum is exact.
        assert delivered[2] + delivered[3] == exchange.received[2] + exchange.received[3]
        lost = exchange.with_outcome(Outcome.dropped_by_buffer)
        assert sum(lost.values()) == sum(queue.drops for queue in counted.ports["radio"].queues) > 100
        assert exchange.with_outcome(Outcome.lost_on_link) == {}
        assert counted.flows == {}
        assert len(exchange.outcomes) == sum(queue.packets_in for queue in counted.ports["radio"].queues)
    finally:
        exchange.close()


def test_nothing_is_delivered_over_a_link_that_is_down() -> None:
    exchange = Exchange()
    try:
        exchange.run(0.5, 400)
        exchange.drain()
        before = sum(exchange.received.values())
        assert sum(exchange.with_outcome(Outcome.delivered).values()) == before > 100
        exchange.set_link(up=False)
        exchange.run(0.5, 400)
        exchange.drain()
        assert (
            sum(exchange.with_outcome(Outcome.delivered).values())
            == sum(exchange.received.values())
            == before
        )
        assert sum(exchange.with_outcome(Outcome.lost_on_link).values()) > 100
        exchange.set_link(up=True)
        exchange.run(0.5, 400)
        exchange.drain()
        assert (
            sum(exchange.with_outcome(Outcome.delivered).values()) == sum(exchange.received.values()) > before
        )
    finally:
        exchange.close()
