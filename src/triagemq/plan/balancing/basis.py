"""What is known when clients are selected that leave an overloaded broker, and what is selected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.balancing.detection import LoadState, Outlook
from triagemq.plan.balancing.events import LoadReport
from triagemq.plan.balancing.settings import BalancingSettings
from triagemq.plan.campus import Campus, Flags, Metric
from triagemq.scenario import Floats

RowNumbers = NDArray[np.int64]


class Leaving(NamedTuple):
    """Subscriptions or publications that leave a broker for another."""

    source: int
    target: int
    rows: RowNumbers


@dataclass(frozen=True, slots=True, eq=False)
class OffloadBasis:
    """All that is known when clients are selected.

    `asked` is what the next interval asks of every metric and broker; `free` are the brokers that no balancing is under
    way at; `movable` and `movable_publications` who has not moved lately.
    """

    campus: Campus
    settings: BalancingSettings
    measured: LoadReport
    outlook: Outlook
    asked: Floats
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
