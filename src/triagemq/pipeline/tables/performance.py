"""subscription_performance: one row per subscription: what arrived, how late, and what it was worth.

A run with a scenario has a row for every subscription of it, also for those of which nothing was published.

class_performance: one row per run and priority class: what became of its copies, and how late they came.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from triagemq.pipeline.partitions import in_pieces, joined, partition_by
from triagemq.pipeline.tables.latency_histogram import FIGURES, FORECAST, NO_CLASS, OUTCOMES, add_up, figures
from triagemq.scenario.utility import achieved_utility

SUBSCRIPTIONS = f"""
    run_id                             string,
    subscription_id                    int,
    subscriber_id                      int,
    subscriber                         string  COMMENT 'null where the run came without a scenario',
    topic_id                           int,
    topic                              string,
    priority_class                     int     COMMENT 'the one most of its copies had',
    {FIGURES},
    max_latency_seconds                double  COMMENT 'the requested latency; null for none',
    max_latency_share                  double  COMMENT 'the share that is to come within it; null for none',
    share_within_max_latency           double  COMMENT 'of the delivered; null where no latency was requested',
    utility                            double  COMMENT 'what the measured success, latency and share are worth',
    maximum_utility                    double  COMMENT 'what it is worth if everything arrives at once',
    forecast_share_within_max_latency  double,
    {FORECAST}
"""

CLASSES = f"""
    run_id          string,
    priority_class  int     COMMENT 'of the plan if the run has it, else of the copy; null without a plan',
    subscriptions   bigint  COMMENT 'that had copies in this class',
    {FIGURES},
    {FORECAST},
    bins            array<bigint> COMMENT 'latencies in ns: bin << 48 | count, see latency_bins'
"""

_KEYS = ("run", "subscription_id")
_CLASS_KEYS = ("run", "priority_class")
_SEEN = ("subscriber_id", "topic_id")
_MEASURED = f"""
    run int, subscription_id int, {", ".join(f"seen_{name} int" for name in _SEEN)}, priority_class int,
    in_time bigint, {FIGURES}
"""
_ADDED = f"""
    run int, priority_class int, subscriptions bigint, {", ".join(f"{outcome} bigint" for outcome in OUTCOMES)},
    late bigint, latency_sum_ns decimal(38,0), latency_max_ns bigint, bins array<bigint>
"""
_ROWS_AT_ONCE = 100_000
_WORTH_COLUMNS = {
    "utility_shape": 0,
    "utility_weight": 0,
    "utility_threshold": 0,
    "freshness_seconds": np.inf,
    "max_latency_share": 0,
}
"""The columns that decide about the worth, and the value of each where there is none."""


def by_subscription(latency_histogram: DataFrame, subscriptions: pa.Table) -> DataFrame:
    """Figures of every subscription. `subscriptions` has their names and requests (see dimensions.py)."""
    measured = in_pieces(partition_by(latency_histogram, *_KEYS), _figures, _MEASURED)
    return in_pieces(joined(measured, subscriptions, _KEYS, "full"), _with_worth, f"run int, {SUBSCRIPTIONS}")


def _figures(rows: pa.Table) -> pa.Table:
    """One row for each subscription, of those with its copies in each class."""
    added, at = add_up(rows, [*_KEYS], smallest=_SEEN)
    copies = sum(rows[outcome].to_numpy() for outcome in OUTCOMES)
    priority_class = rows["priority_class"].fill_null(NO_CLASS).to_numpy()
    order = np.lexsort((-priority_class, copies, at))
    usual = order[np.searchsorted(at[order], np.arange(len(added)), side="right") - 1]
    added = added.append_column("priority_class", rows["priority_class"].take(pa.array(usual)))
    return figures(added).rename_columns({name: f"seen_{name}" for name in _SEEN})


def _with_worth(rows: pa.Table) -> pa.Table:
    """Add the share in time and the utility to the figures of subscriptions."""

    def number(name: str, unknown: float = np.nan) -> Any:
        return rows[name].cast(pa.float64()).fill_null(unknown).to_numpy()

    delivered, has_worth = number("delivered", 0), rows["utility_shape"].is_valid().to_numpy()
    within = np.divide(number("in_time"), delivered, out=np.full(len(rows), np.nan), where=delivered > 0)
    within[np.isnan(number("max_latency_seconds"))] = np.nan
    requested: Any = SimpleNamespace(
        **{name: number(name, unknown) for name, unknown in _WORTH_COLUMNS.items()}
    )
    # Before the first delivery of a fresh topic there is nothing to enjoy.
    latency_seconds = number("mean_latency_seconds", np.inf)
    utility = achieved_utility(requested, number("success_rate", 0), latency_seconds, within)
    columns = {name: pc.coalesce(rows[name], rows[f"seen_{name}"]) for name in _SEEN}
    columns |= {name: rows[name].fill_null(0) for name in ("count", *OUTCOMES, "late")}
    columns |= {
        "share_within_max_latency": pa.array(within, from_pandas=True),
        "utility": pa.array(utility, mask=~has_worth),
        "maximum_utility": pa.array(achieved_utility(requested, np.ones(len(rows))), mask=~has_worth),
    }
    return pa.table({name: rows[name] for name in rows.column_names} | columns)


def by_class(latency_histogram: DataFrame, forecasts: pa.Table) -> DataFrame:
    """Add the histograms of all subscriptions up by class, with the `forecasts` by class (see dimensions.py)."""
    together = in_pieces(latency_histogram, _classes_added, _ADDED, _ROWS_AT_ONCE).repartition(1)
    found = f"run int, priority_class int, subscriptions bigint, {FIGURES}, bins array<bigint>"
    return joined(
        in_pieces(together, lambda rows: figures(_classes_added(rows)), found), forecasts, _CLASS_KEYS
    )


def _classes_added(rows: pa.Table) -> pa.Table:
    """One row for each run and class."""
    added, at = add_up(rows, [*_CLASS_KEYS])
    subscriptions = np.zeros(len(added), np.int64)
    np.add.at(
        subscriptions, at, rows["subscriptions"].to_numpy() if "subscriptions" in rows.column_names else 1
    )
    return added.append_column("subscriptions", pa.array(subscriptions))
