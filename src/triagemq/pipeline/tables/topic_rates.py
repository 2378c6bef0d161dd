"""topic_rates: one row per topic and window in which it had events: 10 s ones with burstiness, and 200 ms ones.

Windows are cut at whole multiples of their length on the clock of the run. A window without events has no row, and
200 ms windows have rows only where ten events came within 10 s: of fewer, they show no more than their times. The
figures of the 10 s windows count all 200 ms windows in them.

topic_summary: one row per topic that had measured publications: how much it sends, at most too, and how burstily.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.partitions import exact_mean, in_pieces, partitions_of
from triagemq.pipeline.rate_windows import (
    LONG_NS,
    SHORT_NS,
    long_windows,
    short_windows,
    steps,
    sums,
    with_rates,
)

_FIGURES = """
    window_seconds       double  COMMENT '0.2 or 10',
    window_start_ns      bigint,
    publications         bigint,
    rate_per_second      double,
    bytes                bigint,
    bytes_per_second     double,
    index_of_dispersion  double  COMMENT '10 s only: variance / mean of the counts of its 200 ms windows; Poisson is 1',
    ca2                  double  COMMENT '10 s only: squared coefficient of variation of the gaps; null below 3 events'
"""
SCHEMA = f"""
    run_id               string,
    topic_id             int,
    topic                string  COMMENT 'null where the run came without a scenario',
    {_FIGURES}
"""

SUMMARY = """
    run_id                string,
    topic_id              int,
    topic                 string  COMMENT 'null where the run came without a scenario',
    publications          bigint,
    rate_per_second       double
        COMMENT 'over all the time observed, outages too; that in publication_profile is without them',
    peak_rate_per_second  double  COMMENT 'in the busiest of its windows, of 200 ms if it has such',
    bytes_per_second      double,
    index_of_dispersion   double  COMMENT 'mean of its 10 s windows; Poisson is 1',
    outages               bigint  COMMENT 'of its publishers, as in publication_profile, added up',
    outage_seconds        double  COMMENT 'of its publishers, added up'
"""

LONG_SECONDS = LONG_NS / 1e9
_KEYS = ("run", "topic_id")
_ROWS_PER_TASK = 1_000_000
DENSE = 10
"""Events in 10 s from which on 200 ms windows have rows."""


def transform(publications: DataFrame) -> DataFrame:
    """Rates of measured publications in both kinds of windows."""
    events = publications.select([*_KEYS, "published_ns", "size_bytes", "measured"])
    if partitions_of(events.sparkSession) > 1:
        # Once all events of a topic in 10 s are together, nothing else is exchanged. So many tasks are made, and no
        # fewer: Python holds all rows of one, and Spark would put as many together as fit into 64 MB.
        tasks = max(events.sparkSession.sparkContext.defaultParallelism, events.count() // _ROWS_PER_TASK)
        events = events.selectExpr("*", f"published_ns div {LONG_NS} AS long")
        events = events.repartition(tasks, *_KEYS, "long")
    return in_pieces(events, _windows, f"run int, topic_id int, {_FIGURES}")


def summarize(topic_rates: DataFrame, publication_profile: DataFrame, seconds: Column) -> DataFrame:
    """Add the windows of every topic up. `seconds`, an expression of `run`, is for how long that was observed."""
    away = publication_profile.groupBy("run", "topic_id").agg(
        F.sum("outages").alias("outages"),
        # Whole nanoseconds add up to the same however the rows are spread.
        F.expr("sum(bigint(round(outage_seconds * 1e9))) * 1e-9D AS outage_seconds"),
    )
    long = f"FILTER (WHERE window_seconds = {LONG_SECONDS}D)"
    added = topic_rates.groupBy("run", "topic_id", "topic").agg(
        F.expr(f"sum(publications) {long} AS publications"),
        F.expr(f"sum(bytes) {long} AS bytes"),
        F.expr("max(rate_per_second) AS peak_rate_per_second"),
        exact_mean("index_of_dispersion"),
    )
    # All events in one instant leave no time to divide by; there is one window of them.
    seconds = F.when(seconds > 0, seconds).otherwise(LONG_SECONDS)
    return added.join(F.broadcast(away), ["run", "topic_id"]).withColumns(
        {"rate_per_second": F.col("publications") / seconds, "bytes_per_second": F.col("bytes") / seconds}
    )


def _windows(rows: pa.Table) -> pa.Table:
    rows = rows.filter(rows["measured"])
    run, topic_id, time_ns, size_bytes = (
        rows[name].to_numpy().astype(np.int64) for name in rows.column_names[:4]
    )
    codes, topic = np.unique((run << 32) + topic_id, return_inverse=True)
    keys = pa.table({"run": codes >> 32, "topic_id": codes & 0xFFFFFFFF})
    short, long = (make(topic, time_ns, size_bytes) for make in (short_windows, long_windows))
    *_, within = steps(short["topic_row"], short["window_start_ns"], LONG_NS)
    is_dense = sums(within, short["publications"], len(topic))[within] >= DENSE
    short = {name: values[is_dense] for name, values in short.items()}
    both = [with_rates(short, SHORT_NS / 1e9, keys), with_rates(long, LONG_SECONDS, keys)]
    return pa.concat_tables(both, promote_options="default")
