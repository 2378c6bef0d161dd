"""class_performance: one row per run and priority class: what became of its copies, and how late they came."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from triagemq.pipeline.partitions import in_pieces, joined
from triagemq.pipeline.tables.figures import FIGURES, FORECAST, figures
from triagemq.pipeline.tables.latency_histogram import OUTCOMES, add_up

SCHEMA = f"""
    run_id          string,
    priority_class  int     COMMENT 'that triage gives, if the run says so; null if no plan covers it',
    subscriptions   bigint  COMMENT 'that had copies in this class',
    {FIGURES},
    {FORECAST},
    bins            array<bigint> COMMENT 'latencies in ns: bin << 48 | count, see latency_bins'
"""
_KEYS = ("run", "priority_class")
_ADDED = f"""
    run int, priority_class int, subscriptions bigint, {", ".join(f"{outcome} bigint" for outcome in OUTCOMES)},
    late bigint, latency_sum_ns decimal(38,0), latency_max_ns bigint, bins array<bigint>
"""
_ROWS_AT_ONCE = 100_000


def transform(latency_histogram: DataFrame, forecasts: pa.Table) -> DataFrame:
    """Add the histograms of all subscriptions up by class, beside the `forecasts` by class (see dimensions.py)."""
    together = in_pieces(latency_histogram, _add_up, _ADDED, _ROWS_AT_ONCE).repartition(1)
    found = f"run int, priority_class int, subscriptions bigint, {FIGURES}, bins array<bigint>"
    return joined(in_pieces(together, lambda rows: figures(_add_up(rows)), found), forecasts, _KEYS)


def _add_up(rows: pa.Table) -> pa.Table:
    """One row for each run and class."""
    added, at = add_up(rows, [*_KEYS])
    subscriptions = np.zeros(len(added), np.int64)
    np.add.at(
        subscriptions, at, rows["subscriptions"].to_numpy() if "subscriptions" in rows.column_names else 1
    )
    return added.append_column("subscriptions", pa.array(subscriptions))
