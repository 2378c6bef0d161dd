"""Output ports: strict priority without preemption, first in first out within a class, and a buffer with push-out.

A packet's departure is known when its transmission starts, so a port needs no event list: before it takes an arrival
it starts everything whose turn came before (`catch_up`). A departure and an arrival at the same instant happen in
that order. Queues are doubly linked lists through a pool of packets; a bit per class says which are not empty.
"""

from __future__ import annotations

import numpy as np

from triagemq.compiled import kernel, routine, step
from triagemq.simulate.changes import epoch_at
from triagemq.simulate.endings import (
    DELIVERED,
    DROPPED_BY_BUFFER,
    EXPIRED,
    IN_FLIGHT,
    LOST_ON_LINK,
    SUBSCRIBER_GONE,
    SUPERSEDED,
    end_packet,
    nanoseconds,
)
from triagemq.simulate.network import LOST_BEHIND, NetworkSide, loss_of
from triagemq.simulate.random import Purpose, split, uniform
from triagemq.simulate.records import (
    BYTES_DROPPED,
    BYTES_IN,
    BYTES_OUT,
    DROPS,
    PACKETS_IN,
    PACKETS_OUT,
    Buffer,
    Clock,
    Pool,
    PortQueues,
    PortState,
    Record,
    append,
    give_back,
    highest_class,
    link_last,
    lowest_class,
    room,
    take_place,
    unlink_first,
    unlink_last,
)

_PORT_LINK = int(Purpose.PORT_LINK)
_SUBSCRIBER_LINK = int(Purpose.SUBSCRIBER_LINK)


@step
def arrive(state: PortState, port: int, number: int) -> None:
    """A packet of the pool comes to a port that has caught up with its arrival: send it, queue it or drop it."""
    below, queues = state.below, state.queues
    packet = queues.packets.records[number]
    time, priority_class = packet.time, packet.priority_class
    if state.clock.sample_seconds < np.inf:
        queues.counters[port, priority_class, PACKETS_IN] += 1
        queues.counters[port, priority_class, BYTES_IN] += int(wire_bytes(below, queues.groups, packet))
    sending = queues.free_at[port] > time
    if not sending:
        if is_expired(below, packet, time):
            _drop(state, port, number, time, EXPIRED)
        else:
            _transmit(state, port, number, time)
        return
    superseded = supersede(below, queues, port, port, priority_class, number)
    if superseded >= 0:
        _drop(state, port, superseded, time, SUPERSEDED)
        return
    waiting = queues.waiting[port]
    if waiting + 1 >= below.buffer_packets[port]:
        lowest = lowest_class(queues, port) if waiting > 0 else -1
        if lowest <= priority_class:
            _drop(state, port, number, time, DROPPED_BY_BUFFER)
            return
        evicted = queues.last[port, lowest]
        unlink_last(queues, port, lowest)
        stop_waiting(below, queues, port, evicted)
        _drop(state, port, evicted, time, DROPPED_BY_BUFFER)
    link_last(queues, port, priority_class, number)
    begin_waiting(below, queues, port, port, priority_class, number)


@step
def is_expired(below: NetworkSide, packet: Record, time: float) -> bool:
    """Whether a packet of a copy is too old to be sent from `time` on."""
    if len(below.expires_seconds) == 0 or packet.subscription < 0:
        return False
    return time - packet.published_ns * 1e-9 > below.expires_seconds[packet.subscription]  # type: ignore[no-any-return]


@step
def supersede(
    below: NetworkSide, queues: PortQueues, port: int, row: int, priority_class: int, number: int
) -> int:
    """Give a packet the place of an older one of its subscription in the same queue; returns that one, or -1.

    Events of several packets have no part in it.
    """
    packet = queues.packets.records[number]
    subscription = packet.subscription
    if len(below.newest_only) == 0 or subscription < 0 or packet.group >= 0:
        return -1
    newest = queues.newest[subscription, below.hop_of_port[port]]
    if newest[0] < 0 or newest[1] != row * below.classes + priority_class:
        return -1
    before = newest[0]
    take_place(queues, row, priority_class, before, number)
    newest[0] = number
    return before  # type: ignore[no-any-return]


@step
def begin_waiting(
    below: NetworkSide, queues: PortQueues, port: int, row: int, priority_class: int, number: int
) -> None:
    """A packet waits in a queue: a newer one of its subscription may take its place, if that is wanted."""
    packet = queues.packets.records[number]
    if len(below.newest_only) == 0 or packet.subscription < 0 or packet.group >= 0:
        return
    if below.newest_only[packet.subscription]:
        newest = queues.newest[packet.subscription, below.hop_of_port[port]]
        newest[0] = number
        newest[1] = row * below.classes + priority_class


@step
def stop_waiting(below: NetworkSide, queues: PortQueues, port: int, number: int) -> None:
    """A packet is in its queue no more."""
    subscription = queues.packets.records[number].subscription
    if len(below.newest_only) == 0 or subscription < 0:
        return
    newest = queues.newest[subscription, below.hop_of_port[port]]
    if newest[0] == number:
        newest[0] = -1


@step
def catch_up(state: PortState, port: int, until: float) -> bool:
    """Start all that a port has to start by `until`, and sample it on the way; False if an outlet is full."""
    if state.queues.next_sample[port] < until and not _catch_up_sampling(state, port, until):
        return False
    return _send_waiting(state, port, until)


@routine
def _catch_up_sampling(state: PortState, port: int, until: float) -> bool:
    """Catch up with every sampling instant before `until`. A call, not a step: it is rare, and would crowd the rest."""
    below, queues, samples = state.below, state.queues, state.outlets.samples
    interval = state.clock.sample_seconds
    while queues.next_sample[port] < until:
        instant = queues.next_sample[port]
        if not _send_waiting(state, port, instant):
            return False
        if not room(samples, below.classes):
            return False
        for priority_class in range(below.classes):
            sample(queues, samples, port, port, priority_class, instant)
        # Multiples of the interval rather than a running sum: no drift, and the same instants at every port.
        queues.next_sample[port] = interval * np.rint(instant / interval + 1.0)
    return True


@kernel
def catch_up_all(state: PortState, hop: int, begin: int, until: float) -> int:
    """Catch up every port of a hop from number `begin` on; returns the port at which an outlet was full."""
    hop_of_port = state.below.hop_of_port
    for port in range(begin, len(hop_of_port)):
        if hop_of_port[port] == hop and not catch_up(state, port, until):
            return port
    return len(hop_of_port)


@step
def wire_bytes(below: NetworkSide, groups: Pool, packet: Record) -> float:
    """The bytes of one packet on the wire: a whole event, or its share of a cut one."""
    if packet.group < 0:
        return packet.size_bytes + below.overhead_bytes  # type: ignore[no-any-return]
    earlier = groups.records[packet.group].packets - 1
    if packet.fragment < earlier:
        return below.payload_bytes + below.overhead_bytes
    return packet.size_bytes - earlier * below.payload_bytes + below.overhead_bytes  # type: ignore[no-any-return]


@step
def _send_waiting(state: PortState, port: int, until: float) -> bool:
    queues, outlets = state.queues, state.outlets
    while queues.waiting[port] > 0 and queues.free_at[port] <= until:
        if not (room(outlets.ended, 1) and room(outlets.onward, 1) and room(outlets.hops, 1)):
            return False
        priority_class = highest_class(queues, port)
        number = queues.first[port, priority_class]
        unlink_first(queues, port, priority_class)
        stop_waiting(state.below, queues, port, number)
        time = queues.free_at[port]
        if is_expired(state.below, queues.packets.records[number], time):
            _drop(state, port, number, time, EXPIRED)
        else:
            _transmit(state, port, number, time)
    return True


@step
def _transmit(state: PortState, port: int, number: int, time: float) -> None:
    """Send a packet that is in no queue any more: to the next switch, or to its subscriber."""
    below, epochs, queues, clock = state.below, state.epochs, state.queues, state.clock
    packet = queues.packets.records[number]
    epoch = epoch_at(epochs.ends, clock.epoch, time)
    wire = wire_bytes(below, queues.groups, packet)
    per_byte = epochs.seconds_per_byte[epoch, port]
    finished = begin_sending(queues, clock, port, port, packet, wire, per_byte, time)
    if clock.with_hops and time <= clock.run_ends:
        record_hop(
            below, state.outlets.hops, packet, packet.subscription, port, nanoseconds(finished), DELIVERED
        )
    leave(state, port, number, epoch, finished)


@step
def begin_sending(
    queues: PortQueues,
    clock: Clock,
    port: int,
    sender: int,
    packet: Record,
    wire: float,
    seconds_per_byte: float,
    time: float,
) -> float:
    """A port, or the queue of it that is the sender, is busy with a packet from `time` on; returns until when."""
    service = wire * seconds_per_byte
    finished = time + service
    queues.free_at[sender] = finished
    queues.busy_seconds[sender] += service
    queues.sending_class[sender] = packet.priority_class
    if clock.sample_seconds < np.inf:
        queues.sending_bytes[sender] = int(wire)
        queues.counters[port, packet.priority_class, PACKETS_OUT] += 1
        queues.counters[port, packet.priority_class, BYTES_OUT] += int(wire)
    return finished


@step
def leave(state: PortState, port: int, number: int, epoch: int, finished: float) -> None:
    """A packet has left its port at `finished`, in or after an epoch: it moves on, arrives, or is lost."""
    below, epochs, seeds, queues = state.below, state.epochs, state.seeds, state.queues
    onward = state.outlets.onward
    packet = queues.packets.records[number]
    subscription, hop = packet.subscription, below.hop_of_port[port]
    counter = packet.event * below.subscriptions + subscription
    # Of an event in several packets that is recorded as lost, the first is.
    lost = packet.fragment == 0 and loss_of(below.losses, packet.event, subscription) == LOST_BEHIND + hop
    if hop + 1 < below.path_length[subscription]:
        error_rate = epochs.port_error[epoch_at(epochs.ends, epoch, finished), port]
        seed = split(split(seeds[_PORT_LINK], hop), packet.fragment)
        if lost or (error_rate > 0.0 and uniform(seed, counter) <= error_rate):
            _end(state, number, LOST_ON_LINK, finished, finished)
            return
        place = append(onward)
        onward.records[place] = packet
        onward.records[place].time = finished + below.link_propagation[port]
        give_back(queues.packets, number)
        return
    outcome, arrival = DELIVERED, finished + below.subscriber_propagation[subscription]
    error_rate = epochs.subscriber_error[epoch_at(epochs.ends, epoch, finished), subscription]
    if lost or (
        error_rate > 0.0 and uniform(split(seeds[_SUBSCRIBER_LINK], packet.fragment), counter) <= error_rate
    ):
        outcome = LOST_ON_LINK
    elif not epochs.active[epoch_at(epochs.ends, epoch, arrival), subscription]:
        outcome = SUBSCRIBER_GONE
    _end(state, number, outcome, finished, arrival)


@step
def _end(
    state: PortState,
    number: int,
    outcome: int,
    finished: float,
    arrival: float,
) -> None:
    packet = state.queues.packets.records[number]
    if arrival > state.clock.run_ends:
        outcome = IN_FLIGHT
    dequeued_ns = nanoseconds(finished) if finished <= state.clock.run_ends else -1
    end_packet(
        state.outlets.ended,
        state.queues.groups,
        packet,
        packet.priority_class,
        outcome,
        dequeued_ns,
        nanoseconds(arrival),
    )
    give_back(state.queues.packets, number)


@step
def _drop(state: PortState, port: int, number: int, time: float, why: int) -> None:
    """A packet that is in no queue any more is not sent."""
    below, queues, outlets, clock = state.below, state.queues, state.outlets, state.clock
    packet = queues.packets.records[number]
    if clock.sample_seconds < np.inf:
        queues.counters[port, packet.priority_class, DROPS] += 1
        queues.counters[port, packet.priority_class, BYTES_DROPPED] += int(
            wire_bytes(below, queues.groups, packet)
        )
    outcome = why if time <= clock.run_ends else IN_FLIGHT
    if clock.with_hops and outcome == why:
        record_hop(below, outlets.hops, packet, packet.subscription, port, -1, why)
    end_packet(outlets.ended, queues.groups, packet, packet.priority_class, outcome, -1, -1)
    give_back(queues.packets, number)


@step
def record_hop(
    below: NetworkSide,
    hops: Buffer,
    packet: Record,
    subscription: int,
    port: int,
    dequeued_ns: int,
    outcome: int,
) -> None:
    record = hops.records[append(hops)]
    record.event = packet.event
    record.enqueued_ns = nanoseconds(packet.time)
    record.dequeued_ns = dequeued_ns
    record.subscription = subscription
    record.port = port
    record.priority_class = packet.priority_class
    record.hop = below.hop_of_port[port]
    record.outcome = outcome


@step
def sample(
    queues: PortQueues, samples: Buffer, port: int, sender: int, priority_class: int, instant: float
) -> None:
    """Counters of a class and its sender; what is on the wire at the instant has not left yet."""
    counters = queues.counters[port, priority_class]
    on_wire = queues.free_at[sender] > instant and queues.sending_class[sender] == priority_class
    record = samples.records[append(samples)]
    record.sampled_ns = nanoseconds(instant)
    record.port = port
    record.queue = priority_class
    record.bytes_in = counters[BYTES_IN]
    record.packets_in = counters[PACKETS_IN]
    record.bytes_out = counters[BYTES_OUT] - (queues.sending_bytes[sender] if on_wire else 0)
    record.packets_out = counters[PACKETS_OUT] - (1 if on_wire else 0)
    record.drops = counters[DROPS]
    record.backlog_packets = record.packets_in - record.packets_out - record.drops
    record.backlog_bytes = record.bytes_in - record.bytes_out - counters[BYTES_DROPPED]
