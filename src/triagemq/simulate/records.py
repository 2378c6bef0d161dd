"""What travels between the stages of the simulator: record types, and the buffers and pools that hold them.

Kernels cannot allocate; when a buffer or pool is too small they stop, say which in `Shortage`, and are called again
from where they stopped after the engine has emptied or enlarged it. So memory follows what is under way.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from triagemq.simulate.kernel import step

__all__ = [
    "AHEAD",
    "ENDED",
    "EVENT",
    "GROUP",
    "HOP",
    "PACKET",
    "SAMPLE",
    "Buffer",
    "Pool",
    "Record",
    "Records",
    "append",
    "enlarged_buffer",
    "enlarged_pool",
    "give_back",
    "new_buffer",
    "new_pool",
    "room",
    "take",
]

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

# A delivered copy that arrives after the present.
AHEAD = np.dtype(
    [
        ("delivered_ns", np.int64),
        ("subscription", np.int32),
        ("priority_class", np.int32),
        ("phase", np.int64),
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
