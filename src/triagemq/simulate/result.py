"""What a simulation found: per class, per subscription and per port, with intervals, and what it was worth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.plain import plain
from triagemq.plan.model import Decision
from triagemq.scenario import (
    Floats,
    Integers,
    Scenario,
    Subscriptions,
    Table,
    achieved_utility,
    deadline_figures,
    maximum_utility,
)
from triagemq.scenario.model import Names
from triagemq.simulate.changes import Phase
from triagemq.simulate.endings import (
    ARRIVED,
    COPIES,
    LATE,
    LATENCY_NS,
    NO_DEADLINE,
    Tally,
    add_tallies,
    ratio,
)
from triagemq.simulate.engine import PERCENTILES, Replication
from triagemq.simulate.promised.direct import PromisedRows
from triagemq.simulate.promised.state import PromiseTally
from triagemq.simulate.sink import cut_publishers
from triagemq.theory.interval import half_width
from triagemq.trace.latency_bins import percentile_ns, percentiles_ns
from triagemq.trace.schema import NOT_WANTED, Outcome

SIMULATED = tuple(each for each in Outcome if each is not Outcome.unacknowledged)
"""Outcomes that a simulated copy can have."""

LATE_SHARE = 0.02
"""With more of a class's copies than this under way at the last publication, its success is what had arrived then."""


@dataclass(frozen=True, slots=True, eq=False)
class ClassResults(Table):
    """One row per priority class that had copies. Latencies are in seconds, NaN where nothing was delivered.

    `ci95_seconds` is the half-width of the 95 % confidence interval of the mean latency, `success_ci95` that of the
    success rate (NaN for a single replication). Percentiles are within 0.8 % (the histogram's bins). `late` are
    those of the delivered that arrived after the last publication; see SimulationResult.
    """

    priority_class: Integers
    count: NDArray[np.int64]
    delivered: NDArray[np.int64]
    late: NDArray[np.int64]
    success_rate: Floats
    success_ci95: Floats
    mean_latency_seconds: Floats
    ci95_seconds: Floats
    p50_seconds: Floats
    p95_seconds: Floats
    p95_ci95_seconds: Floats
    p99_seconds: Floats
    p99_ci95_seconds: Floats
    max_seconds: Floats


@dataclass(frozen=True, slots=True, eq=False)
class SubscriptionResults(Table):
    """One row per subscription: copies of events published in the measured time, by what became of them.

    `success_ci95` and `ci95_seconds` are half-widths of 95 % intervals over the replications, NaN for a single one.
    Percentiles are the mean over the replications, with their intervals; NaN where they were not requested.
    `share_within_max_latency` is the share of the delivered that came within the latency that the subscription
    requires, NaN where it requires none.
    """

    count: NDArray[np.int64]
    delivered: NDArray[np.int64]
    late: NDArray[np.int64]
    dropped_by_policy: NDArray[np.int64]
    dropped_by_buffer: NDArray[np.int64]
    limited: NDArray[np.int64]
    lost_on_link: NDArray[np.int64]
    subscriber_gone: NDArray[np.int64]
    in_flight: NDArray[np.int64]
    thinned: NDArray[np.int64]
    expired: NDArray[np.int64]
    superseded: NDArray[np.int64]
    success_rate: Floats
    success_ci95: Floats
    mean_latency_seconds: Floats
    ci95_seconds: Floats
    p95_seconds: Floats
    p95_ci95_seconds: Floats
    p99_seconds: Floats
    p99_ci95_seconds: Floats
    share_within_max_latency: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PortResults(Table):
    """One row per output port: the share of the measured time in which it was sending."""

    name: tuple[str, ...]
    utilisation: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PromiseResults(Table):
    """One row per promise, of all messages from the first on: a promise knows no warm-up.

    `late` are those of the delivered whose latency exceeds `max_latency_seconds`, which was requested; no latency
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


@dataclass(frozen=True, slots=True, eq=False)
class PhaseResults(Table):
    """One row per phase of a run in which what subscriptions are worth changes: what was published in it, and what
    that was worth. `utility` is the sum achieved, `utility_rate` that over the sum of maxima."""

    begins_seconds: Floats
    count: NDArray[np.int64]
    success_rate: Floats
    utility: Floats
    utility_rate: Floats


@dataclass(frozen=True, slots=True)
class SimulatedUtility:
    """What the measured success rates and latencies are worth; `rate` is achieved over maximum, `rate_mean` the mean
    of that ratio over subscriptions, as the papers print it. Where worth changes during a run, phases count by the
    measured time that they last."""

    achieved: float
    maximum: float
    rate: float
    rate_mean: float


@dataclass(frozen=True, slots=True, eq=False)
class SimulationResult:
    """All replications together. `deliveries` and `copies` are those of the measured time (see Outcome).

    A run by a number of publications goes on until every queue is empty. Where that takes long, because a queue is
    overloaded or the run is short, what arrived after the last publication is no success: `late_deliveries` of the
    deliveries did, the last one `drained_seconds` after it, and `late_excluded` says whether success rates
    and utility leave them out. Latencies are of all that arrived.

    `promises` has a row for each promise of the plan. `decisions` are those of the network in the run: publishers whose
    limiter cut them.

    `wall_seconds` is the engine's time; what compiling or loading the kernels took is `compile_seconds`.
    `precision_reached` is None where no precision was requested, and False where the limit on replications came first.
    """

    publications: int
    measured_publications: int
    copies: int
    deliveries: int
    late_deliveries: int
    late_excluded: bool
    drained_seconds: float
    replications: int
    wall_seconds: float
    compile_seconds: float
    simulated_seconds: float
    measured_from_ns: int
    precision_reached: bool | None
    classes: ClassResults
    subscriptions: SubscriptionResults
    ports: PortResults
    phases: PhaseResults
    utility: SimulatedUtility
    deadlines: dict[str, int]
    promises: PromiseResults
    decisions: tuple[Decision, ...]

    def as_json(self) -> dict[str, Any]:
        """One object for `--json`: plain numbers, null for what is unknown or infinite."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        rows = {name: table_rows(value) for name, value in values.items() if isinstance(value, Table)}
        decisions = [asdict(each) for each in self.decisions]
        return plain(values | rows | {"utility": asdict(self.utility), "decisions": decisions})  # type: ignore[no-any-return]


def summarise(
    scenario: Scenario,
    phases: Sequence[Phase],
    replications: Sequence[Replication],
    *,
    measured_from_ns: int,
    wall_seconds: float,
    compile_seconds: float,
    precision_reached: bool | None,
    late_counts: bool,
    promised: PromisedRows,
) -> SimulationResult:
    """Add the replications up, in their order, and compute what is reported."""
    tallies = [each.tally for each in replications]
    total = reduce(add_tallies, tallies)
    late_excluded = not late_counts and bool(
        (total.class_late > LATE_SHARE * total.class_outcomes.sum(axis=1)).any()
    )
    subscriptions = _subscriptions(total, replications, late_excluded)
    promises = add_promise_tallies([each.promises for each in replications])
    ends = sum(each.simulated_seconds for each in replications) / len(replications)
    utility, phase_results = worth(
        scenario,
        phases,
        total.phases,
        (
            subscriptions.success_rate,
            subscriptions.mean_latency_seconds,
            subscriptions.share_within_max_latency,
        ),
        late_excluded,
        (measured_from_ns * 1e-9, ends),
    )
    return SimulationResult(
        publications=sum(each.publications for each in replications),
        measured_publications=sum(each.measured_publications for each in replications),
        copies=int(total.outcomes.sum()),
        deliveries=int(total.outcomes[:, Outcome.delivered].sum()),
        late_deliveries=int(total.late.sum()),
        late_excluded=late_excluded,
        drained_seconds=max(each.drained_seconds for each in replications),
        replications=len(replications),
        wall_seconds=wall_seconds,
        compile_seconds=compile_seconds,
        simulated_seconds=sum(each.simulated_seconds for each in replications),
        measured_from_ns=measured_from_ns,
        classes=class_results(total, tallies, late_excluded),
        subscriptions=subscriptions,
        ports=PortResults(
            scenario.ports.name,
            np.mean([each.utilisation for each in replications], axis=0, dtype=np.float64),
        ),
        phases=phase_results,
        utility=utility,
        deadlines=deadline_figures(scenario.subscriptions, subscriptions.share_within_max_latency),
        precision_reached=precision_reached,
        promises=promise_results(scenario, promised, promises),
        decisions=cut_publishers(scenario, promises)[0],
    )


def class_latencies(tallies: Sequence[Tally]) -> tuple[Floats, Floats]:
    """Mean latency per class in seconds, and the half-width of its 95 % interval (NaN where unknown).

    Several replications: Student's t over their means. One: batch means over the time of publication.
    """

    def mean(tally: Tally) -> Floats:
        return ratio(_exact_sums(tally.batch_latency_ns), tally.batch_delivered.sum(axis=1))

    if len(tallies) == 1:
        samples = ratio(tallies[0].batch_latency_ns, tallies[0].batch_delivered)
    else:
        samples = np.stack([mean(each) for each in tallies], axis=1)
    return mean(reduce(add_tallies, tallies)) * 1e-9, half_width(samples) * 1e-9


def class_results(total: Tally, tallies: Sequence[Tally], late_excluded: bool) -> ClassResults:
    """Per class with copies; intervals are over the tallies, of replications or of parts of one run."""
    mean, interval = class_latencies(tallies)
    count = total.class_outcomes.sum(axis=1)
    delivered = total.class_outcomes[:, Outcome.delivered]
    rows = np.flatnonzero(count)

    def percentile(share: float) -> Floats:
        found = [percentile_ns(total.histogram[row], share, int(total.longest_ns[row])) for row in rows]
        return np.array(found) * 1e-9

    def interval_of(share: float) -> Floats:
        each = [percentiles_ns(tally.histogram[rows], share) for tally in tallies]
        return half_width(np.stack(each, axis=1)) * 1e-9

    longest = np.where(delivered > 0, total.longest_ns * 1e-9, np.nan)
    return ClassResults(
        priority_class=rows.astype(np.int32),
        count=count[rows],
        delivered=delivered[rows],
        late=total.class_late[rows],
        success_rate=_success(total.class_outcomes, total.class_late, late_excluded)[rows],
        success_ci95=half_width(
            np.stack(
                [_success(each.class_outcomes, each.class_late, late_excluded) for each in tallies], axis=1
            )
        )[rows],
        mean_latency_seconds=mean[rows],
        ci95_seconds=interval[rows],
        p50_seconds=percentile(0.5),
        p95_seconds=percentile(0.95),
        p95_ci95_seconds=interval_of(0.95),
        p99_seconds=percentile(0.99),
        p99_ci95_seconds=interval_of(0.99),
        max_seconds=longest[rows],
    )


def _subscriptions(
    total: Tally, replications: Sequence[Replication], late_excluded: bool
) -> SubscriptionResults:
    tallies = [each.tally for each in replications]
    count = total.outcomes.sum(axis=1)
    delivered = total.outcomes[:, Outcome.delivered]
    latencies = [ratio(each.latency_ns, each.outcomes[:, Outcome.delivered]) for each in tallies]
    outcomes: dict[str, Any] = {each.name: total.outcomes[:, each].copy() for each in SIMULATED}
    return SubscriptionResults(
        count=count,
        late=total.late,
        **outcomes,
        success_rate=_success(total.outcomes, total.late, late_excluded),
        success_ci95=half_width(
            np.stack([_success(each.outcomes, each.late, late_excluded) for each in tallies], axis=1)
        ),
        mean_latency_seconds=ratio(total.latency_ns, delivered) * 1e-9,
        ci95_seconds=half_width(np.stack(latencies, axis=1)) * 1e-9,
        **_percentiles(replications, len(count)),
        share_within_max_latency=np.where(
            total.deadline_ns < NO_DEADLINE, ratio(total.within, delivered), np.nan
        ),
    )


def _percentiles(replications: Sequence[Replication], subscriptions: int) -> dict[str, Any]:
    """Of every subscription; unknown where no replication counted them."""
    samples = np.stack([each.percentiles_ns for each in replications], axis=2) * 1e-9
    if not samples.shape[1]:
        samples = np.full((len(PERCENTILES), subscriptions, 1), np.nan)
    found = {}
    for share, each in zip(PERCENTILES, samples, strict=True):
        known = np.isfinite(each)
        found[f"p{100 * share:g}_seconds"] = ratio(np.where(known, each, 0.0).sum(axis=1), known.sum(axis=1))
        found[f"p{100 * share:g}_ci95_seconds"] = half_width(each)
    return found


def _exact_sums(values: NDArray[np.int64]) -> Floats:
    """Sums over the last axis in Python's integers: the latencies of an unstable queue overflow 64 bits."""
    return np.array([float(sum(row)) for row in values.tolist()])


def _success(outcomes: NDArray[np.int64], late: NDArray[np.int64], late_excluded: bool) -> Floats:
    """The share of each row's wanted copies that was delivered; where late ones are excluded, without those."""
    delivered = outcomes[:, Outcome.delivered]
    return ratio(delivered - late if late_excluded else delivered, wanted_copies(outcomes))


def wanted_copies(outcomes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of each row, the copies that were to be delivered: all but those that made room for a newer one."""
    return np.asarray(outcomes.sum(axis=1) - outcomes[:, NOT_WANTED].sum(axis=1))


def table_rows(table: Table) -> list[dict[str, Any]]:
    names = table.__dataclass_fields__.keys()  # type: ignore[attr-defined]
    columns = {name: getattr(table, name) for name in names}
    return [{name: values[row] for name, values in columns.items()} for row in range(len(table))]


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


def worth(
    scenario: Scenario,
    phases: Sequence[Phase],
    counts: NDArray[np.int64],
    measured: tuple[Floats, Floats, Floats],
    late_excluded: bool,
    between: tuple[float, float],
) -> tuple[SimulatedUtility, PhaseResults]:
    """What a run was worth, and each of its phases; one without changes of worth has no phases.

    `counts` has what Tally.phases has: by phase and subscription, copies, arrivals, late ones and latencies. `measured`
    are success rates, mean latencies and shares within the required latency over the whole run, which was
    measured `between` two times; with `late_excluded`, late copies are no success.
    """
    if len(phases) == 1:
        weighed = replace(scenario.subscriptions, utility_weight=phases[0].utility_weight)
        none = np.zeros(0)
        return _utility(*_utilities(weighed, *measured)), PhaseResults(
            none, none.astype(np.int64), none, none, none
        )
    begins = np.array([each.begins_seconds for each in phases])
    lasts = np.diff(np.clip(np.append(begins, np.inf), between[0], max(between)))
    share = ratio(lasts, np.full(len(lasts), lasts.sum()))
    delivered = counts[:, :, ARRIVED] - (counts[:, :, LATE] if late_excluded else 0)
    rows = [
        _utilities(
            replace(scenario.subscriptions, utility_weight=phase.utility_weight),
            ratio(delivered[row], counts[row, :, COPIES]),
            ratio(counts[row, :, LATENCY_NS], counts[row, :, ARRIVED]) * 1e-9,
            measured[2],
        )
        for row, phase in enumerate(phases)
    ]
    achieved, maximum = (np.stack(each) for each in zip(*rows, strict=True))
    found = PhaseResults(
        begins_seconds=begins,
        count=counts[:, :, COPIES].sum(axis=1),
        success_rate=ratio(delivered.sum(axis=1), counts[:, :, COPIES].sum(axis=1)),
        # What falls into the warm-up, or after the end, was not measured.
        utility=np.where(lasts > 0, achieved.sum(axis=1), np.nan),
        utility_rate=np.where(lasts > 0, ratio(achieved.sum(axis=1), maximum.sum(axis=1)), np.nan),
    )
    return _utility(share @ achieved, share @ maximum), found


def _utilities(
    wanted: Subscriptions, success: Floats, latency_seconds: Floats, share_within: Floats
) -> tuple[Floats, Floats]:
    """Achieved and maximum; a subscription of which nothing was published, or nothing arrived, is worth nothing."""
    latency = np.where(np.isfinite(latency_seconds), latency_seconds, np.inf)
    achieved = achieved_utility(wanted, np.nan_to_num(success, nan=0.0), latency, share_within)
    return achieved, maximum_utility(wanted)


def _utility(achieved: Floats, maximum: Floats) -> SimulatedUtility:
    return SimulatedUtility(
        achieved=float(achieved.sum()),
        maximum=float(maximum.sum()),
        rate=float(ratio(achieved.sum(), maximum.sum())),
        rate_mean=float(np.nanmean(ratio(achieved, maximum))) if (maximum > 0).any() else math.nan,
    )
