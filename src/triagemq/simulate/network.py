"""A scenario as the flat arrays that kernels read: everything that does not change during a run.

And what became of copies that a trace recorded (`RecordedLosses`), if they are given: then nothing else is dropped or
lost. Drops and losses are chances, and the only ones that no queue explains. A simulation that draws them anew has
other packets in its queues than the run that it repeats, and near overload other waits. What buffers drop is no chance:
the simulator finds that out itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import step
from triagemq.scenario import (
    Floats,
    Integers,
    Scenario,
    SendingOrder,
    broker_routes,
    port_depths,
    port_hops,
)
from triagemq.simulate.changes import Epochs

Words = NDArray[np.uint64]
Positions = NDArray[np.int64]

PASSES, DROPPED, LOST_BEFORE, LOST_BEHIND = 0, 1, 2, 3
"""No fate of its own; dropped on purpose at the first switch; lost before it; lost behind port 0, 1, ... of its way."""

MOST_HOPS = 250
"""Of a path; an octet holds a fate."""


class BrokerSide(NamedTuple):
    """From the publishers to the copies: publications, unmanaged switches, brokers and the links between them.

    Sets of brokers are rows of bits. `tree_first[source * brokers + broker]` is where the list of the links begins by
    which events that entered at `source` leave `broker`; `beyond[source, link]` is the set of brokers behind such a
    link. `member_first[broker * topics + topic]` is where a topic's subscriptions at a broker begin.
    """

    topic: Integers
    home_broker: Integers
    unmanaged_switch: Integers
    publisher_propagation: Floats
    unmanaged_seconds_per_byte: Floats
    inbound_seconds: Floats
    outbound_seconds: Floats
    link_target: Integers
    link_seconds_per_byte: Floats
    link_error: Floats
    link_propagation: Floats
    tree_first: Positions
    tree_link: Integers
    beyond: Words
    unreachable: Words
    interested: Words
    member_first: Positions
    member: Integers
    subscriber: Integers
    most_members: int
    brokers: int
    links: int
    topics: int
    subscriptions: int
    overhead_bytes: float
    by_class: bool
    losses: RecordedLosses


class NetworkSide(NamedTuple):
    """From the home broker to the subscribers: `route[subscription, hop]` is the output port taken at each hop.

    `newest_only` and `expires_seconds` are empty where no subscription states them.
    """

    route: Integers
    path_length: Integers
    subscriber_propagation: Floats
    hop_of_port: Integers
    switch_of_port: Integers
    inbound_seconds: Floats
    buffer_packets: Positions
    link_propagation: Floats
    classes: int
    subscriptions: int
    overhead_bytes: float
    payload_bytes: float
    losses: RecordedLosses
    newest_only: NDArray[np.int8]
    expires_seconds: Floats


def word_count(brokers: int) -> int:
    """How many 64-bit words a set of brokers takes."""
    return (brokers + 63) // 64


def broker_side(scenario: Scenario, losses: RecordedLosses) -> BrokerSide:
    """The arrays of the upper half; copies, because kernels are compiled for writable arrays only."""
    publications, publishers = scenario.publications, scenario.publishers
    links, brokers = scenario.broker_links, scenario.brokers
    publisher = publications.publisher
    subscriptions, subscribers = scenario.subscriptions, scenario.subscribers
    topics = len(scenario.topics)
    cell = subscribers.broker[subscriptions.subscriber].astype(np.int64) * topics + subscriptions.topic
    cells = len(brokers) * topics
    interested = np.zeros((topics, word_count(len(brokers))), dtype=np.uint64)
    for broker, topic in np.unique(np.stack(np.divmod(cell, topics), axis=1), axis=0):
        interested[topic, broker // 64] |= np.uint64(1 << (int(broker) % 64))
    tree_first, tree_link, beyond, unreachable = _broker_trees(scenario)
    per_topic = np.bincount(subscriptions.topic, minlength=1)
    return BrokerSide(
        topic=_integers(publications.topic),
        home_broker=_integers(publishers.broker[publisher]),
        unmanaged_switch=_integers(publishers.unmanaged_switch[publisher]),
        publisher_propagation=_floats(publishers.propagation_seconds[publisher]),
        unmanaged_seconds_per_byte=_floats(8 / scenario.unmanaged_switches.bandwidth_bps),
        inbound_seconds=_floats(1 / brokers.inbound_rate_per_second),
        outbound_seconds=_floats(1 / brokers.outbound_rate_per_second),
        link_target=_integers(links.target_broker),
        link_seconds_per_byte=_floats(8 / links.bandwidth_bps),
        link_error=_floats(np.zeros(len(links)) if losses.are_recorded else links.error_rate),
        link_propagation=_floats(links.propagation_seconds),
        tree_first=tree_first,
        tree_link=tree_link,
        beyond=beyond,
        unreachable=unreachable,
        interested=interested,
        member_first=np.concatenate([[0], np.cumsum(np.bincount(cell, minlength=cells))]).astype(np.int64),
        member=_integers(np.argsort(cell, kind="stable")),
        subscriber=_integers(subscriptions.subscriber),
        most_members=int(per_topic.max()),
        brokers=len(brokers),
        links=len(links),
        topics=topics,
        subscriptions=len(subscriptions),
        overhead_bytes=float(scenario.overhead_bytes),
        by_class=scenario.sending_order is SendingOrder.BY_CLASS,
        losses=losses,
    )


def network_side(scenario: Scenario, classes: int, losses: RecordedLosses) -> NetworkSide:
    """The arrays of the lower half, for plans with `classes` priority classes."""
    ports, subscribers = scenario.ports, scenario.subscribers
    subscriber = scenario.subscriptions.subscriber
    depth = port_depths(scenario)
    last_port = subscribers.port[subscriber]
    unlimited = np.iinfo(np.int64).max
    limit = np.where(np.isfinite(ports.buffer_packets), ports.buffer_packets, 0.0).astype(np.int64)
    return NetworkSide(
        route=_integers(port_hops(scenario)[last_port]),
        path_length=_integers(depth[last_port] + 1),
        subscriber_propagation=_floats(subscribers.propagation_seconds[subscriber]),
        hop_of_port=_integers(depth),
        switch_of_port=_integers(ports.switch),
        inbound_seconds=_floats(1 / scenario.switches.inbound_rate_per_second),
        buffer_packets=np.where(np.isfinite(ports.buffer_packets), limit, unlimited),
        link_propagation=_floats(ports.propagation_seconds),
        classes=classes,
        subscriptions=len(subscriber),
        overhead_bytes=float(scenario.overhead_bytes),
        payload_bytes=float(scenario.mtu_bytes - scenario.overhead_bytes),
        losses=losses,
        newest_only=_stated(scenario.subscriptions.newest_only, 0),
        expires_seconds=_stated(scenario.subscriptions.expires_seconds, np.inf),
    )


def _stated(column: NDArray[Any], default: float) -> NDArray[Any]:
    """A copy of a column, of no length where nothing is stated in it."""
    return column[:0].copy() if (column == default).all() else column.copy()


def _broker_trees(scenario: Scenario) -> tuple[Positions, Integers, Words, Words]:
    """Per source broker the tree of shortest paths: its links at each broker, and what lies behind each link."""
    routes, links = broker_routes(scenario), scenario.broker_links
    count, words = len(scenario.brokers), word_count(len(scenario.brokers))
    beyond = np.zeros((count, len(links), words), dtype=np.uint64)
    unreachable = np.zeros((count, words), dtype=np.uint64)
    children: list[list[int]] = [[] for _ in range(count * count)]
    for source in range(count):
        parent = {}
        for target in range(count):
            if target == source:
                continue
            if routes.next_link[source, target] < 0:
                unreachable[source, target // 64] |= np.uint64(1 << (target % 64))
                continue
            parent[target] = routes.path(source, target, links.target_broker)[-1]
        for target, last_link in parent.items():
            children[source * count + int(links.source_broker[last_link])].append(last_link)
            behind = target
            while behind != source:
                beyond[source, parent[behind], target // 64] |= np.uint64(1 << (target % 64))
                behind = int(links.source_broker[parent[behind]])
    first = np.cumsum([0, *(len(each) for each in children)], dtype=np.int64)
    flat = np.array([link for each in children for link in sorted(each)], dtype=np.int32)
    return first, flat, beyond, unreachable


def _floats(values: Any) -> Floats:
    return np.array(values, dtype=np.float64, order="C")


def _integers(values: Any) -> Integers:
    return np.array(values, dtype=np.int32, order="C")


class RecordedLosses(NamedTuple):
    """One octet a copy: those of an event begin at `first`, in the order of its topic's subscriptions (`rank`).

    All are empty where losses are drawn. `lost_at_source` marks events that reached no broker.
    """

    first: NDArray[np.int64]
    rank: Integers
    loss: NDArray[np.uint8]
    lost_at_source: NDArray[np.uint8]

    @property
    def are_recorded(self) -> bool:
        return len(self.first) > 0


def drawn_losses() -> RecordedLosses:
    """None is recorded: drop rates and error rates decide."""
    nothing = np.zeros(0, dtype=np.uint8)
    return RecordedLosses(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), nothing, nothing)


def without_chances(epochs: Epochs) -> Epochs:
    """The same epochs, in which nothing is dropped or lost by a draw."""
    chances = ("drop_rate", "port_error", "publisher_error", "subscriber_error")
    return epochs._replace(**{name: np.zeros_like(getattr(epochs, name)) for name in chances})


@step
def loss_of(losses: RecordedLosses, event: int, subscription: int) -> int:
    """What is recorded of a copy."""
    if len(losses.first) == 0:
        return PASSES
    return losses.loss[losses.first[event] + losses.rank[subscription]]  # type: ignore[no-any-return]


@step
def reaches_broker(losses: RecordedLosses, event: int) -> bool:
    """Whether an event reaches its broker, as far as is recorded."""
    return len(losses.lost_at_source) == 0 or losses.lost_at_source[event] == 0
