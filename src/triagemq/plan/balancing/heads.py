"""Who leaves an overloaded head for where: publications, topic by topic, until it would not be overloaded any more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.balancing.basis import Leaving, OffloadBasis, RowNumbers
from triagemq.plan.balancing.events import LoadReport
from triagemq.plan.balancing.offloading import OtherEnds, publisher_order
from triagemq.plan.campus import Campus, Metric, Placement, head_traffic
from triagemq.plan.demands import sum_by
from triagemq.scenario import Floats


def from_head(basis: OffloadBasis, source: int) -> list[Leaving]:
    """Publications that leave a head for other heads, topic by topic."""
    campus, measured = basis.campus, basis.measured
    metric = basis.metric(source)
    candidates = basis.accepting(metric, edges=False)
    home = int(campus.cluster[source])
    published = campus.published(measured.placement, basis.outlook.expected_rate)[1]
    edges = _edges_with(campus, measured)
    placed, use = measured.placement.publications.copy(), measured.use.copy()
    links = np.array([Metric.DOWNLINK, Metric.UPLINK])
    high = basis.settings.thresholds.high
    moves: list[Leaving] = []
    for rows in _head_bundles(basis, source, metric, edges):
        topic = int(campus.scenario.publications.topic[rows[0]])
        moved_bytes = float((basis.outlook.expected_rate * campus.publication_bytes)[rows].sum())
        before = head_traffic(published[:, [topic]], edges[:, [topic]])
        for target in candidates.tolist():
            column = published[:, [topic]].copy()
            column[home] -= moved_bytes
            column[campus.cluster[target]] += moved_bytes
            change = head_traffic(column, edges[:, [topic]]) - before
            after = use.copy()
            after[np.ix_(links, campus.heads)] += change.T / campus.capacity[np.ix_(links, campus.heads)]
            helps = after[metric, source] < use[metric, source]
            if not helps or (after[links, target] > high).any():
                continue
            trial = placed.copy()
            trial[rows] = target
            if _late(campus, measured, trial, topic):
                continue
            placed, use, published[:, [topic]] = trial, after, column
            moves.append(Leaving(source, target, rows))
            break
        if use[metric, source] <= high:
            break
    return moves


def _edges_with(campus: Campus, measured: LoadReport) -> Floats:
    """Per cluster and topic, how many edges serve it."""
    topics = len(campus.scenario.topics)
    here = measured.present
    cells = np.unique(
        measured.placement.subscriptions[here].astype(np.int64) * topics
        + campus.scenario.subscriptions.topic[here]
    )
    broker, topic = np.divmod(cells, topics)
    return sum_by(
        campus.cluster[broker], topic.astype(np.int32), (len(campus.clusters), topics), np.ones(len(cells))
    )


def _head_bundles(basis: OffloadBasis, source: int, metric: Metric, edges: Floats) -> Iterator[RowNumbers]:
    campus, measured = basis.campus, basis.measured
    here = np.flatnonzero((measured.placement.publications == source) & basis.movable_publications)
    topics, bundle = np.unique(campus.scenario.publications.topic[here], return_inverse=True)
    local = edges[campus.cluster[source], topics] > 0
    remote = (edges[:, topics] > 0).sum(axis=0) > local
    shortest = np.full(len(campus.scenario.topics), np.inf)
    present = measured.present
    np.minimum.at(
        shortest,
        campus.scenario.subscriptions.topic[present],
        basis.outlook.expected.allowed_seconds[present],
    )
    for each in publisher_order(metric, OtherEnds.of(local, remote), shortest[topics]).tolist():
        yield here[bundle == each]


def _late(campus: Campus, measured: LoadReport, publications: NDArray[np.int32], topic: int) -> bool:
    """Whether a topic would come too late to anybody, with its publishers at other heads."""
    rows = campus.subscriptions_of(topic)
    rows = rows[measured.present[rows]]
    placement = Placement(measured.placement.subscriptions, publications)
    broker = measured.placement.subscriptions[rows]
    ways = campus.ways(placement, measured.wait_seconds)
    return bool((ways.allowed_seconds(broker, rows) <= 0).any())
