"""The state of a run with promised messages: what all steps of the event list read and change.

`event_queue` is a heap in the order of time; at the same instant it goes by kind, and then by what it happens to, so
that no tie depends on the order of pushing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import routine, step
from triagemq.plan.dataplane import LIMITER_PACKETS
from triagemq.scenario import Floats
from triagemq.simulate.ports import wire_bytes
from triagemq.simulate.promised.direct import Direct
from triagemq.simulate.records import Buffer, Pool, PortState, Record, Records, append, new_pool
from triagemq.trace.schema import Outcome

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

# What has become of a message for one subscription.
LEG = np.dtype(
    [("dequeued_ns", np.int64), ("delivered_ns", np.int64), ("remaining", np.int32), ("outcome", np.int32)]
)

ABSENT = -1
"""On the leg of a subscription that is not there: nothing is counted."""


class PromiseTally(NamedTuple):
    """Counts per promise, of every message from the first on: outcomes, those later than requested, the worst latency
    and the sum of all. And per publication the packets that its limiter cut, and when it first did (-1: never)."""

    outcomes: NDArray[np.int64]
    late: NDArray[np.int64]
    worst_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    cut_packets: NDArray[np.int64]
    first_cut_ns: NDArray[np.int64]


class UnderWay(NamedTuple):
    """Promised messages, with `legs` places each in Direct.most_legs, and what became of those that are over."""

    messages: Pool
    legs: Records
    tally: PromiseTally


def new_promise_tally(promises: int, publications: int) -> PromiseTally:
    return PromiseTally(
        outcomes=np.zeros((promises, len(Outcome)), dtype=np.int64),
        late=np.zeros(promises, dtype=np.int64),
        worst_ns=np.zeros(promises, dtype=np.int64),
        latency_ns=np.zeros(promises, dtype=np.int64),
        cut_packets=np.zeros(publications, dtype=np.int64),
        first_cut_ns=np.full(publications, -1, dtype=np.int64),
    )


def new_under_way(direct: Direct, tally: PromiseTally) -> UnderWay:
    messages = new_pool(MESSAGE, 256)
    legs = np.zeros(len(messages.records) * direct.most_legs, dtype=LEG)
    return UnderWay(messages, legs, tally)


_SLACK_SECONDS = 2e-9
"""Times of publication are whole nanoseconds: a message may come this much before its limiter is ready again."""

_SLACK_BYTES = 1e-3
"""What rounding may take from a message over thousands of packets."""


class LimiterStates(NamedTuple):
    """Of each publication: the tokens in its bucket at a time, `since`. Or, of its window, the octets that have ever
    passed, and the last packets in a ring (so many from `first` on): when their places are due again, and how many
    octets had passed with each."""

    octets: Floats
    since: Floats
    passed: NDArray[np.float64]
    first: NDArray[np.int64]
    remembered: NDArray[np.int64]


def new_limiters(publications: int) -> LimiterStates:
    """Nothing has passed."""
    return LimiterStates(
        octets=np.zeros(publications),
        since=np.full(publications, -np.inf),
        passed=np.zeros((publications, LIMITER_PACKETS, 2)),
        first=np.zeros(publications, dtype=np.int64),
        remembered=np.zeros(publications, dtype=np.int64),
    )


@step
def passes(limiters: LimiterStates, publication: int, limiter: Record, wire: float, time: float) -> bool:
    """Whether the limiter of a publication has room for a packet; if it has, the packet takes it."""
    if limiter.burst_bytes == np.inf:
        return True
    if limiter.separation_seconds > 0.0:
        return _passes_window(limiters, publication, limiter, wire, time)
    tokens = limiters.octets[publication] + (time - limiters.since[publication]) * limiter.rate
    tokens = min(limiter.burst_bytes, tokens)
    within = wire <= tokens + _SLACK_SECONDS * limiter.rate + _SLACK_BYTES
    limiters.octets[publication] = tokens - wire if within else tokens
    limiters.since[publication] = time
    return within  # type: ignore[no-any-return]


@step
def _passes_window(
    limiters: LimiterStates, publication: int, limiter: Record, wire: float, time: float
) -> bool:
    """The steps of network/embedded/window.py."""
    passed, first = limiters.passed[publication], limiters.first[publication]
    remembered, due = limiters.remembered[publication], time
    up_to = limiters.octets[publication] + wire
    needed = up_to - limiter.burst_bytes - _SLACK_BYTES
    if wire > limiter.burst_bytes + _SLACK_BYTES:
        return False
    if needed > 0.0:
        while passed[first, 1] < needed:
            first = (first + 1) % LIMITER_PACKETS
            remembered -= 1
        due = max(time, passed[first, 0])
        limiters.first[publication], limiters.remembered[publication] = first, remembered
        if due > time + limiter.jitter_seconds + _SLACK_SECONDS:
            return False
    last = (first + remembered) % LIMITER_PACKETS
    passed[last, 0], passed[last, 1] = due + limiter.separation_seconds, up_to
    if remembered < LIMITER_PACKETS:
        limiters.remembered[publication] = remembered + 1
    else:
        limiters.first[publication] = (first + 1) % LIMITER_PACKETS
    limiters.octets[publication] = up_to
    return True


# Places in SimulationState.progress: how many copies of the inbox are done, and how much has happened.
PLACE, DONE = 0, 1


class Turns(NamedTuple):
    """The queues of fair ports that hold packets, in a line per port: the first is served and goes to its end."""

    following: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


class Tags(NamedTuple):
    """What ports go by whose queues borrow (self-clocked fair queueing): per port and class the time at which the first
    packet of the queue, or the last that it had, is done if each queue sends at its width; and per port that of the
    packet that was sent last."""

    first: Floats
    sent: Floats


class SimulationState(NamedTuple):
    """All that a step may need: what is fixed, and what moves. `event_queue` is the list of what happens next."""

    direct: Direct
    network: PortState
    turns: Turns
    tags: Tags
    under_way: UnderWay
    event_queue: Buffer
    limiters: LimiterStates
    progress: NDArray[np.int64]


@step
def bytes_on_wire(state: SimulationState, packet: Record) -> float:
    """Of a packet of a copy or of a promised message."""
    network = state.network
    if packet.subscription >= 0:
        return wire_bytes(network.below, network.queues.groups, packet)
    message = state.under_way.messages.records[packet.group]
    payload = state.direct.streams[message.stream].payload_bytes
    fragment_bytes = min(payload, message.size_bytes - packet.fragment * payload)
    return fragment_bytes + network.below.overhead_bytes  # type: ignore[no-any-return]


# A port is free and packets wait; a message is released; a packet comes to a port; a copy has been looked up by a
# switch; a copy reaches one. `port` is where, or where it will go, `number` that of a packet in the pool.
FREE, RELEASED, COMES, LOOKED_UP, REACHED = range(5)
NEXT_EVENT = np.dtype([("time", np.float64), ("kind", np.int32), ("port", np.int32), ("number", np.int64)])


@routine
def push(heap: Buffer, packets: Records, time: float, kind: int, port: int, number: int) -> None:
    """Add to a queue that has room for one more than this, where the record is until its place is found."""
    records = heap.records
    place = append(heap)
    added = place + 1
    records[added].time = time
    records[added].kind = kind
    records[added].port = port
    records[added].number = number
    while place > 0 and _earlier(packets, records[added], records[(place - 1) >> 1]):
        records[place] = records[(place - 1) >> 1]
        place = (place - 1) >> 1
    records[place] = records[added]


@routine
def pop(heap: Buffer, packets: Records) -> None:
    """Forget what came first."""
    records = heap.records
    last = heap.filled[0] - 1
    heap.filled[0] = last
    place, child = 0, 1
    while child < last:
        if child + 1 < last and _earlier(packets, records[child + 1], records[child]):
            child += 1
        if not _earlier(packets, records[child], records[last]):
            break
        records[place] = records[child]
        place, child = child, 2 * child + 1
    records[place] = records[last]


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
