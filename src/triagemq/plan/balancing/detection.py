"""Reports of load in; which brokers have room and which have too much: static thresholds, and deadlines of queues.

Edges are not called overloaded by their uplink, however full: what it may do to deadlines shows in the queues, before
they are missed (PEER-WD Table 3 and 4.2.3).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from triagemq.plan.clusters import BrokerClusters, Flags, Metric, Placement, TopicDelays
from triagemq.scenario import Floats, Integers
from triagemq.scenario.model import Codes


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Parts of a capacity: below `low` a broker takes more, above `high` it has too much (PEER-WD 4.2.3).

    The uplink of an edge has no upper threshold. `full` is how far clients of others may fill it: predictions miss by
    hundredths, and beyond all of it queues would grow.
    """

    low: float = 0.9
    high: float = 0.95
    full: float = 0.98


@dataclass(frozen=True, slots=True)
class BalancingSettings:
    """How our balancing goes about.

    A balancing that is not completed after `timeout_seconds` is over; its broker begins no other for `rest_seconds`,
    in which queues may shrink; and who has moved stays for `stay_seconds`. Where two brokers serve a client that moves,
    the old one is relieved of it after `relief_seconds`, until balancings have shown how long that takes.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    interval_seconds: float = 1.0
    timeout_seconds: float = 10.0
    rest_seconds: float = 5.0
    stay_seconds: float = 60.0
    relief_seconds: float = 0.0


NO_ROWS: Integers = np.empty(0, dtype=np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class LoadReport:
    """What the management agents of all brokers report of the interval that has just ended.

    `use` has a row for each metric and a column for each broker, in parts of its capacity; `wait_seconds` is how long
    events wait in front of a broker, before they are matched. Of every subscription, whether it is `present`, the
    events in its output queue, and how many left it in a second; of every publication, its rate.
    """

    at_seconds: float
    placement: Placement
    present: Flags
    use: Floats
    wait_seconds: Floats
    rate_per_second: Floats
    queue_events: Floats
    output_per_second: Floats


@dataclass(frozen=True, slots=True)
class Completed:
    """All clients of a balancing have moved; `notified_seconds` is how long it took until they knew.

    `relieved_seconds` is how long it took until the broker that they left served them no more, where another serves
    them, too, for a while.
    """

    at_seconds: float
    balancing: int
    notified_seconds: float
    relieved_seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Migration:
    """Subscriptions go to another edge, or publications to another head; one balancing may have several targets."""

    balancing: int
    at_seconds: float
    source: int
    target: int
    metric: Metric
    reason: str
    subscriptions: Integers = field(default_factory=lambda: NO_ROWS)
    publications: Integers = field(default_factory=lambda: NO_ROWS)

    def topics(self, clusters: BrokerClusters) -> list[str]:
        """The names of what moves."""
        scenario = clusters.scenario
        moved = np.concatenate(
            [scenario.subscriptions.topic[self.subscriptions], scenario.publications.topic[self.publications]]
        )
        return [scenario.topics.name[each] for each in np.unique(moved)]


LEVEL, TREND, DAMPING = 0.8, 0.2, 0.5
"""How much of a new rate, and of its change, counts at once; and how much of a trend lasts for another interval. A
rate that jumps and stays is known after two intervals and overshot by little more than a hundredth; one that climbs is
followed without a lag."""


class SmoothedRates:
    """Levels and trends of many rates at once.

    >>> rates = SmoothedRates(1)
    >>> for measured in (100, 100, 200, 200, 200):
    ...     rates.add(np.array([measured]))
    >>> rates.expected().round(0)
    array([203.])
    """

    def __init__(self, count: int) -> None:
        self._level = np.full(count, np.nan)
        self._trend = np.zeros(count)

    def add(self, measured: Floats) -> None:
        """The rates of one more interval."""
        begun = np.isfinite(self._level)
        expected = self._level + DAMPING * self._trend
        level = np.where(begun, LEVEL * measured + (1 - LEVEL) * expected, measured)
        change = np.where(begun, level - self._level, 0.0)
        self._trend = TREND * change + (1 - TREND) * DAMPING * self._trend
        self._level = level

    def forget(self, which: Flags) -> None:
        """Begin anew where what was measured means nothing any more."""
        self._level = np.where(which, np.nan, self._level)
        self._trend = np.where(which, 0.0, self._trend)

    def expected(self) -> Floats:
        """The rates of the next interval; 0 where nothing was measured."""
        return np.maximum(np.nan_to_num(self._level + DAMPING * self._trend), 0.0)


COST_WEIGHT = 0.3
"""How much of the last balancing's cost counts in the average."""


class LoadState(IntEnum):
    """How a broker stands."""

    LOW = 0
    """It takes more."""
    HIGH = 1
    """It takes no more."""
    OVERLOAD = 2
    """A broker has to give up clients."""


def queue_threshold(
    spare_seconds: Floats, input_per_second: Floats, output_per_second: Floats, interval_seconds: float
) -> Floats:
    """The deepest queue that still empties in time, if balancing begins when the next interval has passed.

    PEER-WD eq. (2), in which the difference of the rates lacks the interval that it acts over.

    >>> queue_threshold(np.array([0.5]), np.array([200.0]), np.array([181.0]), 1.0)
    array([71.5])
    """
    with np.errstate(invalid="ignore"):
        found = spare_seconds * output_per_second - (input_per_second - output_per_second) * interval_seconds
    return np.where(np.isposinf(spare_seconds), np.inf, found)


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """How brokers stand, and what the next interval is expected to bring.

    The LoadState of every broker, and the Metric it is overloaded by (-1 if it is not). Of every subscription, whether
    its queue is too `deep`, the events that come for it and leave for it in a second, how long an event may wait, and
    how long it would take to move it; and the queue depth, in events, above which its deadline is at risk. The rates of
    publications, and the delays of topics.
    """

    state: Codes
    metric: Codes
    deep: Flags
    input_per_second: Floats
    output_per_second: Floats
    allowed_seconds: Floats
    balancing_seconds: Floats
    threshold: Floats
    expected_rate: Floats
    delays: TopicDelays


class LoadWatch:
    """Follows what is measured from interval to interval: rates, and what balancing costs."""

    def __init__(self, clusters: BrokerClusters, settings: BalancingSettings) -> None:
        self._clusters, self._settings = clusters, settings
        self._rates = SmoothedRates(len(clusters.scenario.publications))
        self._outputs = SmoothedRates(len(clusters.scenario.subscriptions))
        self._cost_seconds: float | None = None
        self._relief_seconds = settings.relief_seconds

    def on_report(self, event: LoadReport) -> Outlook:
        """What one more interval shows."""
        self._rates.add(event.rate_per_second)
        self._outputs.add(event.output_per_second)
        clusters, broker = self._clusters, event.placement.subscriptions
        # A rate that has risen is not taken to fall again before it does: too little would be moved.
        rate = np.maximum(self._rates.expected(), event.rate_per_second)
        delays = clusters.delays(event.placement, event.wait_seconds)
        events = clusters.published(event.placement, rate)[0].sum(axis=0)
        # Until a balancing has shown what it costs, it is taken to cost what the news of it takes to the client.
        cost = clusters.notification_seconds(broker)
        if self._cost_seconds is not None:
            cost = np.full_like(cost, self._cost_seconds)
        coming = events[clusters.scenario.subscriptions.topic]
        leaving, allowed = self._outputs.expected(), delays.allowed_seconds(broker)
        threshold = queue_threshold(
            allowed - cost, coming, leaving, self._settings.interval_seconds + self._relief_seconds
        )
        deep = event.present & (event.queue_events > np.maximum(threshold, 0.0))
        state, metric = self._states(event, deep)
        return Outlook(state, metric, deep, coming, leaving, allowed, cost, threshold, rate, delays)

    def _states(self, event: LoadReport, deep: Flags) -> tuple[Codes, Codes]:
        """The state of every broker, and by what it is overloaded."""
        thresholds, edge, use = self._settings.thresholds, self._clusters.edge, event.use.copy()
        low = (use < thresholds.low).all(axis=0)
        too_deep = np.zeros(len(edge), dtype=bool)
        too_deep[event.placement.subscriptions[deep]] = True
        use[Metric.UPLINK, edge] = 0.0
        static = use.max(axis=0) > thresholds.high
        metric = np.where(too_deep, int(Metric.QUEUE_DEPTH), np.where(static, use.argmax(axis=0), -1))
        state = np.where(static | too_deep, LoadState.OVERLOAD, np.where(low, LoadState.LOW, LoadState.HIGH))
        return state.astype(np.int8), metric.astype(np.int8)

    def completed(self, event: Completed) -> None:
        """A balancing has shown what it costs."""
        before, cost = self._cost_seconds, event.notified_seconds
        self._cost_seconds = cost if before is None else COST_WEIGHT * cost + (1 - COST_WEIGHT) * before
        relief = event.relieved_seconds
        self._relief_seconds = COST_WEIGHT * relief + (1 - COST_WEIGHT) * self._relief_seconds

    def forget(self, subscriptions: Integers) -> None:
        """These are served by another broker now: what left the old one for them means nothing there."""
        moved = np.zeros(len(self._clusters.scenario.subscriptions), dtype=bool)
        moved[subscriptions] = True
        self._outputs.forget(moved)
