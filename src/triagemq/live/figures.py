"""What a live run has delivered: the figures of `triage simulate`, from the Trace that the gateway wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from triagemq.plain import plain
from triagemq.scenario import Floats, Integers, Scenario, deadline_figures
from triagemq.simulate.changes import Phase
from triagemq.simulate.endings import ARRIVED, COPIES, LATENCY_NS, Tally, add_tallies, new_tally, ratio
from triagemq.simulate.result import class_results, table_rows, worth
from triagemq.theory.interval import t_quantile
from triagemq.trace import NOT_WANTED, Outcome, Trace, runs
from triagemq.trace.latency_bins import bins_of

_COLUMNS = ("subscription_id", "priority_class", "published_ns", "delivered_ns", "size_bytes", "outcome")
_BATCHES = 20
_OUTCOMES = pa.array([each.name for each in Outcome])


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Figures with the keys of `triage simulate --json`; `success_ci99` is the half-width of a 99 % interval."""

    publications: int
    measured_publications: int
    copies: int
    deliveries: int
    simulated_seconds: float
    measured_from_ns: int
    classes: list[dict[str, Any]]
    phases: list[dict[str, Any]]
    utility: dict[str, float | None]
    deadlines: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """One object for --json."""
        return {name: getattr(self, name) for name in self.__slots__}


WireSeconds = Callable[[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]], Floats]
"""What events take on links that their latency lacks, by their arrival, subscription and size."""


def measure(
    directories: Path | Sequence[Path],
    scenario: Scenario,
    *,
    from_ns: int,
    until_ns: int,
    planned: Integers,
    by_plan: bool = False,
    wire_seconds: WireSeconds | None = None,
    weights: Sequence[tuple[int, Floats]] = (),
) -> LiveFigures:
    """All runs of directories together: events published from `from_ns` on, by the class in which they were sent.

    `until_ns` is when the publishers' end began; events that they still published count, as in every table from the
    same trace. `planned` is the class of each subscription for copies that were sent in none (before a first plan), and
    of all copies with `by_plan`. Latencies get `wire_seconds` added. `weights` are those of subscriptions from each
    time on, in order, where they changed.
    """
    copies, published = [], []
    several = [directories] if isinstance(directories, Path) else directories
    found = [path for each in map(runs, several) for path in (*each.complete, *each.incomplete)]
    for path in found:
        trace = Trace.open(path, allow_incomplete=True)
        copies.append(trace.table("deliveries", columns=list(_COLUMNS)))
        published.append(trace.table("publications", columns=["published_ns"])["published_ns"].to_numpy())
    times = np.concatenate([np.empty(0, dtype=np.int64), *published])
    if len(several) > 1:
        # Every gateway whose clients want an event has seen it.
        times = np.unique(times)
    rows = (
        pa.concat_tables(copies)
        if copies
        else pa.table({name: pa.array([], pa.int64()) for name in _COLUMNS})
    )
    rows = of_scenario(rows.filter(pc.greater_equal(rows["published_ns"], from_ns)), scenario)
    subscription, stamp, delivered, latency_ns = copies_in(rows)
    if wire_seconds is not None:
        arrival = pc.fill_null(rows["delivered_ns"], 0).to_numpy()
        on_the_wire = wire_seconds(arrival, subscription, rows["size_bytes"].to_numpy())
        latency_ns = latency_ns + np.rint(on_the_wire * 1e9).astype(np.int64)
    sent_in = pc.fill_null(rows["priority_class"], -1).to_numpy()
    label = np.where((sent_in < 0) | by_plan, planned[subscription], sent_in).astype(np.int64)
    batch = np.clip((stamp - from_ns) * _BATCHES // max(1, until_ns - from_ns), 0, _BATCHES - 1)
    weights = weights or [(from_ns, scenario.subscriptions.utility_weight)]
    begins_ns = np.array([since_ns for since_ns, _ in weights])
    phase = np.maximum(np.searchsorted(begins_ns, stamp, side="right") - 1, 0)
    outcome = _outcomes(rows)
    wanted = np.isin(outcome, NOT_WANTED, invert=True)
    counts, rates = subscription_figures(
        scenario, subscription[wanted], delivered[wanted], latency_ns[wanted], phase[wanted], len(weights)
    )
    utility, phases = worth(
        scenario,
        [Phase((since_ns - int(begins_ns[0])) * 1e-9, weight) for since_ns, weight in weights],
        counts,
        rates,
        False,
        ((from_ns - int(begins_ns[0])) * 1e-9, (until_ns - int(begins_ns[0])) * 1e-9),
    )
    return LiveFigures(
        publications=len(times),
        measured_publications=int((times >= from_ns).sum()),
        copies=len(stamp),
        deliveries=int(delivered.sum()),
        simulated_seconds=(until_ns - from_ns) * 1e-9,
        measured_from_ns=from_ns,
        classes=_classes(label, outcome, latency_ns, batch),
        phases=plain(table_rows(phases)),
        utility=plain(asdict(utility)),
        deadlines=deadline_figures(scenario.subscriptions, rates[2]),
    )


Copies = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]
"""Of each copy of an event: its subscription, when it was published, whether it arrived, and after how many ns."""


def of_scenario(rows: pa.Table, scenario: Scenario) -> pa.Table:
    """The copies of a trace that are for a subscription of the scenario."""
    subscription = rows["subscription_id"].to_numpy()
    return rows.filter(pa.array((subscription >= 0) & (subscription < len(scenario.subscriptions))))


def copies_in(rows: pa.Table) -> Copies:
    """Rows of a trace's deliveries."""
    stamp, delivered = rows["published_ns"].to_numpy(), _outcomes(rows) == Outcome.delivered
    arrival = pc.fill_null(rows["delivered_ns"], 0).to_numpy()
    return rows["subscription_id"].to_numpy(), stamp, delivered, np.where(delivered, arrival - stamp, 0)


def _outcomes(rows: pa.Table) -> NDArray[np.int64]:
    """Of each copy, the number of its Outcome."""
    names = rows["outcome"].cast(pa.string())
    return pc.index_in(names, value_set=_OUTCOMES).to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _classes(
    label: NDArray[np.int64],
    outcome: NDArray[np.int64],
    latency_ns: NDArray[np.int64],
    batch: NDArray[np.int64],
) -> list[dict[str, Any]]:
    """Intervals are by batches in time: neighbours in a queue share their outcome."""
    count = int(label.max(initial=0)) + 1
    tallies = [
        _tally(count, label[chosen], outcome[chosen], latency_ns[chosen])
        for each in range(_BATCHES)
        for chosen in [batch == each]
    ]
    total = reduce(add_tallies, tallies)
    rows: list[dict[str, Any]] = plain(table_rows(class_results(total, tallies, False)))
    wider = float(t_quantile(_BATCHES, 0.99) / t_quantile(_BATCHES))
    for row in rows:
        interval = row["success_ci95"]
        row["success_ci99"] = None if interval is None else wider * interval
        row["dropped_by_policy"] = int(total.class_outcomes[row["priority_class"], Outcome.dropped_by_policy])
    return rows


def _tally(
    classes: int, label: NDArray[np.int64], outcome: NDArray[np.int64], latency_ns: NDArray[np.int64]
) -> Tally:
    tally = new_tally(0, classes)
    np.add.at(tally.class_outcomes, (label, outcome), 1)
    arrived = outcome == Outcome.delivered
    label, latency_ns = label[arrived], latency_ns[arrived]
    np.add.at(tally.histogram, (label, bins_of(latency_ns)), 1)
    np.maximum.at(tally.longest_ns, label, latency_ns)
    np.add.at(tally.batch_delivered[:, 0], label, 1)
    np.add.at(tally.batch_latency_ns[:, 0], label, latency_ns)
    return tally


def subscription_figures(
    scenario: Scenario,
    subscription: NDArray[np.int32],
    delivered: NDArray[np.bool_],
    latency_ns: NDArray[np.int64],
    phase: NDArray[np.int64],
    phases: int = 1,
) -> tuple[NDArray[np.int64], tuple[Floats, Floats, Floats]]:
    """Wanted copies counted as Tally.phases has them, none late: a run ends when everything has arrived; and of each
    subscription the success rate, the mean latency and the share of the delivered within the latency it asks for."""
    rows = len(scenario.subscriptions)
    counts = np.zeros((phases, rows, 4), dtype=np.int64)
    for column, values in ((COPIES, 1), (ARRIVED, delivered), (LATENCY_NS, latency_ns * delivered)):
        np.add.at(counts[:, :, column], (phase, subscription), values)
    whole = counts.sum(axis=0)
    allowed_ns = np.rint(scenario.subscriptions.max_latency_seconds[subscription] * 1e9)
    in_time = np.bincount(subscription, delivered & (latency_ns <= allowed_ns), minlength=rows)
    arrived = whole[:, ARRIVED]
    rates = (
        ratio(arrived, whole[:, COPIES]),
        ratio(whole[:, LATENCY_NS], arrived) * 1e-9,
        ratio(in_time, arrived),
    )
    return counts, rates
