"""Promised messages on the event list: released, over the access link, past the limiter, along their tree.

A message is cut into packets by the switches' packet size. They leave the publisher as fast as its access link carries
them, meet the limiter of the first switch, wait at each port of the tree with the stream's level, and take the time to
be switched and the propagation of links. The inbound queue of a switch, which looks up brokered copies and has no
bound, is not on their path. A message reaches a subscriber with its last packet; with one packet cut, dropped or lost
it is lost to all behind that place.
"""

from __future__ import annotations

from triagemq.compiled import kernel, routine, step
from triagemq.simulate.changes import epoch_at
from triagemq.simulate.endings import (
    DELIVERED,
    IN_FLIGHT,
    LIMITED,
    LOST_ON_LINK,
    SUBSCRIBER_GONE,
    end_times,
    nanoseconds,
)
from triagemq.simulate.network import PASSES, loss_of
from triagemq.simulate.promised.state import (
    ABSENT,
    COMES,
    RELEASED,
    SimulationState,
    bytes_on_wire,
    passes,
    push,
)
from triagemq.simulate.random import Purpose, split, uniform
from triagemq.simulate.records import Buffer, Record, give_back, take
from triagemq.simulate.switches import packet_of

_PUBLISHER_LINK = int(Purpose.PUBLISHER_LINK)
_PORT_LINK = int(Purpose.PORT_LINK)
_SUBSCRIBER_LINK = int(Purpose.SUBSCRIBER_LINK)


@kernel
def release(state: SimulationState, published: Buffer) -> None:
    """Put published events that have a direct route on the list, which has room, and forget those that go no other."""
    network = state.network
    direct, epoch = state.direct, network.clock.epoch
    pool = network.queues.packets
    left = 0
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
            port = direct.streams[stream].access_port
            push(state.event_queue, pool.records, event.time, RELEASED, port, number)
        if stream < 0 or direct.brokered[epoch, event.publication]:
            if left != place:
                published.records[left] = event
            left += 1
    published.filled[0] = left


@step
def set_out(state: SimulationState, port: int, number: int, packets: int, time: float) -> None:
    """A publisher begins to send a message: its packets come to the access link."""
    network = state.network
    direct, under_way, pool = state.direct, state.under_way, network.queues.packets
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
    absent = True
    for leg in range(direct.streams[stream].legs):
        leg_state = under_way.legs[group * direct.most_legs + leg]
        subscription = direct.leg_ends[direct.streams[stream].leg_first + leg].subscription
        there = direct.present[network.clock.epoch, subscription]
        absent = absent and not there
        leg_state.remaining = packets
        leg_state.outcome = DELIVERED if there else ABSENT
        leg_state.dequeued_ns = -1
        leg_state.delivered_ns = -1
    if absent:
        give_back(under_way.messages, group)
        packets = 0
    for fragment in range(packets):
        each = packet_of(pool, released, fragment, group, time, -1, direct.streams[stream].access_level)
        pool.records[each].next = 0
        push(state.event_queue, pool.records, time, COMES, port, each)
    give_back(pool, number)


@step
def leave_direct(state: SimulationState, port: int, number: int, epoch: int, finished: float) -> None:
    """A packet has left its port at `finished`: to the limiter, to the next switch, to its subscribers."""
    network = state.network
    direct, epochs, seeds, clock = state.direct, network.epochs, network.seeds, network.clock
    pool = network.queues.packets
    packet = pool.records[number]
    message = state.under_way.messages.records[packet.group]
    stream, event, fragment = message.stream, message.event, packet.fragment
    epoch = epoch_at(epochs.ends, epoch, finished)
    if port >= direct.ports:
        publication = direct.streams[stream].publication
        error_rate = epochs.publisher_error[epoch, publication]
        seed = split(seeds[_PUBLISHER_LINK], fragment + 1)
        if error_rate > 0.0 and uniform(seed, event) <= error_rate:
            end_legs(state, packet, 0, direct.streams[stream].legs, LOST_ON_LINK, -1, -1, finished)
            give_back(pool, number)
        elif _is_cut(state, publication, stream, bytes_on_wire(state, packet), finished):
            end_legs(state, packet, 0, direct.streams[stream].legs, LIMITED, -1, -1, finished)
            give_back(pool, number)
        else:
            first, end = direct.streams[stream].child_first, direct.streams[stream].child_end
            _branch(state, number, first, end, finished + direct.streams[stream].to_first_port)
        return
    node = -1 - packet.subscription - len(direct.streams)
    first_leg, own_end = direct.nodes[node].leg, direct.nodes[node].own_end
    dequeued_ns = nanoseconds(finished) if finished <= clock.run_ends else -1
    for leg in range(first_leg, own_end):
        row = direct.streams[stream].leg_first + leg
        subscription = direct.leg_ends[row].subscription
        arrival = finished + direct.leg_ends[row].seconds
        error_rate = epochs.subscriber_error[epoch, subscription]
        seed = split(seeds[_SUBSCRIBER_LINK], fragment)
        counter = event * network.below.subscriptions + subscription
        outcome = DELIVERED
        recorded = fragment == 0 and loss_of(network.below.losses, event, subscription) != PASSES
        if recorded or (error_rate > 0.0 and uniform(seed, counter) <= error_rate):
            outcome = LOST_ON_LINK
        elif not direct.present[epoch_at(epochs.ends, epoch, arrival), subscription]:
            outcome = SUBSCRIBER_GONE
        end_legs(state, packet, leg, leg + 1, outcome, dequeued_ns, nanoseconds(arrival), arrival)
    child_first, child_end = direct.nodes[node].child_first, direct.nodes[node].child_end
    if child_first < child_end:
        error_rate = epochs.port_error[epoch, port]
        seed = split(split(seeds[_PORT_LINK], direct.nodes[node].hop), fragment)
        behind = direct.leg_ends[direct.streams[stream].leg_first + own_end].subscription
        counter = event * network.below.subscriptions + behind
        if error_rate <= 0.0 or uniform(seed, counter) > error_rate:
            _branch(state, number, child_first, child_end, finished + direct.nodes[node].seconds)
            return
        end_legs(state, packet, own_end, direct.nodes[node].leg_end, LOST_ON_LINK, dequeued_ns, -1, finished)
    give_back(pool, number)


@step
def _is_cut(state: SimulationState, publication: int, stream: int, wire: float, time: float) -> bool:
    """Whether the limiter of a stream has no room for a packet; if it has, the packet takes it."""
    if passes(state.limiters, publication, state.direct.streams[stream], wire, time):
        return False
    tally = state.under_way.tally
    if time <= state.network.clock.run_ends:
        tally.cut_packets[publication] += 1
        if tally.first_cut_ns[publication] < 0:
            tally.first_cut_ns[publication] = nanoseconds(time)
    return True


@routine
def _branch(state: SimulationState, number: int, first: int, end: int, time: float) -> None:
    """A packet goes on to each of some nodes; it becomes the last of its copies itself."""
    direct, pool = state.direct, state.network.queues.packets
    for node in range(first, end):
        each = number
        if node + 1 < end:
            each = take(pool)
            pool.records[each] = pool.records[number]
        packet = pool.records[each]
        packet.subscription = -1 - len(direct.streams) - node
        packet.priority_class = direct.nodes[node].level
        packet.next = 0
        push(state.event_queue, pool.records, time, COMES, direct.nodes[node].port, each)


@routine
def end_legs(
    state: SimulationState,
    packet: Record,
    first: int,
    end: int,
    outcome: int,
    dequeued_ns: int,
    delivered_ns: int,
    time: float,
) -> None:
    """A packet ends on the legs of its message from `first` to before `end`, and with the last packet a leg does."""
    network = state.network
    direct, under_way, ended = state.direct, state.under_way, network.outlets.ended
    tally, group = under_way.tally, packet.group
    message = under_way.messages.records[group]
    stream = message.stream
    if time > network.clock.run_ends:
        outcome = IN_FLIGHT
    for leg in range(first, end):
        leg_state = under_way.legs[group * direct.most_legs + leg]
        leg_state.remaining -= 1
        leg_state.dequeued_ns = max(leg_state.dequeued_ns, dequeued_ns)
        leg_state.delivered_ns = max(leg_state.delivered_ns, delivered_ns)
        if outcome != DELIVERED and (leg_state.outcome == DELIVERED or outcome < leg_state.outcome):
            leg_state.outcome = outcome
        if leg_state.remaining > 0:
            continue
        message.open -= 1
        if leg_state.outcome == ABSENT:
            continue
        row = direct.streams[stream].leg_first + leg
        promise = direct.leg_ends[row].promise
        subscription, level = direct.leg_ends[row].subscription, direct.leg_ends[row].priority_class
        enqueued_ns, dequeued, delivered = message.enqueued_ns, leg_state.dequeued_ns, leg_state.delivered_ns
        end_times(ended, message, subscription, level, leg_state.outcome, enqueued_ns, dequeued, delivered)
        tally.outcomes[promise, leg_state.outcome] += 1
        if leg_state.outcome == DELIVERED:
            latency = leg_state.delivered_ns - message.published_ns
            tally.latency_ns[promise] += latency
            tally.worst_ns[promise] = max(tally.worst_ns[promise], latency)
            if latency > direct.leg_ends[row].deadline_ns:
                tally.late[promise] += 1
    if message.open == 0:
        give_back(under_way.messages, group)
