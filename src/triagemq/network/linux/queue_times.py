"""How long each packet waited in the queues of a port, by the kernel's clock at both ends of the queue.

The classifier notes on a packet when it puts it into a queue. When the queue lets it go, the kernel shows it to what
taps the interface: a socket with an eBPF program of ours, which reads the clock and the note, and hands both over with
the beginning of the packet. Nothing is copied to the socket. What is dropped while it waits never comes there.

HTB lets a packet go at the start of its transmission. `with_transmission_time` adds that, so that `dequeued_ns` is when
its last bit has left, as in simulation and in the embedded data plane: one definition for every Trace.
"""

from __future__ import annotations

import os
import socket
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.network.linux.bpf import SOCKET_FILTER, ArrayMap, Assembler, RingMap, load_program
from triagemq.network.linux.classifier import SKB_INDEX, SKB_PRIORITY, STAMP_SHIFT
from triagemq.network.linux.netlink import in_namespace
from triagemq.network.linux.records import CONTROL, QUEUE_MINOR, UNMANAGED

BEGINNING_BYTES = 104
"""So much of a packet tells which one it is: with IPv6, up to the end of what a direct topic's packets begin with."""

_TIME, _LOAD_BYTES, _RING_OUTPUT = 5, 26, 130
_WITHOUT_WAKING = 1
_SKB_LENGTH, _SKB_DIRECTION, _LEAVES = 0, 4, 4
_ATTACH, _ALL_PROTOCOLS = 50, 0x0003
_RING_BYTES = 1 << 22
_READS = 5
_ETHERNET_BYTES, _IPV6 = 14, 0x86DD

_RECORD = np.dtype(
    [
        ("left_ns", np.uint64),
        ("waited", np.uint32),
        ("port", np.uint16),
        ("minor", np.uint16),
        ("beginning", np.uint8, BEGINNING_BYTES),
    ]
)

QUEUE_TIME = np.dtype(
    [
        ("priority_class", np.int64),
        ("enqueued_ns", np.int64),
        ("dequeued_ns", np.int64),
        ("beginning", np.uint8, BEGINNING_BYTES),
    ]
)
"""Of a packet that has left a class of a port: in Unix ns when it was queued and when it left
(the start of its transmission, its end behind `with_transmission_time`), and its first octets."""


def with_transmission_time(times: NDArray[np.void], width_bps: NDArray[np.float64]) -> NDArray[np.void]:
    """Rows of QUEUE_TIME until the last bit of each packet has left, where classes have these widths."""
    beginning = times["beginning"]

    def number(place: int) -> NDArray[np.int64]:
        return np.asarray(256 * beginning[:, place].astype(np.int64) + beginning[:, place + 1])

    octets = _ETHERNET_BYTES + np.where(number(12) == _IPV6, 40 + number(18), number(16))
    transmission_ns = np.rint(8e9 * octets / width_bps[times["priority_class"]]).astype(np.int64)
    found = times.copy()
    found["dequeued_ns"] += transmission_ns
    return found


class _Tap(NamedTuple):
    name: str
    socket: socket.socket


class QueueTimes:
    """The packets that have left timed ports since the last call."""

    def __init__(self) -> None:
        self._ring = RingMap(_RECORD.itemsize, _RING_BYTES)
        self._missed = ArrayMap(8, 1)
        self._taps: dict[int, _Tap] = {}
        self._found: dict[str, list[NDArray[np.void]]] = {}

    def watch(self, number: int, name: str, interface: str, namespace: str | None) -> None:
        """Look at what leaves by the interface of a port, whose number another may have had before."""
        self._collect()
        tap = in_namespace(namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        program = load_program(_program(number, self._ring.file, self._missed.file), kind=SOCKET_FILTER)
        try:
            tap.setsockopt(socket.SOL_SOCKET, _ATTACH, program)
            tap.bind((interface, _ALL_PROTOCOLS))
        except BaseException:
            tap.close()
            raise
        finally:
            os.close(program)
        self._taps[number] = _Tap(name, tap)

    def forget(self, number: int) -> None:
        """A port is no longer there; what has left it before is."""
        self._collect()
        if number in self._taps:
            self._taps.pop(number).socket.close()

    def take(self) -> dict[str, NDArray[np.void]]:
        """By port, in the order in which they left."""
        self._collect()
        found, self._found = self._found, {}
        return {name: np.concatenate(some) for name, some in found.items()}

    @property
    def missed(self) -> int:
        """Packets that found no room here, because `take` was not called for too long."""
        return int.from_bytes(self._missed.memory[:8], "little")

    def close(self) -> None:
        for tap in self._taps.values():
            tap.socket.close()
        self._taps.clear()
        self._ring.close()
        self._missed.close()

    def _collect(self) -> None:
        records = self._ring.take()
        if not len(records):
            return
        rows = np.ascontiguousarray(records).view(_RECORD)[:, 0]
        times = np.empty(len(rows), QUEUE_TIME)
        times["priority_class"] = rows["minor"].astype(np.int64) - QUEUE_MINOR - 1
        times["dequeued_ns"] = rows["left_ns"].astype(np.int64) + _unix_offset_ns()
        times["enqueued_ns"] = times["dequeued_ns"] - (rows["waited"].astype(np.int64) << STAMP_SHIFT)
        times["beginning"] = rows["beginning"]
        for number in np.unique(rows["port"]).tolist():
            if number in self._taps:
                self._found.setdefault(self._taps[number].name, []).append(times[rows["port"] == number])


def _unix_offset_ns() -> int:
    """From the clock of eBPF programs to Unix time, by the read that took least."""
    reads = []
    for _ in range(_READS):
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        reads.append((after - before, now - (before + after) // 2))
    return min(reads)[1]


def _program(port: int, ring: int, missed: int) -> bytes:
    """Register 6 holds the packet, 7 the number of its queue; the record is built at the end of the stack."""
    record = -_RECORD.itemsize
    beginning = record + _RECORD.fields["beginning"][1]  # type: ignore[index]
    a = Assembler()
    a.copy(6, 1)
    a.load(4, 1, 6, _SKB_DIRECTION)
    a.jump_if(1, "!=", _LEAVES, "seen")
    a.load(4, 7, 6, SKB_INDEX)
    a.jump_if(7, "<=", QUEUE_MINOR + CONTROL, "seen")
    a.jump_if(7, ">=", QUEUE_MINOR + UNMANAGED, "seen")
    a.call(_TIME)
    a.store(8, 10, record, 0)
    a.compute(0, ">>", STAMP_SHIFT)
    a.load(4, 1, 6, SKB_PRIORITY)
    a.compute_by(0, "-", 1)
    a.store(4, 10, record + 8, 0)
    a.store_number(2, 10, record + 12, port)
    a.store(2, 10, record + 14, 7)
    for place in range(beginning, 0, 8):
        a.store_number(8, 10, place, 0)
    a.load(4, 4, 6, _SKB_LENGTH)
    a.jump_if(4, "<=", BEGINNING_BYTES, "short")
    a.set(4, BEGINNING_BYTES)
    a.label("short")
    a.jump_if(4, "==", 0, "seen")
    a.copy(1, 6)
    a.set(2, 0)
    a.copy(3, 10)
    a.compute(3, "+", beginning)
    a.call(_LOAD_BYTES)
    a.load_map(1, ring)
    a.copy(2, 10)
    a.compute(2, "+", record)
    a.set(3, _RECORD.itemsize)
    a.set(4, _WITHOUT_WAKING)
    a.call(_RING_OUTPUT)
    a.jump_if(0, "==", 0, "seen")
    a.load_value(1, missed)
    a.set(2, 1)
    a.count(1, 0, 2)
    a.label("seen")
    a.set(0, 0)
    a.exit()
    return a.program()
