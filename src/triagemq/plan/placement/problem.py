"""What is to be placed: every topic that somebody in a cluster wants is one bundle, to be served by one edge broker.

A topic that asks for more than any edge of the cluster takes comes as several.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.balancing.settings import Thresholds
from triagemq.plan.campus import Campus, Flags, Metric
from triagemq.scenario import Floats, Integers, Scenario, Table

STRONG = 0.5
"""From this correlation on, two topics are kept apart. Only positive correlation makes peaks meet."""


@dataclass(frozen=True, slots=True, eq=False)
class Correlations(Table):
    """Pairs of topics whose rates move together, by Pearson's coefficient; pairs that are not here do not."""

    topic: Integers
    other_topic: Integers
    correlation: Floats

    @classmethod
    def between(cls, scenario: Scenario, pairs: Iterable[tuple[str, str, float]]) -> Correlations:
        """By the names of topics; those that the scenario does not have are left out."""
        rows = {name: row for row, name in enumerate(scenario.topics.name)}
        known = [
            (rows[one], rows[other], value) for one, other, value in pairs if one in rows and other in rows
        ]
        topic, other_topic, correlation = zip(*known, strict=True) if known else ((), (), ())
        return cls(
            np.array(topic, dtype=np.int32),
            np.array(other_topic, dtype=np.int32),
            np.array(correlation, dtype=np.float64),
        )


NO_CORRELATIONS = Correlations(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0))


@dataclass(frozen=True, slots=True, eq=False)
class PlacementProblem:
    """Bundles as columns: the subscriptions of one topic in one cluster (or a part of them), in order of both.

    `need` has a row for each metric: what the bundle asks of the broker that serves it. `possible` says which brokers
    can: edges of its cluster over which its events come before the deadlines of all its subscriptions; all edges where
    none can. `bundle` is the bundle of every subscription.
    """

    campus: Campus
    cluster: Integers
    topic: Integers
    bundle: Integers
    need: Floats
    possible: Flags
    late: Flags
    correlations: Correlations
    seed: int

    @classmethod
    def of(
        cls, campus: Campus, correlations: Correlations = NO_CORRELATIONS, seed: int = 0
    ) -> PlacementProblem:
        wanted, topics = campus.scenario.subscriptions, len(campus.scenario.topics)
        home = campus.cluster[campus.stated.subscriptions]
        events_of, bytes_of = (each.sum(axis=0) for each in campus.published(campus.stated))
        cell = home.astype(np.int64) * topics + wanted.topic
        parts = _parts(campus, cell, bytes_of)
        most = int(parts.max(initial=0)) + 1
        cells, bundle = np.unique(cell * most + parts, return_inverse=True)
        cluster, topic = np.divmod(cells // most, topics)
        events, size = events_of[topic], bytes_of[topic]
        count = np.bincount(bundle, minlength=len(cells))
        possible = _possible(campus, home, bundle, len(cells))
        edges = campus.edge & (campus.cluster == cluster[:, None])
        late = possible.sum(axis=1) == 0
        return cls(
            campus=campus,
            cluster=cluster.astype(np.int32),
            topic=topic.astype(np.int32),
            bundle=bundle.astype(np.int32),
            need=np.stack([size, events, size * count]),
            possible=np.where(late[:, None], edges, possible),
            late=late,
            correlations=correlations,
            seed=seed,
        )

    def __len__(self) -> int:
        return len(self.topic)

    @property
    def use(self) -> Floats:
        """Per bundle, the largest part that it asks for of any capacity of the average edge of its cluster."""
        campus = self.campus
        mean = [
            campus.capacity[:, campus.edges_of(cluster)].mean(axis=1)
            for cluster in range(len(campus.clusters))
        ]
        return np.asarray((self.need / np.stack(mean, axis=1)[:, self.cluster]).max(axis=0))


def _parts(campus: Campus, cell: NDArray[np.int64], bytes_of: Floats) -> NDArray[np.int64]:
    """Per subscription, which of equal parts of its topic it belongs to; 0 where one broker can serve all of them."""
    topics = len(bytes_of)
    cells, row, count = np.unique(cell, return_inverse=True, return_counts=True)
    largest = np.array(
        [campus.capacity[Metric.UPLINK, campus.edges_of(each)].max() for each in range(len(campus.clusters))]
    )
    wanted = count * bytes_of[cells % topics] / (Thresholds().low * largest[cells // topics])
    order = np.argsort(row, kind="stable")
    place = np.empty(len(cell), dtype=np.int64)
    place[order] = np.arange(len(cell)) - (np.cumsum(count) - count)[row[order]]
    return np.asarray(place * np.ceil(np.maximum(wanted, 1)).astype(np.int64)[row] // count[row])


def _possible(campus: Campus, home: Integers, bundle: NDArray[np.int64], bundles: int) -> Flags:
    """Per bundle and broker, whether it is an edge of the cluster, where an event that waits nowhere keeps every
    deadline."""
    found, ways = np.zeros((bundles, len(campus.cluster)), dtype=np.bool_), campus.ways(campus.stated)
    for cluster in range(len(campus.clusters)):
        rows = np.flatnonzero(home == cluster)
        for broker in campus.edges_of(cluster).tolist():
            at_broker = np.full(len(rows), broker, dtype=np.int32)
            late = ways.allowed_seconds(at_broker, rows) <= 0
            found[np.unique(bundle[rows]), broker] = True
            found[bundle[rows[late]], broker] = False
    return found
