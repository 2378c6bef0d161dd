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
from triagemq.simulate.promised.happenings import COMES, FREE, LOOKED_UP, REACHED, RELEASED, pop, push
from triagemq.simulate.promised.packets import leave_direct, set_out
from triagemq.simulate.promised.under_way import end_legs
from triagemq.simulate.promised.world import DONE, PLACE, Fair, World, bytes_on_wire, record_hops
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
def run_events(world: World, inbox: Buffer, order: NDArray[np.int32], count: int, until: float) -> bool:
    """Let everything before `until` happen, with the first `count` copies of `order`; False if something is full."""
    direct, below, queues, progress = world.direct, world.below, world.queues, world.progress
    happenings, pool = world.happenings, queues.packets
    while True:
        place = progress[PLACE]
        time = happenings.records[0].time if happenings.filled[0] > 0 else np.inf
        is_copy = place < count and inbox.records[order[place]].time < time
        if is_copy:
            time = inbox.records[order[place]].time
        if time >= until:
            return _sample_all(world, until)
        packets, kind, port, number = 1, REACHED, 0, 0
        if is_copy:
            packets = packets_of(inbox.records[order[place]].size_bytes, below.payload_bytes)
            port = below.route[inbox.records[order[place]].subscription, 0]
        else:
            kind, port = happenings.records[0].kind, happenings.records[0].port
            number = happenings.records[0].number
            if kind == RELEASED:
                payload = direct.streams[-1 - pool.records[number].subscription].payload_bytes
                packets = packets_of(pool.records[number].size_bytes, payload)
            elif kind == LOOKED_UP and below.hop_of_port[port] == 0:
                packets = packets_of(pool.records[number].size_bytes, below.payload_bytes)
        if not (_sample_all(world, time) and _room(world, packets)):
            return False
        progress[DONE] += 1
        if is_copy:
            number = take(pool)
            pool.records[number] = inbox.records[order[place]]
            progress[PLACE] = place + 1
        else:
            pop(happenings, pool.records)
        if kind == RELEASED:
            set_out(world, port, number, packets, time)
            continue
        if kind == REACHED and _look_up(world, port, number, packets, time):
            kind = LOOKED_UP
        if kind == LOOKED_UP and _enter(world, port, number, packets, time):
            kind = COMES
        sending = -1
        sender = port
        if kind == FREE:
            # Made as wide as in `cut_short`, so that it is compiled once.
            sending = _take_next(world, sender + 0, time)
            port = direct.port_of[sender]
        elif kind == COMES and _come(world, port, number, time):
            sending = number
        if sending >= 0:
            _send(world, port, sending, time)
            if kind == FREE and queues.waiting[sender] > 0:
                push(happenings, pool.records, queues.free_at[sender], FREE, sender, -1)


@kernel
def cut_short(world: World, begin: int) -> int:
    """End all that is under way as `in_flight`, first what is on the list, then port by port; returns how far it came:
    -1 for the list, else the port at which there was no more room."""
    queues, happenings = world.queues, world.happenings
    most = world.direct.most_legs
    if begin < 0:
        while happenings.filled[0] > 0:
            if not room(world.outlets.ended, most):
                return -1
            last = happenings.filled[0] - 1
            happening = happenings.records[last]
            happenings.filled[0] = last
            if happening.kind != FREE:
                _end_under_way(world, happening.kind, happening.port, happening.number)
        begin = 0
    for port in range(begin, len(queues.free_at)):
        while queues.waiting[port] > 0:
            if not room(world.outlets.ended, most):
                return port
            _end(world, _take_next(world, port, 0.0), IN_FLIGHT)
    return len(queues.free_at)


@step
def _look_up(world: World, port: int, number: int, packets: int, time: float) -> bool:
    """A copy, or at later switches a packet of one, is looked up by the switch of the port that it will go to; True if
    that takes no time."""
    below, epochs, switch_free = world.below, world.epochs, world.switch_free
    pool, epoch = world.queues.packets, world.clock.epoch
    copy = pool.records[number]
    hop, switch = below.hop_of_port[port], below.switch_of_port[port]
    counter = copy.event * below.subscriptions + copy.subscription
    inbound_seed = split(world.seeds[_SWITCH_INBOUND], hop)
    copy.time = time
    ends = lookup_ends(below, inbound_seed, switch_free[switch], switch, copy, packets, counter)
    switch_free[switch] = ends
    copy.priority_class = epochs.priority_class[epoch, copy.subscription]
    if hop == 0 and is_dropped(below, epochs, world.seeds, epoch, copy, counter):
        drop_on_purpose(world.outlets.ended, copy, copy.priority_class, ends, world.clock.run_ends)
        give_back(pool, number)
        return False
    if ends > time:
        push(world.happenings, pool.records, ends, LOOKED_UP, port, number)
    return ends <= time


@step
def _enter(world: World, port: int, number: int, packets: int, time: float) -> bool:
    """The packets of a copy come to their port together; True if it is only one."""
    pool = world.queues.packets
    copy = pool.records[number]
    if world.below.hop_of_port[port] == 0:
        copy.enqueued_ns = nanoseconds(time) if time <= world.clock.run_ends else -1
    if packets == 1:
        return True
    enqueued_ns, level = copy.enqueued_ns, copy.priority_class
    group = new_group(world.queues.groups, packets, enqueued_ns, level)
    for fragment in range(packets):
        each = packet_of(pool, copy, fragment, group, time, enqueued_ns, level)
        pool.records[each].next = copy.next
        push(world.happenings, pool.records, time, COMES, port, each)
    give_back(pool, number)
    return False


@step
def _come(world: World, port: int, number: int, time: float) -> bool:
    """A packet comes to a port: True if it is to be sent at once; else it waits, or is dropped."""
    below, queues, direct = world.below, world.queues, world.direct
    packet = queues.packets.records[number]
    packet.time = time
    level = packet.priority_class
    if packet.subscription < 0 and port < direct.ports:
        message = world.under_way.messages.records[packet.group]
        if message.enqueued_ns < 0 and time <= world.clock.run_ends:
            message.enqueued_ns = nanoseconds(time)
    if world.clock.sample_seconds < np.inf:
        queues.counters[port, level, PACKETS_IN] += 1
        queues.counters[port, level, BYTES_IN] += int(bytes_on_wire(world, packet))
    sender = _sender(direct, port, level)
    if queues.free_at[sender] <= time:
        if port < direct.ports and direct.borrowing[port]:
            world.tags.sent[port] = _tag(world, port, level, number, time)
        return True
    waiting = queues.waiting[sender]
    is_fair = port < direct.ports and direct.fair[port]
    has_widths = port < direct.ports and direct.queue_first[port] >= 0
    line = _line_of(world, port, packet) if is_fair else -1
    row = direct.queue_first[port] + level if has_widths else port
    on_wire = 1 if sender == row or queues.sending_class[port] == level else 0
    if port < direct.ports and queues.waiting[row] + on_wire >= below.buffer_packets[port]:
        lowest = lowest_class(queues, port) if waiting > 0 and not (is_fair or has_widths) else -1
        dropped = number
        if is_fair:
            dropped = _push_out(world, port, line, number)
        elif lowest > level:
            dropped = queues.last[port, lowest]
            unlink_last(queues, port, lowest)
        _drop(world, port, dropped)
        if dropped == number:
            return False
    if is_fair:
        _join_line(world, port, line, number)
    else:
        if row != sender:
            queues.waiting[port] += 1
            if queues.waiting[row] == 0:
                _tag(world, port, level, number, time)
        link_last(queues, row, level, number)
    if waiting == 0:
        push(world.happenings, queues.packets.records, queues.free_at[sender], FREE, sender, -1)
    return False


@step
def _sender(direct: Direct, port: int, level: int) -> int:
    """What sends the packets of a class: the port, or the queue itself where it has a width and does not borrow."""
    if port >= direct.ports or direct.queue_first[port] < 0 or direct.borrowing[port]:
        return port
    return direct.queue_first[port] + level  # type: ignore[no-any-return]


@step
def _tag(world: World, port: int, level: int, number: int, time: float) -> float:
    """When the packet that is now the first of a queue would be done at the width of the queue; that is its tag."""
    epochs, tags = world.epochs, world.tags
    per_byte = epochs.queue_seconds_per_byte[epoch_at(epochs.ends, world.clock.epoch, time), port, level]
    wire = bytes_on_wire(world, world.queues.packets.records[number])
    tags.first[port, level] = max(tags.sent[port], tags.first[port, level]) + wire * per_byte
    return tags.first[port, level]  # type: ignore[no-any-return]


@step
def _send(world: World, port: int, number: int, time: float) -> None:
    """Send a packet that is in no queue any more."""
    below, epochs, queues, clock = world.below, world.epochs, world.queues, world.clock
    direct, onward = world.direct, world.outlets.onward
    packet = queues.packets.records[number]
    epoch = epoch_at(epochs.ends, clock.epoch, time)
    sender, wire = _sender(direct, port, packet.priority_class), bytes_on_wire(world, packet)
    if sender != port:
        per_byte = epochs.queue_seconds_per_byte[epoch, port, packet.priority_class]
        queues.busy_seconds[port] += wire * epochs.seconds_per_byte[epoch, port]
    elif port < direct.ports:
        per_byte = epochs.seconds_per_byte[epoch, port]
    else:
        per_byte = direct.access_seconds_per_byte[port - direct.ports]
    finished = begin_sending(queues, clock, port, sender, packet, wire, per_byte, time)
    if packet.subscription < 0:
        leave_direct(world, port, number, epoch, finished)
        return
    if clock.with_hops:
        record_hop(
            below, world.outlets.hops, packet, packet.subscription, port, nanoseconds(finished), DELIVERED
        )
    leave(below, epochs, world.seeds, queues, world.outlets, clock, port, number, epoch, finished)
    if onward.filled[0] > 0:
        onward.filled[0] = 0
        following = take(queues.packets)
        queues.packets.records[following] = onward.records[0]
        queues.packets.records[following].next = 0
        subscription = onward.records[0].subscription
        towards = below.route[subscription, below.hop_of_port[port] + 1]
        push(
            world.happenings,
            world.queues.packets.records,
            onward.records[0].time,
            REACHED,
            towards,
            following,
        )


@routine
def _take_next(world: World, port: int, time: float) -> int:
    """Whose turn it is at a port, or at a queue that sends by itself, taken out of its queue."""
    direct, queues, fair = world.direct, world.queues, world.fair
    if port < direct.ports and direct.borrowing[port]:
        return _take_first_tag(world, port, time)
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
def _take_first_tag(world: World, port: int, time: float) -> int:
    """The packet of a port whose queues borrow that would be done first at the width of its queue."""
    queues, tags, first_row = world.queues, world.tags, world.direct.queue_first[port]
    level = -1
    for each in range(world.below.classes):
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
        _tag(world, port, level, following, time)
    return number  # type: ignore[no-any-return]


@step
def _line_of(world: World, port: int, packet: Record) -> int:
    """The queue of a packet's flow at a fair port."""
    direct = world.direct
    if packet.subscription >= 0:
        flow = direct.flow[world.clock.epoch, packet.subscription]
    else:
        stream = world.under_way.messages.records[packet.group].stream
        flow = direct.flows + direct.streams[stream].publication
    return direct.fair_first[port] + flow  # type: ignore[no-any-return]


@step
def _join_line(world: World, port: int, line: int, number: int) -> None:
    """A packet waits behind those of its flow."""
    fair, packets = world.fair, world.queues.packets.records
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
    world.queues.waiting[port] += 1


@step
def _push_out(world: World, port: int, line: int, number: int) -> int:
    """The buffer of a fair port is full: the newest packet of the longest queue goes; it may be the one that comes."""
    fair, packets = world.fair, world.queues.packets.records
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
    world.queues.waiting[port] -= 1
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
def _drop(world: World, port: int, number: int) -> None:
    """A buffer is full."""
    queues, packet = world.queues, world.queues.packets.records[number]
    if world.clock.sample_seconds < np.inf:
        queues.counters[port, packet.priority_class, DROPS] += 1
        queues.counters[port, packet.priority_class, BYTES_DROPPED] += int(bytes_on_wire(world, packet))
    if world.clock.with_hops:
        if packet.subscription >= 0:
            record_hop(
                world.below, world.outlets.hops, packet, packet.subscription, port, -1, DROPPED_BY_BUFFER
            )
        else:
            node = -1 - packet.subscription - len(world.direct.streams)
            record_hops(world, packet, node, port, -1, DROPPED_BY_BUFFER)
    _end(world, number, DROPPED_BY_BUFFER)


@step
def _end(world: World, number: int, outcome: int) -> None:
    """A packet goes no further than where it waits."""
    direct, clock, packet = world.direct, world.clock, world.queues.packets.records[number]
    if packet.subscription >= 0:
        end_packet(world.outlets.ended, world.queues.groups, packet, packet.priority_class, outcome, -1, -1)
    else:
        node = -1 - packet.subscription - len(direct.streams)
        stream = world.under_way.messages.records[packet.group].stream
        first = direct.nodes[node].leg if node >= 0 else 0
        end = direct.nodes[node].leg_end if node >= 0 else direct.streams[stream].legs
        end_legs(
            direct,
            world.under_way,
            world.outlets.ended,
            clock.run_ends,
            packet,
            first,
            end,
            outcome,
            -1,
            -1,
            0.0,
        )
    give_back(world.queues.packets, number)


@step
def _end_under_way(world: World, kind: int, port: int, number: int) -> None:
    packet = world.queues.packets.records[number]
    if kind >= LOOKED_UP and world.below.hop_of_port[port] == 0:
        end_copy(
            world.outlets.ended,
            packet.event,
            packet.published_ns,
            packet.size_bytes,
            packet.subscription,
            packet.priority_class,
            IN_FLIGHT,
        )
        give_back(world.queues.packets, number)
    else:
        _end(world, number, IN_FLIGHT)


@step
def _room(world: World, packets: int) -> bool:
    """Whether there is room for all that so many packets can bring about where they are now."""
    direct, outlets = world.direct, world.outlets
    many = packets + 1
    return (
        world.queues.packets.free_count[0] > many * direct.most_children
        and world.queues.groups.free_count[0] >= 1
        and world.under_way.messages.free_count[0] >= 1
        and room(world.happenings, many * (direct.most_children + 1))
        and room(outlets.ended, 2 * many * direct.most_legs)
        and room(outlets.hops, 2 * many * direct.most_legs)
    )


@routine
def _sample_all(world: World, until: float) -> bool:
    """Sample every port at each instant before `until` that is due; False if there is no room."""
    next_sample = world.queues.next_sample
    while next_sample[0] < until:
        instant = next_sample[0]
        if not room(world.outlets.samples, world.below.classes * world.direct.ports):
            return False
        for port in range(world.direct.ports):
            for level in range(world.below.classes):
                sender = _sender(world.direct, port, level)
                sample(world.queues, world.outlets.samples, port, sender, level, instant)
        next_sample[0] = world.clock.sample_seconds * np.rint(instant / world.clock.sample_seconds + 1.0)
    return True
