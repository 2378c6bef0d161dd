"""Go through time: traffic in steps, and at the end of every interval what is measured goes to the policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError
from triagemq.lab.clusters.peer import BASELINES
from triagemq.lab.clusters.sharing import SHARINGS, Weights, shared
from triagemq.plan.balancing.balancer import BalancingPolicy, balancing_policy
from triagemq.plan.balancing.detection import (
    BalancingSettings,
    Completed,
    LoadReport,
    LoadState,
    LoadWatch,
    Migration,
)
from triagemq.plan.clusters import CAPACITIES, BrokerClusters, Flags, Metric, Placement
from triagemq.scenario import Floats, Integers, Scenario
from triagemq.scenario.conditions import Conditions, situations

LATE_EVENT = 0.5
"""Fewer late events than this are none: a fluid has no whole ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """A migration that took place; `needed` if it relieves a broker in OVERLOAD: a deadline was at risk there."""

    migration: Migration
    needed: bool


@dataclass(frozen=True, slots=True, eq=False)
class ClustersResult:
    """One run. `use` has a row for each interval, then for each metric and broker, with what waits counted as wanted;
    `queue_events` one for each interval and subscription.

    `overload_seconds` is how long each broker's output queues were not empty or more came than it takes.
    """

    clusters: BrokerClusters
    balancing: str
    at_seconds: Floats
    use: Floats
    queue_events: Floats
    overload_seconds: Floats
    arrived_events: Floats
    late_events: Floats
    longest_wait_seconds: Floats
    moved: tuple[Moved, ...]

    @property
    def late_subscriptions(self) -> int:
        """Subscriptions of which some event came too late."""
        return int((self.late_events > LATE_EVENT).sum())

    @property
    def moved_subscriptions(self) -> int:
        """How many times a subscription was moved."""
        return sum(len(each.migration.subscriptions) for each in self.moved)

    @property
    def needless(self) -> int:
        """Migrations at which no deadline was at risk."""
        return sum(not each.needed for each in self.moved)

    def topic_queue(self, topic: int) -> Floats:
        """Events that wait for all subscribers of a topic, at the end of every interval."""
        return np.asarray(
            self.queue_events[:, self.clusters.scenario.subscriptions.topic == topic].sum(axis=1)
        )

    def as_json(self) -> dict[str, Any]:
        """One object."""
        scenario = self.clusters.scenario
        late = np.where(self.late_events > LATE_EVENT, self.late_events, 0.0)
        brokers = [
            {
                "broker": name,
                "cluster": scenario.brokers.cluster[broker],
                **{
                    f"most_{metric.name.lower()}_use": float(self.use[:, metric, broker].max(initial=0.0))
                    for metric in CAPACITIES
                },
                "last_uplink_use": float(self.use[-1, Metric.UPLINK, broker]),
                "overload_seconds": float(self.overload_seconds[broker]),
            }
            for broker, name in enumerate(scenario.brokers.name)
        ]
        migrations = [
            {
                "at_seconds": each.migration.at_seconds,
                "needed": each.needed,
                "subscriptions": len(each.migration.subscriptions),
                "publications": len(each.migration.publications),
                "topics": each.migration.topics(self.clusters),
                "source": scenario.brokers.name[each.migration.source],
                "target": scenario.brokers.name[each.migration.target],
                "reason": each.migration.reason,
            }
            for each in self.moved
        ]
        return {
            "scenario": scenario.name,
            "balancing": self.balancing,
            "seconds": float(self.at_seconds[-1]),
            "brokers": brokers,
            "migrations": migrations,
            "moved_subscriptions": self.moved_subscriptions,
            "needless_migrations": self.needless,
            "events": float(self.arrived_events.sum()),
            "late_events": float(late.sum()),
            "late_subscriptions": self.late_subscriptions,
            "longest_wait_seconds": float(self.longest_wait_seconds.max(initial=0.0)),
        }


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


INTERVAL_SECONDS = 1.0
STEP_SECONDS = 0.05


def simulate_clusters(
    scenario: Scenario,
    conditions: Conditions | None = None,
    *,
    placement: Placement | None = None,
    balancing: str | Callable[[BrokerClusters], BalancingPolicy] = "ours",
    seconds: float = 60.0,
    step_seconds: float = STEP_SECONDS,
    sharing: str = "stated",
    progress: Callable[[float], None] | None = None,
) -> ClustersResult:
    """What becomes of a scenario's clusters. Without a `placement`, clients are where the scenario says.

    Of conditions, rates and who is there are followed. A step that is not a whole part of an interval is refused.
    """
    steps = round(INTERVAL_SECONDS / step_seconds)
    if steps < 1 or abs(steps * step_seconds - INTERVAL_SECONDS) > 1e-9:
        raise ParameterError(
            "step_seconds", f"is {step_seconds:g}; {INTERVAL_SECONDS:g} s is to be a multiple of it"
        )
    if not seconds >= INTERVAL_SECONDS:
        raise ParameterError("seconds", f"is {seconds:g}; at least {INTERVAL_SECONDS:g} is needed")
    if sharing not in SHARINGS:
        raise ParameterError("sharing", f"is {sharing!r}; known: {', '.join(SHARINGS)}")
    policy = balancing
    if isinstance(policy, str):
        policy = balancing_policy(BASELINES.get(policy, policy))
    clusters = BrokerClusters.of(scenario)
    run = _Run(
        clusters,
        conditions or Conditions(),
        placement or clusters.stated,
        policy(clusters),
        seconds,
        steps,
        sharing,
    )
    for interval in range(run.intervals):
        run.interval(interval)
        if progress is not None:
            progress((interval + 1) / run.intervals)
    return run.result(balancing if isinstance(balancing, str) else "own")


@dataclass(slots=True)
class _Order:
    """A migration that has started: clients know of it from `at_seconds` on."""

    migration: Migration
    at_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class _Traffic:
    """What is the same from step to step, as long as rates, clients and their places are.

    Per broker, the utilization of the tightest part that events pass before its output queues; per cluster and topic,
    what is published; per subscription, what comes for it and how long it may wait, if it waits nowhere before.
    """

    use: Floats
    tightest: Floats
    published: Floats
    arriving: Floats
    allowed_seconds: Floats

    @classmethod
    def of(cls, clusters: BrokerClusters, placement: Placement, rate: Floats, present: Flags) -> _Traffic:
        use = clusters.use(placement, rate, present)
        through = use.copy()
        through[Metric.UPLINK, clusters.edge] = 0.0
        published = clusters.published(placement, rate)[0]
        arriving = published.sum(axis=0)[clusters.scenario.subscriptions.topic]
        allowed = clusters.delays(placement).allowed_seconds(placement.subscriptions)
        return cls(use, through.max(axis=0), published, np.where(present, arriving, 0.0), allowed)


class _Run:
    def __init__(
        self,
        clusters: BrokerClusters,
        conditions: Conditions,
        placement: Placement,
        policy: BalancingPolicy,
        seconds: float,
        steps: int,
        sharing: str,
    ) -> None:
        scenario = clusters.scenario
        self.intervals = int(seconds / INTERVAL_SECONDS + 1e-9)
        self._clusters, self._policy = clusters, policy
        self._steps, self._step_seconds = steps, INTERVAL_SECONDS / steps
        self._course = situations(scenario, conditions)
        self._watch = LoadWatch(clusters, BalancingSettings())
        self._publications = placement.publications.copy()
        self._queues = OutputQueues(
            clusters, placement.subscriptions, SHARINGS[sharing], steps, self._step_seconds
        )
        self._backlog_seconds = np.zeros(len(clusters.cluster))
        self._orders: list[_Order] = []
        self._notified: dict[int, float] = {}
        self._moved: list[Moved] = []
        self._use: list[Floats] = []
        self._depth: list[Floats] = []
        self._overload_seconds = np.zeros(len(clusters.cluster))
        self._present = np.zeros(len(scenario.subscriptions), dtype=bool)
        self._traffic: _Traffic | None = None
        self._follow(0.0)

    @property
    def _placement(self) -> Placement:
        count = len(self._present)
        return Placement(self._queues.broker[:count].copy(), self._publications.copy())

    def _follow(self, now: float) -> None:
        """How things stand now."""
        while self._course and self._course[0].at_seconds <= now + 1e-9:
            current = self._course.pop(0)
            present = current.active_subscriptions(self._clusters.scenario)
            self._queues.discard(self._present & ~present)
            self._present, self._rate = present, current.publication_rate(self._clusters.scenario)
            self._traffic = None

    def interval(self, number: int) -> None:
        """One interval of traffic, and what the policy makes of it."""
        began = number * INTERVAL_SECONDS
        output = np.zeros(len(self._present))
        queued = self._waiting_bytes()
        offered, published = np.zeros_like(self._clusters.capacity), np.zeros_like(self._rate)
        for step in range(self._steps):
            now = began + step * self._step_seconds
            self._follow(now)
            self._carry_out(now)
            use, left = self._step()
            offered += use
            published += self._rate
            output += left
        offered /= self._steps
        ends = began + INTERVAL_SECONDS
        offered[Metric.UPLINK] += queued / (self._clusters.capacity[Metric.UPLINK] * INTERVAL_SECONDS)
        self._use.append(offered)
        depth = self._queues.depth[: len(self._present)]
        self._depth.append(depth)
        self._complete(ends)
        measured = LoadReport(
            at_seconds=ends,
            placement=self._placement,
            present=self._present,
            use=offered,
            wait_seconds=self._backlog_seconds.copy(),
            rate_per_second=published / self._steps,
            queue_events=depth,
            output_per_second=output / INTERVAL_SECONDS,
        )
        state = self._watch.on_report(measured).state
        migrations = self._policy.handle(measured)
        needed = {each.balancing for each in migrations if state[each.source] == LoadState.OVERLOAD}
        for migration in migrations:
            self._order(migration, migration.balancing in needed)

    def _step(self) -> tuple[Floats, Floats]:
        """One step: the utilization of every broker, and the events that left for every subscription.

        Before the output queues events pass a head and an edge, each first in, first out: when more comes than the
        tightest of its links and its matching take, all wait alike.
        """
        clusters = self._clusters
        traffic = self._traffic = self._traffic or _Traffic.of(
            clusters, self._placement, self._rate, self._present
        )
        tightest = traffic.tightest
        waiting = self._backlog_seconds > 0
        allowed, arriving = traffic.allowed_seconds, traffic.arriving
        if waiting.any() or (tightest > 1).any():
            passing = np.where(waiting | (tightest > 1), 1 / np.maximum(tightest, 1e-12), 1.0)
            grown = self._backlog_seconds + (tightest - 1) * self._step_seconds
            self._backlog_seconds = np.maximum(grown, 0.0)
            placement, broker = self._placement, self._placement.subscriptions
            forwarded = (traffic.published * passing[clusters.heads][:, None]).sum(axis=0)
            topic = clusters.scenario.subscriptions.topic
            arriving = np.where(self._present, forwarded[topic] * passing[broker], 0.0)
            allowed = clusters.delays(placement, self._backlog_seconds).allowed_seconds(broker)
        left = self._queues.step(arriving, allowed)
        overloaded = tightest > 1
        overloaded[self._queues.broker[self._queues.depth > 0]] = True
        self._overload_seconds += overloaded * self._step_seconds
        self._queues.drop_empty()
        return traffic.use, left

    def _waiting_bytes(self) -> Floats:
        queues, clusters = self._queues, self._clusters
        size = clusters.topic_bytes[clusters.scenario.subscriptions.topic[queues.subscription]]
        return np.bincount(queues.broker, queues.depth * size, minlength=len(clusters.cluster)).astype(
            np.float64
        )

    def _order(self, migration: Migration, needed: bool) -> None:
        """Notify the clients of a migration; the longest of their delays passes until all know."""
        rows = migration.subscriptions
        broker = np.full(len(rows), migration.target, dtype=np.int32)
        cost = float(self._clusters.notification_seconds(broker, rows).max(initial=0.0))
        self._orders.append(_Order(migration, migration.at_seconds + cost))
        self._notified[migration.balancing] = max(cost, self._notified.get(migration.balancing, 0.0))
        self._moved.append(Moved(migration, needed))

    def _carry_out(self, now: float) -> None:
        due = [each for each in self._orders if each.at_seconds <= now + 1e-9]
        self._orders = [each for each in self._orders if each.at_seconds > now + 1e-9]
        for each in due:
            migration = each.migration
            self._queues.migrate(migration.subscriptions, migration.target, migration.balancing)
            self._watch.forget(migration.subscriptions)
            self._publications[migration.publications] = migration.target
            self._traffic = None

    def _complete(self, now: float) -> None:
        """Report the balancings whose clients have all moved, and have got what waited for them."""
        ordered = {each.migration.balancing for each in self._orders}
        for balancing, notified in list(self._notified.items()):
            if balancing not in ordered and not self._queues.draining(balancing):
                del self._notified[balancing]
                completed = Completed(now, balancing, notified)
                self._watch.completed(completed)
                self._policy.handle(completed)

    def result(self, balancing: str) -> ClustersResult:
        """All figures."""
        queues = self._queues
        return ClustersResult(
            clusters=self._clusters,
            balancing=balancing,
            at_seconds=INTERVAL_SECONDS * np.arange(1.0, self.intervals + 1),
            use=np.stack(self._use),
            queue_events=np.stack(self._depth),
            overload_seconds=self._overload_seconds,
            arrived_events=queues.arrived.copy(),
            late_events=queues.late_events,
            longest_wait_seconds=queues.longest_wait_seconds,
            moved=tuple(self._moved),
        )
