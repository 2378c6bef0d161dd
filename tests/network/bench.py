"""Test benches: a data plane, something that offers it packets by a timetable, and receivers that note what arrives.

A bench per backend is all that the contract suite (contract.py) needs. Here are two for the embedded data plane: one in
virtual time, and one with real sockets, the machine's clock and real timers.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from tests.network.virtual_time import VirtualTime

from triagemq.clock import unix_clock
from triagemq.datagrams import Datagrams, DatagramSender
from triagemq.network import EmbeddedDataPlane
from triagemq.plan.dataplane import DataPlane, FlowKey, Instruction, OutgoingPacket, TransmitOutcome

WIRE_BYTES = 142
"""A packet of a bench: 100 bytes of datagram and the headers of UDP, IPv4 and Ethernet."""

_NUMBER = struct.Struct("!I")
_SO_TIMESTAMPNS = 35
_TIMESTAMP = struct.Struct("@qq")


class Offer(NamedTuple):
    """One packet for the data plane, `at_ns` after the start."""

    at_ns: int
    flow: int
    control: bool = False


class PlanChange(NamedTuple):
    at_ns: int
    instructions: Sequence[Instruction]


class Arrival(NamedTuple):
    """One packet at its subscriber: which offer it was, when it was really offered and when it came."""

    offer: int
    flow: int
    offered_ns: int
    arrived_ns: int


class Bench(Protocol):
    """`keys` are the flows' receivers. `play` follows a timetable, waits until all is quiet, and may be called once."""

    priority_classes: int
    plane: DataPlane
    keys: list[FlowKey]

    def play(self, offers: Sequence[Offer], changes: Sequence[PlanChange] = ()) -> list[Arrival]: ...

    def close(self) -> None: ...


def datagram(number: int) -> bytes:
    return _NUMBER.pack(number) + bytes(96)


def number_of(received: bytes) -> int:
    return int(_NUMBER.unpack_from(received)[0])


def _timetable(
    offers: Sequence[Offer], changes: Sequence[PlanChange]
) -> list[tuple[int, int, PlanChange | None]]:
    """(time, number of an offer or -1, change), in order of time; a change comes before offers of its time."""
    table: list[tuple[int, int, PlanChange | None]] = [(change.at_ns, -1, change) for change in changes]
    table += [(offer.at_ns, number, None) for number, offer in enumerate(offers)]
    return sorted(table, key=lambda entry: entry[:2])


class VirtualBench:
    """The embedded data plane in virtual time: every run is the same."""

    priority_classes = EmbeddedDataPlane.priority_classes

    def __init__(self, flows: int) -> None:
        self.time = VirtualTime()
        self.keys = [FlowKey("10.0.0.1", 20000 + flow) for flow in range(flows)]
        self._arrivals: list[Arrival] = []
        self._offers: Sequence[Offer] = ()
        self.plane = EmbeddedDataPlane(self._receive, clock=self.time.clock, alarm=self.time.alarm)

    def play(self, offers: Sequence[Offer], changes: Sequence[PlanChange] = ()) -> list[Arrival]:
        self._offers = offers
        for at_ns, number, change in _timetable(offers, changes):
            self.time.run_until(at_ns)
            if change is not None:
                self.plane.apply(change.instructions)
            else:
                offer = offers[number]
                self.plane.send([OutgoingPacket(self.keys[offer.flow], datagram(number), offer.control)])
        self.time.run_until_quiet()
        return self._arrivals

    def close(self) -> None:
        self.plane.close()

    def _receive(self, datagrams: Datagrams, class_of: Callable[[int], int]) -> None:
        for _, received in datagrams:
            number = number_of(received)
            offer = self._offers[number]
            self._arrivals.append(Arrival(number, offer.flow, offer.at_ns, self.time.now_ns))


class LoopbackBench:
    """The embedded data plane with UDP sockets on this machine; arrivals are stamped by the kernel."""

    priority_classes = EmbeddedDataPlane.priority_classes

    def __init__(self, flows: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._receivers = [_receiver() for _ in range(flows)]
        self._output = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._output.bind(("127.0.0.1", 0))
        self._sender = DatagramSender(self._output)
        self.keys = [FlowKey(*receiver.getsockname()) for receiver in self._receivers]
        self._arrived: list[tuple[int, int]] = []
        self._dropped = 0
        self._offered_ns: list[int] = []
        self._clock = unix_clock()
        self.plane = self._loop.run_until_complete(self._open())

    async def _open(self) -> EmbeddedDataPlane:
        return EmbeddedDataPlane(self._send, self._note_fates, clock=self._clock)

    def play(self, offers: Sequence[Offer], changes: Sequence[PlanChange] = ()) -> list[Arrival]:
        self._offered_ns = [0] * len(offers)
        # A full collection of this process's memory takes longer than many packets.
        gc.collect()
        gc.freeze()
        try:
            self._loop.run_until_complete(self._play(offers, changes))
        finally:
            gc.unfreeze()
        return [
            Arrival(number, offers[number].flow, self._offered_ns[number], arrived_ns)
            for number, arrived_ns in self._arrived
        ]

    def close(self) -> None:
        self.plane.close()
        for each in (*self._receivers, self._output):
            each.close()
        self._loop.close()

    async def _play(self, offers: Sequence[Offer], changes: Sequence[PlanChange]) -> None:
        started_ns = self._clock()
        batch: list[OutgoingPacket] = []
        for at_ns, number, change in _timetable(offers, changes):
            if at_ns > (passed_ns := self._clock() - started_ns) or len(batch) >= 100:
                self._offer(batch)
                await asyncio.sleep(max(at_ns - passed_ns, 0) * 1e-9)
            if change is not None:
                self._offer(batch)
                self.plane.apply(change.instructions)
            else:
                offer = offers[number]
                batch.append(
                    OutgoingPacket(
                        self.keys[offer.flow],
                        datagram(number),
                        offer.control,
                        None if offer.control else number,
                    )
                )
        self._offer(batch)
        while self._backlog():
            await asyncio.sleep(0.01)

    def _offer(self, batch: list[OutgoingPacket]) -> None:
        now_ns = self._clock()
        for packet in batch:
            self._offered_ns[number_of(packet.datagram)] = now_ns
        self.plane.send(batch)
        batch.clear()

    def _backlog(self) -> int:
        return sum(
            queue.backlog_packets
            for port in self.plane.counters().ports.values()
            for queue in (*port.queues, port.control)
        )

    def _note_fates(self, outcomes: Sequence[TransmitOutcome]) -> None:
        """The times at which the port itself counted packets as come."""
        for number, _, enqueued_ns, _ in outcomes:
            if enqueued_ns is not None:
                assert isinstance(number, int)
                self._offered_ns[number] = enqueued_ns

    def _send(self, datagrams: Datagrams, class_of: Callable[[int], int]) -> None:
        # Receivers empty their small buffers after every few: none may overflow.
        for begin in range(0, len(datagrams), 64):
            self._sender(datagrams[begin : begin + 64])
            for receiver in self._receivers:
                self._drain(receiver)

    def _drain(self, receiver: socket.socket) -> None:
        while True:
            try:
                received, ancillary, _, _ = receiver.recvmsg(2048, 64)
            except BlockingIOError:
                return
            seconds, nanoseconds = _TIMESTAMP.unpack(ancillary[0][2])
            self._arrived.append((number_of(received), seconds * 1_000_000_000 + nanoseconds))


def _receiver() -> socket.socket:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind(("127.0.0.1", 0))
    receiver.setblocking(False)
    receiver.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    return receiver
