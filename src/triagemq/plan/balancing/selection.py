"""Who leaves an overloaded broker for where: bundle by bundle, until it would not be overloaded any more.

Clients of one topic are a bundle. Bundles are grouped by where the other ends of their topics are, or by their queues;
within a group those that may wait longest leave first (PEER-WD 4.3.2 and Table 4). At an edge a bundle is split only if
no bundle fits anywhere (4.4.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.balancing.detection import LoadReport
from triagemq.plan.balancing.trial import EdgeTrial, Leaving, OffloadBasis, RowNumbers
from triagemq.plan.campus import Campus, Flags, Metric, Placement, head_traffic
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


def from_edge(basis: OffloadBasis, source: int) -> list[Leaving]:
    """Subscriptions that leave an edge, and those of other edges for which there would be no room after that.

    A broker that has taken clients may not be in LOW any more. Where others have to send more than they can, and
    could not be relieved later, they are relieved at once.
    """
    accepting = basis.accepting(basis.metric(source), edges=True)
    alone, enough = _relieved(EdgeTrial(basis), source, accepting)
    later = alone.in_low(accepting)
    doomed = [
        each
        for each in alone.growing.tolist()
        if each != source and basis.free[each] and not _relieved(alone, each, later)[1]
    ]
    for order in ([source, *doomed], [*doomed, source]) if doomed else ():
        trial = EdgeTrial(basis)
        for each in order:
            trial, enough = _relieved(trial, each, accepting)
            if not enough:
                break
        else:
            return trial.moves
    return alone.moves


def _relieved(trial: EdgeTrial, source: int, accepting: RowNumbers) -> tuple[EdgeTrial, bool]:
    """What leaves an edge, and whether that is enough: within its cluster; to other clusters, too, if that is not
    enough.

    Where the bundles that fit are not enough, single subscriptions may be: then these leave, the largest first; and
    where these find no room, brokers in LOW make some for each other. If nothing is enough, as much leaves as fits.
    """
    basis, accepting = trial.basis, accepting[accepting != source]
    nearby = basis.campus.cluster[accepting] == basis.campus.cluster[source]
    everywhere = np.concatenate([accepting[nearby], accepting[~nearby]])
    bundles = list(_bundles(basis, source))
    by_load = sorted(bundles, key=lambda rows: -float(trial.load(rows[:1])[0]))
    whole = trial
    for candidates in (accepting[nearby], everywhere):
        whole = trial.copy()
        if whole.offer(source, bundles, candidates):
            whole.spare(source, len(trial.moves))
            return whole, True
    for make_room in (False, True):
        alone = trial.copy()
        if alone.offer_singly(source, by_load, everywhere, make_room=make_room):
            alone.spare(source, len(trial.moves))
            return alone, True
    whole.offer_singly(source, bundles, everywhere)
    return whole, False


def _bundles(basis: OffloadBasis, source: int) -> Iterator[RowNumbers]:
    """The bundles of an edge in the order in which they leave, and in each those first that may wait longest."""
    campus, measured, allowed = basis.campus, basis.measured, basis.outlook.expected.allowed_seconds
    here = np.flatnonzero((measured.placement.subscriptions == source) & measured.present & basis.movable)
    if not len(here):
        return
    topics, bundle = np.unique(campus.scenario.subscriptions.topic[here], return_inverse=True)
    published = campus.published(measured.placement)[0][:, topics] > 0
    local = published[campus.cluster[source]]
    remote = published.sum(axis=0) > local
    waiting = np.where(measured.queue_events[here] > 0, QueueState.WAITING, QueueState.EMPTY)
    queues = np.zeros(len(topics), dtype=np.int32)
    np.maximum.at(queues, bundle, np.where(basis.outlook.detected.deep[here], QueueState.TOO_DEEP, waiting))
    shortest = np.full(len(topics), np.inf)
    np.minimum.at(shortest, bundle, allowed[here])
    rows = here[np.lexsort((-allowed[here], bundle))]
    ends = np.cumsum(np.bincount(bundle, minlength=len(topics)))
    for each in subscriber_order(
        basis.metric(source), OtherEnds.of(local, remote), queues, shortest
    ).tolist():
        yield rows[ends[each - 1] if each else 0 : ends[each]]


def from_head(basis: OffloadBasis, source: int) -> list[Leaving]:
    """Publications that leave a head for other heads, topic by topic."""
    campus, measured = basis.campus, basis.measured
    metric = basis.metric(source)
    candidates = basis.accepting(metric, edges=False)
    home = int(campus.cluster[source])
    published = campus.published(measured.placement, basis.outlook.expected_rate)[1]
    edges = campus.edges_with(*campus.served(measured.placement, measured.present))
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
    delays = campus.delays(placement, measured.wait_seconds)
    return bool((delays.allowed_seconds(broker, rows) <= 0).any())
