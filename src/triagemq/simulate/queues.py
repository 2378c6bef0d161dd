"""The state of output ports: per port and class a queue, linked through a pool of packets, and what is counted."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.cpython.unsafe import numbers
from numpy.typing import NDArray

from triagemq.scenario import Floats
from triagemq.simulate.kernel import step
from triagemq.simulate.network import Below
from triagemq.simulate.records import GROUP, PACKET, Buffer, Pool, new_pool

__all__ = [
    "BYTES_DROPPED",
    "BYTES_IN",
    "BYTES_OUT",
    "DROPS",
    "PACKETS_IN",
    "PACKETS_OUT",
    "Clock",
    "Outlets",
    "PortQueues",
    "highest_class",
    "leading_zeros",
    "link_last",
    "lowest_class",
    "new_port_queues",
    "trailing_zeros",
    "unlink_first",
    "unlink_last",
]

# The number of zero bits above the highest and below the lowest one: a machine instruction each.
leading_zeros: Any = numbers.leading_zeros
trailing_zeros: Any = numbers.trailing_zeros

# Columns of PortQueues.counters.
BYTES_IN, PACKETS_IN, BYTES_OUT, PACKETS_OUT, DROPS, BYTES_DROPPED = range(6)


class PortQueues(NamedTuple):
    """The state of every output port: when it is free, and per class the first and last packet that waits."""

    free_at: Floats
    busy_classes: NDArray[np.uint64]
    waiting: NDArray[np.int64]
    first: NDArray[np.int32]
    last: NDArray[np.int32]
    busy_seconds: Floats
    packets: Pool
    groups: Pool
    counters: NDArray[np.int64]
    sending_class: NDArray[np.int32]
    sending_bytes: NDArray[np.int64]
    next_sample: Floats


class Outlets(NamedTuple):
    """Where ports put what leaves them: to the next switch, to the end, and to the trace."""

    onward: Buffer
    ended: Buffer
    hops: Buffer
    samples: Buffer


class Clock(NamedTuple):
    """The present epoch, when the run is cut off, and what the trace asks for."""

    epoch: int
    run_ends: float
    sample_seconds: float
    with_hops: bool


def new_port_queues(below: Below, sample_seconds: float) -> PortQueues:
    ports = len(below.hop_of_port)
    return PortQueues(
        free_at=np.zeros(ports),
        busy_classes=np.zeros(ports, dtype=np.uint64),
        waiting=np.zeros(ports, dtype=np.int64),
        first=np.full((ports, below.classes), -1, dtype=np.int32),
        last=np.full((ports, below.classes), -1, dtype=np.int32),
        busy_seconds=np.zeros(ports),
        packets=new_pool(PACKET, 4096),
        groups=new_pool(GROUP, 1024),
        counters=np.zeros((ports, below.classes, 6), dtype=np.int64),
        sending_class=np.zeros(ports, dtype=np.int32),
        sending_bytes=np.zeros(ports, dtype=np.int64),
        next_sample=np.full(ports, sample_seconds),
    )


@step
def highest_class(queues: PortQueues, port: int) -> int:
    """The class to be served next, of a port where packets wait."""
    return trailing_zeros(queues.busy_classes[port])  # type: ignore[no-any-return]


@step
def lowest_class(queues: PortQueues, port: int) -> int:
    """The class that is pushed out first, of a port where packets wait."""
    return 63 - leading_zeros(queues.busy_classes[port])  # type: ignore[no-any-return]


@step
def link_last(queues: PortQueues, port: int, priority_class: int, number: int) -> None:
    packets = queues.packets.records
    last = queues.last[port, priority_class]
    packets[number].next = -1
    packets[number].previous = last
    if last < 0:
        queues.first[port, priority_class] = number
        queues.busy_classes[port] |= np.uint64(1) << np.uint64(priority_class)
    else:
        packets[last].next = number
    queues.last[port, priority_class] = number
    queues.waiting[port] += 1


@step
def unlink_first(queues: PortQueues, port: int, priority_class: int) -> None:
    packets = queues.packets.records
    following = packets[queues.first[port, priority_class]].next
    queues.first[port, priority_class] = following
    if following < 0:
        queues.last[port, priority_class] = -1
        queues.busy_classes[port] &= ~(np.uint64(1) << np.uint64(priority_class))
    else:
        packets[following].previous = -1
    queues.waiting[port] -= 1


@step
def unlink_last(queues: PortQueues, port: int, priority_class: int) -> None:
    packets = queues.packets.records
    before = packets[queues.last[port, priority_class]].previous
    queues.last[port, priority_class] = before
    if before < 0:
        queues.first[port, priority_class] = -1
        queues.busy_classes[port] &= ~(np.uint64(1) << np.uint64(priority_class))
    else:
        packets[before].next = -1
    queues.waiting[port] -= 1
