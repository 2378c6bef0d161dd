"""What is counted: outcomes and latencies per subscription and class, batches and histograms of latencies.

Everything is counted from the whole nanoseconds that a trace would hold, in integers, so that whoever computes the
same figures from the trace gets the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.simulate.endings import DELIVERED
from triagemq.simulate.kernel import kernel, step
from triagemq.simulate.records import Buffer
from triagemq.trace.latency_bins import BINS, PARTS_PER_DOUBLING
from triagemq.trace.schema import Outcome

__all__ = [
    "BATCHES",
    "Tally",
    "add_tallies",
    "count_endings",
    "new_tally",
]

BATCHES = 30
_MANTISSA_BITS = 46
_OFFSET = 1023 * PARTS_PER_DOUBLING


class Tally(NamedTuple):
    """Counts of one replication, or of several added up. Latencies are sums of nanoseconds."""

    outcomes: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    class_outcomes: NDArray[np.int64]
    batch_delivered: NDArray[np.int64]
    batch_latency_ns: NDArray[np.int64]
    histogram: NDArray[np.int64]
    longest_ns: NDArray[np.int64]


def new_tally(subscriptions: int, classes: int) -> Tally:
    kinds = len(Outcome)
    return Tally(
        outcomes=np.zeros((subscriptions, kinds), dtype=np.int64),
        latency_ns=np.zeros(subscriptions, dtype=np.int64),
        class_outcomes=np.zeros((classes, kinds), dtype=np.int64),
        batch_delivered=np.zeros((classes, BATCHES), dtype=np.int64),
        batch_latency_ns=np.zeros((classes, BATCHES), dtype=np.int64),
        histogram=np.zeros((classes, BINS), dtype=np.int64),
        longest_ns=np.zeros(classes, dtype=np.int64),
    )


def add_tallies(first: Tally, second: Tally) -> Tally:
    """Both together; batches stay those of the first, since intervals then come from the replications."""
    return Tally(
        outcomes=first.outcomes + second.outcomes,
        latency_ns=first.latency_ns + second.latency_ns,
        class_outcomes=first.class_outcomes + second.class_outcomes,
        batch_delivered=first.batch_delivered + second.batch_delivered,
        batch_latency_ns=first.batch_latency_ns + second.batch_latency_ns,
        histogram=first.histogram + second.histogram,
        longest_ns=np.maximum(first.longest_ns, second.longest_ns),
    )


@kernel
def count_endings(tally: Tally, ended: Buffer, measured_from_ns: int, batches_per_ns: float) -> None:
    """Count the copies that have ended, of events published from `measured_from_ns` on."""
    for number in range(ended.filled[0]):
        record = ended.records[number]
        since = record.published_ns - measured_from_ns
        if since < 0:
            continue
        subscription, priority_class, outcome = record.subscription, record.priority_class, record.outcome
        tally.outcomes[subscription, outcome] += 1
        tally.class_outcomes[priority_class, outcome] += 1
        if outcome != DELIVERED:
            continue
        latency = record.delivered_ns - record.published_ns
        tally.latency_ns[subscription] += latency
        batch = min(int(since * batches_per_ns), BATCHES - 1)
        tally.batch_delivered[priority_class, batch] += 1
        tally.batch_latency_ns[priority_class, batch] += latency
        tally.histogram[priority_class, _bin_of(latency)] += 1
        if latency > tally.longest_ns[priority_class]:
            tally.longest_ns[priority_class] = latency


@step
def _bin_of(latency_ns: int) -> int:
    """The bin of a latency, as `trace.latency_bins.bins_of` has it for arrays."""
    if latency_ns < 1:
        return 0
    as_float = np.float64(latency_ns)
    return int(as_float.view(np.int64) >> _MANTISSA_BITS) - _OFFSET + 1
