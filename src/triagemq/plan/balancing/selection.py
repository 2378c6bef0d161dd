"""Who leaves an overloaded broker for where: bundle by bundle, until it would not be overloaded any more.

Clients of one topic are a bundle. Bundles are grouped by where the other ends of their topics are, or by their queues;
within a group those that may wait longest leave first (PEER-WD 4.3.2 and Table 4). At an edge a bundle is split only if
no bundle fits anywhere (4.4.2). Only brokers in LOW take any, and none takes so many that it would be overloaded
itself, or that its uplink would be full: `EdgeTrial` follows what every edge would have.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.balancing.detection import (
    BalancingSettings,
    LoadReport,
    LoadState,
    Outlook,
    queue_threshold,
)
from triagemq.plan.clusters import BrokerClusters, Flags, Metric, Placement, head_traffic
from triagemq.scenario import Floats, Integers

RowNumbers = NDArray[np.int64]


class Leaving(NamedTuple):
    """Subscriptions or publications that leave a broker for another."""

    source: int
    target: int
    rows: RowNumbers


@dataclass(frozen=True, slots=True, eq=False)
class OffloadBasis:
    """All that is known when clients are selected.

    `required` is what the next interval needs of every metric and broker; `free` are the brokers of no balancing under
    way; `movable` and `movable_publications` are what has not moved lately.
    """

    clusters: BrokerClusters
    settings: BalancingSettings
    measured: LoadReport
    outlook: Outlook
    required: Floats
    free: Flags
    movable: Flags
    movable_publications: Flags

    def metric(self, broker: int) -> Metric:
        """What a broker has too much of; for one that is not overloaded yet, what it would be overloaded by."""
        found = int(self.outlook.metric[broker])
        return Metric(found) if found >= 0 else Metric.QUEUE_DEPTH

    def accepting(self, metric: Metric, *, edges: bool) -> RowNumbers:
        """The brokers that may take clients: the least of the overloaded metric first, then of the uplink."""
        use, brokers = self.measured.use, len(self.free)
        if metric is Metric.QUEUE_DEPTH:
            present = self.measured.present
            load = np.bincount(
                self.measured.placement.subscriptions[present],
                self.measured.queue_events[present],
                minlength=brokers,
            )
        else:
            load = use[metric]
        usable = self.free & (self.outlook.state == LoadState.LOW) & (self.clusters.edge == edges)
        order = np.lexsort((use[Metric.UPLINK], load))
        return np.asarray(order[usable[order]])


class EdgeTrial:
    """What every edge would have. `copy` and go on with either, to try something."""

    def __init__(self, basis: OffloadBasis) -> None:
        self.moves: list[Leaving] = []
        self.basis = basis
        clusters, measured, expected = basis.clusters, basis.measured, basis.outlook
        # A broker that has only just taken some was not measured with all that they ask for.
        self._use = np.maximum(measured.use, basis.required)
        self._topic = clusters.scenario.subscriptions.topic
        events, size = clusters.published(measured.placement, basis.outlook.expected_rate)
        self._events, self._bytes = events.sum(axis=0), size.sum(axis=0)
        self._broker = np.where(measured.present, measured.placement.subscriptions, -1)
        self._timely: dict[tuple[int, int], Flags] = {}
        self._queued = np.flatnonzero(measured.present & (measured.queue_events > 0))
        self._sent = expected.output_per_second * clusters.topic_bytes[self._topic]
        present = measured.present
        # Per broker, the bytes a second that its subscriptions ask for, and those that others leave to the rest.
        self._coming = np.bincount(
            self._broker[present], self._bytes[self._topic[present]], minlength=len(clusters.cluster)
        )
        self._freed = np.zeros(len(clusters.cluster))
        self._uplink = clusters.capacity[Metric.UPLINK]
        # What waits at a broker that has too much is not what it will be required to do.
        overfull = self.growing
        self._use[Metric.UPLINK, overfull] = (
            self._coming[overfull] / clusters.capacity[Metric.UPLINK, overfull]
        )
        thresholds = basis.settings.thresholds
        self._most = np.array([thresholds.high, thresholds.high, thresholds.full])

    def copy(self) -> EdgeTrial:
        """Another one that goes on from here."""
        other = copy(self)
        other.moves = list(self.moves)
        other._use, other._broker = self._use.copy(), self._broker.copy()
        other._coming, other._freed = self._coming.copy(), self._freed.copy()
        return other

    def offer(self, source: int, bundles: list[RowNumbers], candidates: RowNumbers) -> bool:
        """Select one after the other what some broker takes; whether that is enough."""
        if not len(candidates):
            return False
        return any(self._taken(source, rows, candidates) and self.relieved(source) for rows in bundles)

    def offer_singly(
        self, source: int, bundles: list[RowNumbers], candidates: RowNumbers, *, make_room: bool = False
    ) -> bool:
        """The same with any part of a bundle: ever larger ones, until it is enough or no broker takes one more.

        A broker may `make_room` for one, if others take some of its own.
        """
        for bundle in bundles:
            staying, count = bundle[self._broker[bundle] == source], 1
            while len(staying):
                if self._taken(source, staying[:count], candidates) or (
                    make_room and count == 1 and self._taken_with_room(source, staying[:1], candidates)
                ):
                    if self.relieved(source):
                        return True
                    staying, count = staying[count:], 2 * count
                elif count > 1:
                    count //= 2
                else:
                    break
        return False

    def spare(self, source: int, since: int) -> None:
        """Of the moves from number `since` on, take back those that later ones make unnecessary."""
        needed, remaining = np.inf, self.moves[-1:]
        for move in reversed(self.moves[since:-1]):
            # If one is needed, every larger one is, too.
            load = float(self.load(move.rows).sum())
            if load < needed:
                self._move(Leaving(move.target, move.source, move.rows))
                if self.relieved(source) and (move.source == source or self._fits(move.source)):
                    continue
                self._move(move)
                needed = load if move.source == source else needed
            remaining.append(move)
        self.moves[since:] = remaining[::-1]

    def load(self, rows: RowNumbers) -> Floats:
        """Bytes a second for each of these subscriptions."""
        return np.asarray(self._bytes[self._topic[rows]])

    def in_low(self, brokers: RowNumbers) -> RowNumbers:
        """Those of these brokers that would still be in LOW."""
        low = (self._use[:, brokers] < self.basis.settings.thresholds.low).all(axis=0)
        return np.asarray(brokers[low])

    @property
    def growing(self) -> RowNumbers:
        """The edges that are required to send more than they can send: sooner or later queues there are too deep."""
        clusters = self.basis.clusters
        return np.flatnonzero(clusters.edge & (self._coming > clusters.capacity[Metric.UPLINK]))

    def relieved(self, source: int) -> bool:
        """Whether an edge would no longer be overloaded, and its queues not grow. What is freed of its uplink goes to
        those that wait, in proportion to what they get."""
        basis = self.basis
        metric = basis.metric(source)
        if metric is not Metric.QUEUE_DEPTH:
            return bool(self._use[metric, source] <= basis.settings.thresholds.high)
        if self._coming[source] > self._uplink[source]:
            return False
        left = self._queued[self._broker[self._queued] == source]
        served = float(self._sent[left].sum())
        expected = basis.outlook
        threshold = queue_threshold(
            expected.allowed_seconds[left] - expected.balancing_seconds[left],
            expected.input_per_second[left],
            expected.output_per_second[left] * (1 + self._freed[source] / served if served > 0 else 1.0),
            basis.settings.interval_seconds,
        )
        return not (basis.measured.queue_events[left] > threshold).any()

    def _taken(self, source: int, rows: RowNumbers, candidates: RowNumbers) -> bool:
        """Whether some broker takes all of these subscriptions of one topic; then they are its own."""
        served = self._served(rows)
        leaving = self._leaving(rows, source, served)
        metric = self.basis.metric(source)
        if not leaving[Metric.UPLINK if metric is Metric.QUEUE_DEPTH else metric]:
            return False
        added = self._added(rows, candidates, served)
        fits = (self._use[:, candidates] + added <= self._most[:, None]).all(axis=0)
        for place in np.flatnonzero(fits).tolist():
            target = int(candidates[place])
            if self._in_time(source, target)[rows].all():
                move = Leaving(source, target, rows)
                self._count(move, leaving, added[:, place])
                self.moves.append(move)
                return True
        return False

    def _taken_with_room(self, source: int, rows: RowNumbers, candidates: RowNumbers) -> bool:
        """The same, where the broker that takes them gives some of its own to others: that which has to give least."""
        excess = (self._use[:, candidates] + self._added(rows, candidates, self._served(rows)))[Metric.UPLINK]
        for place in np.argsort(excess, kind="stable").tolist():
            target, others = int(candidates[place]), np.delete(candidates, place)
            if not self._in_time(source, target)[rows].all():
                continue
            trial, move = self.copy(), Leaving(source, target, rows)
            trial._move(move)
            trial.moves.append(move)
            if trial._gives(target, np.append(others, trial.in_low(np.array([source])))):
                vars(self).update(vars(trial))
                return True
        return False

    def _gives(self, giver: int, others: RowNumbers) -> bool:
        """Whether others take so many subscriptions of a broker that it has not too much: one that is just large
        enough, else the largest."""
        capacity = self.basis.clusters.capacity[Metric.UPLINK, giver]
        own = np.flatnonzero((self._broker == giver) & self.basis.movable)
        own = own[np.argsort(self.load(own), kind="stable")]
        while len(own) and not self._fits(giver):
            excess = (self._use[Metric.UPLINK, giver] - self._most[Metric.UPLINK]) * capacity
            first = min(int(np.searchsorted(self.load(own), excess)), len(own) - 1)
            self._taken(giver, own[[first]], others)
            own = np.delete(own, first)
        return self._fits(giver)

    def _fits(self, broker: int) -> bool:
        return bool((self._use[:, broker] <= self._most).all())

    def _in_time(self, source: int, target: int) -> Flags:
        """Which subscriptions of an edge would get an event in time at another broker, if it waited nowhere."""
        if (source, target) not in self._timely:
            rows = np.flatnonzero(self.basis.measured.placement.subscriptions == source)
            self._timely[source, target] = found = np.zeros(len(self._broker), dtype=bool)
            broker = np.full(len(rows), target, dtype=np.int32)
            found[rows] = self.basis.outlook.delays.allowed_seconds(broker, rows) > 0
        return self._timely[source, target]

    def _served(self, rows: RowNumbers) -> Integers:
        """Per broker, the subscriptions that it has of the topic of these."""
        having = self._broker[self.basis.clusters.subscriptions_of(int(self._topic[rows[0]]))]
        return np.bincount(having[having >= 0], minlength=len(self._uplink)).astype(np.int32)

    def _leaving(self, rows: RowNumbers, source: int, served: Integers) -> Floats:
        """What these subscriptions of one topic need of their broker, in parts of its capacities: the topic itself only
        if no other subscription there has it."""
        return self._needs(rows, np.array([source]), served[[source]] == len(rows))[:, 0]

    def _added(self, rows: RowNumbers, brokers: RowNumbers, served: Integers) -> Floats:
        """The same for brokers to which they come, with the topic itself where no subscription has it yet."""
        return self._needs(rows, brokers, served[brokers] == 0)

    def _needs(self, rows: RowNumbers, brokers: RowNumbers, alone: Flags) -> Floats:
        topic = int(self._topic[rows[0]])
        size, required = self._bytes[topic], np.empty((3, len(brokers)))
        required[Metric.DOWNLINK] = alone * size
        required[Metric.MATCHING] = alone * self._events[topic]
        required[Metric.UPLINK] = len(rows) * size
        return np.asarray(required / self.basis.clusters.capacity[:, brokers])

    def _move(self, move: Leaving) -> None:
        """Count these subscriptions at another broker."""
        source, target, rows = move
        served = self._served(rows)
        added = self._added(rows, np.array([target]), served)[:, 0]
        self._count(move, self._leaving(rows, source, served), added)

    def _count(self, move: Leaving, leaving: Floats, added: Floats) -> None:
        source, target, rows = move
        self._use[:, source] -= leaving
        self._use[:, target] += added
        self._broker[rows] = target
        sent, load = float(self._sent[rows].sum()), len(rows) * float(self._bytes[self._topic[rows[0]]])
        self._freed[source] += sent
        self._freed[target] -= sent
        self._coming[source] -= load
        self._coming[target] += load


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
    nearby = basis.clusters.cluster[accepting] == basis.clusters.cluster[source]
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
    clusters, measured, allowed = basis.clusters, basis.measured, basis.outlook.allowed_seconds
    own = np.flatnonzero((measured.placement.subscriptions == source) & measured.present & basis.movable)
    if not len(own):
        return
    topics, bundle = np.unique(clusters.scenario.subscriptions.topic[own], return_inverse=True)
    published = clusters.published(measured.placement)[0][:, topics] > 0
    local = published[clusters.cluster[source]]
    remote = published.sum(axis=0) > local
    waiting = np.where(measured.queue_events[own] > 0, QueueState.WAITING, QueueState.EMPTY)
    queues = np.zeros(len(topics), dtype=np.int32)
    np.maximum.at(queues, bundle, np.where(basis.outlook.deep[own], QueueState.TOO_DEEP, waiting))
    shortest = np.full(len(topics), np.inf)
    np.minimum.at(shortest, bundle, allowed[own])
    rows = own[np.lexsort((-allowed[own], bundle))]
    ends = np.cumsum(np.bincount(bundle, minlength=len(topics)))
    for each in subscriber_order(
        basis.metric(source), OtherEnds.of(local, remote), queues, shortest
    ).tolist():
        yield rows[ends[each - 1] if each else 0 : ends[each]]


def from_head(basis: OffloadBasis, source: int) -> list[Leaving]:
    """Publications that leave a head for other heads, topic by topic."""
    clusters, measured = basis.clusters, basis.measured
    metric = basis.metric(source)
    candidates = basis.accepting(metric, edges=False)
    home = int(clusters.cluster[source])
    published = clusters.published(measured.placement, basis.outlook.expected_rate)[1]
    edges = clusters.edges_with(*clusters.served(measured.placement, measured.present))
    placed, use = measured.placement.publications.copy(), measured.use.copy()
    links = np.array([Metric.DOWNLINK, Metric.UPLINK])
    high = basis.settings.thresholds.high
    moves: list[Leaving] = []
    for rows in _head_bundles(basis, source, metric, edges):
        topic = int(clusters.scenario.publications.topic[rows[0]])
        moved_bytes = float((basis.outlook.expected_rate * clusters.publication_bytes)[rows].sum())
        before = head_traffic(published[:, [topic]], edges[:, [topic]])
        for target in candidates.tolist():
            column = published[:, [topic]].copy()
            column[home] -= moved_bytes
            column[clusters.cluster[target]] += moved_bytes
            change = head_traffic(column, edges[:, [topic]]) - before
            after = use.copy()
            after[np.ix_(links, clusters.heads)] += (
                change.T / clusters.capacity[np.ix_(links, clusters.heads)]
            )
            helps = after[metric, source] < use[metric, source]
            if not helps or (after[links, target] > high).any():
                continue
            trial = placed.copy()
            trial[rows] = target
            if _late(clusters, measured, trial, topic):
                continue
            placed, use, published[:, [topic]] = trial, after, column
            moves.append(Leaving(source, target, rows))
            break
        if use[metric, source] <= high:
            break
    return moves


def _head_bundles(basis: OffloadBasis, source: int, metric: Metric, edges: Floats) -> Iterator[RowNumbers]:
    clusters, measured = basis.clusters, basis.measured
    own = np.flatnonzero((measured.placement.publications == source) & basis.movable_publications)
    topics, bundle = np.unique(clusters.scenario.publications.topic[own], return_inverse=True)
    local = edges[clusters.cluster[source], topics] > 0
    remote = (edges[:, topics] > 0).sum(axis=0) > local
    shortest = np.full(len(clusters.scenario.topics), np.inf)
    present = measured.present
    np.minimum.at(
        shortest,
        clusters.scenario.subscriptions.topic[present],
        basis.outlook.allowed_seconds[present],
    )
    for each in publisher_order(metric, OtherEnds.of(local, remote), shortest[topics]).tolist():
        yield own[bundle == each]


def _late(
    clusters: BrokerClusters, measured: LoadReport, publications: NDArray[np.int32], topic: int
) -> bool:
    """Whether a topic would come too late to anybody, with its publishers at other heads."""
    rows = clusters.subscriptions_of(topic)
    rows = rows[measured.present[rows]]
    placement = Placement(measured.placement.subscriptions, publications)
    broker = measured.placement.subscriptions[rows]
    delays = clusters.delays(placement, measured.wait_seconds)
    return bool((delays.allowed_seconds(broker, rows) <= 0).any())
