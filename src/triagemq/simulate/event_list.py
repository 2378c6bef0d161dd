"""All ports on one list of what happens next: where promised messages and brokered copies share them.

The engine takes ports one after the other, by their depth below the broker. Promised messages cross ports in any
order, in circles even (a ring of switches in which everybody sends the same way round), so with them every arrival and
every end of a transmission happens in the order of time. A port with a queue per class sends the highest first, and
its buffer pushes out the newest of the lowest. A fair port serves flow after flow, a packet each, and drops what comes
when its buffer, shared by all flows, is full.

A promised message is cut into packets by the switches' packet size. They leave the publisher as fast as its access link
carries them, meet the limiter of the first switch, wait at each port of the tree with the stream's level, and take
the time to be switched and the propagation of links. The inbound queue of a switch, which looks up brokered copies and
has no bound, is not on their way. A message reaches a subscriber with its last packet; with one packet cut, dropped or
lost it is lost to all behind that place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import kernel, step
from triagemq.scenario import Floats
from triagemq.simulate.changes import Epochs, epoch_at
from triagemq.simulate.direct import Direct
from triagemq.simulate.endings import (
    DELIVERED,
    DROPPED_BY_BUFFER,
    IN_FLIGHT,
    LIMITED,
    LOST_ON_LINK,
    SUBSCRIBER_GONE,
    end_copy,
    end_packet,
    nanoseconds,
)
from triagemq.simulate.network import PASSES, Below, fate_of
from triagemq.simulate.ports import begin_sending, leave, record_hop, sample, wire_bytes
from triagemq.simulate.random import Purpose, Seeds, split, uniform
from triagemq.simulate.records import (
    BYTES_DROPPED,
    BYTES_IN,
    DROPS,
    PACKETS_IN,
    Buffer,
    Clock,
    Outlets,
    Pool,
    PortQueues,
    Record,
    Records,
    append,
    give_back,
    highest_class,
    link_last,
    lowest_class,
    new_pool,
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
from triagemq.trace.schema import Outcome

_PUBLISHER_LINK = int(Purpose.PUBLISHER_LINK)
_PORT_LINK = int(Purpose.PORT_LINK)
_SUBSCRIBER_LINK = int(Purpose.SUBSCRIBER_LINK)
_SWITCH_INBOUND = int(Purpose.SWITCH_INBOUND)

# What happens; at the same instant in this order. `port` is where, `number` that of a packet in the pool.
FREE, RELEASED, COMES, LOOKED_UP, REACHED = range(5)
HAPPENING = np.dtype([("time", np.float64), ("kind", np.int32), ("port", np.int32), ("number", np.int64)])

# A promised message under way; `open` counts the legs that have not ended.
MESSAGE = np.dtype(
    [
        ("event", np.int64),
        ("published_ns", np.int64),
        ("enqueued_ns", np.int64),
        ("size_bytes", np.float64),
        ("stream", np.int32),
        ("packets", np.int32),
        ("open", np.int32),
    ]
)

# What has become of a message on its way to one subscription.
LEG = np.dtype(
    [("dequeued_ns", np.int64), ("delivered_ns", np.int64), ("remaining", np.int32), ("outcome", np.int32)]
)

_ABSENT = -1
"""On the leg of a subscription that is not there: nothing is counted."""

_SLACK_SECONDS = 2e-9
"""Times of publication are whole nanoseconds: a message may come this much before its bucket is full again."""

# Places in World.progress: how many copies of the inbox are done, and how much has happened.
PLACE, DONE = 0, 1


class PromiseTally(NamedTuple):
    """Counts per promise, of every message from the first on: outcomes, those later than asked for, the worst latency
    and the sum of all. And per publication the packets that its limiter cut, and when it first did (-1: never)."""

    outcomes: NDArray[np.int64]
    late: NDArray[np.int64]
    worst_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    cut_packets: NDArray[np.int64]
    first_cut_ns: NDArray[np.int64]


class Fair(NamedTuple):
    """The queues of fair ports, linked through the pool of packets, and those with packets in a line per port: the
    first is served and goes to its end."""

    first: NDArray[np.int32]
    last: NDArray[np.int32]
    turn_next: NDArray[np.int64]
    turn_first: NDArray[np.int64]
    turn_last: NDArray[np.int64]


class UnderWay(NamedTuple):
    """Promised messages, with `legs` places each in Direct.most_legs, and what became of those that are over."""

    messages: Pool
    legs: Records
    tally: PromiseTally


class World(NamedTuple):
    """All that a step may need: what is fixed, and what moves. `happenings` is the list; `tokens` are those in each
    publication's bucket when it was last looked at, `filled_at`."""

    direct: Direct
    below: Below
    epochs: Epochs
    seeds: Seeds
    switch_free: Floats
    queues: PortQueues
    fair: Fair
    under_way: UnderWay
    happenings: Buffer
    tokens: Floats
    filled_at: Floats
    progress: NDArray[np.int64]
    outlets: Outlets
    clock: Clock


def new_promise_tally(promises: int, publications: int) -> PromiseTally:
    return PromiseTally(
        outcomes=np.zeros((promises, len(Outcome)), dtype=np.int64),
        late=np.zeros(promises, dtype=np.int64),
        worst_ns=np.zeros(promises, dtype=np.int64),
        latency_ns=np.zeros(promises, dtype=np.int64),
        cut_packets=np.zeros(publications, dtype=np.int64),
        first_cut_ns=np.full(publications, -1, dtype=np.int64),
    )


def new_under_way(direct: Direct, promises: int) -> UnderWay:
    messages = new_pool(MESSAGE, 256)
    legs = np.zeros(len(messages.records) * direct.most_legs, dtype=LEG)
    return UnderWay(messages, legs, new_promise_tally(promises, direct.stream.shape[1]))


def new_fair(direct: Direct) -> Fair:
    return Fair(
        first=np.full(direct.fair_queues, -1, dtype=np.int32),
        last=np.full(direct.fair_queues, -1, dtype=np.int32),
        turn_next=np.full(direct.fair_queues, -1, dtype=np.int64),
        turn_first=np.full(direct.ports, -1, dtype=np.int64),
        turn_last=np.full(direct.ports, -1, dtype=np.int64),
    )


@kernel
def release(world: World, published: Buffer) -> None:
    """Put published events that have a direct way on the list, which has room, and forget those that go no other."""
    direct, epoch = world.direct, world.clock.epoch
    pool = world.queues.packets
    kept = 0
    for place in range(published.filled[0]):
        event = published.records[place]
        stream = direct.stream[epoch, event.publication]
        if stream >= 0:
            number = take(pool)
            packet = pool.records[number]
            packet.published_ns = event.published_ns
            packet.event = event.event
            packet.size_bytes = event.size_bytes
            packet.subscription = -1 - stream
            packet.fragment = 0
            packet.next = 0
            _push(
                world.happenings,
                world.queues.packets.records,
                event.time,
                RELEASED,
                direct.streams[stream].access_port,
                number,
            )
        if stream < 0 or direct.brokered[epoch, event.publication]:
            if kept != place:
                published.records[kept] = event
            kept += 1
    published.filled[0] = kept


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
            _pop(happenings, pool.records)
        if kind == RELEASED:
            _set_out(world, port, number, packets, time)
            continue
        if kind == REACHED and _look_up(world, port, number, packets, time):
            kind = LOOKED_UP
        if kind == LOOKED_UP and _enter(world, port, number, packets, time):
            kind = COMES
        sending = -1
        if kind == FREE:
            sending = _take_next(direct, queues, world.fair, port)
        elif kind == COMES and _come(world, port, number, time):
            sending = number
        if sending >= 0:
            _send(world, port, sending, time)
            if kind == FREE and queues.waiting[port] > 0:
                _push(happenings, pool.records, queues.free_at[port], FREE, port, -1)


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
            _end(world, _take_next(world.direct, queues, world.fair, port), IN_FLIGHT)
    return len(queues.free_at)


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
        queues.counters[port, level, BYTES_IN] += int(_wire_bytes(world, packet))
    if queues.free_at[port] <= time:
        return True
    waiting = queues.waiting[port]
    is_fair = port < direct.ports and direct.fair[port]
    if port < direct.ports and waiting + 1 >= below.buffer_packets[port]:
        lowest = lowest_class(queues, port) if waiting > 0 and not is_fair else -1
        dropped = number
        if lowest > level:
            dropped = queues.last[port, lowest]
            unlink_last(queues, port, lowest)
        _drop(world, port, dropped)
        if dropped == number:
            return False
    if is_fair:
        _join_line(world, port, number)
    else:
        link_last(queues, port, level, number)
    if waiting == 0:
        _push(world.happenings, queues.packets.records, queues.free_at[port], FREE, port, -1)
    return False


@kernel
def _take_next(direct: Direct, queues: PortQueues, fair: Fair, port: int) -> int:
    """Whose turn it is, taken out of its queue."""
    if port >= direct.ports or not direct.fair[port]:
        level = highest_class(queues, port)
        number = queues.first[port, level]
        unlink_first(queues, port, level)
        return number  # type: ignore[no-any-return]
    line = fair.turn_first[port]
    number = fair.first[line]
    following = queues.packets.records[number].next
    fair.first[line] = following
    fair.turn_first[port] = fair.turn_next[line]
    if following >= 0:
        _line_up(fair, port, line)
    queues.waiting[port] -= 1
    return number  # type: ignore[no-any-return]


@step
def _join_line(world: World, port: int, number: int) -> None:
    """A packet waits behind those of its flow."""
    direct, fair, packets = world.direct, world.fair, world.queues.packets.records
    packet = packets[number]
    if packet.subscription >= 0:
        flow = direct.flow[world.clock.epoch, packet.subscription]
    else:
        stream = world.under_way.messages.records[packet.group].stream
        flow = direct.flows + direct.streams[stream].publication
    line = direct.fair_first[port] + flow
    packet.next = -1
    if fair.first[line] < 0:
        fair.first[line] = number
        _line_up(fair, port, line)
    else:
        packets[fair.last[line]].next = number
    fair.last[line] = number
    world.queues.waiting[port] += 1


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
def _send(world: World, port: int, number: int, time: float) -> None:
    """Send a packet that is in no queue any more."""
    below, epochs, queues, clock = world.below, world.epochs, world.queues, world.clock
    direct, onward = world.direct, world.outlets.onward
    packet = queues.packets.records[number]
    epoch = epoch_at(epochs.ends, clock.epoch, time)
    if port < direct.ports:
        per_byte = epochs.seconds_per_byte[epoch, port]
    else:
        per_byte = direct.access_seconds_per_byte[port - direct.ports]
    finished = begin_sending(queues, clock, port, packet, _wire_bytes(world, packet), per_byte, time)
    if packet.subscription < 0:
        _leave_direct(world, port, number, epoch, finished)
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
        _push(
            world.happenings,
            world.queues.packets.records,
            onward.records[0].time,
            REACHED,
            towards,
            following,
        )


# The brokered copies, as `switches` has it.


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
        _push(world.happenings, pool.records, ends, LOOKED_UP, port, number)
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
        _push(world.happenings, pool.records, time, COMES, port, each)
    give_back(pool, number)
    return False


# Promised messages.


@step
def _set_out(world: World, port: int, number: int, packets: int, time: float) -> None:
    """A publisher begins to send a message: its packets come to the access link."""
    direct, under_way, pool = world.direct, world.under_way, world.queues.packets
    released = pool.records[number]
    stream = -1 - released.subscription
    group = take(under_way.messages)
    message = under_way.messages.records[group]
    message.event = released.event
    message.published_ns = released.published_ns
    message.enqueued_ns = -1
    message.size_bytes = released.size_bytes
    message.stream = stream
    message.packets = packets
    message.open = direct.streams[stream].legs
    nobody = True
    for leg in range(direct.streams[stream].legs):
        way = under_way.legs[group * direct.most_legs + leg]
        subscription = direct.ways[direct.streams[stream].leg_first + leg].subscription
        there = direct.present[world.clock.epoch, subscription]
        nobody = nobody and not there
        way.remaining = packets
        way.outcome = DELIVERED if there else _ABSENT
        way.dequeued_ns = -1
        way.delivered_ns = -1
    if nobody:
        give_back(under_way.messages, group)
        packets = 0
    for fragment in range(packets):
        each = packet_of(pool, released, fragment, group, time, -1, direct.streams[stream].access_level)
        pool.records[each].next = 0
        _push(world.happenings, pool.records, time, COMES, port, each)
    give_back(pool, number)


@step
def _leave_direct(world: World, port: int, number: int, epoch: int, finished: float) -> None:
    """A packet has left its port at `finished`: to the limiter, to the next switch, to its subscribers."""
    direct, epochs, seeds, clock = world.direct, world.epochs, world.seeds, world.clock
    packet = world.queues.packets.records[number]
    message = world.under_way.messages.records[packet.group]
    stream, event, fragment = message.stream, message.event, packet.fragment
    epoch = epoch_at(epochs.ends, epoch, finished)
    if port >= direct.ports:
        publication = direct.streams[stream].publication
        error_rate = epochs.publisher_error[epoch, publication]
        seed = split(seeds[_PUBLISHER_LINK], fragment + 1)
        if error_rate > 0.0 and uniform(seed, event) <= error_rate:
            _end_legs(
                direct,
                world.under_way,
                world.outlets.ended,
                clock.run_ends,
                packet,
                0,
                direct.streams[stream].legs,
                LOST_ON_LINK,
                -1,
                -1,
                finished,
            )
            give_back(world.queues.packets, number)
        elif _is_cut(world, publication, stream, _wire_bytes(world, packet), finished):
            _end_legs(
                direct,
                world.under_way,
                world.outlets.ended,
                clock.run_ends,
                packet,
                0,
                direct.streams[stream].legs,
                LIMITED,
                -1,
                -1,
                finished,
            )
            give_back(world.queues.packets, number)
        else:
            first, end = direct.streams[stream].child_first, direct.streams[stream].child_end
            _branch(
                direct,
                world.queues.packets,
                world.happenings,
                number,
                first,
                end,
                finished + direct.streams[stream].to_first_port,
            )
        return
    node = -1 - packet.subscription - len(direct.streams)
    first_leg, own_end = direct.nodes[node].leg, direct.nodes[node].own_end
    dequeued_ns = nanoseconds(finished) if finished <= clock.run_ends else -1
    if clock.with_hops:
        _record_hops(world, packet, node, port, nanoseconds(finished), DELIVERED)
    for leg in range(first_leg, own_end):
        row = direct.streams[stream].leg_first + leg
        subscription = direct.ways[row].subscription
        arrival = finished + direct.ways[row].seconds
        error_rate = epochs.subscriber_error[epoch, subscription]
        seed = split(seeds[_SUBSCRIBER_LINK], fragment)
        counter = event * world.below.subscriptions + subscription
        outcome = DELIVERED
        recorded = fragment == 0 and fate_of(world.below.fates, event, subscription) != PASSES
        if recorded or (error_rate > 0.0 and uniform(seed, counter) <= error_rate):
            outcome = LOST_ON_LINK
        elif not direct.present[epoch_at(epochs.ends, epoch, arrival), subscription]:
            outcome = SUBSCRIBER_GONE
        _end_legs(
            direct,
            world.under_way,
            world.outlets.ended,
            clock.run_ends,
            packet,
            leg,
            leg + 1,
            outcome,
            dequeued_ns,
            nanoseconds(arrival),
            arrival,
        )
    child_first, child_end = direct.nodes[node].child_first, direct.nodes[node].child_end
    if child_first < child_end:
        error_rate = epochs.port_error[epoch, port]
        seed = split(split(seeds[_PORT_LINK], direct.nodes[node].hop), fragment)
        behind = direct.ways[direct.streams[stream].leg_first + own_end].subscription
        counter = event * world.below.subscriptions + behind
        if error_rate <= 0.0 or uniform(seed, counter) > error_rate:
            _branch(
                direct,
                world.queues.packets,
                world.happenings,
                number,
                child_first,
                child_end,
                finished + direct.nodes[node].seconds,
            )
            return
        _end_legs(
            direct,
            world.under_way,
            world.outlets.ended,
            clock.run_ends,
            packet,
            own_end,
            direct.nodes[node].leg_end,
            LOST_ON_LINK,
            dequeued_ns,
            -1,
            finished,
        )
    give_back(world.queues.packets, number)


@step
def _is_cut(world: World, publication: int, stream: int, wire: float, time: float) -> bool:
    """Whether the bucket of a stream lacks the tokens for a packet; if not, it takes them."""
    tally, limiter = world.under_way.tally, world.direct.streams[stream]
    burst, rate = limiter.burst_bytes, limiter.rate
    if burst == np.inf:
        return False
    tokens = min(burst, world.tokens[publication] + (time - world.filled_at[publication]) * rate)
    world.filled_at[publication] = time
    world.tokens[publication] = tokens
    if tokens + _SLACK_SECONDS * rate + 1e-9 * burst >= wire:
        world.tokens[publication] = tokens - wire
        return False
    if time <= world.clock.run_ends:
        tally.cut_packets[publication] += 1
        if tally.first_cut_ns[publication] < 0:
            tally.first_cut_ns[publication] = nanoseconds(time)
    return True


@kernel
def _branch(
    direct: Direct, pool: Pool, happenings: Buffer, number: int, first: int, end: int, time: float
) -> None:
    """A packet goes on to each of some nodes; it becomes the last of its copies itself."""
    for node in range(first, end):
        each = number
        if node + 1 < end:
            each = take(pool)
            pool.records[each] = pool.records[number]
        packet = pool.records[each]
        packet.subscription = -1 - len(direct.streams) - node
        packet.priority_class = direct.nodes[node].level
        packet.next = 0
        _push(happenings, pool.records, time, COMES, direct.nodes[node].port, each)


@kernel
def _end_legs(
    direct: Direct,
    under_way: UnderWay,
    ended: Buffer,
    run_ends: float,
    packet: Record,
    first: int,
    end: int,
    outcome: int,
    dequeued_ns: int,
    delivered_ns: int,
    time: float,
) -> None:
    """A packet ends on the legs of its message from `first` to before `end`, and with the last packet a leg does."""
    tally, group = under_way.tally, packet.group
    message = under_way.messages.records[group]
    stream = message.stream
    if time > run_ends:
        outcome = IN_FLIGHT
    for leg in range(first, end):
        way = under_way.legs[group * direct.most_legs + leg]
        way.remaining -= 1
        way.dequeued_ns = max(way.dequeued_ns, dequeued_ns)
        way.delivered_ns = max(way.delivered_ns, delivered_ns)
        if outcome != DELIVERED and (way.outcome == DELIVERED or outcome < way.outcome):
            way.outcome = outcome
        if way.remaining > 0:
            continue
        message.open -= 1
        if way.outcome == _ABSENT:
            continue
        row = direct.streams[stream].leg_first + leg
        promise = direct.ways[row].promise
        record = ended.records[append(ended)]
        record.event = message.event
        record.published_ns = message.published_ns
        record.enqueued_ns = message.enqueued_ns
        record.dequeued_ns = way.dequeued_ns
        record.delivered_ns = way.delivered_ns if way.outcome == DELIVERED else -1
        record.size_bytes = message.size_bytes
        record.subscription = direct.ways[row].subscription
        record.priority_class = direct.ways[row].priority_class
        record.outcome = way.outcome
        tally.outcomes[promise, way.outcome] += 1
        if way.outcome == DELIVERED:
            latency = way.delivered_ns - message.published_ns
            tally.latency_ns[promise] += latency
            tally.worst_ns[promise] = max(tally.worst_ns[promise], latency)
            if latency > direct.ways[row].deadline_ns:
                tally.late[promise] += 1
    if message.open == 0:
        give_back(under_way.messages, group)


# What both have in common.


@step
def _wire_bytes(world: World, packet: Record) -> float:
    if packet.subscription >= 0:
        return wire_bytes(world.below, world.queues.groups, packet)
    message = world.under_way.messages.records[packet.group]
    payload = world.direct.streams[message.stream].payload_bytes
    carried = min(payload, message.size_bytes - packet.fragment * payload)
    return carried + world.below.overhead_bytes  # type: ignore[no-any-return]


@step
def _drop(world: World, port: int, number: int) -> None:
    """A buffer is full."""
    queues, packet = world.queues, world.queues.packets.records[number]
    if world.clock.sample_seconds < np.inf:
        queues.counters[port, packet.priority_class, DROPS] += 1
        queues.counters[port, packet.priority_class, BYTES_DROPPED] += int(_wire_bytes(world, packet))
    if world.clock.with_hops:
        if packet.subscription >= 0:
            record_hop(
                world.below, world.outlets.hops, packet, packet.subscription, port, -1, DROPPED_BY_BUFFER
            )
        else:
            node = -1 - packet.subscription - len(world.direct.streams)
            _record_hops(world, packet, node, port, -1, DROPPED_BY_BUFFER)
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
        _end_legs(
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
def _record_hops(world: World, packet: Record, node: int, port: int, dequeued_ns: int, outcome: int) -> None:
    """One row for each leg behind a node."""
    direct = world.direct
    first = direct.streams[world.under_way.messages.records[packet.group].stream].leg_first
    for leg in range(direct.nodes[node].leg, direct.nodes[node].leg_end):
        subscription = direct.ways[first + leg].subscription
        record_hop(world.below, world.outlets.hops, packet, subscription, port, dequeued_ns, outcome)
        last = world.outlets.hops.records[world.outlets.hops.filled[0] - 1]
        last.event = packet.event
        last.hop = direct.nodes[node].hop


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


@kernel
def _sample_all(world: World, until: float) -> bool:
    """Sample every port at each instant before `until` that is due; False if there is no room."""
    next_sample = world.queues.next_sample
    while next_sample[0] < until:
        instant = next_sample[0]
        if not room(world.outlets.samples, world.below.classes * world.direct.ports):
            return False
        for port in range(world.direct.ports):
            sample(world.below, world.queues, world.outlets.samples, port, instant)
        next_sample[0] = world.clock.sample_seconds * np.rint(instant / world.clock.sample_seconds + 1.0)
    return True


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


@kernel
def _push(heap: Buffer, packets: Records, time: float, kind: int, port: int, number: int) -> None:
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


@kernel
def _pop(heap: Buffer, packets: Records) -> None:
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
def _swap(records: Records, first: int, second: int) -> None:
    one, other = records[first], records[second]
    one.time, other.time = other.time, one.time
    one.kind, other.kind = other.kind, one.kind
    one.port, other.port = other.port, one.port
    one.number, other.number = other.number, one.number
