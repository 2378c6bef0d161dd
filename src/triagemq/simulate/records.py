"""What travels between the stages of the simulator: record types, and the buffers, pools and queues that hold them.

Kernels cannot allocate; when a buffer or pool is too small they stop, say how far they came, and are called again from
there after the engine has emptied or enlarged it. So memory follows what is under way. An output port has per class a
queue, linked through a pool of packets, and counts what passes.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba.cpython.unsafe import numbers
from numpy.typing import NDArray

from triagemq.compiled import step
from triagemq.scenario import Floats
from triagemq.simulate.changes import Epochs
from triagemq.simulate.network import NetworkSide
from triagemq.simulate.random import Seeds

Records: TypeAlias = NDArray[np.void]

Record: TypeAlias = Any
"""One of Records: kernels read and write its fields by name."""

# An event on its way to or between brokers. `time` is that of its next step: published, at a broker, matched.
EVENT = np.dtype(
    [
        ("time", np.float64),
        ("published_ns", np.int64),
        ("event", np.int64),
        ("size_bytes", np.float64),
        ("publication", np.int32),
        ("packets", np.int32),
        ("broker", np.int32),
        ("source_broker", np.int32),
    ]
)

# One packet of one copy of an event, below the home broker; a cache line, because queues visit them at random.
# `group` ties the packets of a cut event together, -1 where the packet is the event. `next` and `previous` link it
# into a queue; before the first switch `next` is its rank among the copies of its event that leave at the same moment.
PACKET = np.dtype(
    [
        ("time", np.float64),
        ("published_ns", np.int64),
        ("event", np.int64),
        ("size_bytes", np.float64),
        ("enqueued_ns", np.int64),
        ("subscription", np.int32),
        ("fragment", np.int32),
        ("group", np.int32),
        ("next", np.int32),
        ("previous", np.int32),
        ("priority_class", np.int32),
    ]
)

# The packets of one copy of an event that was cut: how many are still under way and what became of the others.
GROUP = np.dtype(
    [
        ("enqueued_ns", np.int64),
        ("dequeued_ns", np.int64),
        ("delivered_ns", np.int64),
        ("packets", np.int32),
        ("remaining", np.int32),
        ("outcome", np.int32),
        ("priority_class", np.int32),
    ]
)

# What became of one copy; -1 for a time that never came.
ENDED = np.dtype(
    [
        ("event", np.int64),
        ("published_ns", np.int64),
        ("enqueued_ns", np.int64),
        ("dequeued_ns", np.int64),
        ("delivered_ns", np.int64),
        ("size_bytes", np.float64),
        ("subscription", np.int32),
        ("priority_class", np.int16),
        ("outcome", np.int16),
    ]
)

HOP = np.dtype(
    [
        ("event", np.int64),
        ("enqueued_ns", np.int64),
        ("dequeued_ns", np.int64),
        ("subscription", np.int32),
        ("port", np.int32),
        ("priority_class", np.int32),
        ("hop", np.int16),
        ("outcome", np.int16),
    ]
)

SAMPLE = np.dtype(
    [
        ("sampled_ns", np.int64),
        ("bytes_in", np.int64),
        ("packets_in", np.int64),
        ("bytes_out", np.int64),
        ("packets_out", np.int64),
        ("drops", np.int64),
        ("backlog_bytes", np.int64),
        ("backlog_packets", np.int64),
        ("port", np.int32),
        ("queue", np.int32),
    ]
)


class Buffer(NamedTuple):
    """Records in order; `filled[0]` of them are in use."""

    records: Records
    filled: NDArray[np.int64]


class Pool(NamedTuple):
    """Records in no order, handed out one by one: `free[:free_count[0]]` are the numbers of the unused ones."""

    records: Records
    free: NDArray[np.int32]
    free_count: NDArray[np.int64]


def new_buffer(kind: np.dtype[Any], capacity: int) -> Buffer:
    return Buffer(np.zeros(capacity, dtype=kind), np.zeros(1, dtype=np.int64))


def new_pool(kind: np.dtype[Any], capacity: int) -> Pool:
    # Taken from the end: low numbers first, so that a small backlog stays in few cache lines.
    free = np.arange(capacity - 1, -1, -1, dtype=np.int32)
    return Pool(np.zeros(capacity, dtype=kind), free, np.array([capacity], dtype=np.int64))


def enlarged_buffer(buffer: Buffer, needed: int) -> Buffer:
    """The same records in a buffer with room for `needed` more, twice as large at least."""
    filled = int(buffer.filled[0])
    capacity = max(2 * len(buffer.records), filled + needed)
    records = np.zeros(capacity, dtype=buffer.records.dtype)
    records[:filled] = buffer.records[:filled]
    return Buffer(records, buffer.filled)


def enlarged_pool(pool: Pool, needed: int) -> Pool:
    """The same records in a pool with `needed` unused ones at least."""
    before = len(pool.records)
    after = max(2 * before, before + needed)
    records = np.zeros(after, dtype=pool.records.dtype)
    records[:before] = pool.records
    unused = int(pool.free_count[0])
    free = np.empty(after, dtype=np.int32)
    free[: after - before] = np.arange(after - 1, before - 1, -1, dtype=np.int32)
    free[after - before : after - before + unused] = pool.free[:unused]
    return Pool(records, free, np.array([after - before + unused], dtype=np.int64))


@step
def room(buffer: Buffer, needed: int) -> bool:
    """Whether `needed` more records fit."""
    return buffer.filled[0] + needed <= len(buffer.records)  # type: ignore[no-any-return]


@step
def append(buffer: Buffer) -> int:
    """The number of the next record, now counted as filled."""
    number = buffer.filled[0]
    buffer.filled[0] = number + 1
    return number  # type: ignore[no-any-return]


@step
def take(pool: Pool) -> int:
    """The number of a record that was unused."""
    unused = pool.free_count[0] - 1
    pool.free_count[0] = unused
    return pool.free[unused]  # type: ignore[no-any-return]


@step
def give_back(pool: Pool, number: int) -> None:
    """Make a record unused again."""
    unused = pool.free_count[0]
    pool.free[unused] = number
    pool.free_count[0] = unused + 1


# The number of zero bits above the highest and below the lowest one: a machine instruction each.
leading_zeros: Any = numbers.leading_zeros
trailing_zeros: Any = numbers.trailing_zeros

# Columns of PortQueues.counters.
BYTES_IN, PACKETS_IN, BYTES_OUT, PACKETS_OUT, DROPS, BYTES_DROPPED = range(6)


class PortQueues(NamedTuple):
    """The state of every output port: when it is free, and per class the first and last packet that waits.

    `newest` has per subscription and hop the packet that waits and that a newer one may take the place of, and its
    queue; -1 where none does. It has no rows where no subscription wants that.

    Behind the rows of the ports there are those of access links and of queues with queue rates, where the event list
    has some; `counters` are in the rows of ports.
    """

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
    newest: NDArray[np.int64]


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


class PortState(NamedTuple):
    """All that switches and ports read and change."""

    below: NetworkSide
    epochs: Epochs
    seeds: Seeds
    switch_free: Floats
    queues: PortQueues
    outlets: Outlets
    clock: Clock


def new_port_queues(below: NetworkSide, sample_seconds: float, more: int = 0) -> PortQueues:
    """Those of all ports, and so many rows behind them."""
    ports = len(below.hop_of_port) + more
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
        newest=np.full((len(below.newest_only), below.route.shape[1], 2), -1),
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
def take_place(queues: PortQueues, port: int, priority_class: int, before: int, number: int) -> None:
    """A packet takes the place of one that waits."""
    packets = queues.packets.records
    following, previous = packets[before].next, packets[before].previous
    packets[number].next, packets[number].previous = following, previous
    if previous < 0:
        queues.first[port, priority_class] = number
    else:
        packets[previous].next = number
    if following < 0:
        queues.last[port, priority_class] = number
    else:
        packets[following].previous = number


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
