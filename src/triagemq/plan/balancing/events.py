"""What balancing is told, and what it decides. Times are seconds of whoever measures."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from triagemq.plan.campus import Campus, Flags, Metric, Placement
from triagemq.plan.model import Decision
from triagemq.scenario import Floats, Integers

NOBODY: Integers = np.empty(0, dtype=np.int32)


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
    them beside it for a while.
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
    subscriptions: Integers = field(default_factory=lambda: NOBODY)
    publications: Integers = field(default_factory=lambda: NOBODY)

    def topics(self, campus: Campus) -> list[str]:
        """The names of what moves."""
        scenario = campus.scenario
        moved = np.concatenate(
            [scenario.subscriptions.topic[self.subscriptions], scenario.publications.topic[self.publications]]
        )
        return [scenario.topics.name[each] for each in np.unique(moved)]

    def decision(self, campus: Campus) -> Decision:
        """As traces hold it."""
        brokers = campus.scenario.brokers.name
        subject = ", ".join(self.topics(campus))
        return Decision("migration", subject, brokers[self.source], brokers[self.target], self.reason)
