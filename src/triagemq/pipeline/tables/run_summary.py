"""run_summary: one row per run: what it was, how much of it there is, and what came of it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.tables.latency_histogram import OUTCOMES

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
    late                    bigint  COMMENT 'delivered after the time that is judged: no success',
    success_rate            double  COMMENT '(delivered - late) / count',
    mean_latency_seconds    double,
    max                     double  COMMENT 'latency in seconds',
    utility                 double,
    maximum_utility         double,
    utility_rate            double  COMMENT 'utility / maximum_utility'
"""

KNOWN = """
    run int, source string, producer string, started string, finished string, scenario string,
    measured_from_ns bigint, rows_read bigint, rows_in bigint, quarantined bigint
"""
"""What is known of each run without looking at its tables."""


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
        F.min("first_ns").alias("first_ns"),
        F.max("last_ns").alias("last_ns"),
    )
    copies = sum((F.col(outcome) for outcome in OUTCOMES), F.lit(0))
    delivered = latency_histogram.groupBy("run").agg(
        F.sum(copies).alias("count"),
        F.sum("delivered").alias("delivered"),
        F.sum("late").alias("late"),
        F.sum("latency_sum_ns").cast("double").alias("latency_sum_ns"),
        (F.max("latency_max_ns") * 1e-9).alias("max"),
    )
    worth = subscription_performance.groupBy("run").agg(_total("utility"), _total("maximum_utility"))
    summary = runs
    for part in (published, profiled, delivered, worth):
        summary = summary.join(F.broadcast(part), "run", "left")
    begins = F.when(F.col("measured_from_ns") > 0, F.col("measured_from_ns")).otherwise(F.col("first_ns"))
    return (
        summary.fillna(
            0,
            [
                "publications",
                "measured_publications",
                "published_bytes",
                "topics",
                "count",
                "delivered",
                "late",
            ],
        )
        .withColumn("published_bytes", F.round("published_bytes"))
        .withColumn("observed_seconds", (F.col("last_ns") - begins) * 1e-9)
        .withColumn("success_rate", F.try_divide(F.col("delivered") - F.col("late"), F.col("count")))
        .withColumn("mean_latency_seconds", F.try_divide(F.col("latency_sum_ns") * 1e-9, F.col("delivered")))
        .withColumn("utility_rate", F.try_divide("utility", "maximum_utility"))
    )


def _total(column: str) -> Column:
    """A sum of floats, the smallest first: the same to the last bit, however the rows are spread."""
    added = F.aggregate(F.sort_array(F.collect_list(column)), F.lit(0.0), lambda total, each: total + each)
    return F.when(F.count(column) > 0, added).alias(column)
