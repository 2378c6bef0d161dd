"""What became of promises in a run: per promise how many messages, how late the worst, and who was cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.plan.model import Decision
from triagemq.scenario import Floats, Scenario, Table
from triagemq.scenario.model import Names
from triagemq.simulate.endings import ratio
from triagemq.simulate.promised.direct import PromisedRows
from triagemq.simulate.promised.state import PromiseTally
from triagemq.trace.schema import Outcome


@dataclass(frozen=True, slots=True, eq=False)
class PromiseResults(Table):
    """One row per promise, of all messages from the first on: a promise knows no warm-up.

    `late` are those of the delivered whose latency exceeds what was asked for, `max_latency_seconds`; no latency
    should exceed `bound_seconds`, which was proven. `limited` were cut at the first switch, because their
    publisher sent more than it had declared. `lost` were dropped by a buffer, lost on a link, or their subscriber was
    gone. Latencies are NaN where nothing was delivered.
    """

    publisher: Names
    topic: Names
    subscriber: Names
    messages: NDArray[np.int64]
    delivered: NDArray[np.int64]
    late: NDArray[np.int64]
    limited: NDArray[np.int64]
    lost: NDArray[np.int64]
    in_flight: NDArray[np.int64]
    worst_latency_seconds: Floats
    mean_latency_seconds: Floats
    bound_seconds: Floats
    max_latency_seconds: Floats


def add_promise_tallies(tallies: Sequence[PromiseTally]) -> PromiseTally:
    """All replications together."""
    first = np.array([each.first_cut_ns for each in tallies])
    never = np.iinfo(np.int64).max
    earliest = np.where(first < 0, never, first).min(axis=0)
    return PromiseTally(
        outcomes=np.sum([each.outcomes for each in tallies], axis=0),
        late=np.sum([each.late for each in tallies], axis=0),
        worst_ns=np.max([each.worst_ns for each in tallies], axis=0),
        latency_ns=np.sum([each.latency_ns for each in tallies], axis=0),
        cut_packets=np.sum([each.cut_packets for each in tallies], axis=0),
        first_cut_ns=np.where(earliest == never, -1, earliest),
    )


def promise_results(scenario: Scenario, promised: PromisedRows, tally: PromiseTally) -> PromiseResults:
    publications, wanted = scenario.publications, scenario.subscriptions
    publisher = publications.publisher[promised.publication]
    topic, subscriber = wanted.topic[promised.subscription], wanted.subscriber[promised.subscription]
    delivered = tally.outcomes[:, Outcome.delivered]
    limited, in_flight = tally.outcomes[:, Outcome.limited], tally.outcomes[:, Outcome.in_flight]
    messages = tally.outcomes.sum(axis=1)
    return PromiseResults(
        publisher=tuple(scenario.publishers.name[row] for row in publisher),
        topic=tuple(scenario.topics.name[row] for row in topic),
        subscriber=tuple(scenario.subscribers.name[row] for row in subscriber),
        messages=messages,
        delivered=delivered.copy(),
        late=tally.late,
        limited=limited.copy(),
        lost=messages - delivered - limited - in_flight,
        in_flight=in_flight.copy(),
        worst_latency_seconds=np.where(delivered > 0, tally.worst_ns * 1e-9, np.nan),
        mean_latency_seconds=ratio(tally.latency_ns * 1e-9, delivered),
        bound_seconds=promised.bound_seconds,
        max_latency_seconds=wanted.max_latency_seconds[promised.subscription],
    )


def cut_publishers(scenario: Scenario, tally: PromiseTally) -> tuple[tuple[Decision, ...], NDArray[np.int64]]:
    """A decision for each publication that its limiter cut, and when it first did, in nanoseconds."""
    rows = np.flatnonzero(tally.cut_packets)
    publications = scenario.publications
    return (
        tuple(
            Decision(
                kind="limited",
                subject=f"{scenario.publishers.name[publications.publisher[row]]} on "
                f"{scenario.topics.name[publications.topic[row]]}",
                before="as fast as it sent",
                after=f"a message in {publications.min_separation_seconds[row]:g} s",
                reason=f"it sent more than it had declared: {tally.cut_packets[row]} packets were cut where it enters "
                "the network",
            )
            for row in rows.tolist()
        ),
        tally.first_cut_ns[rows],
    )
