"""Placement of 10,000 topics for 100,000 subscribers on 100 brokers, and one balancing decision among them."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from measuring import finish, machine, options, peak_memory_bytes
from triagemq.lab.clusters import ALL_PLACEMENTS
from triagemq.plan.balancing.balancer import Balancer
from triagemq.plan.balancing.detection import LoadReport
from triagemq.plan.clusters import BrokerClusters, Metric
from triagemq.plan.placement import ClusterPlan, Correlations, place
from triagemq.scenario import (
    BrokerLinks,
    Brokers,
    OutputPorts,
    Publications,
    Publishers,
    Scenario,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
)
from triagemq.scenario.model import filled

PLACEMENT_LIMIT_SECONDS, DECISION_LIMIT_SECONDS = 2.0, 0.1
BROKERS_PER_CLUSTER = 10
LOAD = 0.6
GROUP = 5
"""Topics that move together."""


def campus_scenario(brokers: int, topics: int, subscribers: int, seed: int) -> Scenario:
    """Clusters of a head and nine edges of unequal bandwidths; a publisher for each topic and a topic for each
    subscriber, anywhere; the most popular topics have many subscribers, most have few."""
    draw = np.random.default_rng(seed)
    clusters = brokers // BROKERS_PER_CLUSTER
    cluster = np.repeat(np.arange(clusters), BROKERS_PER_CLUSTER)
    head = np.tile([1] + [0] * (BROKERS_PER_CLUSTER - 1), clusters)
    heads, edges = np.flatnonzero(head), np.flatnonzero(head == 0)
    others = np.array([(one, other) for one in heads for other in heads if one != other]).reshape(-1, 2)
    source = np.append(heads[cluster[edges]], others[:, 0])
    target = np.append(edges, others[:, 1])
    popularity = 1 / np.arange(10, topics + 10)
    wanted = draw.choice(topics, subscribers, p=popularity / popularity.sum())
    rate, size = draw.exponential(2.0, topics) + 0.1, draw.integers(100, 1000, topics).astype(np.float64)
    uplink = draw.choice([10e6, 20e6, 40e6], brokers)
    share = 8 * (rate * size)[wanted].sum() / (LOAD * uplink[edges].sum())
    everyone = np.arange(subscribers)
    return Scenario.of(
        name=f"{brokers} brokers",
        topics=Topics(tuple(f"topic-{number:05}" for number in range(topics))),
        brokers=filled(
            Brokers,
            brokers,
            name=tuple(f"broker-{number:03}" for number in range(brokers)),
            cluster=tuple(f"cluster-{each:02}" for each in cluster),
            head=head,
            inbound_rate_per_second=1e6,
            downlink_bps=np.where(head > 0, 1e11, 10 * uplink * share),
            uplink_bps=np.where(head > 0, 1e11, uplink * share),
        ),
        broker_links=filled(
            BrokerLinks, len(source), source_broker=source, target_broker=target, propagation_seconds=0.001
        ),
        switches=filled(Switches, 1, name=("core",)),
        ports=filled(OutputPorts, 1, name=("port",), switch=0, bandwidth_bps=1e12),
        publishers=filled(
            Publishers,
            topics,
            name=tuple(f"publisher-{number:05}" for number in range(topics)),
            broker=draw.choice(heads, topics),
        ),
        publications=filled(
            Publications,
            topics,
            publisher=np.arange(topics),
            topic=np.arange(topics),
            rate_per_second=rate,
            size_bytes=size,
        ),
        subscribers=filled(
            Subscribers,
            subscribers,
            name=tuple(f"subscriber-{number:06}" for number in range(subscribers)),
            broker=draw.choice(edges, subscribers),
            port=0,
        ),
        subscriptions=filled(
            Subscriptions,
            subscribers,
            subscriber=everyone,
            topic=wanted,
            utility_weight=1.0,
            max_latency_seconds=draw.uniform(0.5, 10.0, subscribers),
        ),
    )


def correlated(topics: int) -> Correlations:
    """Topics in small groups that move together."""
    group = np.arange(topics).reshape(-1, GROUP)
    one, other = np.triu_indices(GROUP, 1)
    first, second = group[:, one].ravel(), group[:, other].ravel()
    return Correlations(first.astype(np.int32), second.astype(np.int32), np.full(len(first), 0.9))


def report(clusters: BrokerClusters, broker: NDArray[np.int32], overloaded: int) -> LoadReport:
    """What is measured ten seconds after so many topics of one broker have doubled that its uplink is asked for a tenth
    too much: they wait, the largest first."""
    placement, scenario = replace(clusters.stated, subscriptions=broker), clusters.scenario
    topic, here = scenario.subscriptions.topic, broker == overloaded
    size = clusters.published(placement)[1].sum(axis=0)
    asked = np.bincount(topic[here], size[topic[here]], minlength=len(size))
    order = np.argsort(-asked)
    room = 1.1 * clusters.capacity[Metric.UPLINK, overloaded] - asked.sum()
    bursting = order[: 1 + int(np.searchsorted(np.cumsum(asked[order]), room))]
    rate = scenario.publications.rate_per_second * np.where(
        np.isin(scenario.publications.topic, bursting), 2.0, 1.0
    )
    events = clusters.published(placement, rate)[0].sum(axis=0)[topic]
    waiting = here & np.isin(topic, bursting)
    return LoadReport(
        at_seconds=1.0,
        placement=placement,
        present=np.ones(len(here), dtype=bool),
        use=clusters.use(placement, rate),
        wait_seconds=np.zeros(len(clusters.cluster)),
        rate_per_second=rate,
        queue_events=np.where(waiting, 10 * 0.1 * events, 0.0),
        output_per_second=np.where(waiting, 0.9 * events, events),
    )


def main() -> None:
    arguments = options(__doc__).parse_args()
    brokers, topics, subscribers = (20, 1_000, 10_000) if arguments.quick else (100, 10_000, 100_000)
    scenario = campus_scenario(brokers, topics, subscribers, 1)
    pairs = correlated(topics)
    found: dict[str, tuple[float, ClusterPlan]] = {}
    for name in ALL_PLACEMENTS:
        began = time.perf_counter()
        placed = place(scenario, name, correlations=pairs, seed=1, known=ALL_PLACEMENTS)
        found[name] = time.perf_counter() - began, placed
    placed = found["apart"][1]
    clusters, broker = placed.clusters, placed.placement.subscriptions
    decisions, moved = [], 0
    for overloaded in np.flatnonzero(clusters.edge)[:20].tolist():
        balancer, measured = Balancer(clusters), report(clusters, broker, overloaded)
        began = time.perf_counter()
        migrations = balancer.handle(measured)
        decisions.append(time.perf_counter() - began)
        moved += sum(len(each.subscriptions) for each in migrations)
    result = {
        "brokers": brokers,
        "topics": topics,
        "subscribers": subscribers,
        "placements": {
            name: {"seconds": seconds, "imbalance": placed.imbalance}
            for name, (seconds, placed) in found.items()
        },
        "decisions": len(decisions),
        "decision_seconds": {"median": float(np.median(decisions)), "most": max(decisions)},
        "moved_subscriptions": moved,
        "limits_seconds": {"placement": PLACEMENT_LIMIT_SECONDS, "decision": DECISION_LIMIT_SECONDS},
        "peak_memory_bytes": peak_memory_bytes(),
        "machine": machine("triagemq", "numpy"),
    }
    lines = [
        f"{topics:,} topics of {subscribers:,} subscribers on {brokers} brokers; limit {PLACEMENT_LIMIT_SECONDS:g} s",
        *(
            f"{name}: {seconds:.2f} s, most used edge {placed.imbalance:.2f} times the mean"
            for name, (seconds, placed) in found.items()
        ),
        f"one balancing decision: median {1e3 * np.median(decisions):.0f} ms, slowest of {len(decisions)} "
        f"{1e3 * max(decisions):.0f} ms, limit {1e3 * DECISION_LIMIT_SECONDS:.0f}; {moved} subscriptions moved in all",
    ]
    finish(result, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
