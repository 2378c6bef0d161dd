"""Who leaves an overloaded broker for where: bundle by bundle, until it would not be overloaded any more.

Only brokers in LOW take clients, and none takes so many that it would be overloaded itself, or that its uplink would be
full. A bundle is split only if no bundle fits anywhere (PEER-WD 4.4.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.balancing.detection import LoadState, Outlook, queue_threshold
from triagemq.plan.balancing.events import LoadReport
from triagemq.plan.balancing.offloading import (
    OtherEnds,
    QueueState,
    publisher_order,
    subscriber_order,
)
from triagemq.plan.balancing.settings import BalancingSettings
from triagemq.plan.campus import Campus, Flags, Metric, Placement, head_traffic
from triagemq.plan.demands import sum_by
from triagemq.scenario import Floats

RowNumbers = NDArray[np.int64]
Moves = list[tuple[int, RowNumbers]]
"""Targets, and the subscriptions or publications that go there."""


@dataclass(frozen=True, slots=True, eq=False)
class OffloadBasis:
    """All that is known when clients are selected.

    `free` are the brokers that no balancing is under way at; `movable` and `movable_publications` who has not moved
    lately.
    """

    campus: Campus
    settings: BalancingSettings
    measured: LoadReport
    outlook: Outlook
    free: Flags
    movable: Flags
    movable_publications: Flags

    def accepting(self, metric: Metric, *, edges: bool) -> RowNumbers:
        """The brokers that may take clients: the least of the overloaded metric first, then of the uplink."""
        use, brokers = self.measured.use, len(self.free)
        if metric is Metric.QUEUE_DEPTH:
            here = self.measured.present
            load = np.bincount(
                self.measured.placement.subscriptions[here],
                self.measured.queue_events[here],
                minlength=brokers,
            )
        else:
            load = use[metric]
        usable = self.free & (self.outlook.detected.state == LoadState.LOW) & (self.campus.edge == edges)
        order = np.lexsort((use[Metric.UPLINK], load))
        return np.asarray(order[usable[order]])


def from_edge(basis: OffloadBasis, source: int) -> Moves:
    """Subscriptions that leave an edge: within its cluster; to other clusters, too, if that is not enough.

    Where the bundles that fit are not enough, single subscriptions may be: then these leave, the largest first. If
    nothing is enough, as much leaves as fits.
    """
    metric = Metric(int(basis.outlook.detected.metric[source]))
    accepting = basis.accepting(metric, edges=True)
    nearby = basis.campus.cluster[accepting] == basis.campus.cluster[source]
    everywhere = np.concatenate([accepting[nearby], accepting[~nearby]])
    bundles = list(_edge_bundles(basis, source, metric))
    trial = _EdgeTrial(basis, source, metric)
    for candidates in (accepting[nearby], everywhere):
        trial = _EdgeTrial(basis, source, metric)
        if trial.offer(bundles, candidates):
            return trial.least()
    alone = _EdgeTrial(basis, source, metric)
    by_load = sorted(bundles, key=lambda rows: -float(alone.load(rows[:1])[0]))
    if alone.offer_singly(by_load, everywhere):
        return alone.least()
    trial.offer_singly(bundles, everywhere)
    return trial.moves


def _edge_bundles(basis: OffloadBasis, source: int, metric: Metric) -> Iterator[RowNumbers]:
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
    for each in subscriber_order(metric, OtherEnds.of(local, remote), queues, shortest).tolist():
        rows = here[bundle == each]
        yield rows[np.argsort(-allowed[rows], kind="stable")]


class _EdgeTrial:
    """What an edge and the brokers that take its subscriptions would have, as these are selected one by one."""

    def __init__(self, basis: OffloadBasis, source: int, metric: Metric) -> None:
        self.moves: Moves = []
        self._of, self._source, self._metric = basis, source, metric
        campus, measured, expected = basis.campus, basis.measured, basis.outlook.expected
        self._use = measured.use.copy()
        self._topic = campus.scenario.subscriptions.topic
        events, size = campus.published(measured.placement, basis.outlook.expected_rate)
        self._events, self._bytes = events.sum(axis=0), size.sum(axis=0)
        self._broker = np.where(measured.present, measured.placement.subscriptions, -1)
        self._here = here = np.flatnonzero(self._broker == source)
        self._timely: dict[int, Flags] = {}
        self._queued = here[measured.queue_events[here] > 0]
        self._sent = expected.output_per_second * campus.topic_bytes[self._topic]
        self._coming = float(self._bytes[self._topic[here]].sum())
        self._room = float(campus.capacity[Metric.UPLINK, source])
        self._freed = 0.0
        thresholds = basis.settings.thresholds
        self._most = np.array([thresholds.high, thresholds.high, thresholds.full])

    def offer(self, bundles: list[RowNumbers], candidates: RowNumbers) -> bool:
        """Select one after the other what some broker takes; whether that is enough."""
        if not len(candidates):
            return False
        return any(self._taken(rows, candidates) and self.relieved for rows in bundles)

    def offer_singly(self, bundles: list[RowNumbers], candidates: RowNumbers) -> bool:
        """The same with any part of a bundle: ever larger ones, until it is enough or no broker takes one more."""
        for bundle in bundles:
            staying, count = bundle[self._broker[bundle] == self._source], 1
            while len(staying):
                if self._taken(staying[:count], candidates):
                    if self.relieved:
                        return True
                    staying, count = staying[count:], 2 * count
                elif count > 1:
                    count //= 2
                else:
                    break
        return False

    def least(self) -> Moves:
        """What was selected, without what those that were selected later make unnecessary."""
        needed = np.inf
        kept = self.moves[-1:]
        for target, rows in reversed(self.moves[:-1]):
            # Where one cannot be spared, none that takes more can, either.
            load = float(self.load(rows).sum())
            if load < needed:
                self._move(rows, target, self._source)
                if self.relieved:
                    continue
                self._move(rows, self._source, target)
                needed = load
            kept.append((target, rows))
        return kept[::-1]

    def load(self, rows: RowNumbers) -> Floats:
        """Bytes a second for each of these subscriptions."""
        return np.asarray(self._bytes[self._topic[rows]])

    @property
    def relieved(self) -> bool:
        """Whether the edge would no longer be overloaded, and its queues not grow. What is freed of its uplink goes to
        those that wait, in proportion to what they get."""
        basis = self._of
        if self._metric is not Metric.QUEUE_DEPTH:
            return bool(self._use[self._metric, self._source] <= basis.settings.thresholds.high)
        if self._coming > self._room:
            return False
        left = self._queued[self._broker[self._queued] == self._source]
        served = float(self._sent[left].sum())
        expected = basis.outlook.expected
        threshold = queue_threshold(
            expected.allowed_seconds[left] - expected.balancing_seconds[left],
            expected.input_per_second[left],
            expected.output_per_second[left] * (1 + self._freed / served if served > 0 else 1.0),
            basis.settings.interval_seconds,
        )
        return bool((basis.measured.queue_events[left] <= threshold).all())

    def _taken(self, rows: RowNumbers, candidates: RowNumbers) -> bool:
        """Whether some broker takes all of these subscriptions of one topic; then they are its own."""
        leaving = self._asked(rows, np.array([self._source]), -1)[:, 0]
        if not leaving[Metric.UPLINK if self._metric is Metric.QUEUE_DEPTH else self._metric]:
            return False
        added = self._asked(rows, candidates, 1)
        fits = (self._use[:, candidates] + added <= self._most[:, None]).all(axis=0)
        for place in np.flatnonzero(fits).tolist():
            target = int(candidates[place])
            if self._in_time(target)[rows].all():
                self._count(rows, self._source, target, leaving, added[:, place])
                self.moves.append((target, rows))
                return True
        return False

    def _in_time(self, target: int) -> Flags:
        """Which subscriptions of the edge would get an event in time at another broker, if it waited nowhere."""
        if target not in self._timely:
            self._timely[target] = found = np.zeros(len(self._broker), dtype=bool)
            broker = np.full(len(self._here), target, dtype=np.int32)
            found[self._here] = self._of.outlook.ways.allowed_seconds(broker, self._here) > 0
        return self._timely[target]

    def _asked(self, rows: RowNumbers, brokers: RowNumbers, sign: int) -> Floats:
        """What subscriptions of one topic ask of brokers, in parts of their capacities, if they come there (1) or leave
        (-1): the topic itself only where nobody else has it."""
        campus, topic = self._of.campus, int(self._topic[rows[0]])
        having = self._broker[campus.subscriptions_of(topic)]
        others = np.bincount(having[having >= 0], minlength=len(campus.cluster))[brokers]
        alone = others == (len(rows) if sign < 0 else 0)
        once = np.array([self._bytes[topic], self._events[topic], 0.0])
        each = np.array([0.0, 0.0, len(rows) * self._bytes[topic]])
        return np.asarray((once[:, None] * alone + each[:, None]) / campus.capacity[:, brokers])

    def _move(self, rows: RowNumbers, source: int, target: int) -> None:
        """Count these subscriptions at another broker."""
        leaving = self._asked(rows, np.array([source]), -1)[:, 0]
        self._count(rows, source, target, leaving, self._asked(rows, np.array([target]), 1)[:, 0])

    def _count(self, rows: RowNumbers, source: int, target: int, leaving: Floats, added: Floats) -> None:
        self._use[:, source] -= leaving
        self._use[:, target] += added
        self._broker[rows] = target
        sign = 1 if source == self._source else -1
        self._freed += sign * float(self._sent[rows].sum())
        self._coming -= sign * float(self.load(rows).sum())


def from_head(basis: OffloadBasis, source: int) -> Moves:
    """Publications that leave a head for other heads, topic by topic."""
    campus, measured = basis.campus, basis.measured
    metric = Metric(int(basis.outlook.detected.metric[source]))
    candidates = basis.accepting(metric, edges=False)
    home = int(campus.cluster[source])
    published = campus.published(measured.placement, basis.outlook.expected_rate)[1]
    edges = _edges_with(campus, measured)
    placed, use = measured.placement.publications.copy(), measured.use.copy()
    links = np.array([Metric.DOWNLINK, Metric.UPLINK])
    high = basis.settings.thresholds.high
    moves: Moves = []
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
            moves.append((target, rows))
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
