"""The list of what happens next: a heap, in the order of time.

At the same instant it goes by kind, and then by what it happens to, so that no tie depends on the order of pushing.
"""

from __future__ import annotations

import numpy as np

from triagemq.compiled import routine, step
from triagemq.simulate.records import Buffer, Record, Records, append

# A port is free and packets wait; a message is released; a packet comes to a port; a copy has been looked up by a
# switch; a copy reaches one. `port` is where, or where it will go, `number` that of a packet in the pool.
FREE, RELEASED, COMES, LOOKED_UP, REACHED = range(5)
HAPPENING = np.dtype([("time", np.float64), ("kind", np.int32), ("port", np.int32), ("number", np.int64)])


@routine
def push(heap: Buffer, packets: Records, time: float, kind: int, port: int, number: int) -> None:
    """Add to a list that has room."""
    records = heap.records
    child = append(heap)
    records[child].time = time
    records[child].kind = kind
    records[child].port = port
    records[child].number = number
    while child > 0:
        parent = (child - 1) >> 1
        if not _earlier(packets, records[child], records[parent]):
            break
        _swap(records, child, parent)
        child = parent


@routine
def pop(heap: Buffer, packets: Records) -> None:
    """Forget what came first."""
    records = heap.records
    count = heap.filled[0] - 1
    heap.filled[0] = count
    if count == 0:
        return
    records[0] = records[count]
    parent = 0
    while True:
        child = 2 * parent + 1
        if child >= count:
            return
        if child + 1 < count and _earlier(packets, records[child + 1], records[child]):
            child += 1
        if not _earlier(packets, records[child], records[parent]):
            return
        _swap(records, child, parent)
        parent = child


@step
def _earlier(packets: Records, first: Record, second: Record) -> bool:
    """The order of the list: by time and kind; ties by port, or by event, rank, subscription and packet."""
    if first.time != second.time:
        return first.time < second.time  # type: ignore[no-any-return]
    if first.kind != second.kind:
        return first.kind < second.kind  # type: ignore[no-any-return]
    if first.kind == FREE:
        return first.port < second.port  # type: ignore[no-any-return]
    one, other = packets[first.number], packets[second.number]
    if one.event != other.event:
        return one.event < other.event  # type: ignore[no-any-return]
    if one.next != other.next:
        return one.next < other.next  # type: ignore[no-any-return]
    if one.subscription != other.subscription:
        return one.subscription < other.subscription  # type: ignore[no-any-return]
    return one.fragment < other.fragment  # type: ignore[no-any-return]


@step
def _swap(records: Records, first: int, second: int) -> None:
    one, other = records[first], records[second]
    one.time, other.time = other.time, one.time
    one.kind, other.kind = other.kind, one.kind
    one.port, other.port = other.port, one.port
    one.number, other.number = other.number, one.number
