"""topic_summary: one row per topic that had measured publications: how much it sends, at most too, and how burstily."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.tables.figures import exact_mean
from triagemq.pipeline.tables.topic_rates import LONG_SECONDS

SCHEMA = """
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


def transform(topic_rates: DataFrame, publication_profile: DataFrame, seconds: Column) -> DataFrame:
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
