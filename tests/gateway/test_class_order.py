"""Real packets of one event leave an idle port class 0 first: the gateway's own port, and queues of the kernel."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.coordinator.managed import Control, ManagedProcess
from tests.gateway.real import Mosquitto, Publisher, SnClient, ended
from tests.network.linux.wires import Wires

from triagemq.broker.process import find_mosquitto
from triagemq.channel.orders import Orders, client_id_of
from triagemq.datagrams import DatagramSender
from triagemq.mqttsn import Publish, decode
from triagemq.network import ReportedDataPlane
from triagemq.network.linux import LinuxDataPlane
from triagemq.plan.dataplane import FlowKey, OutgoingPacket, RemoveFlow, SetFlow, SetPort

# In the order of subscription, and after a change of plan.
CLASSES, OTHER_CLASSES = [3, 0, 2, 1], [0, 2, 1, 3]
PORT = SetPort("radio", 142 * 8 * 100, 100, 4)
"""A packet of 100 bytes takes 10 ms."""

EVENT = bytes([100, 0x0C]) + bytes(98)
_SO_TIMESTAMPNS = 35
_TIMESTAMP = struct.Struct("@qq")


def order_of_arrival(sockets: Sequence[socket.socket]) -> list[int]:
    """Whose copy of an event came first, second and so on, by the kernel's clock."""
    return sorted(range(len(sockets)), key=[_came_at(each) for each in sockets].__getitem__)


def _came_at(one: socket.socket) -> float:
    one.settimeout(20.0)
    while True:
        datagram, notes, _, _ = one.recvmsg(2048, socket.CMSG_SPACE(_TIMESTAMP.size))
        if isinstance(decode(datagram), Publish):
            ((_, _, stamp),) = notes
            seconds, nanoseconds = _TIMESTAMP.unpack(stamp)
            return float(seconds + nanoseconds / 1e9)


def stamped(one: socket.socket) -> socket.socket:
    one.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    return one


def by_class(classes: Sequence[int]) -> list[int]:
    return sorted(range(len(classes)), key=classes.__getitem__)


@pytest.mark.skipif(find_mosquitto() is None, reason="needs Mosquitto (apt install mosquitto)")
def test_a_gateway_sends_by_class_after_a_new_plan_and_to_one_that_comes_back_from_elsewhere(
    tmp_path: Path,
) -> None:
    def orders(generation: int, classes: Sequence[int]) -> Orders:
        flows = [
            SetFlow(client_id_of(f"s{number}", 0), "radio", number, one, 0.0)
            for number, one in enumerate(classes)
        ]
        return Orders(generation, {"radio": PORT}, {flow.key: flow for flow in flows})

    broker = Mosquitto(tmp_path / "broker")
    gateway = ManagedProcess(tmp_path / "gateway", broker.url)
    control = Control(gateway.socket)
    publisher = Publisher(broker.port, "events")
    clients = [SnClient(gateway.port, client_id_of(f"s{number}", 0)) for number in range(len(CLASSES))]
    with ended(*clients, publisher, control, gateway, broker):
        for client in clients:
            client.connect().subscribe("smoke")
        sockets = [stamped(client.socket) for client in clients]
        control.orders(orders(1, CLASSES))
        publisher.publish("smoke", bytes(93))
        assert order_of_arrival(sockets) == by_class(CLASSES)
        control.orders(orders(2, OTHER_CLASSES))
        publisher.publish("smoke", bytes(93))
        assert order_of_arrival(sockets) == by_class(OTHER_CLASSES)
        back = SnClient(gateway.port, clients[2].client_id)
        with ended(back):
            sockets[2] = stamped(back.connect().socket)
            # Before its first message it is told anew how the topic is numbered.
            publisher.publish("smoke", bytes(93))
            for client in (*clients[:2], back, *clients[3:]):
                client.collect(20.0, 1)
            publisher.publish("smoke", bytes(93))
            assert order_of_arrival(sockets) == by_class(OTHER_CLASSES)


@pytest.mark.needs_root("it changes queues of the kernel")
def test_queues_of_the_kernel_begin_with_class_0_after_a_new_plan_and_for_one_that_comes_back_from_elsewhere(
    tmp_path: Path,
) -> None:
    wires = Wires()
    queues = LinuxDataPlane(wires.interfaces)
    output = wires.sending_socket()
    sockets = [stamped(wires.receiving_socket()) for _ in CLASSES]
    opened = [output, *sockets]
    plane = ReportedDataPlane(DatagramSender(output), lambda losses: None, clock=time.time_ns)

    def follow(classes: Sequence[int], *gone: FlowKey) -> None:
        flows = [
            SetFlow(FlowKey(*each.getsockname()), "radio", number, one, 0.0)
            for number, (each, one) in enumerate(zip(sockets, classes, strict=True))
        ]
        for each in (queues, plane):
            each.apply([*(RemoveFlow(key) for key in gone), PORT, *flows])

    def publish() -> None:
        plane.send([OutgoingPacket(FlowKey(*each.getsockname()), EVENT, control=False) for each in sockets])

    try:
        follow(CLASSES)
        publish()
        assert order_of_arrival(sockets) == by_class(CLASSES)
        follow(OTHER_CLASSES)
        publish()
        assert order_of_arrival(sockets) == by_class(OTHER_CLASSES)
        before = FlowKey(*sockets[2].getsockname())
        sockets[2] = stamped(wires.receiving_socket())
        opened.append(sockets[2])
        follow(OTHER_CLASSES, before)
        publish()
        assert order_of_arrival(sockets) == by_class(OTHER_CLASSES)
    finally:
        plane.close()
        queues.close()
        for each in opened:
            each.close()
        wires.close()
