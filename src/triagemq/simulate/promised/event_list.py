"""All ports on one list of what happens next: where promised messages and brokered copies share them.

The engine takes ports one after the other, by their depth below the broker. Promised messages cross ports in any
order, in circles even (a ring of switches in which everybody sends the same way round), so with them every arrival and
every end of a transmission happens in the order of time. A port with a queue per class sends the highest first, and
its buffer pushes out the newest of the lowest. A fair port serves flow after flow, a packet each; all flows
share its buffer, and when it is full the newest of the longest queue goes. At a port with widths every class has a
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
    IN_FLIGHT,
    end_copy,
    end_packet,
    nanoseconds,
)
from triagemq.simulate.ports import begin_sending, leave, record_hop, sample
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
    Fair,
    SimulationState,
    bytes_on_wire,
    pop,
    push,
    record_hops,
)
from triagemq.simulate.random import Purpose, split
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
    lookup_ends,
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
            # Made as wide as in `cut_short`, so that it is compiled once.
            sending = _take_next(state, sender + 0, time)
            port = direct.port_of[sender]
        elif kind == COMES and _come(state, port, number, time):
            sending = number
        if sending >= 0:
            _send(state, port, sending, time)
            if kind == FREE and queues.waiting[sender] > 0:
                push(event_queue, pool.records, queues.free_at[sender], FREE, sender, -1)


@kernel
def cut_short(state: SimulationState, begin: int) -> int:
    """End all that is under way as `in_flight`, first what is on the list, then port by port; returns how far it came:
    -1 for the list, else the port at which there was no more room."""
    network = state.network
    queues, event_queue = network.queues, state.event_queue
    most = state.direct.most_legs
    if begin < 0:
        while event_queue.filled[0] > 0:
            if not room(network.outlets.ended, most):
                return -1
            last = event_queue.filled[0] - 1
            next_event = event_queue.records[last]
            event_queue.filled[0] = last
            if next_event.kind != FREE:
                _end_under_way(state, next_event.kind, next_event.port, next_event.number)
        begin = 0
    for port in range(begin, len(queues.free_at)):
        while queues.waiting[port] > 0:
            if not room(network.outlets.ended, most):
                return port
            _end(state, _take_next(state, port, 0.0), IN_FLIGHT)
    return len(queues.free_at)


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
    ends = lookup_ends(network, inbound_seed, switch, copy, packets, counter)
    switch_free[switch] = ends
    copy.priority_class = epochs.priority_class[epoch, copy.subscription]
    if hop == 0 and is_dropped(network, copy, counter):
        drop_on_purpose(network.outlets.ended, copy, copy.priority_class, ends, network.clock.run_ends)
        give_back(pool, number)
        return False
    if ends > time:
        push(state.event_queue, pool.records, ends, LOOKED_UP, port, number)
    return ends <= time


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
    has_widths = port < direct.ports and direct.queue_first[port] >= 0
    line = _line_of(state, port, packet) if is_fair else -1
    row = direct.queue_first[port] + level if has_widths else port
    on_wire = 1 if sender == row or queues.sending_class[port] == level else 0
    if port < direct.ports and queues.waiting[row] + on_wire >= below.buffer_packets[port]:
        lowest = lowest_class(queues, port) if waiting > 0 and not (is_fair or has_widths) else -1
        dropped = number
        if is_fair:
            dropped = _push_out(state, port, line, number)
        elif lowest > level:
            dropped = queues.last[port, lowest]
            unlink_last(queues, port, lowest)
        _drop(state, port, dropped)
        if dropped == number:
            return False
    if is_fair:
        _join_line(state, port, line, number)
    else:
        if row != sender:
            queues.waiting[port] += 1
            if queues.waiting[row] == 0:
                _tag(state, port, level, number, time)
        link_last(queues, row, level, number)
    if waiting == 0:
        push(state.event_queue, queues.packets.records, queues.free_at[sender], FREE, sender, -1)
    return False


@step
def _sender(direct: Direct, port: int, level: int) -> int:
    """What sends the packets of a class: the port, or the queue itself where it has a width and does not borrow."""
    if port >= direct.ports or direct.queue_first[port] < 0 or direct.borrowing[port]:
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
    if packet.subscription < 0:
        leave_direct(state, port, number, epoch, finished)
        return
    if clock.with_hops:
        record_hop(
            below, network.outlets.hops, packet, packet.subscription, port, nanoseconds(finished), DELIVERED
        )
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
    direct, queues, fair = state.direct, state.network.queues, state.fair
    if port < direct.ports and direct.borrowing[port]:
        return _take_first_tag(state, port, time)
    if port >= direct.ports or not direct.fair[port]:
        level = highest_class(queues, port)
        number = queues.first[port, level]
        unlink_first(queues, port, level)
        return number  # type: ignore[no-any-return]
    line = fair.turn_first[port]
    number = fair.first[line]
    following = queues.packets.records[number].next
    fair.first[line] = following
    fair.length[line] -= 1
    fair.turn_first[port] = fair.turn_next[line]
    if following >= 0:
        _line_up(fair, port, line)
    queues.waiting[port] -= 1
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
def _line_of(state: SimulationState, port: int, packet: Record) -> int:
    """The queue of a packet's flow at a fair port."""
    direct = state.direct
    if packet.subscription >= 0:
        flow = direct.flow[state.network.clock.epoch, packet.subscription]
    else:
        stream = state.under_way.messages.records[packet.group].stream
        flow = direct.flows + direct.streams[stream].publication
    return direct.fair_first[port] + flow  # type: ignore[no-any-return]


@step
def _join_line(state: SimulationState, port: int, line: int, number: int) -> None:
    """A packet waits behind those of its flow."""
    network = state.network
    fair, packets = state.fair, network.queues.packets.records
    packets[number].next = -1
    if fair.first[line] < 0:
        packets[number].previous = -1
        fair.first[line] = number
        _line_up(fair, port, line)
    else:
        packets[number].previous = fair.last[line]
        packets[fair.last[line]].next = number
    fair.last[line] = number
    fair.length[line] += 1
    network.queues.waiting[port] += 1


@step
def _push_out(state: SimulationState, port: int, line: int, number: int) -> int:
    """The buffer of a fair port is full: the newest packet of the longest queue goes; it may be the one that comes."""
    network = state.network
    fair, packets = state.fair, network.queues.packets.records
    longest, most = line, fair.length[line] + 1
    each = fair.turn_first[port]
    while each >= 0:
        if fair.length[each] > most:
            longest, most = each, fair.length[each]
        each = fair.turn_next[each]
    if longest == line:
        return number
    # It has two packets at least, so its queue stays in line.
    dropped = fair.last[longest]
    fair.last[longest] = packets[dropped].previous
    packets[fair.last[longest]].next = -1
    fair.length[longest] -= 1
    network.queues.waiting[port] -= 1
    return dropped  # type: ignore[no-any-return]


@step
def _line_up(fair: Fair, port: int, line: int) -> None:
    """A flow goes to the end of those that a fair port serves in turn."""
    fair.turn_next[line] = -1
    if fair.turn_first[port] < 0:
        fair.turn_first[port] = line
    else:
        fair.turn_next[fair.turn_last[port]] = line
    fair.turn_last[port] = line


@step
def _drop(state: SimulationState, port: int, number: int) -> None:
    """A buffer is full."""
    network = state.network
    queues, packet = network.queues, network.queues.packets.records[number]
    if network.clock.sample_seconds < np.inf:
        queues.counters[port, packet.priority_class, DROPS] += 1
        queues.counters[port, packet.priority_class, BYTES_DROPPED] += int(bytes_on_wire(state, packet))
    if network.clock.with_hops:
        if packet.subscription >= 0:
            record_hop(
                network.below, network.outlets.hops, packet, packet.subscription, port, -1, DROPPED_BY_BUFFER
            )
        else:
            node = -1 - packet.subscription - len(state.direct.streams)
            record_hops(state, packet, node, port, -1, DROPPED_BY_BUFFER)
    _end(state, number, DROPPED_BY_BUFFER)


@step
def _end(state: SimulationState, number: int, outcome: int) -> None:
    """A packet goes no further than where it waits."""
    network = state.network
    direct, packet = state.direct, network.queues.packets.records[number]
    if packet.subscription >= 0:
        end_packet(
            network.outlets.ended, network.queues.groups, packet, packet.priority_class, outcome, -1, -1
        )
    else:
        node = -1 - packet.subscription - len(direct.streams)
        stream = state.under_way.messages.records[packet.group].stream
        first = direct.nodes[node].leg if node >= 0 else 0
        end = direct.nodes[node].leg_end if node >= 0 else direct.streams[stream].legs
        end_legs(state, packet, first, end, outcome, -1, -1, 0.0)
    give_back(network.queues.packets, number)


@step
def _end_under_way(state: SimulationState, kind: int, port: int, number: int) -> None:
    network = state.network
    packet = network.queues.packets.records[number]
    if kind >= LOOKED_UP and network.below.hop_of_port[port] == 0:
        end_copy(network.outlets.ended, packet, packet.subscription, packet.priority_class, IN_FLIGHT)
        give_back(network.queues.packets, number)
    else:
        _end(state, number, IN_FLIGHT)


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
