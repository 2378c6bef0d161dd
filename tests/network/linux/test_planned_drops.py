"""Planned drops through the gateway and the queues of the kernel, with real packets: once for each message."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.gateway.planned import DROP_RATE, OneDropRate, is_as_planned
from tests.gateway.virtual import VirtualGateway
from tests.network.linux.wires import Wires

from triagemq.gateway.core import GatewayCore
from triagemq.gateway.sockets import Sender, SocketPlane
from triagemq.mqttsn import (
    Connect,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReturnCode,
    Subscribe,
    TopicIdType,
    decode,
    encode,
)
from triagemq.network.linux import LinuxDataPlane
from triagemq.network.linux.netlink import in_namespace
from triagemq.plan.dataplane import FlowKey, SetFlow, SetPort

pytestmark = pytest.mark.needs_root("it changes queues of the kernel")

PUBLISHED = 1000


class Exchange:
    """A gateway in virtual time at one end of the wires, a client at the other, and queues of the kernel in between."""

    def __init__(self) -> None:
        self.wires = Wires()
        self.plane = LinuxDataPlane(self.wires.interfaces)
        self.output, self.input = self.wires.sending_socket(), self.wires.receiving_socket()
        self.output.setblocking(False)
        self.gateway = VirtualGateway(outlet=self._outlet, policy=OneDropRate(), seed=1)
        self.plane.apply(
            [
                SetPort("radio", 1e9, 10_000, 7),
                SetFlow(FlowKey(*self.input.getsockname()), "radio", 0, 0, DROP_RATE),
            ]
        )
        self.payloads: list[bytes] = []

    def _outlet(self, core: GatewayCore) -> Sender:
        outlet = Sender(core)
        outlet.attach(SocketPlane(self.output, outlet.settled))
        return outlet

    def send(self, message: Connect | Subscribe | PingReq | PubAck | PubRec | PubComp) -> None:
        self.input.sendto(encode(message), self.output.getsockname())

    def settle(self) -> None:
        """Until nothing has moved for longer than a packet takes, and none waits for a processor on its way."""
        quiet_at = time.monotonic() + 0.03
        while time.monotonic() < quiet_at:
            for end, take in ((self.input, self._client), (self.output, self._gateway)):
                try:
                    while True:
                        take(*end.recvfrom(2048))
                        quiet_at = time.monotonic() + 0.03
                except BlockingIOError:
                    pass
            self.gateway.run()
            if time.monotonic() >= quiet_at and self._under_way():
                quiet_at = time.monotonic() + 0.03

    def _under_way(self) -> int:
        (port,) = self.plane.counters().ports.values()
        counted = [udp_datagrams(namespace) for namespace in (self.wires.sender, self.wires.receiver)]
        sent, received = (sum(numbers) for numbers in zip(*counted, strict=True))
        return sent - received - sum(queue.drops for queue in port.queues)

    def _gateway(self, datagram: bytes, address: tuple[str, int]) -> None:
        self.gateway.core.datagram(address, datagram)

    def _client(self, datagram: bytes, address: tuple[str, int]) -> None:
        match decode(datagram):
            case Publish(qos=1) as message:
                self.send(PubAck(message.topic_id, message.message_id, ReturnCode.ACCEPTED))
                self.payloads.append(message.payload)
            case Publish(qos=2) as message:
                self.send(PubRec(message.message_id))
                self.payloads.append(message.payload)
            case Publish() as message:
                self.payloads.append(message.payload)
            case PubRel(message_id=message_id):
                self.send(PubComp(message_id))

    def close(self) -> None:
        self.plane.close()
        self.output.close()
        self.input.close()
        self.wires.close()


def udp_datagrams(namespace: str) -> tuple[int, int]:
    """How many the sockets of a namespace have sent, and how many were read from them."""
    text = in_namespace(namespace, Path("/proc/thread-self/net/snmp").read_text)
    names, numbers = (line.split()[1:] for line in text.splitlines() if line.startswith("Udp:"))
    found = dict(zip(names, map(int, numbers), strict=True))
    return found["OutDatagrams"], found["InDatagrams"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_planned_share_is_delivered_at_every_qos_over_kernel_queues(qos: int) -> None:
    exchange = Exchange()
    try:
        for message in (Connect("c", 60), Subscribe(TopicIdType.NORMAL, "smoke", 1, qos)):
            exchange.send(message)
            exchange.settle()
        for number in range(PUBLISHED):
            exchange.gateway.publish("smoke", b"%d" % number, qos)
            if number % 50 == 0:
                exchange.settle()
        for _ in range(8):
            exchange.settle()
            exchange.gateway.wait(10)
            exchange.send(PingReq())
        exchange.settle()
        assert len(set(exchange.payloads)) == len(exchange.payloads)
        assert is_as_planned(len(exchange.payloads), PUBLISHED)
        assert exchange.gateway.core.counters.clients_lost == 0
        assert exchange.gateway.core.counters.retries == 0
    finally:
        exchange.close()
