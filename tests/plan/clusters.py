"""Small campuses for tests: clusters of a head and edges, topics with publishers and subscribers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from triagemq.plan.balancing.detection import LoadReport
from triagemq.plan.clusters import BrokerClusters, Placement
from triagemq.scenario import (
    BrokerLinks,
    Brokers,
    Floats,
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
from triagemq.scenario.model import filled


def campus_scenario(
    *,
    edges: Sequence[Sequence[float]] = ((8e6, 8e6),),
    heads: Sequence[float] | None = None,
    rates: Sequence[Sequence[float]],
    subscribers: Sequence[Sequence[int]],
    size_bytes: float = 1000.0,
    max_latency_seconds: float | Sequence[float] = np.inf,
    edge_seconds: Sequence[float] | None = None,
) -> Scenario:
    """Clusters c0, c1, ... with a head each and edges of these uplinks (bit/s).

    `rates[cluster][topic]` are events a second published at its head, `subscribers[cluster][topic]` how many want them
    there; latencies are of topics. Everybody begins at the first edge.
    """
    clusters, topics = len(edges), len(rates[0])
    names, cluster, head, uplink = [], [], [], []
    for number, own in enumerate(edges):
        names += [f"c{number}", *(f"c{number}-e{edge}" for edge in range(len(own)))]
        cluster += [f"c{number}"] * (1 + len(own))
        head += [1] + [0] * len(own)
        uplink += [np.inf if heads is None else heads[number], *own]
    at_head, at_edge = np.flatnonzero(head), np.flatnonzero(np.array(head) == 0)
    home = {broker: int(np.flatnonzero(at_head <= broker)[-1]) for broker in at_edge.tolist()}
    links = [(int(at_head[home[broker]]), broker) for broker in at_edge.tolist()]
    links += [(one, other) for one in at_head.tolist() for other in at_head.tolist() if one != other]
    delays = list(edge_seconds or [0.0] * len(at_edge)) + [0.0] * (len(links) - len(at_edge))
    published = [(c, t) for c in range(clusters) for t in range(topics) if rates[c][t] > 0]
    wanted = [(c, t, n) for c in range(clusters) for t in range(topics) for n in range(subscribers[c][t])]
    latency = np.broadcast_to(np.asarray(max_latency_seconds, dtype=np.float64), topics)
    return Scenario.of(
        name="campus",
        topics=Topics(tuple(f"t{topic:02}" for topic in range(topics))),
        brokers=filled(
            Brokers, len(names), name=tuple(names), cluster=tuple(cluster), head=head, uplink_bps=uplink
        ),
        broker_links=filled(
            BrokerLinks,
            len(links),
            source_broker=[one for one, _ in links],
            target_broker=[other for _, other in links],
            propagation_seconds=delays,
        ),
        switches=filled(Switches, 1, name=("core",)),
        ports=filled(OutputPorts, 1, name=("port",), switch=0, bandwidth_bps=1e9),
        publishers=filled(
            Publishers,
            len(published),
            name=tuple(f"p{c}-{t:02}" for c, t in published),
            broker=[at_head[c] for c, _ in published],
        ),
        publications=filled(
            Publications,
            len(published),
            publisher=np.arange(len(published)),
            topic=[t for _, t in published],
            rate_per_second=[rates[c][t] for c, t in published],
            size_bytes=size_bytes,
            size_distribution=SizeDistribution.CONSTANT,
        ),
        subscribers=filled(
            Subscribers,
            len(wanted),
            name=tuple(f"s{c}-{t:02}-{n:03}" for c, t, n in wanted),
            broker=[int(at_head[c]) + 1 for c, _, _ in wanted],
            port=0,
        ),
        subscriptions=filled(
            Subscriptions,
            len(wanted),
            subscriber=np.arange(len(wanted)),
            topic=[t for _, t, _ in wanted],
            utility_weight=1.0,
            max_latency_seconds=[latency[t] for _, t, _ in wanted],
        ),
    )


def report(
    clusters: BrokerClusters,
    placement: Placement | None = None,
    *,
    at_seconds: float = 1.0,
    queue_events: Floats | float = 0.0,
    output_per_second: Floats | None = None,
) -> LoadReport:
    """What would be measured with the stated rates; without `output_per_second` everything leaves as it comes."""
    placement = placement or clusters.stated
    topic = clusters.scenario.subscriptions.topic
    events = clusters.published(placement)[0].sum(axis=0)[topic]
    return LoadReport(
        at_seconds=at_seconds,
        placement=placement,
        present=np.ones(len(topic), dtype=bool),
        use=clusters.use(placement),
        wait_seconds=np.zeros(len(clusters.cluster)),
        rate_per_second=clusters.scenario.publications.rate_per_second,
        queue_events=np.broadcast_to(np.asarray(queue_events, dtype=np.float64), len(topic)).copy(),
        output_per_second=events if output_per_second is None else output_per_second,
    )
