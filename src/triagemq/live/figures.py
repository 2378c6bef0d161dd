"""What a live run has delivered: the figures of `triage simulate`, from the Trace that the gateway wrote."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from triagemq.plain import plain
from triagemq.scenario import (
    Floats,
    Integers,
    Scenario,
    achieved_utility,
    deadline_figures,
    maximum_utility,
)
from triagemq.theory.interval import half_width, t_quantile
from triagemq.trace import Outcome, Trace, runs
from triagemq.trace.latency_bins import BINS, bins_of, percentile_ns

_COLUMNS = ("subscription_id", "priority_class", "published_ns", "delivered_ns", "size_bytes", "outcome")
_BATCHES = 20
_CONFIDENCE = 0.99


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


def load_reading() -> None:
    """Load what reading a trace needs, before the figures are needed."""
    importlib.import_module("pyarrow.dataset")


def measure(
    directories: Path | Sequence[Path],
    scenario: Scenario,
    *,
    from_ns: int,
    until_ns: int,
    planned: Integers,
    by_plan: bool = False,
    wire_seconds: WireSeconds | None = None,
    worth: Sequence[tuple[int, Floats]] = (),
) -> LiveFigures:
    """All runs of directories together: events published from `from_ns` on, by the class they were sent in.

    `until_ns` is when the publishers' end began; what they still published counts, as in every table made from
    the same trace. `planned` is the class of each subscription for copies that were sent in none (before a first plan),
    and `by_plan` counts all copies by it, whatever class they were sent in. Latencies get `wire_seconds` added. `worth`
    says what subscriptions were worth from each time on, in order, where that changed.
    """
    copies, published = [], []
    several = [directories] if isinstance(directories, Path) else directories
    found = [path for each in map(runs, several) for path in (*each.complete, *each.incomplete)]
    for path in found:
        trace = Trace.open(path, allow_incomplete=True)
        copies.append(trace.table("deliveries", columns=list(_COLUMNS)))
        published.append(trace.table("publications", columns=["published_ns"]))
    times = _column(published, "published_ns")
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
    on_purpose = _ended_as(Outcome.dropped_by_policy, rows["outcome"])
    if wire_seconds is not None:
        arrival = pc.fill_null(rows["delivered_ns"], 0).to_numpy()
        on_the_wire = wire_seconds(arrival, subscription, rows["size_bytes"].to_numpy())
        latency_ns = latency_ns + np.rint(on_the_wire * 1e9).astype(np.int64)
    sent_in = pc.fill_null(rows["priority_class"], -1).to_numpy()
    label = np.where((sent_in < 0) | by_plan, planned[subscription], sent_in).astype(np.int64)
    each_one = by_subscription(scenario, subscription, delivered, latency_ns)
    utility = utility_figures(scenario, each_one)
    phases: list[dict[str, Any]] = []
    if len(worth) > 1:
        utility, phases = _by_phase(
            scenario, worth, (from_ns, until_ns), (subscription, stamp, delivered, latency_ns), each_one
        )
    batch = np.minimum(
        ((stamp - from_ns) * _BATCHES // max(1, until_ns - from_ns)).astype(np.int64), _BATCHES - 1
    )
    return LiveFigures(
        publications=len(times),
        measured_publications=int((times >= from_ns).sum()),
        copies=len(stamp),
        deliveries=int(delivered.sum()),
        simulated_seconds=(until_ns - from_ns) * 1e-9,
        measured_from_ns=from_ns,
        classes=[
            _class_row(
                int(each),
                delivered[label == each],
                on_purpose[label == each],
                latency_ns[label == each],
                batch[label == each],
            )
            for each in np.unique(label)
        ],
        phases=phases,
        utility=utility,
        deadlines=deadline_figures(scenario.subscriptions, each_one.share_within),
    )


def _column(tables: Sequence[pa.Table], name: str) -> NDArray[np.int64]:
    parts = [table[name].to_numpy() for table in tables]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


Copies = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]
"""Of each copy of an event: its subscription, when it was published, whether it arrived, and after how many ns."""


def of_scenario(rows: pa.Table, scenario: Scenario) -> pa.Table:
    """The copies of a trace that are for a subscription of the scenario."""
    subscription = rows["subscription_id"].to_numpy()
    return rows.filter(pa.array((subscription >= 0) & (subscription < len(scenario.subscriptions))))


def copies_in(rows: pa.Table) -> Copies:
    """What is in rows of a trace's deliveries."""
    stamp, delivered = rows["published_ns"].to_numpy(), _ended_as(Outcome.delivered, rows["outcome"])
    arrival = pc.fill_null(rows["delivered_ns"], 0).to_numpy()
    return rows["subscription_id"].to_numpy(), stamp, delivered, np.where(delivered, arrival - stamp, 0)


def _ended_as(outcome: Outcome, column: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.equal(column, outcome.name).to_numpy(), dtype=np.bool_)


def _class_row(
    number: int,
    delivered: NDArray[np.bool_],
    on_purpose: NDArray[np.bool_],
    latency_ns: NDArray[np.int64],
    batch: NDArray[np.int64],
) -> dict[str, Any]:
    arrived = latency_ns[delivered]
    longest_ns = int(arrived.max(initial=0))
    histogram = np.bincount(bins_of(arrived), minlength=BINS)
    percentiles = {
        f"p{round(100 * share)}_seconds": plain(percentile_ns(histogram, share, longest_ns) * 1e-9)
        for share in (0.5, 0.95, 0.99)
    }
    return {
        "priority_class": number,
        "count": len(delivered),
        "delivered": int(delivered.sum()),
        "dropped_by_policy": int(on_purpose.sum()),
        "success_rate": float(delivered.mean()),
        # What had not come when the run ended was never delivered.
        "late": 0,
        "success_ci95": plain(_half_width(delivered.astype(np.float64), batch, 0.95)),
        "success_ci99": plain(_half_width(delivered.astype(np.float64), batch)),
        "mean_latency_seconds": int(arrived.sum()) / len(arrived) * 1e-9 if len(arrived) else None,
        "ci95_seconds": plain(_half_width(arrived.astype(np.float64) * 1e-9, batch[delivered], 0.95)),
        **percentiles,
        **{
            f"p{round(100 * share)}_ci95_seconds": plain(
                _percentile_half_width(arrived.astype(np.float64) * 1e-9, batch[delivered], share)
            )
            for share in (0.95, 0.99)
        },
        "max_seconds": longest_ns * 1e-9 if len(arrived) else None,
    }


def _half_width(values: Floats, batch: NDArray[np.int64], confidence: float = _CONFIDENCE) -> float:
    """Of the mean, by the means of batches in time: neighbours in a queue share their fate."""
    counts = np.bincount(batch, minlength=_BATCHES)
    used = counts > 0
    if used.sum() < 2:
        return math.nan
    weight = counts[used] / counts[used].mean()
    means = np.bincount(batch, values, minlength=_BATCHES)[used] / counts[used]
    centre = float((means * weight).mean())
    spread = math.sqrt(float(((weight * (means - centre)) ** 2).sum()) / (len(means) - 1))
    return float(t_quantile(len(means), confidence)) * spread / math.sqrt(len(means))


def _percentile_half_width(values: Floats, batch: NDArray[np.int64], share: float) -> float:
    """Of a 95 % interval of a percentile, by those of batches in time that are long enough to have one."""
    found = [
        float(np.quantile(some, share))
        for each in np.unique(batch)
        if (some := values[batch == each]).size * (1 - share) >= 1
    ]
    return float(half_width(np.array(found)))


@dataclass(slots=True, eq=False)
class BySubscription:
    """Of each subscription the copies, those that were delivered, the sum of their latencies, and how many of them came
    within the latency that it asks for."""

    count: Floats
    arrived: Floats
    seconds: Floats
    in_time: Floats

    def __add__(self, other: BySubscription) -> BySubscription:
        return BySubscription(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def success_rate(self) -> Floats:
        """0 where nothing was published."""
        return _ratio(self.arrived, self.count, 0.0)

    @property
    def mean_seconds(self) -> Floats:
        """Infinite where nothing arrived."""
        return _ratio(self.seconds, self.arrived, np.inf)

    @property
    def share_within(self) -> Floats:
        """Of what arrived; nothing of nothing."""
        return _ratio(self.in_time, self.arrived, 0.0)


def by_subscription(
    scenario: Scenario,
    subscription: NDArray[np.int32],
    delivered: NDArray[np.bool_],
    latency_ns: NDArray[np.int64],
) -> BySubscription:
    """Add copies up."""
    allowed_ns = np.rint(scenario.subscriptions.max_latency_seconds[subscription] * 1e9)
    columns = (
        np.ones(len(subscription)),
        delivered,
        np.where(delivered, latency_ns * 1e-9, 0.0),
        delivered & (latency_ns <= allowed_ns),
    )
    rows = len(scenario.subscriptions)
    return BySubscription(
        *(np.bincount(subscription, each, minlength=rows).astype(np.float64) for each in columns)
    )


def _ratio(part: Floats, whole: Floats, otherwise: float) -> Floats:
    return np.asarray(np.divide(part, whole, out=np.full(len(whole), otherwise), where=whole > 0))


def _by_phase(
    scenario: Scenario,
    worth: Sequence[tuple[int, Floats]],
    between_ns: tuple[int, int],
    copies: Copies,
    whole: BySubscription,
) -> tuple[dict[str, float | None], list[dict[str, Any]]]:
    """Utility and phases of a run in which what subscriptions are worth changes, counted as a simulation's are."""
    from triagemq.simulate.changes import Phase
    from triagemq.simulate.result import worth as worth_of

    subscription, stamp, delivered, latency_ns = copies
    begins_ns = np.array([since_ns for since_ns, _ in worth])
    phase = np.maximum(np.searchsorted(begins_ns, stamp, side="right") - 1, 0)
    parts = [
        by_subscription(scenario, *(each[phase == row] for each in (subscription, delivered, latency_ns)))
        for row in range(len(worth))
    ]
    # Copies, arrivals, late ones (none: the run ended when everything had come), and their latencies.
    columns = [(each.count, each.arrived, np.zeros_like(each.count), each.seconds * 1e9) for each in parts]
    start_ns = int(begins_ns[0])
    utility, phases = worth_of(
        scenario,
        [Phase((since_ns - start_ns) * 1e-9, weight) for since_ns, weight in worth],
        np.rint(np.stack([np.stack(each, axis=-1) for each in columns])).astype(np.int64),
        (whole.success_rate, whole.mean_seconds, whole.share_within),
        False,
        ((between_ns[0] - start_ns) * 1e-9, (between_ns[1] - start_ns) * 1e-9),
    )
    names = [each.name for each in fields(phases)]
    rows = zip(*(getattr(phases, name).tolist() for name in names), strict=True)
    return (
        plain(asdict(utility)),
        [plain(dict(zip(names, row, strict=True))) for row in rows],
    )


def utility_figures(scenario: Scenario, counted: BySubscription) -> dict[str, float | None]:
    """Achieved utility."""
    rows = len(scenario.subscriptions)
    achieved = achieved_utility(
        scenario.subscriptions, counted.success_rate, counted.mean_seconds, counted.share_within
    )
    maximum = maximum_utility(scenario.subscriptions)
    ratio = np.divide(achieved, maximum, out=np.zeros(rows), where=maximum > 0)
    total = float(maximum.sum())
    return {
        "achieved": float(achieved.sum()),
        "maximum": total,
        "rate": float(achieved.sum()) / total if total > 0 else None,
        "rate_mean": float(ratio.mean()) if rows else None,
    }
