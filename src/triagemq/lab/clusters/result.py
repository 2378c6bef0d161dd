"""What came of broker clusters: loads and queues at the end of every interval, migrations, and who was late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from triagemq.plan.balancing.detection import Migration
from triagemq.plan.clusters import CAPACITIES, BrokerClusters, Metric
from triagemq.scenario import Floats

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
