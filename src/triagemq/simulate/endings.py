"""How a copy ends (delivered, dropped, lost, gone or still under way; every one exactly once) and what is counted then.

Outcomes and latencies are counted per subscription and class, in batches and histograms, from the whole nanoseconds
that a trace would hold, in integers: the same figures from the trace are the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.compiled import kernel, step
from triagemq.scenario import Floats
from triagemq.simulate.records import Buffer, Pool, Record, Records, append, give_back
from triagemq.trace.latency_bins import BINS, PARTS_PER_DOUBLING
from triagemq.trace.schema import Outcome

# Plain integers: kernels compile faster with them than with members of an enumeration.
DELIVERED = int(Outcome.delivered)
DROPPED_BY_POLICY = int(Outcome.dropped_by_policy)
DROPPED_BY_BUFFER = int(Outcome.dropped_by_buffer)
LIMITED = int(Outcome.limited)
LOST_ON_LINK = int(Outcome.lost_on_link)
SUBSCRIBER_GONE = int(Outcome.subscriber_gone)
IN_FLIGHT = int(Outcome.in_flight)
THINNED = int(Outcome.thinned)
EXPIRED = int(Outcome.expired)
SUPERSEDED = int(Outcome.superseded)


@step
def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds, rounded to the nearest (times are never negative)."""
    return int(seconds * 1e9 + 0.5)


@step
def end_copy(ended: Buffer, source: Record, subscription: int, priority_class: int, outcome: int) -> None:
    """End a copy that never came to a managed port; `source` is it or its event."""
    end_times(ended, source, subscription, priority_class, outcome, -1, -1, -1)


@step
def end_times(
    ended: Buffer,
    source: Record,
    subscription: int,
    priority_class: int,
    outcome: int,
    enqueued_ns: int,
    dequeued_ns: int,
    delivered_ns: int,
) -> None:
    """End a copy with its times at ports; `source` says what event it is one of."""
    record = ended.records[append(ended)]
    record.event = source.event
    record.published_ns = source.published_ns
    record.enqueued_ns = enqueued_ns
    record.dequeued_ns = dequeued_ns
    record.delivered_ns = delivered_ns if outcome == DELIVERED else -1
    record.size_bytes = source.size_bytes
    record.subscription = subscription
    record.priority_class = priority_class
    record.outcome = outcome


@step
def end_packet(
    ended: Buffer,
    groups: Pool,
    packet: Record,
    priority_class: int,
    outcome: int,
    dequeued_ns: int,
    delivered_ns: int,
) -> None:
    """End a packet and, if it is the last one under way of its event, the copy.

    An event is delivered with its last packet; a packet lost loses it, whatever becomes of the others. Where packets
    end in several ways the first of them in the list of outcomes counts, so that the order of calls does not matter.
    """
    enqueued_ns = packet.enqueued_ns
    number = packet.group
    if number >= 0:
        group = groups.records[number]
        group.remaining -= 1
        group.dequeued_ns = max(group.dequeued_ns, dequeued_ns)
        group.delivered_ns = max(group.delivered_ns, delivered_ns)
        if outcome != DELIVERED and (group.outcome == DELIVERED or outcome < group.outcome):
            group.outcome = outcome
        if group.remaining > 0:
            return
        outcome = group.outcome
        priority_class = group.priority_class
        enqueued_ns = group.enqueued_ns
        dequeued_ns = group.dequeued_ns
        delivered_ns = group.delivered_ns
        give_back(groups, number)
    subscription = packet.subscription
    end_times(ended, packet, subscription, priority_class, outcome, enqueued_ns, dequeued_ns, delivered_ns)


BATCHES = 30

NO_DEADLINE = np.iinfo(np.int64).max
"""Of a subscription without a required latency."""

# The last axis of Tally.phases.
COPIES, ARRIVED, LATE, LATENCY_NS = range(4)

_MANTISSA_BITS = 46
_OFFSET = 1023 * PARTS_PER_DOUBLING


class Tally(NamedTuple):
    """Counts of one replication, or of several added up. Latencies are sums of nanoseconds.

    `late` and `class_late` are those of the delivered copies that arrived after the last publication, while the queues
    ran empty; `last_delivered_ns` is when the last one did. `phases` has a row per phase, where worth changes during a
    run (none where it does not), and per subscription what was published in it: wanted copies, those delivered, those
    of them that came late, and the sum of their latencies. `own_histogram` has a row per subscription if those are
    requested, else none. `within` counts the delivered whose latency is at most the subscription's `deadline_ns`.
    """

    outcomes: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    class_outcomes: NDArray[np.int64]
    batch_delivered: NDArray[np.int64]
    batch_latency_ns: NDArray[np.int64]
    histogram: NDArray[np.int64]
    longest_ns: NDArray[np.int64]
    late: NDArray[np.int64]
    class_late: NDArray[np.int64]
    last_delivered_ns: NDArray[np.int64]
    phases: NDArray[np.int64]
    own_histogram: NDArray[np.int32]
    deadline_ns: NDArray[np.int64]
    within: NDArray[np.int64]


def new_tally(
    subscriptions: int,
    classes: int,
    phases: int = 1,
    *,
    own_histograms: bool = False,
    deadline_ns: NDArray[np.int64] | None = None,
) -> Tally:
    kinds = len(Outcome)
    return Tally(
        outcomes=np.zeros((subscriptions, kinds), dtype=np.int64),
        latency_ns=np.zeros(subscriptions, dtype=np.int64),
        class_outcomes=np.zeros((classes, kinds), dtype=np.int64),
        batch_delivered=np.zeros((classes, BATCHES), dtype=np.int64),
        batch_latency_ns=np.zeros((classes, BATCHES), dtype=np.int64),
        histogram=np.zeros((classes, BINS), dtype=np.int64),
        longest_ns=np.zeros(classes, dtype=np.int64),
        late=np.zeros(subscriptions, dtype=np.int64),
        class_late=np.zeros(classes, dtype=np.int64),
        last_delivered_ns=np.zeros(1, dtype=np.int64),
        phases=np.zeros((phases if phases > 1 else 0, subscriptions, 4), dtype=np.int64),
        own_histogram=np.zeros((subscriptions if own_histograms else 0, BINS), dtype=np.int32),
        deadline_ns=np.full(subscriptions, NO_DEADLINE) if deadline_ns is None else deadline_ns,
        within=np.zeros(subscriptions, dtype=np.int64),
    )


def add_tallies(first: Tally, second: Tally) -> Tally:
    """Both together."""
    columns: Iterable[tuple[Any, Any]] = zip(first, second, strict=True)
    return Tally(*(one + other for one, other in columns))._replace(
        longest_ns=np.maximum(first.longest_ns, second.longest_ns),
        last_delivered_ns=np.maximum(first.last_delivered_ns, second.last_delivered_ns),
        deadline_ns=first.deadline_ns,
    )


def ratio(numerator: Any, denominator: Any) -> Floats:
    """One over the other, NaN where there is nothing to divide by."""
    above, under = np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    return np.asarray(np.divide(above, under, out=np.full(under.shape, np.nan), where=under > 0))


@kernel
def count_endings(
    tally: Tally,
    ended: Buffer,
    measured_from_ns: int,
    batches_per_ns: float,
    phase_begins_ns: NDArray[np.int64],
) -> None:
    """Count the copies that have ended, of events published from `measured_from_ns` on."""
    for number in range(ended.filled[0]):
        record = ended.records[number]
        since = record.published_ns - measured_from_ns
        if since < 0:
            continue
        subscription, priority_class, outcome = record.subscription, record.priority_class, record.outcome
        tally.outcomes[subscription, outcome] += 1
        tally.class_outcomes[priority_class, outcome] += 1
        phase = len(tally.phases) - 1
        if phase > 0:
            while record.published_ns < phase_begins_ns[phase]:
                phase -= 1
            if outcome != THINNED and outcome != SUPERSEDED:
                tally.phases[phase, subscription, COPIES] += 1
        if outcome != DELIVERED:
            continue
        latency = record.delivered_ns - record.published_ns
        tally.latency_ns[subscription] += latency
        if latency <= tally.deadline_ns[subscription]:
            tally.within[subscription] += 1
        batch = min(int(since * batches_per_ns), BATCHES - 1)
        tally.batch_delivered[priority_class, batch] += 1
        tally.batch_latency_ns[priority_class, batch] += latency
        tally.histogram[priority_class, _bin_of(latency)] += 1
        if len(tally.own_histogram) > 0:
            tally.own_histogram[subscription, _bin_of(latency)] += 1
        if latency > tally.longest_ns[priority_class]:
            tally.longest_ns[priority_class] = latency
        if phase > -1:
            tally.phases[phase, subscription, ARRIVED] += 1
            tally.phases[phase, subscription, LATENCY_NS] += latency


def arriving_after(ended: Buffer, time_ns: int, measured_from_ns: int) -> Records:
    """The copies that arrive after a time, of events published from `measured_from_ns` on."""
    records = ended.records[: int(ended.filled[0])]
    return records[(records["delivered_ns"] > time_ns) & (records["published_ns"] >= measured_from_ns)]


def count_late(tally: Tally, copies: Records, phase_begins_ns: NDArray[np.int64]) -> None:
    """Count delivered copies as late."""
    if not len(copies):
        return
    subscription = copies["subscription"]
    np.add.at(tally.late, subscription, 1)
    np.add.at(tally.class_late, copies["priority_class"], 1)
    if len(tally.phases):
        phase = np.searchsorted(phase_begins_ns, copies["published_ns"], side="right") - 1
        np.add.at(tally.phases[:, :, LATE], (phase, subscription), 1)
    tally.last_delivered_ns[0] = max(tally.last_delivered_ns[0], copies["delivered_ns"].max())


@step
def _bin_of(latency_ns: int) -> int:
    """The bin of a latency, as `trace.latency_bins.bins_of` has it for arrays."""
    if latency_ns < 1:
        return 0
    as_float = np.float64(latency_ns)
    return int(as_float.view(np.int64) >> _MANTISSA_BITS) - _OFFSET + 1
