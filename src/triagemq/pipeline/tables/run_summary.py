"""run_summary: one row per run: what it was, how much of it there is, and what came of it."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.partitions import joined
from triagemq.pipeline.tables.figures import add_up, figures
from triagemq.pipeline.tables.latency_histogram import OUTCOMES

_KNOWN = """
    source            string,
    producer          string,
    started           string  COMMENT 'null for a foreign log',
    finished          string,
    scenario          string  COMMENT 'its name; null where the run came without one',
    measured_from_ns  bigint,
    rows_read         bigint  COMMENT 'of all input tables; rows_in + quarantined',
    rows_in           bigint,
    quarantined       bigint,
    publications      bigint
"""
KNOWN = f"run int, {_KNOWN}"
"""What is known of each run without looking at its tables."""

SCHEMA = f"""
    run_id                  string,
    {_KNOWN},
    measured_publications   bigint,
    published_bytes         bigint  COMMENT 'of the measured publications',
    topics                  bigint  COMMENT 'that had measured publications',
    observed_seconds        double  COMMENT 'from the end of warm-up to the last publication',
    count                   bigint  COMMENT 'copies of events published after warm-up',
    delivered               bigint,
    late                    bigint  COMMENT 'delivered after the time that is judged: no success',
    success_rate            double  COMMENT '(delivered - late) / count',
    mean_latency_seconds    double,
    max                     double  COMMENT 'latency in seconds',
    utility                 double,
    maximum_utility         double,
    utility_rate            double  COMMENT 'utility / maximum_utility'
"""


USED = {
    "publication_profile": (
        "run",
        "topic_id",
        "publications",
        "mean_size_bytes",
        "observed_seconds",
        "outage_seconds",
    ),
    "latency_histogram": ("run", *OUTCOMES, "late", "latency_sum_ns", "latency_max_ns"),
    "subscription_performance": ("run", "utility", "maximum_utility"),
}
"""What the figures of a run are computed from: of these tables these columns."""


def transform(
    runs: pa.Table,
    publication_profile: pa.Table,
    latency_histogram: pa.Table,
    subscription_performance: pa.Table,
) -> pa.Table:
    """Add what the other tables say of each run to what is known of it already, see KNOWN."""
    profiled = [_profiled(_of(publication_profile, run)) for run in runs["run"]]
    worth = [_worth(_of(subscription_performance, run)) for run in runs["run"]]
    told = [known | more for known, more in zip(profiled, worth, strict=True)]
    summary = runs
    for name in told[0] if told else ():
        summary = summary.append_column(name, pa.array([each[name] for each in told]))
    summary = joined(summary, figures(add_up(latency_histogram, ["run"])[0]), ["run"])
    for name in ("count", "delivered", "late"):
        summary = summary.set_column(summary.column_names.index(name), name, summary[name].fill_null(0))
    return summary


def _of(table: pa.Table, run: pa.Scalar) -> pa.Table:
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
    told = {name: math.fsum(values) if values else None for name, values in known.items()}
    most = told["maximum_utility"]
    return told | {"utility_rate": told["utility"] / most if most else None}
