"""Edge brokers as they would be, while subscriptions are selected one by one that leave one for another.

Only brokers in LOW take any, and none takes so many that it would be overloaded itself, or that its uplink would be
full.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
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
from triagemq.plan.campus import Campus, Flags, Metric
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

    campus: Campus
    settings: BalancingSettings
    measured: LoadReport
    outlook: Outlook
    required: Floats
    free: Flags
    movable: Flags
    movable_publications: Flags

    def metric(self, broker: int) -> Metric:
        """What a broker has too much of; for one that is not overloaded yet, what it would be overloaded by."""
        found = int(self.outlook.detected.metric[broker])
        return Metric(found) if found >= 0 else Metric.QUEUE_DEPTH

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


class EdgeTrial:
    """What every edge would have. `copy` and go on with either, to try something."""

    def __init__(self, basis: OffloadBasis) -> None:
        self.moves: list[Leaving] = []
        self.basis = basis
        campus, measured, expected = basis.campus, basis.measured, basis.outlook.expected
        # A broker that has only just taken some was not measured with all that they ask for.
        self._use = np.maximum(measured.use, basis.required)
        self._topic = campus.scenario.subscriptions.topic
        events, size = campus.published(measured.placement, basis.outlook.expected_rate)
        self._events, self._bytes = events.sum(axis=0), size.sum(axis=0)
        self._broker = np.where(measured.present, measured.placement.subscriptions, -1)
        self._timely: dict[tuple[int, int], Flags] = {}
        self._queued = np.flatnonzero(measured.present & (measured.queue_events > 0))
        self._sent = expected.output_per_second * campus.topic_bytes[self._topic]
        here = measured.present
        # Per broker, the bytes a second that its subscriptions ask for, and those that others leave to the rest.
        self._coming = np.bincount(
            self._broker[here], self._bytes[self._topic[here]], minlength=len(campus.cluster)
        )
        self._freed = np.zeros(len(campus.cluster))
        self._uplink = campus.capacity[Metric.UPLINK]
        # Of an edge, a queue that was too deep when it was looked at, what those who waited got, and what was freed.
        self._deep: dict[int, tuple[int, float, float]] = {}
        # What waits at a broker that has too much is not what it will be required to do.
        overfull = self.growing
        self._use[Metric.UPLINK, overfull] = self._coming[overfull] / campus.capacity[Metric.UPLINK, overfull]
        thresholds = basis.settings.thresholds
        self._most = np.array([thresholds.high, thresholds.high, thresholds.full])

    def copy(self) -> EdgeTrial:
        """Another one that goes on from here."""
        other = copy(self)
        other.moves = list(self.moves)
        other._use, other._broker = self._use.copy(), self._broker.copy()
        other._coming, other._freed = self._coming.copy(), self._freed.copy()
        other._deep = dict(self._deep)
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
            # Where one cannot be spared, none that takes more can, either.
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
        campus = self.basis.campus
        return np.flatnonzero(campus.edge & (self._coming > campus.capacity[Metric.UPLINK]))

    def relieved(self, source: int) -> bool:
        """Whether an edge would no longer be overloaded, and its queues not grow. What is freed of its uplink goes to
        those that wait, in proportion to what they get."""
        basis = self.basis
        metric = basis.metric(source)
        if metric is not Metric.QUEUE_DEPTH:
            return bool(self._use[metric, source] <= basis.settings.thresholds.high)
        if self._coming[source] > self._uplink[source] or self._is_still_deep(source):
            return False
        left = self._queued[self._broker[self._queued] == source]
        served = float(self._sent[left].sum())
        expected = basis.outlook.expected
        threshold = queue_threshold(
            expected.allowed_seconds[left] - expected.balancing_seconds[left],
            expected.input_per_second[left],
            expected.output_per_second[left] * (1 + self._freed[source] / served if served > 0 else 1.0),
            basis.settings.interval_seconds,
        )
        too_deep = basis.measured.queue_events[left] > threshold
        if (found := bool(too_deep.any())) and served > 0:
            self._deep[source] = int(left[np.argmax(too_deep)]), served, float(self._freed[source])
        return not found

    def _is_still_deep(self, source: int) -> bool:
        """Whether a queue of an edge that was too deep surely still is; that mostly saves the look at all queues."""
        if source not in self._deep:
            return False
        row, served, freed = self._deep[source]
        # Who has left since got no more than has been freed since.
        least = served - (float(self._freed[source]) - freed)
        if self._broker[row] != source or least <= 0:
            return False
        expected = self.basis.outlook.expected
        output = float(expected.output_per_second[row]) * (1 + float(self._freed[source]) / least)
        spare = float(expected.allowed_seconds[row] - expected.balancing_seconds[row])
        growth = (float(expected.input_per_second[row]) - output) * self.basis.settings.interval_seconds
        return bool(self.basis.measured.queue_events[row] > spare * output - growth)

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
                self._become(trial)
                return True
        return False

    def _gives(self, giver: int, others: RowNumbers) -> bool:
        """Whether others take so many subscriptions of a broker that it has not too much: one that is just large
        enough, else the largest."""
        capacity = self.basis.campus.capacity[Metric.UPLINK, giver]
        own = np.flatnonzero((self._broker == giver) & self.basis.movable)
        own = own[np.argsort(self.load(own), kind="stable")]
        while len(own) and not self._fits(giver):
            excess = (self._use[Metric.UPLINK, giver] - self._most[Metric.UPLINK]) * capacity
            first = min(int(np.searchsorted(self.load(own), excess)), len(own) - 1)
            self._taken(giver, own[[first]], others)
            own = np.delete(own, first)
        return self._fits(giver)

    def _become(self, other: EdgeTrial) -> None:
        self.moves, self._use, self._broker = other.moves, other._use, other._broker
        self._coming, self._freed, self._deep = other._coming, other._freed, other._deep

    def _fits(self, broker: int) -> bool:
        return bool((self._use[:, broker] <= self._most).all())

    def _in_time(self, source: int, target: int) -> Flags:
        """Which subscriptions of an edge would get an event in time at another broker, if it waited nowhere."""
        if (source, target) not in self._timely:
            here = np.flatnonzero(self.basis.measured.placement.subscriptions == source)
            self._timely[source, target] = found = np.zeros(len(self._broker), dtype=bool)
            broker = np.full(len(here), target, dtype=np.int32)
            found[here] = self.basis.outlook.delays.allowed_seconds(broker, here) > 0
        return self._timely[source, target]

    def _served(self, rows: RowNumbers) -> Integers:
        """Per broker, the subscriptions that it has of the topic of these."""
        having = self._broker[self.basis.campus.subscriptions_of(int(self._topic[rows[0]]))]
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
        return np.asarray(required / self.basis.campus.capacity[:, brokers])

    def _move(self, move: Leaving) -> None:
        """Count these subscriptions at another broker."""
        source, target, rows = move
        served = self._served(rows)
        added = self._added(rows, np.array([target]), served)[:, 0]
        self._count(move, self._leaving(rows, source, served), added)

    def _count(self, move: Leaving, leaving: Floats, added: Floats) -> None:
        source, target, rows = move
        self._deep.pop(target, None)
        self._use[:, source] -= leaving
        self._use[:, target] += added
        self._broker[rows] = target
        sent, load = float(self._sent[rows].sum()), len(rows) * float(self._bytes[self._topic[rows[0]]])
        self._freed[source] += sent
        self._freed[target] -= sent
        self._coming[source] -= load
        self._coming[target] += load
