"""The output queues of all brokers: one of every subscription where it is served, and where it was, until that is
empty. Events of a subscription are counted in the order in which they came, which gives the wait of each.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from triagemq.lab.clusters.sharing import Weights, shared
from triagemq.plan.clusters import BrokerClusters, Flags, Metric
from triagemq.scenario import Floats, Integers

EMPTY = 1e-6
"""Events; a queue with fewer holds nothing but rounding."""


class OutputQueues:
    """Row n is the queue of subscription n where it is served now; further rows are queues that are left behind."""

    def __init__(
        self, clusters: BrokerClusters, broker: Integers, weights: Weights, steps: int, step_seconds: float
    ) -> None:
        """With so many steps from one mark in the memory of arrivals to the next: between marks they are taken to come
        evenly."""
        scenario = clusters.scenario
        count = len(scenario.subscriptions)
        self._clusters, self._weights, self._step_seconds = clusters, weights, step_seconds
        self._topic = scenario.subscriptions.topic
        self._size = clusters.topic_bytes[self._topic]
        rates = clusters.published(clusters.stated)[0].sum(axis=0)
        self._stated = rates[self._topic] * self._size
        self._marks = [np.zeros(count)]
        self._steps = steps
        self._step = 0
        self.arrived = np.zeros(count)
        """Events that have come for every subscription."""
        self.subscription: NDArray[np.int64] = np.arange(count)
        self.broker = broker.copy()
        self.balancing = np.zeros(count, dtype=np.int64)
        self._left = np.zeros(count)
        self._ends = np.full(count, np.inf)
        self.late_events = np.zeros(count)
        self.longest_wait_seconds = np.zeros(count)

    @property
    def depth(self) -> Floats:
        """Events in every queue."""
        held = np.minimum(self.arrived[self.subscription], self._ends) - self._left
        return np.where(held > EMPTY, held, 0.0)

    def step(self, input_per_second: Floats, allowed_seconds: Floats) -> Floats:
        """Let one step pass; events that left for every subscription.

        Both are given for every subscription: the rate at which events come for it, and how long they may wait.
        """
        seconds, rows = self._step_seconds, self.subscription
        if self._step and self._step % self._steps == 0:
            self._marks.append(self.arrived)
        self.arrived = self.arrived + input_per_second * seconds
        self._step += 1
        size = self._size[rows]
        held = self.depth * size
        weight = self._weights(self._stated[rows], self.broker, self._topic[rows])
        given = shared(held, weight, self.broker, self._clusters.capacity[Metric.UPLINK] * seconds) / size
        before = self._left.copy()
        self._left = self._left + given
        self._judge(before, allowed_seconds)
        return np.bincount(rows, given, minlength=len(self.arrived)).astype(np.float64)

    def _judge(self, before: Floats, allowed_seconds: Floats) -> None:
        """Count what left after it had waited longer than allowed; half a step is the error of a wait."""
        waited = np.flatnonzero((self.depth > 0) | (self._left - before > EMPTY))
        rows = self.subscription[waited]
        now = self._step - 0.5
        too_old = self._arrived_by(now - allowed_seconds[rows] / self._step_seconds, rows)
        late = np.minimum(self._left[waited], too_old) - before[waited]
        np.add.at(self.late_events, rows, np.maximum(late, 0.0))
        held = self.depth[waited]
        rate = (self._left - before)[waited] / self._step_seconds
        wait = np.divide(held, rate, out=np.zeros_like(held), where=rate > 0)
        np.maximum.at(self.longest_wait_seconds, rows, wait)

    def _arrived_by(self, step: Floats, rows: NDArray[np.int64]) -> Floats:
        """Events that had come for subscriptions after so many steps; none before the first."""
        last = len(self._marks) - 1
        place = np.clip(np.nan_to_num(step, neginf=0.0), 0.0, self._step) / self._steps
        mark = np.minimum(place.astype(np.int64), last)
        found = np.empty(len(rows))
        for each in np.unique(mark).tolist():
            is_marked = mark == each
            first = self._marks[each][rows[is_marked]]
            second = (self.arrived if each == last else self._marks[each + 1])[rows[is_marked]]
            length = self._step / self._steps - last if each == last else 1.0
            found[is_marked] = first + (place[is_marked] - each) / length * (second - first)
        return found

    def migrate(self, subscriptions: Integers, target: int, balancing: int) -> None:
        """New events go to another broker; what waits stays behind, until the subscriber has it."""
        waiting = subscriptions[self.depth[subscriptions] > 0]
        self.subscription = np.append(self.subscription, waiting)
        self.broker = np.append(self.broker, self.broker[waiting])
        self.balancing = np.append(self.balancing, np.full(len(waiting), balancing))
        self._left = np.append(self._left, self._left[waiting])
        self._ends = np.append(self._ends, self.arrived[waiting])
        self.broker[subscriptions] = target
        self._left[subscriptions] = self.arrived[subscriptions]

    def drop_empty(self) -> None:
        """Forget the queues that were left behind and are empty now."""
        busy = (self.depth > 0) | np.isinf(self._ends)
        for name in ("subscription", "broker", "balancing", "_left", "_ends"):
            setattr(self, name, getattr(self, name)[busy])

    def discard(self, gone: Flags) -> None:
        """What waits for subscriptions that are not there goes with them."""
        rows = gone[self.subscription]
        self._left = np.where(rows, np.minimum(self.arrived[self.subscription], self._ends), self._left)

    def draining(self, balancing: int) -> bool:
        """Whether a balancing has left queues behind that are not empty."""
        return bool((self.balancing == balancing).any())
