"""What is particular to the linux data plane: changes in place, packets of no flow, interfaces left as they were."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from tests.network.linux.wires import CONFIGURED_HANDLE, SENDER, Wires, configure_root, count_waiting

from triagemq.datagrams import DatagramSender
from triagemq.errors import NetworkError, PlanError
from triagemq.gateway.sockets import bind_udp
from triagemq.network.linux import Interface, LinuxDataPlane, TrustedAddress
from triagemq.network.linux.netlink import Netlink, attribute, in_namespace, interface_index
from triagemq.network.linux.plane import capabilities
from triagemq.network.linux.queues import RootQueue, queue_counters, root_queue
from triagemq.plan.dataplane import FlowKey, QueueCounters, RemoveFlow, RemovePort, SetFlow, SetPort

pytestmark = pytest.mark.needs_root("it changes queues of the kernel")

PUBLISH = bytes([100, 0x0C]) + bytes(98)
PINGRESP = b"\x02\x17"
SLOW_BPS = 142 * 8 * 2
"""Two of these packets a second."""
ANSWER = 600
HTB_OPTIONS = attribute(2, b"\x03\0\0\0\x0a\0\0\0" + bytes(12))


class Host:
    """The wires, a data plane on them, and a flow with its two ends."""

    def __init__(self) -> None:
        self.wires = Wires()
        self.plane = LinuxDataPlane(self.wires.interfaces)
        self.output = self.wires.sending_socket()
        self.input = self.wires.receiving_socket()
        self.key = FlowKey(*self.input.getsockname())
        self.netlink = Netlink(self.wires.switch)
        self.radio = interface_index(self.netlink, "radio")

    def send(self, count: int, datagram: bytes = PUBLISH) -> None:
        for _ in range(count):
            self.output.sendto(datagram, (self.key.address, self.key.udp_port))

    def received(self, expected: int, within_seconds: float = 20.0) -> int:
        """How many come, waiting for as many as are expected."""
        deadline, count = time.monotonic() + within_seconds, 0
        while count < expected and time.monotonic() < deadline:
            try:
                self.input.recv(2048)
                count += 1
            except BlockingIOError:
                time.sleep(0.005)
        return count

    def queues(self) -> list[QueueCounters]:
        return queue_counters(self.netlink, self.radio)

    def root(self) -> RootQueue:
        return root_queue(self.netlink, self.radio)

    def close(self) -> None:
        self.plane.close()
        self.netlink.close()
        for each in (self.output, self.input):
            each.close()
        self.wires.close()


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.close()


def test_root_can_do_everything() -> None:
    assert capabilities() == dict.fromkeys(("namespaces", "queues", "classifier"))


def test_a_bandwidth_changes_with_every_packet_in_its_place(host: Host) -> None:
    port = SetPort("radio", SLOW_BPS, 100, 2)
    host.plane.apply([port, SetFlow(host.key, "radio", 0, 1, 0.0)])
    host.send(60)
    waiting = host.plane.counters().ports["radio"].queues[1]
    assert 50 <= waiting.backlog_packets < 60
    host.plane.apply([SetPort("radio", 1e8, 200, 2)])
    assert host.received(60) == 60
    counted = host.plane.counters()
    assert counted.ports["radio"].queues[1].packets_out == 60
    assert counted.ports["radio"].queues[1].width_bps == 1e8
    assert counted.flows[host.key].packets_out == 60


def test_a_full_queue_drops_and_counts(host: Host) -> None:
    host.plane.apply([SetPort("radio", SLOW_BPS, 11, 1), SetFlow(host.key, "radio", 5, 0, 0.0)])
    host.send(50)
    # At least one has left, and ten wait; a slow test may have seen some more leave.
    counters = host.plane.counters()
    queue, flow = counters.ports["radio"].queues[0], counters.flows[host.key]
    assert queue.backlog_packets <= 10
    assert queue.drops > 20
    assert (flow.flow_id, flow.packets_in, queue.packets_in) == (5, 50, 50)
    assert queue.bytes_in == 50 * 142


def test_packets_of_no_flow_wait_behind_all_flows(host: Host) -> None:
    host.plane.apply([SetPort("radio", 10 * SLOW_BPS, 100, 7), SetFlow(host.key, "radio", 0, 5, 0.0)])
    strangers = host.wires.receiving_socket()
    try:
        host.send(3)
        for _ in range(20):
            host.output.sendto(PUBLISH, strangers.getsockname())
        host.send(20)
        assert host.received(23) == 23
        # Each queue has a packet a minute of its own, and the first may have met an idle port.
        assert count_waiting(strangers) <= 2
        unmanaged = host.plane.counters().unmanaged
        assert (unmanaged.packets, unmanaged.control_packets, unmanaged.bytes) == (20, 0, 20 * 142)
    finally:
        strangers.close()


def test_control_packets_marked_by_the_gateway_need_no_flow(host: Host) -> None:
    host.plane.apply(
        [SetPort("radio", SLOW_BPS, 100, 7), SetFlow(FlowKey("10.9.0.2", 9), "radio", 0, 0, 0.0)]
    )
    for _ in range(10):
        host.output.sendto(PUBLISH, ("10.9.0.2", 9))
    host.plane.trust([TrustedAddress("udp", *host.output.getsockname())])
    host.output.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 48 << 2)
    host.send(5, PINGRESP)
    assert host.received(5) == 5
    counters = host.plane.counters()
    assert counters.ports["radio"].control.packets_out == 5
    assert counters.unmanaged.control_packets == 5


def test_what_a_removed_port_and_flow_hold_is_still_sent(host: Host) -> None:
    host.plane.apply([SetPort("radio", 20 * SLOW_BPS, 100, 1), SetFlow(host.key, "radio", 0, 0, 0.0)])
    host.send(40)
    host.plane.apply([RemoveFlow(host.key), RemovePort("radio")])
    counters = host.plane.counters()
    assert (counters.ports, counters.flows) == ({}, {})
    assert host.received(40) == 40
    assert host.root().is_default


def test_a_flow_that_comes_back_starts_from_nothing(host: Host) -> None:
    flow = SetFlow(host.key, "radio", 0, 0, 0.0)
    host.plane.apply([SetPort("radio", 1e8, 100, 1), flow])
    host.send(5)
    assert host.received(5) == 5
    assert host.plane.counters().flows[host.key].packets_out == 5
    host.plane.apply([RemoveFlow(host.key)])
    host.plane.apply([flow])
    assert host.plane.counters().flows[host.key].packets_in == 0
    assert host.plane.counters().ports["radio"].queues[0].packets_out == 5


def test_closing_sends_what_waits_and_leaves_the_interface_as_it_was(host: Host) -> None:
    before = host.root()
    host.plane.apply([SetPort("radio", SLOW_BPS, 100, 1), SetFlow(host.key, "radio", 0, 0, 0.0)])
    host.send(30)
    host.plane.close()
    assert host.received(30) == 30
    assert host.root() == before


@pytest.mark.parametrize(("kind", "options"), [("htb", HTB_OPTIONS), ("pfifo", b"\x2a\0\0\0")])
def test_an_interface_that_an_administrator_has_configured_is_left_alone(
    host: Host, kind: str, options: bytes
) -> None:
    configure_root(host.netlink, host.radio, kind, options)
    with pytest.raises(NetworkError, match="tc qdisc del dev radio root"):
        host.plane.apply([SetPort("cable", 1e6, 100, 1), SetPort("radio", 1e6, 100, 1)])
    assert (host.root().kind, host.root().handle) == (kind, CONFIGURED_HANDLE)
    assert host.plane.counters().ports == {}
    assert root_queue(host.netlink, interface_index(host.netlink, "cable")).is_default


def test_one_interface_is_managed_by_one_data_plane(host: Host) -> None:
    host.plane.apply([SetPort("radio", 1e6, 100, 1)])
    second = LinuxDataPlane(host.wires.interfaces)
    try:
        with pytest.raises(NetworkError, match="managed by another process"):
            second.apply([SetPort("radio", 1e6, 100, 1)])
    finally:
        second.close()
    assert host.root().is_ours
    assert len(queue_counters(host.netlink, host.radio)) == 9


def test_ports_without_an_interface_are_refused_by_name(host: Host) -> None:
    with pytest.raises(PlanError, match="'satellite' is no interface"):
        host.plane.apply([SetPort("radio", 1e6, 100, 1), SetPort("satellite", 1e6, 100, 1)])
    missing = LinuxDataPlane(
        {"radio": Interface("radio", host.wires.switch), "gone": Interface("gone", host.wires.switch)},
    )
    try:
        with pytest.raises(NetworkError, match="no network interface 'gone'"):
            missing.apply([SetPort("radio", 1e6, 100, 1), SetPort("gone", 1e6, 100, 1)])
        assert missing.counters().ports == {}
        assert host.root().is_default
    finally:
        missing.close()


def test_more_flows_than_there_is_room_for_change_nothing(host: Host) -> None:
    host.plane.close()
    small = LinuxDataPlane(host.wires.interfaces, most_flows=4)
    try:
        small.apply([SetPort("radio", 1e6, 100, 1), SetFlow(host.key, "radio", 0, 0, 0.0)])
        many = [SetFlow(FlowKey("10.9.0.9", 1 + number), "radio", number, 0, 0.5) for number in range(5)]
        with pytest.raises(PlanError, match="room for 4 flows"):
            small.apply([RemoveFlow(host.key), *many])
        assert list(small.counters().flows) == [host.key]
        host.send(3)
        assert host.received(3) == 3
        assert small.counters().flows[host.key].packets_in == 3
        small.apply(many[:3])
        assert len(small.counters().flows) == 4
    finally:
        small.close()


def test_what_a_failing_link_loses_is_counted_as_dropped(host: Host) -> None:
    host.plane.apply([SetPort("radio", SLOW_BPS, 100, 1), SetFlow(host.key, "radio", 0, 0, 0.0)])
    host.send(60)
    assert host.plane.counters().ports["radio"].queues[0].backlog_packets > 40
    for up in (0, 1):
        # RTM_NEWLINK with the flag IFF_UP.
        host.netlink.request(16, 0, struct.pack("=BxHiII", 0, 0, host.radio, up, 1))
    before = host.plane.counters()
    counters = host.plane.counters()
    queue = counters.ports["radio"].queues[0]
    assert before.ports["radio"].queues[0].packets_out == queue.packets_out < 20
    assert (queue.packets_in, queue.backlog_packets, queue.drops) == (60, 0, 60 - queue.packets_out)
    assert queue.bytes_in == 60 * 142
    host.plane.apply([SetPort("radio", 1e8, 100, 1)])
    host.send(5)
    assert host.received(queue.packets_out + 5) == queue.packets_out + 5
    assert host.plane.counters().flows[host.key].packets_in == 65


def test_an_interface_that_vanishes_does_not_stop_the_rest(host: Host) -> None:
    host.plane.apply([SetPort("radio", 1e6, 100, 1), SetPort("cable", 1e6, 100, 1)])
    host.netlink.request(
        17, 0, b"\0\0\0\0" + interface_index(host.netlink, "cable").to_bytes(4, "little") + bytes(8)
    )
    counters = host.plane.counters()
    assert counters.ports["cable"].queues[0].packets_in == 0
    host.plane.close()
    assert host.root().is_default


class Flood:
    """Datagrams from a socket to many addresses in turn, at so many a second, for as long as the block lasts."""

    def __init__(self, output: socket.socket, to: list[FlowKey], packets_per_second: float) -> None:
        self._output, self._rate = output, packets_per_second
        self._to = [(key.address, key.udp_port) for key in to]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Flood:
        self._thread.start()
        time.sleep(0.3)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        begun, sent = time.monotonic(), 0
        while not self._ended.wait(0.002):
            due = int((time.monotonic() - begun) * self._rate)
            for number in range(sent, due):
                self._output.sendto(PUBLISH, self._to[number % len(self._to)])
            sent = due


def bytes_in(queue: QueueCounters) -> int:
    return queue.bytes_out + queue.backlog_bytes


def events_before_answers(tap: socket.socket) -> list[int]:
    """How many datagrams had come when each answer of TCP had come as a whole."""
    events, first, ahead = 0, None, list[int]()
    while True:
        try:
            packet, (_, _, direction, _, _) = tap.recvfrom(2048)
        except BlockingIOError:
            return ahead
        if direction == socket.PACKET_OUTGOING:
            continue
        if packet[9] == socket.IPPROTO_UDP:
            events += 1
            continue
        header, length = 4 * (packet[0] & 15), int.from_bytes(packet[2:4])
        payload = length - header - 4 * (packet[header + 12] >> 4)
        number = int.from_bytes(packet[header + 4 : header + 8])
        if payload:
            first = number if first is None else first
            # One that is sent again, as TCP does when a machine stands still, has come already.
            if (number + payload - first) % 2**32 >= ANSWER * (len(ahead) + 1):
                ahead.append(events)


def test_rest_goes_on_under_an_overload_of_all_classes(host: Host) -> None:
    """Before the exchange's own TCP was known, an answer waited until the overload ended."""
    keys = [FlowKey(host.key.address, 20_000 + number) for number in range(7)]
    host.plane.apply(
        [
            SetPort("radio", 400_000, 50, 7),
            *(SetFlow(key, "radio", number, number, 0.0) for number, key in enumerate(keys)),
        ]
    )
    client, server = host.wires.connection()
    host.plane.trust(
        [TrustedAddress("udp", *host.output.getsockname()), TrustedAddress("tcp", *server.getsockname())]
    )
    capacity = 400_000 / 8 / 142
    left: list[int] = []
    overloads = 0
    with client, server, host.wires.tap() as tap, Flood(host.output, keys, 10 * capacity):
        while overloads < 30:
            client.sendall(bytes(200))
            assert server.recv(4096)
            before = bytes_in(host.queues()[0])
            server.sendall(bytes(ANSWER))
            deadline = time.monotonic() + 20
            while bytes_in(host.queues()[0]) < before + ANSWER:
                assert time.monotonic() < deadline, "the answer is no control packet"
            _, *events = host.queues()
            left.append(sum(queue.packets_out for queue in events))
            # While this machine does not run, the port works off what waits, and there is nothing to be ahead of.
            overloads += sum(queue.backlog_packets for queue in events) >= 50
            answered = 0
            while answered < ANSWER:
                answered += len(client.recv(4096))
            time.sleep(0.05)
        ahead = events_before_answers(tap)
    assert len(ahead) == len(left)
    # All that had left when an answer stood in its queue, and the one that is then being sent.
    assert all(events <= known + 1 for events, known in zip(ahead, left, strict=True)), (ahead, left)
    counters = host.plane.counters().ports["radio"]
    assert counters.control.packets_out >= 30
    assert counters.control.drops == counters.beyond_bound == counters.strange_marks == 0
    assert counters.queues[0].drops > 0


def test_a_flood_of_strangers_marks_does_not_delay_the_first_class(host: Host) -> None:
    host.plane.apply([SetPort("radio", 400_000, 50, 7), SetFlow(host.key, "radio", 0, 0, 0.0)])
    host.plane.trust([TrustedAddress("udp", *host.output.getsockname())])
    stranger = host.wires.sending_socket()
    stranger.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 48 << 2)
    others = [host.key, FlowKey(host.key.address, 9)]
    ahead = []
    with stranger, Flood(stranger, others, 5 * 400_000 / 8 / 142):
        for number in range(100):
            mine = bytes([100, 0x0C, number]) + bytes(97)
            host.input.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while host.input.recv(200):
                    pass
            host.input.settimeout(20.0)
            host.output.sendto(mine, (host.key.address, host.key.udp_port))
            # Some of the stranger's get through while the port has nothing better to do.
            ahead.append(0)
            while host.input.recv(200) != mine:
                ahead[-1] += 1
            time.sleep(0.01)
    # Every second of the stranger's comes to this socket. All that he has waiting are 50 and more.
    assert sorted(ahead)[50] <= 3
    counters = host.plane.counters()
    assert counters.ports["radio"].strange_marks > 500
    assert counters.ports["radio"].control.packets_in == 0
    assert counters.ports["radio"].queues[0].packets_out == counters.flows[host.key].packets_in == 100


def test_fragments_of_a_large_event_go_with_its_class(host: Host) -> None:
    """An event of three packets, in class 0 while class 1 has more than the port carries, arrives whole and at once."""
    other = FlowKey(host.key.address, 9)
    host.plane.apply(
        [
            SetPort("radio", 400_000, 50, 7),
            SetFlow(host.key, "radio", 0, 0, 0.0),
            SetFlow(other, "radio", 1, 1, 0.0),
        ]
    )
    large = b"\x01" + (4000).to_bytes(2, "big") + b"\x0c" + bytes(3996)
    host.input.settimeout(20.0)
    with host.wires.sending_socket() as busy, Flood(busy, [other], 3 * 400_000 / 8 / 142):
        for sent in range(1, 21):
            host.output.sendto(large, (host.key.address, host.key.udp_port))
            while host.plane.counters().flows[host.key].packets_in < 3 * sent:
                time.sleep(0.005)
            assert len(host.input.recv(5000)) == 4000
    counters = host.plane.counters()
    assert counters.flows[host.key].packets_in == counters.ports["radio"].queues[0].packets_out == 60


def test_a_starved_class_on_the_gateways_own_interface_stops_neither_control_nor_the_first_class(
    host: Host,
) -> None:
    """What waits in the queues of this machine counts against the socket that sent it."""
    starved = FlowKey(host.key.address, 9)
    own = LinuxDataPlane({"eth0": Interface("eth0", host.wires.sender)})
    data = in_namespace(host.wires.sender, lambda: bind_udp(SENDER, 0))

    async def full_socket() -> None:
        # Three times what a socket's buffer of 8 MB holds of such packets.
        assert sender([((starved.address, starved.udp_port), PUBLISH)] * 20_000) == []
        sender([((host.key.address, host.key.udp_port), PUBLISH)])
        assert host.received(1) == 1
        sender.control([((host.key.address, host.key.udp_port), PINGRESP)])
        assert host.received(1) == 1
        sender.close()

    try:
        own.apply(
            [
                SetPort("eth0", 1_000_000, float("inf"), 7),
                SetFlow(host.key, "eth0", 0, 0, 0.0),
                SetFlow(starved, "eth0", 1, 6, 0.0),
            ]
        )
        own.trust([TrustedAddress("udp", *data.getsockname())])
        sender = DatagramSender(data)
        asyncio.run(full_socket())
    finally:
        data.close()
        own.close()
