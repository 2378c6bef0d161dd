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

import numpy as np
from numpy.typing import NDArray

from triagemq.network.linux.bpf import (
    SOCKET_FILTER,
    ArrayMap,
    BpfMap,
    RingMap,
    compiled_program,
    load_program,
)
from triagemq.network.linux.netlink import in_namespace
from triagemq.network.linux.records import PROGRAMS, QUEUE_MINOR, STAMP_SHIFT

BEGINNING_BYTES = 104
"""So much of a packet identifies it: with IPv6, up to the end of what a direct topic's packets begin with."""

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
    """Rows of QUEUE_TIME until the last bit of each packet has left, where classes have these queue rates."""
    beginning = times["beginning"]

    def number(place: int) -> NDArray[np.int64]:
        return np.asarray(256 * beginning[:, place].astype(np.int64) + beginning[:, place + 1])

    octets = _ETHERNET_BYTES + np.where(number(12) == _IPV6, 40 + number(18), number(16))
    transmission_ns = np.rint(8e9 * octets / width_bps[times["priority_class"]]).astype(np.int64)
    found = times.copy()
    found["dequeued_ns"] += transmission_ns
    return found


class QueueTimes:
    """The packets that have left timed ports since the last call."""

    def __init__(self) -> None:
        self._ring = RingMap(_RECORD.itemsize, _RING_BYTES)
        self._missed = ArrayMap(8, 1)
        # By the number of a port, its name and what taps it.
        self._taps: dict[int, tuple[str, socket.socket]] = {}
        self._found: dict[str, list[NDArray[np.void]]] = {}

    def watch(self, number: int, name: str, interface: str, namespace: str | None) -> None:
        """Look at what leaves by the interface of a port, whose number another may have had before."""
        self._collect()
        tap = in_namespace(namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
        symbols: dict[str, BpfMap | int] = {"ring": self._ring, "missed": self._missed, "port_number": number}
        program = load_program(compiled_program(PROGRAMS, "socket/tap", symbols), kind=SOCKET_FILTER)
        try:
            tap.setsockopt(socket.SOL_SOCKET, _ATTACH, program)
            tap.bind((interface, _ALL_PROTOCOLS))
        except BaseException:
            tap.close()
            raise
        finally:
            os.close(program)
        self._taps[number] = name, tap

    def forget(self, number: int) -> None:
        """A port is no longer there; what has left it before is."""
        self._collect()
        if number in self._taps:
            self._taps.pop(number)[1].close()

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
        for _, tap in self._taps.values():
            tap.close()
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
                self._found.setdefault(self._taps[number][0], []).append(times[rows["port"] == number])


def _unix_offset_ns() -> int:
    """From the clock of eBPF programs to Unix time, by the read that took least."""
    reads = []
    for _ in range(_READS):
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        reads.append((after - before, now - (before + after) // 2))
    return min(reads)[1]
