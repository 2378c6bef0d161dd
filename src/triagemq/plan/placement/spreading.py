"""How bundles are spread over edge brokers; each algorithm returns the broker of every subscription."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from triagemq.plan.balancing.settings import Thresholds
from triagemq.plan.campus import Metric
from triagemq.plan.placement.problem import STRONG, PlacementProblem
from triagemq.scenario import Floats, Integers

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
    return problem.campus.stated.subscriptions


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
    campus, low = problem.campus, Thresholds().low
    edges_of = [campus.edges_of(cluster) for cluster in range(len(campus.clusters))]
    capacity = [campus.capacity[:, edges] for edges in edges_of]
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
            for beside in bundles_of.get((cluster, other), ()):
                if chosen[beside] >= 0:
                    together[chosen[beside]] += uplink[beside]
        best = _first(together / room[Metric.UPLINK], after, low) if together.any() else int(after.argmin())
        chosen[row] = best
        used[cluster][:, best] += need[:, row]
    broker = np.array([edges_of[cluster][place] for cluster, place in zip(cluster_of, chosen, strict=True)])
    return broker[problem.bundle].astype(np.int32)


def _first(together: Floats, after: Floats, low: float) -> int:
    """The broker with the least of the topic's partners, among those that stay in LOW if any does."""
    usable = after < low if (after < low).any() else np.isfinite(after)
    return int(np.lexsort((after, np.where(usable, together, np.inf)))[0])
