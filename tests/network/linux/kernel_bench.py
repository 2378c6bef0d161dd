"""The bench of the contract suite for data planes of the kernel: real packets through a real bridge."""

from __future__ import annotations

import gc
import socket
import struct
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.network.bench import Arrival, Offer, PlanChange, _timetable
from tests.network.linux.wires import RECEIVER, SENDER, Wires

from triagemq.mqttsn import MessageType
from triagemq.network import DatagramSender
from triagemq.network.linux import Interface, LinuxDataPlane, TrustedAddress
from triagemq.plan.dataplane import DataPlane, FlowKey

_SO_TIMESTAMPNS = 35
_TIMESTAMP = struct.Struct("@qq")
_MESSAGE = struct.Struct("!BB5xI89x")
"""A message of 100 octets: length, type, the fields of a PUBLISH, a number, and nothing."""


class AsTheyCome(dict[str, Interface]):
    """Gives the first port that a test makes, whatever its name, the interface on the path; the next one the spare."""

    def __init__(self, interfaces: dict[str, Interface]) -> None:
        super().__init__()
        self._left = [interfaces["radio"], interfaces["cable"]]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or bool(self._left)

    def __missing__(self, name: str) -> Interface:
        self[name] = self._left.pop(0)
        return self[name]


class KernelBench:
    """A sender, a switch with the data plane's port, and a receiver with a socket for each flow.

    A kernel queue lets a packet go at the start of its transmission: the time that takes is added to its arrival, which
    the receiving kernel has stamped.
    """

    priority_classes = LinuxDataPlane.priority_classes
    limits = True
    group = ""
    """Events go to a group of which the receivers are members."""

    def __init__(self, flows: int, directory: Path) -> None:
        self.wires = Wires()
        self._receivers = [
            self.wires.receiving_socket("0.0.0.0" if self.group else RECEIVER) for _ in range(flows)
        ]
        for receiver in self._receivers:
            receiver.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._output = self.wires.sending_socket()
        self._sender = DatagramSender(self._output)
        udp_ports = [receiver.getsockname()[1] for receiver in self._receivers]
        self.keys = [FlowKey(self.group or RECEIVER, port) for port in udp_ports]
        if self.group:
            interface = socket.inet_aton(SENDER)
            self._output.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, interface)
            membership = socket.inet_aton(self.group) + socket.inet_aton(RECEIVER)
            for receiver in self._receivers:
                receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        self.plane = self.open_plane(directory)
        self._arrived: list[tuple[int, int]] = []
        self._undrained = 0

    def open_plane(self, directory: Path) -> DataPlane:
        plane = LinuxDataPlane(AsTheyCome(self.wires.interfaces), limits=self.limits)
        plane.trust([TrustedAddress("udp", *self._output.getsockname())])
        return plane

    def play(self, offers: Sequence[Offer], changes: Sequence[PlanChange] = ()) -> list[Arrival]:
        offered_ns = [0] * len(offers)
        gc.collect()
        gc.freeze()
        try:
            self._play(offers, changes, offered_ns)
        finally:
            gc.unfreeze()
        transmission_ns = self._transmission_ns()
        return [
            Arrival(number, offers[number].flow, offered_ns[number], arrived_ns + transmission_ns)
            for number, arrived_ns in self._arrived
        ]

    def close(self) -> None:
        self.plane.close()
        for each in (*self._receivers, self._output):
            each.close()
        self.wires.close()

    def _play(self, offers: Sequence[Offer], changes: Sequence[PlanChange], offered_ns: list[int]) -> None:
        targets = {
            control: [(RECEIVER if control else key.address, key.udp_port) for key in self.keys]
            for control in (False, True)
        }
        datagrams = [
            _MESSAGE.pack(100, MessageType.PINGRESP if offer.control else MessageType.PUBLISH, number)
            for number, offer in enumerate(offers)
        ]
        batch: list[int] = []

        def send() -> None:
            now_ns = time.time_ns()
            for number in batch:
                offered_ns[number] = now_ns
            for control, numbers in groupby(batch, key=lambda number: offers[number].control):
                take = self._sender.control if control else self._sender
                take([(targets[control][offers[number].flow], datagrams[number]) for number in numbers])
            self._undrained += len(batch)
            batch.clear()
            if self._undrained > 2000:
                self._drain()

        started_ns = time.time_ns()
        for at_ns, number, change in _timetable(offers, changes):
            if at_ns > (passed_ns := time.time_ns() - started_ns) or len(batch) >= 64:
                send()
                if at_ns - passed_ns > 20_000:
                    time.sleep((at_ns - passed_ns) * 1e-9)
            if change is not None:
                send()
                self.plane.apply(change.instructions)
            else:
                batch.append(number)
        send()
        self._settle()

    def _settle(self) -> None:
        """Wait until nothing waits in the switch."""
        while self._backlog():
            time.sleep(0.01)
        time.sleep(0.02)
        self._drain()
        assert not self._sender.waiting

    def _backlog(self) -> int:
        return sum(
            queue.backlog_packets
            for port in self.plane.counters().ports.values()
            for queue in (*port.queues, port.control)
        )

    def _transmission_ns(self) -> int:
        width_bps = self.plane.counters().ports.popitem()[1].control.width_bps
        return 0 if width_bps is None else round(142 * 8e9 / width_bps)

    def _drain(self) -> None:
        self._undrained = 0
        for receiver in self._receivers:
            while True:
                try:
                    received, ancillary, _, _ = receiver.recvmsg(256, 64)
                except BlockingIOError:
                    break
                seconds, nanoseconds = _TIMESTAMP.unpack(ancillary[0][2])
                self._arrived.append((_MESSAGE.unpack(received)[2], seconds * 1_000_000_000 + nanoseconds))
