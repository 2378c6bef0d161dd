"""Baselines of placement, as plug-ins of the planner's: in turn, at random, and by PEER."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from triagemq.lab.clusters.peer import settled
from triagemq.plan.clusters import Placement
from triagemq.plan.placement import PLACEMENTS, PlacementAlgorithm, PlacementProblem
from triagemq.scenario import Integers


def round_robin(problem: PlacementProblem) -> Integers:
    """Topic by topic in turn, whatever they ask for."""
    place = np.arange(len(problem)) - np.searchsorted(problem.cluster, problem.cluster)
    return _nth_possible(problem, place)


def random(problem: PlacementProblem) -> Integers:
    """Any broker of the cluster."""
    return _nth_possible(problem, np.random.default_rng(problem.seed).integers(1 << 40, size=len(problem)))


def peer(problem: PlacementProblem) -> Integers:
    """All at the first edge broker of the cluster, from where PEER moves subscribers until loads differ no more."""
    clusters = problem.clusters
    first = np.array([clusters.edges_of(cluster)[0] for cluster in range(len(clusters.names))])
    begins = first[problem.cluster[problem.bundle]].astype(np.int32)
    return settled(clusters, Placement(begins, clusters.stated.publications)).subscriptions


ALL_PLACEMENTS: Mapping[str, PlacementAlgorithm] = MappingProxyType(
    {**PLACEMENTS, "round_robin": round_robin, "random": random, "peer": peer}
)
"""The planner's and the baselines."""


def _nth_possible(problem: PlacementProblem, place: NDArray[np.int64]) -> Integers:
    rank = np.cumsum(problem.possible, axis=1) - 1
    number = place % problem.possible.sum(axis=1)
    broker = (problem.possible & (rank == number[:, None])).argmax(axis=1)
    return np.asarray(broker[problem.bundle], dtype=np.int32)
