"""Promised messages under way, and how they end: with the last packet for each subscription, every one exactly once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import routine
from triagemq.simulate.endings import DELIVERED, IN_FLIGHT
from triagemq.simulate.promised.direct import Direct
from triagemq.simulate.promised.happenings import COMES, push
from triagemq.simulate.records import Buffer, Pool, Record, Records, append, give_back, new_pool, take
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

# What has become of a message on its way to one subscription.
LEG = np.dtype(
    [("dequeued_ns", np.int64), ("delivered_ns", np.int64), ("remaining", np.int32), ("outcome", np.int32)]
)

ABSENT = -1
"""On the leg of a subscription that is not there: nothing is counted."""


class PromiseTally(NamedTuple):
    """Counts per promise, of every message from the first on: outcomes, those later than asked for, the worst latency
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


def new_under_way(direct: Direct, promises: int) -> UnderWay:
    messages = new_pool(MESSAGE, 256)
    legs = np.zeros(len(messages.records) * direct.most_legs, dtype=LEG)
    return UnderWay(messages, legs, new_promise_tally(promises, direct.stream.shape[1]))


@routine
def branch(
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
        push(happenings, pool.records, time, COMES, direct.nodes[node].port, each)


@routine
def end_legs(
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
        if way.outcome == ABSENT:
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
