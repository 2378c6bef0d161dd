"""How long packets waited in the kernel's queues: what the plane says beside two captures, packet by packet."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest
from tests.network.linux.wires import RECEIVER, RECEIVER_ON_CABLE, SO_RCVBUFFORCE, Wires

from triagemq.lab.emulate.receipts import stamping
from triagemq.network.linux import LinuxDataPlane, TrustedAddress
from triagemq.network.linux.netlink import in_namespace
from triagemq.network.linux.queue_times import BEGINNING_BYTES
from triagemq.plan.dataplane import FlowKey, SetFlow, SetPort

pytestmark = pytest.mark.needs_root("it changes queues of the kernel")

_TIMESTAMPS, _ALL = 35, 0x0003
_STAMP = struct.Struct("@qq")
_NUMBER_AT = 14 + 20 + 8 + 7
CLASSES = (0, 2, 6)
EVENT_BYTES, WIRE_BYTES = 200, 242
TRANSMISSION_SECONDS = WIRE_BYTES * 8 / 1e6
CLOCKS_APART_NS = 20_000
"""Two clocks of the kernel are set side by side by reading both, which takes a moment, and eBPF's is noted in 64 ns."""


class Bench:
    """Two ports of 1 Mbit/s with a flow in each of three classes, and captures where packets come in and go to."""

    def __init__(self) -> None:
        self.wires = Wires()
        self.output = self.wires.sending_socket()
        self.receivers = {
            (port, each): self.wires.receiving_socket(address)
            for port, address in (("radio", RECEIVER), ("cable", RECEIVER_ON_CABLE))
            for each in CLASSES
        }
        self.before = self._capture(self.wires.switch, "from-sender")
        self.behind = {
            "radio": self._capture(self.wires.receiver, "eth0"),
            "cable": self._capture(self.wires.receiver, "eth1"),
        }
        self.plane = LinuxDataPlane(self.wires.interfaces, timed=True)
        self.plane.trust([TrustedAddress("udp", *self.output.getsockname())])
        self.plane.apply(
            [
                *(SetPort(port, 1e6, 1000, 7) for port in ("radio", "cable")),
                *(
                    SetFlow(FlowKey(*receiver.getsockname()), port, number, each, 0.0)
                    for number, ((port, each), receiver) in enumerate(self.receivers.items())
                ),
            ]
        )

    def _capture(self, namespace: str, interface: str) -> socket.socket:
        made = in_namespace(namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        made.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)
        made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        made.bind((interface, _ALL))
        made.setblocking(False)
        return made

    def send(self, number: int, port: str, priority_class: int) -> None:
        message = struct.pack("!BBBHHI", EVENT_BYTES, 0x0C, 0, 7, 0, number).ljust(EVENT_BYTES, b"\0")
        self.output.sendto(message, self.receivers[port, priority_class].getsockname())

    def settle(self) -> None:
        while any(
            queue.backlog_packets for port in self.plane.counters().ports.values() for queue in port.queues
        ):
            time.sleep(0.01)
        time.sleep(0.02)

    def close(self) -> None:
        self.plane.close()
        for each in (self.output, self.before, *self.behind.values(), *self.receivers.values()):
            each.close()
        self.wires.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    with stamping():
        made = Bench()
        yield made
        made.close()


def captured(capture: socket.socket) -> dict[int, int]:
    """By number, when each message came there, in Unix ns."""
    found = {}
    while True:
        try:
            frame, ancillary, _, address = capture.recvmsg(2048, 64)
        except BlockingIOError:
            return found
        if address[2] != socket.PACKET_OUTGOING and frame[12:14] == b"\x08\x00":
            seconds, nanoseconds = _STAMP.unpack(ancillary[0][2])
            found[int.from_bytes(frame[_NUMBER_AT : _NUMBER_AT + 4], "big")] = (
                seconds * 1_000_000_000 + nanoseconds
            )


def test_times_in_queues_are_those_between_two_captures(bench: Bench) -> None:
    random = np.random.default_rng(5)
    sent = []
    for burst in range(6):
        for port, each in random.permutation([(port, each) for port, each in bench.receivers] * 8).tolist():
            bench.send(len(sent), port, int(each))
            sent.append((port, int(each)))
        time.sleep(0.02 * (burst % 2))
    bench.settle()
    came, apart_ns, seen = captured(bench.before), [], 0
    for port, rows in bench.plane.queue_times().items():
        went = captured(bench.behind[port])
        numbers = rows["beginning"][:, _NUMBER_AT : _NUMBER_AT + 4].copy().view(">u4")[:, 0].tolist()
        assert sorted(numbers) == [number for number, (one, _) in enumerate(sent) if one == port]
        assert rows["priority_class"].tolist() == [sent[number][1] for number in numbers]
        left_ns = rows["dequeued_ns"] - round(TRANSMISSION_SECONDS * 1e9)
        assert (np.diff(left_ns) >= 0).all()
        came_ns, went_ns = (np.array([stamps[number] for number in numbers]) for stamps in (came, went))
        # A packet comes before it is queued, and goes on after its transmission has begun.
        assert (came_ns <= rows["enqueued_ns"] + CLOCKS_APART_NS).all()
        assert (left_ns <= went_ns + CLOCKS_APART_NS).all()
        waited_ns = left_ns - rows["enqueued_ns"]
        apart_ns += (went_ns - came_ns - waited_ns).tolist()
        for each in CLASSES:
            mine = rows["priority_class"] == each
            between = np.median((went_ns - came_ns)[mine])
            assert np.median(waited_ns[mine]) == pytest.approx(between, abs=0.5 * TRANSMISSION_SECONDS * 1e9)
        # The lowest class waits for nearly all the others, the highest for its own.
        means = [waited_ns[rows["priority_class"] == each].mean() for each in CLASSES]
        assert means == sorted(means)
        assert means[-1] > 20 * TRANSMISSION_SECONDS * 1e9
        seen += len(rows)
    assert seen == len(sent)
    # Between capture and queue is only the bridge: a small part of what one packet takes.
    assert np.median(apart_ns) < 0.1 * TRANSMISSION_SECONDS * 1e9
    assert bench.plane.times_missed == 0
    assert bench.plane.queue_times() == {}


def test_a_plane_that_is_not_timed_has_none(bench: Bench) -> None:
    bench.plane.close()
    plain = LinuxDataPlane(bench.wires.interfaces)
    try:
        plain.apply([SetPort("radio", 1e6, 100, 7)])
        bench.send(0, "radio", 0)
        assert plain.queue_times() == {}
        assert plain.times_missed == 0
    finally:
        plain.close()


def test_what_finds_no_room_because_nobody_asks_is_counted(bench: Bench) -> None:
    bench.plane.apply([SetPort("radio", 1e9, 1000, 7)])
    ring = (1 << 22) // (BEGINNING_BYTES + 16 + 8)
    assert (1 << 22) % ring == 0
    for number in range(ring + 1000):
        bench.send(number, "radio", 0)
    bench.settle()
    (rows,) = bench.plane.queue_times().values()
    sent = bench.plane.counters().ports["radio"].queues[0].packets_out
    assert len(rows) + bench.plane.times_missed == sent
    # The kernel never fills the last place.
    assert len(rows) == ring - 1
    bench.send(0, "radio", 6)
    bench.settle()
    assert bench.plane.queue_times()["radio"]["priority_class"].tolist() == [6]
