"""Which packets are due before a time, and in what order they reach their switches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Floats
from triagemq.simulate.kernel import kernel, step
from triagemq.simulate.records import Buffer, Records

__all__ = ["due", "keep_later"]

Order = NDArray[np.int32]

_MOVES_PER_PACKET = 16
"""Above this many moves a packet, merging is cheaper than inserting."""


@kernel
def due(packets: Buffer, until: float, sort: bool, order: Order, times: Floats, spare: Order) -> int:
    """Put the numbers of the packets with a time before `until` into `order`; returns how many they are.

    With `sort` they stand in the order of arrival; ties go by event, rank and subscription, so that they never depend
    on where a block ended. Copies of subscribers with short outbound queues arrive nearly sorted, so insertion comes
    first, and merging only when that takes too long.
    """
    count = 0
    records = packets.records
    for number in range(packets.filled[0]):
        time = records[number].time
        if time < until:
            order[count] = number
            times[count] = time
            count += 1
    if sort and not _insert(records, order, times, count):
        _merge(records, order, spare, count)
    return count


@kernel
def keep_later(packets: Buffer, until: float) -> None:
    """Forget the packets that were due before `until`; the others keep their order."""
    kept = 0
    records = packets.records
    for number in range(packets.filled[0]):
        if records[number].time >= until:
            if kept != number:
                records[kept] = records[number]
            kept += 1
    packets.filled[0] = kept


@step
def _later(records: Records, first: int, second: int) -> bool:
    """Whether packet `first` comes after packet `second`."""
    one, other = records[first], records[second]
    if one.time != other.time:
        return one.time > other.time  # type: ignore[no-any-return]
    if one.event != other.event:
        return one.event > other.event  # type: ignore[no-any-return]
    if one.next != other.next:
        return one.next > other.next  # type: ignore[no-any-return]
    return one.subscription > other.subscription  # type: ignore[no-any-return]


@step
def _insert(records: Records, order: Order, times: Floats, count: int) -> bool:
    """Insertion sort that gives up (False) after too many moves."""
    moves = 0
    for place in range(1, count):
        time, number = times[place], order[place]
        hole = place
        while hole > 0 and (
            times[hole - 1] > time or (times[hole - 1] == time and _later(records, order[hole - 1], number))
        ):
            times[hole] = times[hole - 1]
            order[hole] = order[hole - 1]
            hole -= 1
        times[hole] = time
        order[hole] = number
        moves += place - hole
        if moves > _MOVES_PER_PACKET * count:
            return False
    return True


@step
def _merge(records: Records, order: Order, spare: Order, count: int) -> None:
    """Merge sort from the bottom up; always ends in `order`."""
    width = 1
    while width < count:
        for begin in range(0, count, 2 * width):
            middle, end = min(begin + width, count), min(begin + 2 * width, count)
            left, right = begin, middle
            for place in range(begin, end):
                if left < middle and (right >= end or not _later(records, order[left], order[right])):
                    spare[place] = order[left]
                    left += 1
                else:
                    spare[place] = order[right]
                    right += 1
        for place in range(count):
            order[place] = spare[place]
        width *= 2
