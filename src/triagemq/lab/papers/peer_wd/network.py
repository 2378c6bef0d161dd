"""PEER-WD's Tables 5, 6 and 7 as a scenario, and others of the same kind drawn at random.

Not printed, and assumed: 50 events a second of every publisher, with which b1 alone passes all of its uplink after the
burst; ten events matched a second for every MHz, so that matching is no bottleneck, as in the paper; and that the
allowed wait of a topic counts one client latency, as the paper's example does, though the path has two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from triagemq.plan.clusters import Placement
from triagemq.scenario import (
    BrokerLinks,
    Brokers,
    Integers,
    OutputPorts,
    Publications,
    Publishers,
    Scenario,
    SizeDistribution,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
)
from triagemq.scenario.conditions import Condition, Conditions
from triagemq.scenario.model import filled

HEAD, EDGES = "bn", ("b0", "b1", "b2", "b3")
EDGE_MHZ, EDGE_MBPS = (800, 1500, 1300, 1000), (6.5, 8.0, 5.0, 8.0)
HEAD_MBPS = 20.0
PUBLISHERS = (1, 2, 5, 4, 3, 1, 2, 2, 5, 4, 1, 3, 1, 2, 4)
SUBSCRIBERS = (8, 2, 1, 2, 3, 1, 5, 7, 2, 4, 5, 2, 6, 3, 5)
LATENCY_SECONDS = (1.8, 1.7, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1, 1.0, 0.9, 30.0, 60.0, 40.0, 50.0, 100.0)
SIZE_BYTES = (200, 800, 1000, 400, 200, 400, 300, 400, 500, 200, 600, 400, 200, 300, 200)
TABLE_7 = {"b0": (5, 6, 7, 11, 15), "b1": (1, 3, 8, 14), "b2": (10, 12), "b3": (2, 4, 9, 13)}

EVENTS_PER_SECOND = 50.0
MATCHED_PER_MHZ = 10.0
BROKER_SECONDS, CLIENT_SECONDS = 0.1, 0.2
BURST_SECONDS, END_SECONDS = 30.0, 75.0
BURST_TOPICS = (2, 4, 6, 8, 10, 12, 14)


@dataclass(frozen=True, slots=True)
class TopicSpecifications:
    """What Table 6 says of each topic, and how often its publishers publish."""

    publishers: tuple[int, ...] = PUBLISHERS
    subscribers: tuple[int, ...] = SUBSCRIBERS
    latency_seconds: tuple[float, ...] = LATENCY_SECONDS
    size_bytes: tuple[int, ...] = SIZE_BYTES
    events_per_second: float = EVENTS_PER_SECOND

    @property
    def burst_load(self) -> float:
        """What all subscribers get during the burst, in parts of all edge uplinks."""
        copies = np.array(self.publishers) * self.subscribers * self.size_bytes
        copies[[topic - 1 for topic in BURST_TOPICS]] *= 2
        return float(8 * self.events_per_second * copies.sum() / (1e6 * sum(EDGE_MBPS)))


TABLE_6 = TopicSpecifications()


def drawn(seed: int, load: float) -> TopicSpecifications:
    """Table 6 with its columns in other orders, and rates of which the burst makes this load of all edge uplinks."""
    draw = np.random.default_rng(seed)

    def mixed(column: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(each) for each in draw.permutation(column))

    table = TopicSpecifications(mixed(PUBLISHERS), mixed(SUBSCRIBERS), LATENCY_SECONDS, mixed(SIZE_BYTES))
    return replace(table, events_per_second=EVENTS_PER_SECOND * load / table.burst_load)


def topic_name(number: int) -> str:
    return f"topic-{number:02}"


def experiment_scenario(
    table: TopicSpecifications = TABLE_6, client_latencies: int = 1
) -> tuple[Scenario, Conditions]:
    """One head, four edges, and the subscribers of topic n coming at second n; b1 is where all of them begin."""
    topics = len(table.publishers)
    publisher = [(topic, each) for topic in range(topics) for each in range(table.publishers[topic])]
    subscriber = [(topic, each) for topic in range(topics) for each in range(table.subscribers[topic])]
    of_publisher, of_subscriber = ([topic for topic, _ in each] for each in (publisher, subscriber))
    names = tuple(f"{topic_name(topic + 1)}-subscriber-{each + 1}" for topic, each in subscriber)
    edges = len(EDGES)
    scenario = Scenario.of(
        name="PEER-WD",
        topics=Topics(tuple(topic_name(topic + 1) for topic in range(topics))),
        brokers=filled(
            Brokers,
            edges + 1,
            name=(HEAD, *EDGES),
            cluster="campus",
            head=[1] + edges * [0],
            inbound_rate_per_second=MATCHED_PER_MHZ * np.array((2000, *EDGE_MHZ)),
            downlink_bps=1e6 * np.array((HEAD_MBPS, *EDGE_MBPS)),
            uplink_bps=1e6 * np.array((HEAD_MBPS, *EDGE_MBPS)),
        ),
        broker_links=filled(
            BrokerLinks,
            edges,
            source_broker=0,
            target_broker=np.arange(1, edges + 1),
            propagation_seconds=BROKER_SECONDS,
        ),
        switches=filled(Switches, 1, name=("core",)),
        ports=filled(OutputPorts, 1, name=("campus",), switch=0, bandwidth_bps=1e9),
        publishers=filled(
            Publishers,
            len(publisher),
            name=tuple(f"{topic_name(topic + 1)}-publisher-{each + 1}" for topic, each in publisher),
            broker=0,
            propagation_seconds=(client_latencies - 1) * CLIENT_SECONDS,
        ),
        publications=filled(
            Publications,
            len(publisher),
            publisher=np.arange(len(publisher)),
            topic=of_publisher,
            rate_per_second=table.events_per_second,
            size_bytes=np.array(table.size_bytes, dtype=np.float64)[of_publisher],
            size_distribution=SizeDistribution.CONSTANT,
        ),
        subscribers=filled(
            Subscribers,
            len(subscriber),
            name=names,
            broker=1 + EDGES.index("b1"),
            port=0,
            propagation_seconds=CLIENT_SECONDS,
        ),
        subscriptions=filled(
            Subscriptions,
            len(subscriber),
            subscriber=np.arange(len(subscriber)),
            topic=of_subscriber,
            utility_weight=1.0,
            max_latency_seconds=np.array(table.latency_seconds)[of_subscriber],
        ),
    )
    joining = [
        Condition(float(topic + 1), subscriber=name, state="joins")
        for name, topic in zip(names, of_subscriber, strict=True)
    ]
    burst = [Condition(BURST_SECONDS, topic=topic_name(topic), rate_factor=2.0) for topic in BURST_TOPICS]
    return scenario, Conditions((*joining, *burst))


def table_7(scenario: Scenario) -> Placement:
    """Where the paper's own distribution puts the topics."""
    brokers = scenario.brokers.name
    broker: Integers = np.zeros(len(scenario.topics), dtype=np.int32)
    for name, topics in TABLE_7.items():
        broker[[scenario.topics.name.index(topic_name(topic)) for topic in topics]] = brokers.index(name)
    head = np.full(len(scenario.publications), brokers.index(HEAD), dtype=np.int32)
    return Placement(broker[scenario.subscriptions.topic], head)
