"""Which brokers have room, and which have too much: static thresholds, and one of every queue by its deadline.

Edges are not called overloaded by their uplink, however full: what it may do to deadlines shows in the queues, before
they are missed (PEER-WD Table 3 and 4.2.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from triagemq.plan.balancing.events import Completed, LoadReport
from triagemq.plan.balancing.rates import SmoothedRates
from triagemq.plan.balancing.settings import BalancingSettings, Thresholds
from triagemq.plan.campus import Campus, Flags, Metric, TopicWays
from triagemq.scenario import Floats, Integers
from triagemq.scenario.model import Codes

COST_WEIGHT = 0.3
"""How much of the last balancing's cost counts in the average."""


class LoadState(IntEnum):
    """How a broker stands."""

    LOW = 0
    """It takes more."""
    HIGH = 1
    """It takes no more."""
    OVERLOAD = 2
    """Somebody has to leave."""


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """Of every subscription in the next interval: events that come for it and leave for it in a second, how long an
    event may wait, and how long it would take to move it; and for how long queues grow on while somebody moves."""

    input_per_second: Floats
    output_per_second: Floats
    allowed_seconds: Floats
    balancing_seconds: Floats
    relief_seconds: float = 0.0

    def threshold(self, interval_seconds: float) -> Floats:
        """The queue depth, in events, above which a deadline is at risk."""
        return queue_threshold(
            self.allowed_seconds - self.balancing_seconds,
            self.input_per_second,
            self.output_per_second,
            interval_seconds + self.relief_seconds,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Detected:
    """The LoadState of every broker, the Metric it is overloaded by (-1 if it is not), and the subscriptions whose
    queues are too deep."""

    state: Codes
    metric: Codes
    deep: Flags


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


def detect(
    campus: Campus, measured: LoadReport, expected: Expected, thresholds: Thresholds, interval_seconds: float
) -> Detected:
    """The state of every broker."""
    use, edge = measured.use, campus.edge
    low = (use < thresholds.low).all(axis=0)
    queued = measured.present & (measured.queue_events > 0)
    deep = queued & (measured.queue_events > expected.threshold(interval_seconds))
    too_deep = np.zeros(len(edge), dtype=bool)
    too_deep[measured.placement.subscriptions[deep]] = True
    judged = use.copy()
    judged[Metric.UPLINK, edge] = 0.0
    most = judged.argmax(axis=0)
    static = judged.max(axis=0) > thresholds.high
    overload = static | too_deep
    metric = np.where(too_deep, int(Metric.QUEUE_DEPTH), np.where(static, most, -1))
    state = np.where(overload, LoadState.OVERLOAD, np.where(low, LoadState.LOW, LoadState.HIGH))
    return Detected(state.astype(np.int8), metric.astype(np.int8), deep)


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """What was detected, what is expected of subscriptions, the rates of publications, and the ways of topics."""

    detected: Detected
    expected: Expected
    expected_rate: Floats
    ways: TopicWays


class LoadWatch:
    """Follows what is measured from interval to interval: rates, and what balancing costs."""

    def __init__(self, campus: Campus, settings: BalancingSettings) -> None:
        self._campus, self._settings = campus, settings
        self._rates = SmoothedRates(len(campus.scenario.publications))
        self._outputs = SmoothedRates(len(campus.scenario.subscriptions))
        self._cost_seconds: float | None = None
        self._relief_seconds = settings.relief_seconds

    def measured(self, event: LoadReport) -> Outlook:
        """What one more interval shows."""
        self._rates.add(event.rate_per_second)
        self._outputs.add(event.output_per_second)
        campus, broker = self._campus, event.placement.subscriptions
        # A rate that has risen is not taken to fall again before it does: too little would be moved.
        rate = np.maximum(self._rates.expected(), event.rate_per_second)
        ways = campus.ways(event.placement, event.wait_seconds)
        events = campus.published(event.placement, rate)[0].sum(axis=0)
        # Until a balancing has shown what it costs, it is taken to cost what the news of it takes to the client.
        cost = campus.notification_seconds(broker)
        if self._cost_seconds is not None:
            cost = np.full_like(cost, self._cost_seconds)
        expected = Expected(
            input_per_second=events[campus.scenario.subscriptions.topic],
            output_per_second=self._outputs.expected(),
            allowed_seconds=ways.allowed_seconds(broker),
            balancing_seconds=cost,
            relief_seconds=self._relief_seconds,
        )
        settings = self._settings
        detected = detect(campus, event, expected, settings.thresholds, settings.interval_seconds)
        return Outlook(detected, expected, rate, ways)

    def completed(self, event: Completed) -> None:
        """A balancing has shown what it costs."""
        before, cost = self._cost_seconds, event.notified_seconds
        self._cost_seconds = cost if before is None else COST_WEIGHT * cost + (1 - COST_WEIGHT) * before
        relief = event.relieved_seconds
        self._relief_seconds = COST_WEIGHT * relief + (1 - COST_WEIGHT) * self._relief_seconds

    def forget(self, subscriptions: Integers) -> None:
        """These are served by another broker now: what left the old one for them means nothing there."""
        moved = np.zeros(len(self._campus.scenario.subscriptions), dtype=bool)
        moved[subscriptions] = True
        self._outputs.forget(moved)
