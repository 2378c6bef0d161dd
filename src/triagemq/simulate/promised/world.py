"""All that a step of the event list may need, and what both kinds of packets have in common."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import step
from triagemq.scenario import Floats
from triagemq.simulate.changes import Epochs
from triagemq.simulate.network import Below
from triagemq.simulate.ports import record_hop, wire_bytes
from triagemq.simulate.promised.direct import Direct
from triagemq.simulate.promised.limiters import LimiterStates
from triagemq.simulate.promised.under_way import UnderWay
from triagemq.simulate.random import Seeds
from triagemq.simulate.records import Buffer, Clock, Outlets, PortQueues, Record

# Places in World.progress: how many copies of the inbox are done, and how much has happened.
PLACE, DONE = 0, 1


class Fair(NamedTuple):
    """The queues of fair ports, linked through the pool of packets, and those with packets in a line per port: the
    first is served and goes to its end."""

    first: NDArray[np.int32]
    last: NDArray[np.int32]
    length: NDArray[np.int32]
    turn_next: NDArray[np.int64]
    turn_first: NDArray[np.int64]
    turn_last: NDArray[np.int64]


class Tags(NamedTuple):
    """What ports go by whose queues borrow (self-clocked fair queueing): per port and class the time at which the first
    packet of the queue, or the last that it had, is done if each queue sends at its width; and per port that of the
    packet that was sent last."""

    first: Floats
    sent: Floats


class World(NamedTuple):
    """All that a step may need: what is fixed, and what moves. `happenings` is the list of what happens next."""

    direct: Direct
    below: Below
    epochs: Epochs
    seeds: Seeds
    switch_free: Floats
    queues: PortQueues
    fair: Fair
    tags: Tags
    under_way: UnderWay
    happenings: Buffer
    limiters: LimiterStates
    progress: NDArray[np.int64]
    outlets: Outlets
    clock: Clock


def new_fair(direct: Direct) -> Fair:
    return Fair(
        first=np.full(direct.fair_queues, -1, dtype=np.int32),
        last=np.full(direct.fair_queues, -1, dtype=np.int32),
        length=np.zeros(direct.fair_queues, dtype=np.int32),
        turn_next=np.full(direct.fair_queues, -1, dtype=np.int64),
        turn_first=np.full(direct.ports, -1, dtype=np.int64),
        turn_last=np.full(direct.ports, -1, dtype=np.int64),
    )


def new_tags(ports: int, classes: int) -> Tags:
    return Tags(first=np.zeros((ports, classes)), sent=np.zeros(ports))


@step
def bytes_on_wire(world: World, packet: Record) -> float:
    """Of a packet of a copy or of a promised message."""
    if packet.subscription >= 0:
        return wire_bytes(world.below, world.queues.groups, packet)
    message = world.under_way.messages.records[packet.group]
    payload = world.direct.streams[message.stream].payload_bytes
    carried = min(payload, message.size_bytes - packet.fragment * payload)
    return carried + world.below.overhead_bytes  # type: ignore[no-any-return]


@step
def record_hops(world: World, packet: Record, node: int, port: int, dequeued_ns: int, outcome: int) -> None:
    """One row for each leg behind a node."""
    direct = world.direct
    first = direct.streams[world.under_way.messages.records[packet.group].stream].leg_first
    for leg in range(direct.nodes[node].leg, direct.nodes[node].leg_end):
        subscription = direct.ways[first + leg].subscription
        record_hop(world.below, world.outlets.hops, packet, subscription, port, dequeued_ns, outcome)
        last = world.outlets.hops.records[world.outlets.hops.filled[0] - 1]
        last.event = packet.event
        last.hop = direct.nodes[node].hop
