"""Placement: which edge broker of its cluster serves each topic (PEER-WD section 4.1).

Every topic that is wanted in a cluster is one bundle, to be served by one edge broker; a topic that asks for more than
any edge takes comes as several. Algorithms are by name (`lab.clusters` has the baselines); `Newcomers` are subscribers
that come later, one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import PlanError
from triagemq.plan.balancing.detection import Thresholds
from triagemq.plan.clusters import CAPACITIES, BrokerClusters, Flags, Metric, Placement
from triagemq.plan.model import Decision
from triagemq.plan.planner import resolve
from triagemq.scenario import Floats, Integers, Scenario, Table

STRONG = 0.5
"""From this correlation on, two topics are placed apart. Only positive correlation makes peaks meet."""


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

    clusters: BrokerClusters
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
        cls, clusters: BrokerClusters, correlations: Correlations = NO_CORRELATIONS, seed: int = 0
    ) -> PlacementProblem:
        wanted, topics = clusters.scenario.subscriptions, len(clusters.scenario.topics)
        home = clusters.cluster[clusters.stated.subscriptions]
        events_of, bytes_of = (each.sum(axis=0) for each in clusters.published(clusters.stated))
        cell = home.astype(np.int64) * topics + wanted.topic
        parts = _parts(clusters, cell, bytes_of)
        most = int(parts.max(initial=0)) + 1
        cells, bundle = np.unique(cell * most + parts, return_inverse=True)
        cluster, topic = np.divmod(cells // most, topics)
        events, size = events_of[topic], bytes_of[topic]
        count = np.bincount(bundle, minlength=len(cells))
        possible = _possible(clusters, home, bundle, len(cells))
        edges = clusters.edge & (clusters.cluster == cluster[:, None])
        late = possible.sum(axis=1) == 0
        return cls(
            clusters=clusters,
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
        clusters = self.clusters
        mean = [
            clusters.capacity[:, clusters.edges_of(cluster)].mean(axis=1)
            for cluster in range(len(clusters.names))
        ]
        return np.asarray((self.need / np.stack(mean, axis=1)[:, self.cluster]).max(axis=0))


def _parts(clusters: BrokerClusters, cell: NDArray[np.int64], bytes_of: Floats) -> NDArray[np.int64]:
    """Per subscription, which of equal parts of its topic it belongs to; 0 where one broker can serve all of them."""
    topics = len(bytes_of)
    cells, row, count = np.unique(cell, return_inverse=True, return_counts=True)
    largest = np.array(
        [
            clusters.capacity[Metric.UPLINK, clusters.edges_of(each)].max()
            for each in range(len(clusters.names))
        ]
    )
    wanted = count * bytes_of[cells % topics] / (Thresholds().low * largest[cells // topics])
    order = np.argsort(row, kind="stable")
    place = np.empty(len(cell), dtype=np.int64)
    place[order] = np.arange(len(cell)) - (np.cumsum(count) - count)[row[order]]
    return np.asarray(place * np.ceil(np.maximum(wanted, 1)).astype(np.int64)[row] // count[row])


def _possible(clusters: BrokerClusters, home: Integers, bundle: NDArray[np.int64], bundles: int) -> Flags:
    """Per bundle and broker, whether it is an edge of the cluster, where an event that waits nowhere keeps every
    deadline."""
    found, delays = (
        np.zeros((bundles, len(clusters.cluster)), dtype=np.bool_),
        clusters.delays(clusters.stated),
    )
    for cluster in range(len(clusters.names)):
        rows = np.flatnonzero(home == cluster)
        for broker in clusters.edges_of(cluster).tolist():
            at_broker = np.full(len(rows), broker, dtype=np.int32)
            late = delays.allowed_seconds(at_broker, rows) <= 0
            found[np.unique(bundle[rows]), broker] = True
            found[bundle[rows[late]], broker] = False
    return found


PlacementAlgorithm = Callable[[PlacementProblem], Integers]


def apart(problem: PlacementProblem) -> Integers:
    """Strongly correlated topics on different brokers, as far as there are enough; then the least used broker.

    Bundles are placed in the order of what they ask for, the largest first. Among the brokers that stay in LOW (all,
    if none does) those come first whose uplink has the least of topics that move with this one.
    """
    return _least_used(problem, _partners(problem))


def least_used(problem: PlacementProblem) -> Integers:
    """The broker whose most used metric is lowest with the bundle, the largest bundles first."""
    return _least_used(problem, {})


def stated(problem: PlacementProblem) -> Integers:
    """As the scenario says."""
    return problem.clusters.stated.subscriptions


PLACEMENTS: Mapping[str, PlacementAlgorithm] = MappingProxyType(
    {
        "apart": apart,
        "least_used": least_used,
        "stated": stated,
    }
)


def _partners(problem: PlacementProblem) -> dict[int, list[int]]:
    """Per topic, those that move with it."""
    pairs, found = problem.correlations, dict[int, list[int]]()
    strong = pairs.correlation >= STRONG
    for one, other in zip(pairs.topic[strong].tolist(), pairs.other_topic[strong].tolist(), strict=True):
        found.setdefault(one, []).append(other)
        found.setdefault(other, []).append(one)
    return found


def _least_used(problem: PlacementProblem, partners: Mapping[int, list[int]]) -> Integers:
    clusters, low = problem.clusters, Thresholds().low
    edges_of = [clusters.edges_of(cluster) for cluster in range(len(clusters.names))]
    capacity = [clusters.capacity[:, edges] for edges in edges_of]
    used = [np.zeros_like(each) for each in capacity]
    chosen = np.full(len(problem), -1, dtype=np.int64)
    need, cluster_of, topics = problem.need, problem.cluster.tolist(), problem.topic.tolist()
    uplink = need[Metric.UPLINK]
    bundles_of: dict[tuple[int, int], list[int]] = {}
    for row, key in enumerate(zip(cluster_of, topics, strict=True)):
        bundles_of.setdefault(key, []).append(row)
    for row in np.argsort(-problem.use, kind="stable").tolist():
        cluster = cluster_of[row]
        edges, room = edges_of[cluster], capacity[cluster]
        after = ((used[cluster] + need[:, row, None]) / room).max(axis=0)
        after[~problem.possible[row, edges]] = np.inf
        together = np.zeros(len(edges))
        for other in partners.get(topics[row], ()):
            for partner in bundles_of.get((cluster, other), ()):
                if chosen[partner] >= 0:
                    together[chosen[partner]] += uplink[partner]
        best = _first(together / room[Metric.UPLINK], after, low) if together.any() else int(after.argmin())
        chosen[row] = best
        used[cluster][:, best] += need[:, row]
    broker = np.array([edges_of[cluster][place] for cluster, place in zip(cluster_of, chosen, strict=True)])
    return broker[problem.bundle].astype(np.int32)


def _first(together: Floats, after: Floats, low: float) -> int:
    """The broker with the least of the topic's partners, among those that stay in LOW if any does."""
    usable = after < low if (after < low).any() else np.isfinite(after)
    return int(np.lexsort((after, np.where(usable, together, np.inf)))[0])


@dataclass(frozen=True, slots=True, eq=False)
class ClusterPlan:
    """A placement, what made it, and how much of every broker it uses."""

    algorithm: str
    problem: PlacementProblem
    placement: Placement
    use: Floats

    @property
    def clusters(self) -> BrokerClusters:
        return self.problem.clusters

    @property
    def imbalance(self) -> float:
        """The most used metric of the most used edge, over the mean of all edges."""
        most = self.use.max(axis=0)[self.clusters.edge]
        return float(most.max() / most.mean()) if most.any() else 1.0

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Topics that no edge serves in time."""
        names, problem = self.clusters.scenario.topics.name, self.problem
        return tuple(
            Decision(
                "placement",
                names[problem.topic[row]],
                "",
                self.clusters.scenario.brokers.name[self._brokers(row)[0]],
                "the path to every edge broker of the cluster takes longer than a subscriber allows",
            )
            for row in np.flatnonzero(problem.late).tolist()
        )

    def _brokers(self, bundle: int) -> list[int]:
        return [int(each) for each in np.unique(self.placement.subscriptions[self.problem.bundle == bundle])]

    def as_json(self) -> dict[str, Any]:
        """One object: what every broker has of topics and subscriptions, and how much of it is used."""
        scenario, served = self.clusters.scenario, self.placement.subscriptions
        topic = scenario.subscriptions.topic
        rows = []
        for broker, name in enumerate(scenario.brokers.name):
            topics = np.unique(topic[served == broker])
            published = scenario.publications.topic[self.placement.publications == broker]
            rows.append(
                {
                    "broker": name,
                    "cluster": scenario.brokers.cluster[broker],
                    "head": bool(scenario.brokers.head[broker]),
                    "subscriptions": int((served == broker).sum()),
                    "topics": [scenario.topics.name[each] for each in topics],
                    "published_topics": len(np.unique(published)),
                    **{
                        f"{metric.name.lower()}_use": float(self.use[metric, broker]) for metric in CAPACITIES
                    },
                }
            )
        return {"placement": self.algorithm, "imbalance": self.imbalance, "brokers": rows}


def place(
    scenario: Scenario,
    algorithm: str = "apart",
    *,
    correlations: Correlations = NO_CORRELATIONS,
    seed: int = 0,
    known: Mapping[str, PlacementAlgorithm] = PLACEMENTS,
) -> ClusterPlan:
    """The placement of the named algorithm: a key of `known`, or a function of your own as `module:function`."""
    clusters = BrokerClusters.of(scenario)
    problem = PlacementProblem.of(clusters, correlations, seed)
    found = np.asarray(resolve("placement", algorithm, known)(problem))
    if found.shape != problem.bundle.shape or not np.issubdtype(found.dtype, np.integer):
        raise PlanError(
            f"placement {algorithm!r} returned {found.dtype} of shape {found.shape}; "
            f"{len(problem.bundle)} integers are needed"
        )
    if not np.isin(found, np.flatnonzero(clusters.edge)).all():
        raise PlanError(f"placement {algorithm!r} put subscriptions where there is no edge broker")
    placement = Placement(found.astype(np.int32), clusters.stated.publications)
    return ClusterPlan(algorithm, problem, placement, clusters.use(placement))


def explain_placement(placed: ClusterPlan, row: int) -> str:
    """Why a subscription is served by its broker, in words."""
    clusters, problem, scenario = placed.clusters, placed.problem, placed.clusters.scenario
    bundle = int(problem.bundle[row])
    broker = int(placed.placement.subscriptions[row])
    name = scenario.brokers.name[broker]
    cluster = clusters.names[problem.cluster[bundle]]
    shares = ", ".join(f"{metric.words} {placed.use[metric, broker]:.1%}" for metric in CAPACITIES)
    lines = [f"Broker: {name} of {cluster}, with {shares} in use."]
    if placed.algorithm in ("apart", "least_used"):
        lines.append(
            f"All subscribers of a topic in a cluster have one broker, so that its events come there once. "
            f"This topic asks for {problem.use[bundle]:.1%} of an average edge broker; larger ones came before it, "
            "and it went where the most used metric stays lowest."
        )
    else:
        lines.append(f"As {placed.algorithm} decided.")
    partners = _partners(problem).get(int(problem.topic[bundle]), ())
    correlated = [
        scenario.topics.name[each] for each in sorted(partners) if _is_wanted_there(problem, bundle, each)
    ]
    if correlated and placed.algorithm == "apart":
        lines.append(
            f"It was placed apart from topics that move with it (correlation {STRONG:g} or more): "
            f"{', '.join(correlated)}."
        )
    if problem.late[bundle]:
        lines.append("No edge broker of the cluster is near enough for what a subscriber allows.")
    elif not problem.possible[bundle, clusters.edges_of(int(problem.cluster[bundle]))].all():
        far = [
            scenario.brokers.name[each]
            for each in clusters.edges_of(int(problem.cluster[bundle])).tolist()
            if not problem.possible[bundle, each]
        ]
        lines.append(f"Too far for what a subscriber allows: {', '.join(far)}.")
    return "\n".join(lines)


def _is_wanted_there(problem: PlacementProblem, bundle: int, topic: int) -> bool:
    """Whether a topic is wanted in the cluster of a bundle."""
    return bool(((problem.topic == topic) & (problem.cluster == problem.cluster[bundle])).any())


class Newcomers:
    """`take` says where each is to be served, and counts it there."""

    def __init__(self, clusters: BrokerClusters, placement: Placement) -> None:
        """Beside those who are served as `placement` says; subscriptions at broker -1 are nowhere."""
        topic, broker = clusters.scenario.subscriptions.topic, placement.subscriptions
        served = broker >= 0
        self._clusters = clusters
        self._use = clusters.use(placement, present=served)
        self._serves = np.zeros((len(clusters.cluster), len(clusters.scenario.topics)), dtype=np.bool_)
        self._serves[broker[served], topic[served]] = True
        events, size = clusters.published(placement)
        self._need = np.stack([size.sum(axis=0), events.sum(axis=0)])

    def take(self, topics: Sequence[int], brokers: Sequence[int]) -> int:
        """Of these brokers, the one that is to serve these topics to one more subscriber.

        Among those that stay in LOW it is the one to which least has to come that it has not; then, or if none stays
        there, the one whose most used metric stays lowest.
        """
        wanted, edges = np.array(topics, dtype=np.int64), np.array(brokers, dtype=np.int64)
        size, events = self._need[:, wanted]
        new = ~self._serves[np.ix_(edges, wanted)]
        required = np.stack([new @ size, new @ events, np.full(len(edges), size.sum())])
        after = self._use[:, edges] + required / self._clusters.capacity[:, edges]
        most = after.max(axis=0)
        anew = np.where(most < Thresholds().low, required[Metric.DOWNLINK], np.inf)
        best = int(np.lexsort((most, anew))[0])
        self._use[:, edges[best]] = after[:, best]
        self._serves[edges[best], wanted] = True
        return int(edges[best])
