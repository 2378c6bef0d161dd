"""All ports on one list of what happens next: where promised messages and brokered copies share them.

The engine takes ports one after the other, by their depth below the broker. Promised messages cross ports in any
order, in circles even (a ring of switches in which everybody sends the same way round), so with them every arrival and
every end of a transmission happens in the order of time. A port with a queue per class sends the highest first, and
its buffer pushes out the newest of the lowest. A fair port serves flow after flow, a packet each; all flows
share its buffer, and when it is full the newest of the longest queue goes. At a port with queue rates every class has a
buffer of its own. Each sends by itself at its width; or, where they borrow, the port sends what would be done first if
each sent at its width (self-clocked fair queueing).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import kernel, routine, step
from triagemq.simulate.changes import epoch_at
from triagemq.simulate.endings import (
    DELIVERED,
    DROPPED_BY_BUFFER,
    EXPIRED,
    IN_FLIGHT,
    SUPERSEDED,
    end_packet,
    nanoseconds,
)
from triagemq.simulate.ports import (
    begin_sending,
    begin_waiting,
    is_expired,
    leave,
    record_hop,
    sample,
    stop_waiting,
    supersede,
)
from triagemq.simulate.promised.direct import Direct
from triagemq.simulate.promised.packets import end_legs, leave_direct, set_out
from triagemq.simulate.promised.state import (
    COMES,
    DONE,
    FREE,
    LOOKED_UP,
    PLACE,
    REACHED,
    RELEASED,
    SimulationState,
    Turns,
    bytes_on_wire,
    pop,
    push,
)
from triagemq.simulate.random import Purpose, exponential, split
from triagemq.simulate.records import (
    BYTES_DROPPED,
    BYTES_IN,
    DROPS,
    PACKETS_IN,
    Buffer,
    Record,
    give_back,
    highest_class,
    link_last,
    lowest_class,
    room,
    take,
    unlink_first,
    unlink_last,
)
from triagemq.simulate.switches import (
    drop_on_purpose,
    is_dropped,
    new_group,
    packet_of,
    packets_of,
)

_SWITCH_INBOUND = int(Purpose.SWITCH_INBOUND)


@kernel
def run_events(
    state: SimulationState, inbox: Buffer, order: NDArray[np.int32], count: int, until: float
) -> bool:
    """Let everything before `until` happen, with the first `count` copies of `order`; False if something is full."""
    network = state.network
    direct, below, queues, progress = state.direct, network.below, network.queues, state.progress
    event_queue, pool = state.event_queue, queues.packets
    while True:
        place = progress[PLACE]
        time = event_queue.records[0].time if event_queue.filled[0] > 0 else np.inf
        is_copy = place < count and inbox.records[order[place]].time < time
        if is_copy:
            time = inbox.records[order[place]].time
        if time >= until:
            return _sample_all(state, until)
        packets, kind, port, number = 1, REACHED, 0, 0
        if is_copy:
            packets = packets_of(inbox.records[order[place]].size_bytes, below.payload_bytes)
            port = below.route[inbox.records[order[place]].subscription, 0]
        else:
            kind, port = event_queue.records[0].kind, event_queue.records[0].port
            number = event_queue.records[0].number
            if kind == RELEASED:
                payload = direct.streams[-1 - pool.records[number].subscription].payload_bytes
                packets = packets_of(pool.records[number].size_bytes, payload)
            elif kind == LOOKED_UP and below.hop_of_port[port] == 0:
                packets = packets_of(pool.records[number].size_bytes, below.payload_bytes)
        if not (_sample_all(state, time) and _room(state, packets)):
            return False
        progress[DONE] += 1
        if is_copy:
            number = take(pool)
            pool.records[number] = inbox.records[order[place]]
            progress[PLACE] = place + 1
        else:
            pop(event_queue, pool.records)
        if kind == RELEASED:
            set_out(state, port, number, packets, time)
            continue
        if kind == REACHED and _look_up(state, port, number, packets, time):
            kind = LOOKED_UP
        if kind == LOOKED_UP and _enter(state, port, number, packets, time):
            kind = COMES
        sending = -1
        sender = port
        if kind == FREE:
            sending = _take_next(state, sender, time)
            port = direct.port_of[sender]
            stop_waiting(below, queues, port, sending)
        elif kind == COMES and _come(state, port, number, time):
            sending = number
        if sending >= 0:
            if is_expired(below, pool.records[sending], time):
                _drop(state, port, sending, time, EXPIRED)
            else:
                _send(state, port, sending, time)
            if kind == FREE and queues.waiting[sender] > 0:
                push(event_queue, pool.records, max(queues.free_at[sender], time), FREE, sender, -1)


@step
def _look_up(state: SimulationState, port: int, number: int, packets: int, time: float) -> bool:
    """A copy, or at later switches a packet of one, is looked up by the switch of the port that it will go to; True if
    that takes no time."""
    network = state.network
    below, epochs, switch_free = network.below, network.epochs, network.switch_free
    pool, epoch = network.queues.packets, network.clock.epoch
    copy = pool.records[number]
    hop, switch = below.hop_of_port[port], below.switch_of_port[port]
    counter = copy.event * below.subscriptions + copy.subscription
    inbound_seed = split(network.seeds[_SWITCH_INBOUND], hop)
    copy.time = time
    ends = max(time, switch_free[switch])
    service = below.inbound_seconds[switch]
    if service > 0.0:
        for fragment in range(packets):
            ends += service * exponential(split(inbound_seed, copy.fragment + fragment), counter)
    switch_free[switch] = ends
    if hop == 0 or time < network.clock.run_ends:
        copy.priority_class = epochs.priority_class[epoch, copy.subscription]
    if hop == 0 and is_dropped(network, copy, counter):
        drop_on_purpose(network.outlets.ended, copy, copy.priority_class, ends, network.clock.run_ends)
        give_back(pool, number)
        return False
    if ends > time:
        push(state.event_queue, pool.records, ends, LOOKED_UP, port, number)
    return ends <= time  # type: ignore[no-any-return]


@step
def _enter(state: SimulationState, port: int, number: int, packets: int, time: float) -> bool:
    """The packets of a copy come to their port together; True if it is only one."""
    network = state.network
    pool = network.queues.packets
    copy = pool.records[number]
    if network.below.hop_of_port[port] == 0:
        copy.enqueued_ns = nanoseconds(time) if time <= network.clock.run_ends else -1
    if packets == 1:
        return True
    enqueued_ns, level = copy.enqueued_ns, copy.priority_class
    group = new_group(network.queues.groups, packets, enqueued_ns, level)
    for fragment in range(packets):
        each = packet_of(pool, copy, fragment, group, time, enqueued_ns, level)
        pool.records[each].next = copy.next
        push(state.event_queue, pool.records, time, COMES, port, each)
    give_back(pool, number)
    return False


@step
def _come(state: SimulationState, port: int, number: int, time: float) -> bool:
    """A packet comes to a port: True if it is to be sent at once; else it waits, or is dropped."""
    network = state.network
    below, queues, direct = network.below, network.queues, state.direct
    packet = queues.packets.records[number]
    packet.time = time
    level = packet.priority_class
    if packet.subscription < 0 and port < direct.ports:
        message = state.under_way.messages.records[packet.group]
        if message.enqueued_ns < 0 and time <= network.clock.run_ends:
            message.enqueued_ns = nanoseconds(time)
    if network.clock.sample_seconds < np.inf:
        queues.counters[port, level, PACKETS_IN] += 1
        queues.counters[port, level, BYTES_IN] += int(bytes_on_wire(state, packet))
    sender = _sender(direct, port, level)
    if queues.free_at[sender] <= time:
        if port < direct.ports and direct.borrowing[port]:
            state.tags.sent[port] = _tag(state, port, level, number, time)
        return True
    waiting = queues.waiting[sender]
    is_fair = port < direct.ports and direct.fair[port]
    row = _queue_of(state, port, packet)
    superseded = supersede(below, queues, port, row, 0 if is_fair else level, number)
    if superseded >= 0:
        _drop(state, port, superseded, time, SUPERSEDED)
        return False
    # All queues of a fair port share its buffer; a queue with a width has its own.
    buffer = port if is_fair else row
    on_wire = 1 if sender == buffer or queues.sending_class[port] == level else 0
    if port < direct.ports and queues.waiting[buffer] + on_wire >= below.buffer_packets[port]:
        lowest = lowest_class(queues, port) if waiting > 0 and row == port else -1
        dropped = number
        if is_fair:
            dropped = _push_out(state, port, row, number)
        elif lowest > level:
            dropped = queues.last[port, lowest]
            unlink_last(queues, port, lowest)
        stop_waiting(below, queues, port, dropped)
        _drop(state, port, dropped, time, DROPPED_BY_BUFFER)
        if dropped == number:
            return False
    if row != sender:
        if is_fair and queues.waiting[row] == 0:
            _line_up(state.turns, port, row)
        elif queues.waiting[row] == 0:
            _tag(state, port, level, number, time)
        queues.waiting[port] += 1
    link_last(queues, row, 0 if is_fair else level, number)
    begin_waiting(below, queues, port, row, 0 if is_fair else level, number)
    if waiting == 0:
        push(state.event_queue, queues.packets.records, queues.free_at[sender], FREE, sender, -1)
    return False


@step
def _queue_of(state: SimulationState, port: int, packet: Record) -> int:
    """The row of a packet's queue: that of its class or flow, where a port has such, else the port's own."""
    direct = state.direct
    if port >= direct.ports or direct.queue_first[port] < 0:
        return port
    if not direct.fair[port]:
        queue = packet.priority_class
    elif packet.subscription >= 0:
        queue = direct.flow[state.network.clock.epoch, packet.subscription]
    else:
        stream = state.under_way.messages.records[packet.group].stream
        queue = direct.flows + direct.streams[stream].publication
    return direct.queue_first[port] + queue  # type: ignore[no-any-return]


@step
def _sender(direct: Direct, port: int, level: int) -> int:
    """What sends the packets of a class: the port, or the queue itself where it has a width and does not borrow."""
    if port >= direct.ports or direct.queue_first[port] < 0 or direct.borrowing[port] or direct.fair[port]:
        return port
    return direct.queue_first[port] + level  # type: ignore[no-any-return]


@step
def _tag(state: SimulationState, port: int, level: int, number: int, time: float) -> float:
    """When the packet that is now the first of a queue would be done at the width of the queue; that is its tag."""
    network = state.network
    epochs, tags = network.epochs, state.tags
    per_byte = epochs.queue_seconds_per_byte[epoch_at(epochs.ends, network.clock.epoch, time), port, level]
    wire = bytes_on_wire(state, network.queues.packets.records[number])
    tags.first[port, level] = max(tags.sent[port], tags.first[port, level]) + wire * per_byte
    return tags.first[port, level]  # type: ignore[no-any-return]


@step
def _send(state: SimulationState, port: int, number: int, time: float) -> None:
    """Send a packet that is in no queue any more."""
    network = state.network
    below, epochs, queues, clock = network.below, network.epochs, network.queues, network.clock
    direct, onward = state.direct, network.outlets.onward
    packet = queues.packets.records[number]
    epoch = epoch_at(epochs.ends, clock.epoch, time)
    sender, wire = _sender(direct, port, packet.priority_class), bytes_on_wire(state, packet)
    if sender != port:
        per_byte = epochs.queue_seconds_per_byte[epoch, port, packet.priority_class]
        queues.busy_seconds[port] += wire * epochs.seconds_per_byte[epoch, port]
    elif port < direct.ports:
        per_byte = epochs.seconds_per_byte[epoch, port]
    else:
        per_byte = direct.access_seconds_per_byte[port - direct.ports]
    finished = begin_sending(queues, clock, port, sender, packet, wire, per_byte, time)
    if clock.with_hops and time <= clock.run_ends:
        _record_hop(state, port, packet, nanoseconds(finished), DELIVERED)
    if packet.subscription < 0:
        leave_direct(state, port, number, epoch, finished)
        return
    leave(network, port, number, epoch, finished)
    if onward.filled[0] > 0:
        onward.filled[0] = 0
        following = take(queues.packets)
        queues.packets.records[following] = onward.records[0]
        queues.packets.records[following].next = 0
        subscription = onward.records[0].subscription
        towards = below.route[subscription, below.hop_of_port[port] + 1]
        push(state.event_queue, queues.packets.records, onward.records[0].time, REACHED, towards, following)


@routine
def _take_next(state: SimulationState, port: int, time: float) -> int:
    """Whose turn it is at a port, or at a queue that sends by itself, taken out of its queue."""
    direct, queues, turns = state.direct, state.network.queues, state.turns
    if port < direct.ports and direct.borrowing[port]:
        return _take_first_tag(state, port, time)
    row = port
    if port < direct.ports and direct.fair[port]:
        row = turns.first[port]
        turns.first[port] = turns.following[row]
        queues.waiting[port] -= 1
    level = highest_class(queues, row)
    number = queues.first[row, level]
    unlink_first(queues, row, level)
    if row != port and queues.waiting[row] > 0:
        _line_up(turns, port, row)
    return number  # type: ignore[no-any-return]


@step
def _take_first_tag(state: SimulationState, port: int, time: float) -> int:
    """The packet of a port whose queues borrow that would be done first at the width of its queue."""
    network = state.network
    queues, tags, first_row = network.queues, state.tags, state.direct.queue_first[port]
    level = -1
    for each in range(network.below.classes):
        if queues.waiting[first_row + each] > 0 and (
            level < 0 or tags.first[port, each] < tags.first[port, level]
        ):
            level = each
    number = queues.first[first_row + level, level]
    unlink_first(queues, first_row + level, level)
    queues.waiting[port] -= 1
    tags.sent[port] = tags.first[port, level]
    following = queues.first[first_row + level, level]
    if following >= 0:
        _tag(state, port, level, following, time)
    return number  # type: ignore[no-any-return]


@step
def _push_out(state: SimulationState, port: int, row: int, number: int) -> int:
    """The buffer of a fair port is full: the newest packet of the longest queue goes; it may be the one that comes."""
    queues, turns = state.network.queues, state.turns
    longest, most = row, queues.waiting[row] + 1
    each = turns.first[port]
    while each >= 0:
        if queues.waiting[each] > most:
            longest, most = each, queues.waiting[each]
        each = turns.following[each]
    if longest == row:
        return number
    # It has two packets at least, so its queue stays in line.
    dropped = queues.last[longest, 0]
    unlink_last(queues, longest, 0)
    queues.waiting[port] -= 1
    return dropped  # type: ignore[no-any-return]


@step
def _line_up(turns: Turns, port: int, row: int) -> None:
    """A queue goes to the end of those that a fair port serves in turn."""
    turns.following[row] = -1
    if turns.first[port] < 0:
        turns.first[port] = row
    else:
        turns.following[turns.last[port]] = row
    turns.last[port] = row


@step
def _drop(state: SimulationState, port: int, number: int, time: float, why: int) -> None:
    """A packet that is in no queue any more is not sent: a buffer is full, it is too old, or a newer one is there."""
    network = state.network
    direct, queues, clock = state.direct, network.queues, network.clock
    packet = queues.packets.records[number]
    if clock.sample_seconds < np.inf:
        queues.counters[port, packet.priority_class, DROPS] += 1
        queues.counters[port, packet.priority_class, BYTES_DROPPED] += int(bytes_on_wire(state, packet))
    outcome = why if time <= clock.run_ends else IN_FLIGHT
    if clock.with_hops and outcome == why:
        _record_hop(state, port, packet, -1, why)
    if packet.subscription >= 0:
        groups, ended = network.queues.groups, network.outlets.ended
        end_packet(ended, groups, packet, packet.priority_class, outcome, -1, -1)
    else:
        node = direct.nodes[-1 - packet.subscription - len(direct.streams)]
        end_legs(state, packet, node.leg, node.leg_end, outcome, -1, -1, time)
    give_back(queues.packets, number)


@step
def _record_hop(state: SimulationState, port: int, packet: Record, dequeued_ns: int, outcome: int) -> None:
    """A row for a packet of a copy at a port, or for each leg behind; access links have none."""
    network, direct = state.network, state.direct
    below, hops = network.below, network.outlets.hops
    if packet.subscription >= 0:
        record_hop(below, hops, packet, packet.subscription, port, dequeued_ns, outcome)
    elif port < direct.ports:
        node = direct.nodes[-1 - packet.subscription - len(direct.streams)]
        first = direct.streams[state.under_way.messages.records[packet.group].stream].leg_first
        for leg in range(first + node.leg, first + node.leg_end):
            subscription = direct.leg_ends[leg].subscription
            record_hop(below, hops, packet, subscription, port, dequeued_ns, outcome)
            hops.records[hops.filled[0] - 1].hop = node.hop


@step
def _room(state: SimulationState, packets: int) -> bool:
    """Whether there is room for all that so many packets can bring about where they are now."""
    network = state.network
    direct, outlets = state.direct, network.outlets
    many = packets + 1
    return (
        network.queues.packets.free_count[0] > many * direct.most_children
        and network.queues.groups.free_count[0] >= 1
        and state.under_way.messages.free_count[0] >= 1
        and room(state.event_queue, many * (direct.most_children + 1) + 1)
        and room(outlets.ended, 2 * many * direct.most_legs)
        and room(outlets.hops, 2 * many * direct.most_legs)
    )


@routine
def _sample_all(state: SimulationState, until: float) -> bool:
    """Sample every port at each instant before `until` that is due; False if there is no room."""
    network = state.network
    next_sample = network.queues.next_sample
    while next_sample[0] < until:
        instant = next_sample[0]
        if not room(network.outlets.samples, network.below.classes * state.direct.ports):
            return False
        for port in range(state.direct.ports):
            for level in range(network.below.classes):
                sender = _sender(state.direct, port, level)
                sample(network.queues, network.outlets.samples, port, sender, level, instant)
        next_sample[0] = network.clock.sample_seconds * np.rint(instant / network.clock.sample_seconds + 1.0)
    return True
