"""run_summary: one row per run: what it was, how much of it there is, and what came of it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.tables.figures import add_up, shares

_KNOWN = """
    source            string,
    producer          string,
    started           string  COMMENT 'null for a foreign log',
    finished          string,
    scenario          string  COMMENT 'its name; null where the run came without one',
    measured_from_ns  bigint,
    rows_read         bigint  COMMENT 'of all input tables; rows_in + quarantined',
    rows_in           bigint,
    quarantined       bigint
"""
KNOWN = f"run int, {_KNOWN}"
"""What is known of each run without looking at its tables."""

SCHEMA = f"""
    run_id                  string,
    {_KNOWN},
    publications            bigint,
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


def transform(
    runs: DataFrame,
    publications: DataFrame,
    publication_profile: DataFrame,
    latency_histogram: DataFrame,
    subscription_performance: DataFrame,
) -> DataFrame:
    """Join what the other tables say of each run to what is known of it already (`runs`, see KNOWN)."""
    published = publications.groupBy("run").agg(F.count("*").alias("publications"))
    profiled = publication_profile.groupBy("run").agg(
        F.sum("publications").alias("measured_publications"),
        F.sum(F.col("mean_size_bytes") * F.col("publications")).alias("published_bytes"),
        F.count_distinct("topic_id").alias("topics"),
        F.max(F.col("observed_seconds") + F.col("outage_seconds")).alias("observed_seconds"),
    )
    worth = subscription_performance.groupBy("run").agg(_total("utility"), _total("maximum_utility"))
    summary = runs
    for part in (published, profiled, shares(add_up(latency_histogram, "run")), worth):
        summary = summary.join(F.broadcast(part), "run", "left")
    counts = [
        "publications",
        "measured_publications",
        "published_bytes",
        "topics",
        "count",
        "delivered",
        "late",
    ]
    return (
        summary.fillna(0, counts)
        .withColumn("published_bytes", F.round("published_bytes"))
        .withColumn("utility_rate", F.try_divide("utility", "maximum_utility"))
    )


def _total(column: str) -> Column:
    """A sum of floats, the smallest first: the same to the last bit, however the rows are spread."""
    added = F.aggregate(F.sort_array(F.collect_list(column)), F.lit(0.0), lambda total, each: total + each)
    return F.when(F.count(column) > 0, added).alias(column)
