"""run_summary: one row per run: what it was, how much of it there is, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.partitions import table_of
from triagemq.pipeline.tables.latency_histogram import OUTCOMES, add_up, figures

SCHEMA = """
    run_id                  string,
    source                  string,
    producer                string,
    started                 string  COMMENT 'null for a foreign log',
    finished                string,
    scenario                string  COMMENT 'its name; null where the run came without one',
    measured_from_ns        bigint,
    rows_read               bigint  COMMENT 'of all input tables; rows_in + quarantined',
    rows_in                 bigint,
    quarantined             bigint,
    publications            bigint,
    measured_publications   bigint,
    published_bytes         bigint  COMMENT 'of the measured publications',
    topics                  bigint  COMMENT 'that had measured publications',
    observed_seconds        double  COMMENT 'from the end of warm-up to the last publication',
    count                   bigint  COMMENT 'copies of events published after warm-up',
    delivered               bigint,
    late                    bigint  COMMENT 'delivered after the cut-off: no success',
    success_rate            double  COMMENT '(delivered - late) / (count - thinned - superseded)',
    mean_latency_seconds    double,
    max                     double  COMMENT 'latency in seconds',
    utility                 double,
    maximum_utility         double,
    utility_rate            double  COMMENT 'utility / maximum_utility'
"""


_PROFILED = ("topic_id", "publications", "mean_size_bytes", "observed_seconds", "outage_seconds")
USED = {
    "publication_profile": ("run", *_PROFILED),
    "latency_histogram": ("run", *OUTCOMES, "late", "latency_sum_ns", "latency_max_ns"),
    "subscription_performance": ("run", "utility", "maximum_utility"),
}
"""The tables and columns that the figures of a run are computed from."""


def transform(
    runs: Sequence[Mapping[str, Any]],
    publication_profile: pa.Table,
    latency_histogram: pa.Table,
    subscription_performance: pa.Table,
) -> pa.Table:
    """Add the figures of other tables to the facts about each run."""
    counted = {row["run"]: row for row in figures(add_up(latency_histogram, ["run"])[0]).to_pylist()}
    nothing = {"count": 0, "delivered": 0, "late": 0}
    rows = [
        {**known, **counted.get(run, nothing)}
        | _profiled(_of(publication_profile, run))
        | _worth(_of(subscription_performance, run))
        for known in runs
        for run in [known["run"]]
    ]
    return table_of([pa.Table.from_pylist([row]) for row in rows], f"run int, {SCHEMA}")


def _of(table: pa.Table, run: int) -> pa.Table:
    return table.filter(pc.equal(table["run"], run))


def _profiled(rows: pa.Table) -> dict[str, Any]:
    count = rows["publications"].to_numpy()
    observed = rows["observed_seconds"].to_numpy() + rows["outage_seconds"].to_numpy()
    return {
        "measured_publications": int(count.sum()),
        "published_bytes": round(math.fsum(rows["mean_size_bytes"].to_numpy() * count)),
        "topics": len(rows["topic_id"].unique()),
        "observed_seconds": float(observed.max()) if len(observed) else None,
    }


def _worth(rows: pa.Table) -> dict[str, Any]:
    """The sums, the same to the last bit however the rows are spread; null where no subscription has a utility."""
    known = {name: rows[name].drop_null().to_pylist() for name in ("utility", "maximum_utility")}
    sums = {name: math.fsum(values) if values else None for name, values in known.items()}
    most = sums["maximum_utility"]
    return sums | {"utility_rate": (sums["utility"] or 0.0) / most if most else None}
