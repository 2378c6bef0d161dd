"""Managed switches: which packets are due and in what order they come, those that are held back before the first of
them, the inbound queue, which looks up class and drop rate, and the way into the output port."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import kernel, step
from triagemq.scenario import Floats
from triagemq.simulate.endings import (
    DELIVERED,
    DROPPED_BY_POLICY,
    IN_FLIGHT,
    THINNED,
    end_copy,
    nanoseconds,
)
from triagemq.simulate.network import DROPPED, loss_of
from triagemq.simulate.ports import arrive, catch_up
from triagemq.simulate.random import Purpose, exponential, split, uniform
from triagemq.simulate.records import (
    Buffer,
    Outlets,
    Pool,
    PortQueues,
    PortState,
    Record,
    Records,
    room,
    take,
)

Order = NDArray[np.int32]

_SWITCH_INBOUND = int(Purpose.SWITCH_INBOUND)
_DROP = int(Purpose.DROP)

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
    left = 0
    records = packets.records
    for number in range(packets.filled[0]):
        if records[number].time >= until:
            if left != number:
                records[left] = records[number]
            left += 1
    packets.filled[0] = left


HELD = 1
"""In `previous` of a copy before the first switch: it has been held back, and passes at its time."""

GONE = -2
"""In `group` of such a copy: another has taken its place."""


class ThinningState(NamedTuple):
    """Per subscription the time between two copies (0: all pass), from when on the next one passes, and which waits for
    that. A copy that comes before takes the place of the one that waits."""

    seconds: Floats
    opens: Floats
    held: NDArray[np.int64]


@kernel
def thin(
    state: PortState,
    inbox: Buffer,
    order: Order,
    begin: int,
    end: int,
    until: float,
    thinning: ThinningState,
) -> int:
    """Hold back the copies number order[begin:end] that come too soon after the one before.

    Returns how many were done: fewer than `end` when there is no room for those that end.
    """
    epochs, ended, clock = state.epochs, state.outlets.ended, state.clock
    records, seconds, opens, held = inbox.records, thinning.seconds, thinning.opens, thinning.held
    if begin == 0:
        held[:] = -1
        for number in range(inbox.filled[0]):
            if records[number].previous == HELD:
                held[records[number].subscription] = number
    for place in range(begin, end):
        if not room(ended, 1):
            return place
        number = order[place]
        copy = records[number]
        subscription, time = copy.subscription, copy.time
        if seconds[subscription] <= 0.0 or copy.previous == HELD:
            continue
        if held[subscription] >= 0 and opens[subscription] <= time:
            opens[subscription] += seconds[subscription]
            held[subscription] = -1
        if opens[subscription] <= time:
            opens[subscription] = time + seconds[subscription]
            continue
        if held[subscription] >= 0:
            before = records[held[subscription]]
            level = epochs.priority_class[clock.epoch, subscription]
            end_copy(ended, before, subscription, level, THINNED if time <= clock.run_ends else IN_FLIGHT)
            before.group = GONE
        copy.time = opens[subscription]
        copy.previous = HELD
        held[subscription] = number
    for subscription in range(len(held)):
        if held[subscription] >= 0 and opens[subscription] < until:
            opens[subscription] += seconds[subscription]
    left = 0
    for number in range(inbox.filled[0]):
        if records[number].group != GONE:
            if left != number:
                records[left] = records[number]
            left += 1
    inbox.filled[0] = left
    return end


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


@step
def packets_of(size_bytes: float, payload_bytes: float) -> int:
    """How many packets an event takes; an infinite payload never cuts."""
    return max(1, math.ceil(size_bytes / payload_bytes))


@kernel
def cross_switches(
    state: PortState, hop: int, inbox: Buffer, order: NDArray[np.int32], begin: int, end: int
) -> int:
    """Bring packets number order[begin:end] through the switches of one hop into their output ports.

    At hop 0 they are whole copies; the drop policy meets them there, once, and there an event above the MTU becomes a
    batch of packets. Class and drop rate are those in force when a copy reaches the switch. Returns how many were
    done: fewer than `end` when an outlet or a pool is full.
    """
    below, epochs, queues, outlets = state.below, state.epochs, state.queues, state.outlets
    switch_free, clock = state.switch_free, state.clock
    inbound_seed = split(state.seeds[_SWITCH_INBOUND], hop)
    for place in range(begin, end):
        copy = inbox.records[order[place]]
        subscription = copy.subscription
        packets = packets_of(copy.size_bytes, below.payload_bytes) if hop == 0 else 1
        # Made as wide as in `catch_up_all`: the largest of the steps is compiled for one type of number.
        port = below.route[subscription, hop] + 0
        switch = below.switch_of_port[port]
        counter = copy.event * below.subscriptions + subscription
        # Written out, as in `promised.event_list`: a step for it costs 4 % of the whole simulation.
        time = max(copy.time, switch_free[switch])
        service = below.inbound_seconds[switch]
        if service > 0.0:
            for fragment in range(packets):
                time += service * exponential(split(inbound_seed, copy.fragment + fragment), counter)
        priority_class = epochs.priority_class[clock.epoch, subscription]
        if hop > 0 and copy.time >= clock.run_ends:
            priority_class = copy.priority_class
        dropped = hop == 0 and is_dropped(state, copy, counter)
        if dropped:
            if not room(outlets.ended, 1):
                return place
            switch_free[switch] = time
            drop_on_purpose(outlets.ended, copy, priority_class, time, clock.run_ends)
            continue
        if not (catch_up(state, port, time) and _room_for_arrival(queues, outlets, packets)):
            return place
        switch_free[switch] = time
        _enter(state, port, copy, packets, hop, time, priority_class)
    return end


@step
def is_dropped(state: PortState, copy: Record, counter: int) -> bool:
    """Whether the drop policy of the first switch takes a copy."""
    subscription = copy.subscription
    drop_rate = state.epochs.drop_rate[state.clock.epoch, subscription]
    drawn = drop_rate > 0.0 and uniform(state.seeds[_DROP], counter) <= drop_rate
    return drawn or loss_of(state.below.losses, copy.event, subscription) == DROPPED


@step
def _room_for_arrival(queues: PortQueues, outlets: Outlets, packets: int) -> bool:
    """Every packet takes a place in the pool, and ends or moves on at most once and evicts at most one other."""
    return (
        queues.packets.free_count[0] >= packets
        and queues.groups.free_count[0] >= 1
        and room(outlets.ended, 2 * packets)
        and room(outlets.onward, packets)
        and room(outlets.hops, 2 * packets)
    )


@step
def drop_on_purpose(ended: Buffer, copy: Record, priority_class: int, time: float, run_ends: float) -> None:
    outcome = DROPPED_BY_POLICY if time <= run_ends else IN_FLIGHT
    end_copy(ended, copy, copy.subscription, priority_class, outcome)


@step
def _enter(
    state: PortState, port: int, copy: Record, packets: int, hop: int, time: float, priority_class: int
) -> None:
    """The packets of a copy come to their port together."""
    queues, enqueued_ns = state.queues, copy.enqueued_ns
    if hop == 0:
        enqueued_ns = nanoseconds(time) if time <= state.clock.run_ends else -1
    group = copy.group if packets == 1 else new_group(queues.groups, packets, enqueued_ns, priority_class)
    for fragment in range(packets):
        number = packet_of(queues.packets, copy, fragment, group, time, enqueued_ns, priority_class)
        arrive(state, port, number)


@step
def new_group(groups: Pool, packets: int, enqueued_ns: int, priority_class: int) -> int:
    """What ties the packets of a copy together that is cut; returns its number."""
    group = take(groups)
    whole = groups.records[group]
    whole.enqueued_ns = enqueued_ns
    whole.dequeued_ns = -1
    whole.delivered_ns = -1
    whole.packets = packets
    whole.remaining = packets
    whole.outcome = DELIVERED
    whole.priority_class = priority_class
    return group


@step
def packet_of(
    pool: Pool, copy: Record, fragment: int, group: int, time: float, enqueued_ns: int, priority_class: int
) -> int:
    """A packet of a copy, so many after the copy's own, as it comes to a port; returns its number."""
    number = take(pool)
    packet = pool.records[number]
    packet.time = time
    packet.published_ns = copy.published_ns
    packet.event = copy.event
    packet.size_bytes = copy.size_bytes
    packet.enqueued_ns = enqueued_ns
    packet.subscription = copy.subscription
    packet.fragment = copy.fragment + fragment
    packet.group = group
    packet.priority_class = priority_class
    return number
