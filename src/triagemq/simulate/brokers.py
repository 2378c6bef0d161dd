"""From a published event to its copies: unmanaged switch, publisher's link, brokers and their links, and at the home
broker one copy per active subscription, through the subscriber's outbound queue.

Every queue here is first in, first out, so a departure is a running maximum and is known the moment an arrival is.
Only the arrivals at brokers need an order, because traffic between brokers runs both ways: a heap holds those that
are known, and whatever is still to be published cannot come before the present.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import kernel, step
from triagemq.scenario import Floats
from triagemq.simulate.changes import Epochs, epoch_at
from triagemq.simulate.endings import IN_FLIGHT, LOST_ON_LINK, SUBSCRIBER_GONE, end_copy
from triagemq.simulate.network import LOST_BEFORE, BrokerSide, loss_of, reaches_broker
from triagemq.simulate.random import Purpose, Seeds, bits, exponential, uniform
from triagemq.simulate.records import Buffer, Record, append, room

_PUBLISHER_LINK = int(Purpose.PUBLISHER_LINK)
_BROKER_INBOUND = int(Purpose.BROKER_INBOUND)
_BROKER_LINK = int(Purpose.BROKER_LINK)
_BROKER_OUTBOUND = int(Purpose.BROKER_OUTBOUND)
_SENDING_ORDER = int(Purpose.SENDING_ORDER)

_RANDOM_BITS = 24
"""Of a copy's rank, below its class."""


class BrokerQueues(NamedTuple):
    """When each FIFO queue is free again."""

    unmanaged_free: Floats
    broker_free: Floats
    link_free: Floats
    outbound_free: Floats


class BrokerState(NamedTuple):
    """All that brokers read and change; `run_ends` is when the run is cut off."""

    above: BrokerSide
    epochs: Epochs
    seeds: Seeds
    queues: BrokerQueues
    arriving: Buffer
    matched: Buffer
    copies: Buffer
    ended: Buffer
    run_ends: float


def new_broker_queues(above: BrokerSide, subscribers: int) -> BrokerQueues:
    lengths = len(above.unmanaged_seconds_per_byte), above.brokers, above.links, subscribers
    return BrokerQueues(*(np.zeros(length) for length in lengths))


@kernel
def pass_brokers(state: BrokerState, published: Buffer, begin: int, until: float) -> int:
    """Bring the published events from `begin` on, and all that arrives at a broker by `until`, through the brokers.

    Returns how many published events are done, or one more than there are when nothing is left to do; anything else
    means that `arriving`, `matched` or `ended` is full.
    """
    count = published.filled[0]
    for number in range(begin, count):
        event = published.records[number]
        if not _settle(state, event.time):
            return number
        if not (room(state.arriving, 2) and room(state.ended, state.above.most_members)):
            return number
        _send_to_broker(state, event)
    if not _settle(state, until):
        return count  # type: ignore[no-any-return]
    return count + 1  # type: ignore[no-any-return]


@step
def _lose_event(state: BrokerState, event: Record, brokers: NDArray[np.uint64], time: float) -> None:
    """End the copies of an event that a link loses at `time`, for every subscription at a set of brokers. What would be
    lost after the end of the run is in flight then.

    A subscription counts if it is active at that time; at the end of the run, also if it was when the event was
    published, since it has not been matched yet.
    """
    above, epochs, over = state.above, state.epochs, time > state.run_ends
    epoch = epoch_at(epochs.ends, 0, state.run_ends if over else time)
    at_first = epoch_at(epochs.ends, 0, event.published_ns * 1e-9) if over else epoch
    for broker in range(above.brokers):
        if (brokers[broker >> 6] >> np.uint64(broker & 63)) & np.uint64(1) == 0:
            continue
        cell = broker * above.topics + above.topic[event.publication]
        for place in range(above.member_first[cell], above.member_first[cell + 1]):
            subscription = above.member[place]
            if epochs.active[epoch, subscription] or epochs.active[at_first, subscription]:
                outcome = IN_FLIGHT if over else LOST_ON_LINK
                level = epochs.priority_class[epoch, subscription]
                end_copy(state.ended, event, subscription, level, outcome)


@step
def _send_to_broker(state: BrokerState, event: Record) -> None:
    """Unmanaged switch, then the publisher's link with its errors and its propagation."""
    above, epochs, queues = state.above, state.epochs, state.queues
    publication = event.publication
    time = event.time
    switch = above.unmanaged_switch[publication]
    if switch >= 0:
        wire_bytes = event.size_bytes + event.packets * above.overhead_bytes
        time = (
            max(time, queues.unmanaged_free[switch]) + wire_bytes * above.unmanaged_seconds_per_byte[switch]
        )
        queues.unmanaged_free[switch] = time
    error_rate = epochs.publisher_error[epoch_at(epochs.ends, 0, time), publication]
    if not reaches_broker(above.losses, event.event) or _event_lost(
        error_rate, event.packets, state.seeds[_PUBLISHER_LINK], event.event
    ):
        _lose_event(state, event, above.interested[above.topic[publication]], time)
        return
    home = above.home_broker[publication]
    _push(state.arriving, event, time + above.publisher_propagation[publication], home, home)


@step
def _settle(state: BrokerState, until: float) -> bool:
    """Match every event that arrives at a broker by `until`; False when a buffer is full."""
    above, queues, arriving, matched = state.above, state.queues, state.arriving, state.matched
    while arriving.filled[0] > 0 and arriving.records[0].time <= until:
        # The event leaves the heap before its copies enter it.
        if not (
            room(arriving, above.links + 1) and room(matched, 1) and room(state.ended, above.most_members)
        ):
            return False
        place = append(matched)
        matched.records[place] = arriving.records[0]
        _pop(arriving)
        event = matched.records[place]
        broker = event.broker
        service = above.inbound_seconds[broker]
        if service > 0.0:
            service *= exponential(state.seeds[_BROKER_INBOUND], event.event * above.brokers + broker)
        event.time = max(event.time, queues.broker_free[broker]) + service
        queues.broker_free[broker] = event.time
        if above.brokers > 1:
            _forward(state, event)
        cell = broker * above.topics + above.topic[event.publication]
        if above.member_first[cell] == above.member_first[cell + 1]:
            matched.filled[0] -= 1
    return True


@step
def _forward(state: BrokerState, event: Record) -> None:
    """Send copies on along the source broker's tree, to wherever the topic has subscribers."""
    above, queues = state.above, state.queues
    source = event.source_broker
    interested = above.interested[above.topic[event.publication]]
    if event.broker == source:
        _lose_event(state, event, above.unreachable[source], event.time)
    wire_bytes = event.size_bytes + event.packets * above.overhead_bytes
    node = source * above.brokers + event.broker
    for place in range(above.tree_first[node], above.tree_first[node + 1]):
        link = above.tree_link[place]
        behind = above.beyond[source, link]
        if not _meet(interested, behind):
            continue
        time = max(event.time, queues.link_free[link]) + wire_bytes * above.link_seconds_per_byte[link]
        queues.link_free[link] = time
        number = event.event * above.links + link
        if _event_lost(above.link_error[link], event.packets, state.seeds[_BROKER_LINK], number):
            _lose_event(state, event, behind, time)
        else:
            _push(state.arriving, event, time + above.link_propagation[link], above.link_target[link], source)


@step
def _meet(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> bool:
    """Whether two sets of brokers have one in common."""
    for word in range(len(first)):  # noqa: SIM110 - kernels have no generators
        if first[word] & second[word] != 0:
            return True
    return False


@step
def _event_lost(error_rate: float, packets: int, seed: np.uint64, counter: int) -> bool:
    """Whether a link loses at least one of the packets of an event."""
    if error_rate <= 0.0:
        return False
    passing = 1.0 - error_rate if packets == 1 else (1.0 - error_rate) ** packets
    return uniform(seed, counter) > passing


@step
def _earlier(first: Record, second: Record) -> bool:
    """The order of arrivals: by time; ties by event and broker, so that no tie depends on the order of pushing."""
    if first.time != second.time:
        return first.time < second.time  # type: ignore[no-any-return]
    if first.event != second.event:
        return first.event < second.event  # type: ignore[no-any-return]
    return first.broker < second.broker  # type: ignore[no-any-return]


@step
def _push(heap: Buffer, event: Record, time: float, broker: int, source_broker: int) -> None:
    """Add to a heap that has room for one more than this, where the record is until its place is found."""
    records = heap.records
    place = append(heap)
    added = place + 1
    records[added] = event
    records[added].time = time
    records[added].broker = broker
    records[added].source_broker = source_broker
    while place > 0 and _earlier(records[added], records[(place - 1) >> 1]):
        records[place] = records[(place - 1) >> 1]
        place = (place - 1) >> 1
    records[place] = records[added]


@step
def _pop(heap: Buffer) -> None:
    records = heap.records
    last = heap.filled[0] - 1
    heap.filled[0] = last
    place, child = 0, 1
    while child < last:
        if child + 1 < last and _earlier(records[child + 1], records[child]):
            child += 1
        if not _earlier(records[child], records[last]):
            break
        records[place] = records[child]
        place, child = child, 2 * child + 1
    records[place] = records[last]


@kernel
def fan_out(state: BrokerState, epoch: int, begin: int, until: float) -> int:
    """Copy the events matched before `until`, from number `begin` on; later ones move to the front of their buffer.

    Returns how many of the matched events were looked at: fewer than there are when `copies` or `ended` is full.
    A copy exists if its subscription is active now; one that was active when the event was published and has left
    since ends as `subscriber_gone`.

    A gateway that sends by class takes one outbound time for all copies of an event: to every subscriber's queue it is
    the same as one of its own, and those that do not wait there leave together, ranked by class.
    """
    above, epochs, matched = state.above, state.epochs, state.matched
    copies, ended, outbound_free = state.copies, state.ended, state.queues.outbound_free
    seed, order_seed = state.seeds[_BROKER_OUTBOUND], state.seeds[_SENDING_ORDER]
    count, by_class = matched.filled[0], above.by_class
    for number in range(begin, count):
        event = matched.records[number]
        if event.time >= until:
            continue
        cell = event.broker * above.topics + above.topic[event.publication]
        first, last = above.member_first[cell], above.member_first[cell + 1]
        if not (room(copies, last - first) and room(ended, last - first)):
            return number
        service = above.outbound_seconds[event.broker]
        together = 0.0
        if by_class and service > 0.0:
            together = service * exponential(seed, event.event * above.subscriptions + above.member[first])
        for place in range(first, last):
            subscription = above.member[place]
            active = epochs.active[epoch, subscription]
            lost = active and loss_of(above.losses, event.event, subscription) == LOST_BEFORE
            if lost or not active:
                before = epoch_at(epochs.ends, 0, event.published_ns * 1e-9)
                if lost or epochs.active[before, subscription]:
                    outcome = LOST_ON_LINK if lost else SUBSCRIBER_GONE
                    if event.time >= state.run_ends:
                        outcome = IN_FLIGHT
                    level = epochs.priority_class[epoch, subscription]
                    end_copy(ended, event, subscription, level, outcome)
                continue
            subscriber = above.subscriber[subscription]
            time = max(event.time, outbound_free[subscriber])
            counter = event.event * above.subscriptions + subscription
            rank = 0
            if by_class:
                time += together
                rank = epochs.priority_class[epoch, subscription] << _RANDOM_BITS
            elif service > 0.0:
                time += service * exponential(seed, counter)
            if by_class or service == 0.0:
                rank |= int(bits(order_seed, counter) >> np.uint64(64 - _RANDOM_BITS))
            outbound_free[subscriber] = time
            copy = copies.records[append(copies)]
            copy.time = time
            copy.published_ns = event.published_ns
            copy.event = event.event
            copy.size_bytes = event.size_bytes
            copy.subscription = subscription
            copy.fragment = 0
            copy.group = -1
            copy.next = rank
            copy.previous = 0
    return count  # type: ignore[no-any-return]
