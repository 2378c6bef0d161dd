"""In which order clients leave an overloaded broker (PEER-WD 4.3.2 and Table 4).

Clients of one topic are a bundle. Bundles are in groups by where the other ends of their topics are, or by their
queues; within a group those that may wait longest leave first.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from triagemq.plan.campus import Flags, Metric
from triagemq.scenario import Floats, Integers


class OtherEnds(IntEnum):
    """Where the other ends of a topic are, seen from a cluster: its subscribers from a head, its publishers from an
    edge."""

    REMOTE = 0
    BOTH = 1
    LOCAL = 2
    NONE = 3

    @classmethod
    def of(cls, local: Flags, remote: Flags) -> Integers:
        """By whether there are some in the cluster, and some elsewhere."""
        some = np.where(remote, np.where(local, cls.BOTH, cls.REMOTE), cls.LOCAL)
        return np.where(local | remote, some, cls.NONE).astype(np.int32)


class QueueState(IntEnum):
    """What the queues of a topic hold at an edge."""

    EMPTY = 0
    WAITING = 1
    TOO_DEEP = 2


PUBLISHERS: dict[Metric, tuple[OtherEnds, ...]] = {
    Metric.DOWNLINK: (OtherEnds.NONE, OtherEnds.REMOTE, OtherEnds.BOTH, OtherEnds.LOCAL),
    Metric.UPLINK: (OtherEnds.REMOTE, OtherEnds.BOTH, OtherEnds.LOCAL, OtherEnds.NONE),
}
"""Publishers of a head: without subscribers they take nothing of its uplink."""

SUBSCRIBERS: dict[Metric, tuple[tuple[OtherEnds, ...], ...]] = {
    Metric.DOWNLINK: ((OtherEnds.REMOTE,), (OtherEnds.BOTH,), (OtherEnds.LOCAL,), (OtherEnds.NONE,)),
    Metric.UPLINK: ((OtherEnds.REMOTE,), (OtherEnds.BOTH,), (OtherEnds.LOCAL,), (OtherEnds.NONE,)),
    Metric.MATCHING: ((OtherEnds.NONE,), (OtherEnds.REMOTE, OtherEnds.BOTH, OtherEnds.LOCAL)),
}
"""Subscribers of an edge, Table 4; by queue depth they leave by QueueState."""


def publisher_order(metric: Metric, ends: Integers, allowed_seconds: Floats) -> Integers:
    """The bundles of a head, first to leave first; of each, where its subscribers are and the shortest wait allowed."""
    rank = np.empty(len(OtherEnds), dtype=np.int32)
    rank[list(PUBLISHERS[metric])] = range(len(OtherEnds))
    return _ordered(rank[ends], allowed_seconds)


def subscriber_order(metric: Metric, ends: Integers, queues: Integers, allowed_seconds: Floats) -> Integers:
    """The bundles of an edge, first to leave first; of each, where its publishers are, its QueueState, and the shortest
    wait allowed."""
    if metric is Metric.QUEUE_DEPTH:
        return _ordered(queues, allowed_seconds)
    rank = np.empty(len(OtherEnds), dtype=np.int32)
    for place, group in enumerate(SUBSCRIBERS[metric]):
        rank[list(group)] = place
    return _ordered(rank[ends], allowed_seconds)


def _ordered(rank: Integers, allowed_seconds: Floats) -> Integers:
    return np.lexsort((-allowed_seconds, rank)).astype(np.int32)
