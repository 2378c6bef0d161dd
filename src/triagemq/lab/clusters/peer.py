"""PEER, the baseline: brokers of a cluster are balanced when their loads differ, whatever is waiting for whom.

Cheung and Jacobsen (ACM TOCS 2010), as PEER-WD section 2 sums it up: input utilisation, matching delay and output
utilisation are compared between brokers, and subscribers move one by one until the two would be alike. Nothing is
placed beforehand, nothing predicted, and deadlines are not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.balancing.detection import Completed, LoadReport, Migration, Thresholds
from triagemq.plan.clusters import BrokerClusters, Flags, Metric, Placement
from triagemq.scenario import Floats, Integers

MOST_ROUNDS = 50
"""Of balancings in every cluster; some never settle, because what is too much here is too much there."""

COMPARED = (Metric.UPLINK, Metric.MATCHING)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """PEER: two brokers are balanced when a load differs by more than `difference`, in parts of a capacity.

    PEER-WD prints PEER's two thresholds and not the difference; a tenth is ours. `difference_seconds` is the same for
    matching delays.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    difference: float = 0.1
    difference_seconds: float = 0.1
    timeout_seconds: float = 10.0


BASELINES = {"peer": f"{__name__}:Peer"}
"""Policies of the laboratory by their short names, as `module:function` that every process can load."""


class Peer:
    """PEER as a state machine with the events of `Balancer`."""

    def __init__(self, clusters: BrokerClusters, settings: PeerSettings | None = None) -> None:
        self._clusters = clusters
        self._settings = settings or PeerSettings()
        self._under_way: dict[int, tuple[tuple[int, int], float]] = {}
        self._begun = 0

    def handle(self, event: LoadReport | Completed) -> tuple[Migration, ...]:
        """What is to be done after this has happened."""
        if isinstance(event, Completed):
            self._under_way.pop(event.balancing, None)
            return ()
        now = event.at_seconds
        self._under_way = {number: each for number, each in self._under_way.items() if now < each[1]}
        free = np.ones(len(self._clusters.cluster), dtype=bool)
        for busy, _ in self._under_way.values():
            free[list(busy)] = False
        found = []
        for cluster in range(len(self._clusters.names)):
            # Of its bandwidth a broker uses no more than all, whatever waits.
            used = np.minimum(event.use, 1.0)
            pair = unlike(self._clusters, self._settings, cluster, used, event.wait_seconds, free)
            if pair is None:
                continue
            source, target, metric = pair
            rows = evened(self._clusters, event.placement, event.rate_per_second, event.present, pair)
            if not len(rows):
                continue
            self._begun += 1
            self._under_way[self._begun] = ((source, target), now + self._settings.timeout_seconds)
            loads = f"{used[metric, source]:.1%} beside {used[metric, target]:.1%}"
            found.append(
                Migration(self._begun, now, source, target, metric, f"{metric.words} use is {loads}", rows)
            )
        return tuple(found)


def unlike(
    clusters: BrokerClusters,
    settings: PeerSettings,
    cluster: int,
    use: Floats,
    wait_seconds: Floats,
    free: Flags,
) -> tuple[int, int, Metric] | None:
    """The edges of a cluster that have most and least of a metric, if they differ by too much."""
    edges = clusters.edges_of(cluster)
    edges = edges[free[edges]]
    if len(edges) < 2:
        return None
    for metric in COMPARED:
        source, target = int(edges[use[metric, edges].argmax()]), int(edges[use[metric, edges].argmin()])
        apart = use[metric, source] - use[metric, target] > settings.difference
        if metric is Metric.MATCHING:
            apart = apart or wait_seconds[source] - wait_seconds[target] > settings.difference_seconds
        overloaded = use[metric, source] > settings.thresholds.high
        if (apart or overloaded) and (use[:, target] < settings.thresholds.low).all():
            return source, target, metric
    return None


def evened(
    clusters: BrokerClusters,
    placement: Placement,
    rate_per_second: Floats,
    present: Flags,
    pair: tuple[int, int, Metric],
) -> Integers:
    """The subscriptions that leave the first broker for the second so that both would use as much, largest first."""
    source, target, metric = pair
    topic = clusters.scenario.subscriptions.topic
    events, size = clusters.published(placement, rate_per_second)
    at_source = np.flatnonzero((placement.subscriptions == source) & present)
    of_topic = (size if metric is Metric.UPLINK else events).sum(axis=0)
    load = of_topic[topic[at_source]]
    if metric is Metric.MATCHING:
        # All subscribers of a topic share what matching it costs.
        load = load / np.bincount(topic[at_source], minlength=len(of_topic))[topic[at_source]]
    there = (placement.subscriptions == target) & present
    at_target = (
        float((of_topic[topic[there]]).sum())
        if metric is Metric.UPLINK
        else float(of_topic[np.unique(topic[there])].sum())
    )
    one, other = clusters.capacity[metric, source], clusters.capacity[metric, target]
    target_load = (float(load.sum()) * other - at_target * one) / (one + other)
    return at_source[_largest_within(load, target_load)].astype(np.int32)


def _largest_within(load: Floats, target_load: float) -> NDArray[np.int64]:
    """Rows of which no more than `target_load` is taken in all, the largest that fit first."""
    order = np.argsort(-load, kind="stable")
    taken: list[NDArray[np.int64]] = []
    while len(order):
        fits = order[load[order] <= target_load]
        within = int((np.cumsum(load[fits]) <= target_load).sum())
        if not within:
            break
        taken.append(fits[:within])
        target_load -= float(load[fits[:within]].sum())
        order = fits[within:]
    return np.concatenate(taken) if taken else np.empty(0, dtype=np.int64)


def settled(
    clusters: BrokerClusters, placement: Placement, settings: PeerSettings | None = None
) -> Placement:
    """Where PEER ends from a placement, with the rates that the scenario states."""
    settings = settings or PeerSettings()
    broker = placement.subscriptions.copy()
    rate, present = clusters.scenario.publications.rate_per_second, np.ones(len(broker), dtype=bool)
    nothing, everyone = np.zeros(len(clusters.cluster)), np.ones(len(clusters.cluster), dtype=bool)
    for _ in range(MOST_ROUNDS):
        now = Placement(broker.copy(), placement.publications)
        use, still = clusters.use(now), True
        for cluster in range(len(clusters.names)):
            pair = unlike(clusters, settings, cluster, use, nothing, everyone)
            rows = evened(clusters, now, rate, present, pair) if pair is not None else ()
            if pair is not None and len(rows):
                broker[rows] = pair[1]
                still = False
        if still:
            break
    return Placement(broker, placement.publications)
