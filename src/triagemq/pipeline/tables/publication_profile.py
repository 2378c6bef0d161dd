"""publication_profile: one row per publisher and topic: how often, how regularly and how large its events are.

`triage pipeline scenario` is computed from this table.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.latency_bins import bin_of

__all__ = ["SCHEMA", "transform"]

SCHEMA = """
    run_id            string,
    publisher_id      int     COMMENT 'null where it is not known who published',
    publisher         string,
    topic_id          int,
    topic             string,
    publications      bigint,
    first_ns          bigint,
    last_ns           bigint,
    observed_seconds  double  COMMENT 'of the whole run after warm-up',
    rate_per_second   double  COMMENT 'publications / observed_seconds',
    ca2               double  COMMENT 'squared coefficient of variation of the gaps; null below 3 events',
    mean_size_bytes   double,
    size_scv          double  COMMENT 'squared coefficient of variation of the sizes',
    sizes             array<struct<size_bytes: double, count: bigint>>
                              COMMENT 'mean size and count of each bin of sizes that are within 1.6 % of each other'
"""

_KEYS = ("run", "publisher_key", "topic_id")


def transform(
    publications: DataFrame, topics: DataFrame, publishers: DataFrame, measured_from_ns: Column
) -> DataFrame:
    """Rates, gaps and sizes of measured publications. `measured_from_ns` is an expression of `run`."""
    # A join finds no partner for null: a publisher that is not known is -1 until the end.
    measured = publications.where("measured").select(
        "run",
        F.coalesce("publisher_id", F.lit(-1)).alias("publisher_key"),
        "topic_id",
        "published_ns",
        "size_bytes",
    )
    profile = (
        _gaps(measured)
        .join(_sizes(measured), list(_KEYS))
        .join(F.broadcast(_observed(measured, measured_from_ns)), "run")
        .withColumn("rate_per_second", F.try_divide(F.col("publications"), F.col("observed_seconds")))
        .withColumn("publisher_id", F.when(F.col("publisher_key") >= 0, F.col("publisher_key")))
    )
    return profile.join(F.broadcast(topics), ["run", "topic_id"], "left").join(
        F.broadcast(publishers), ["run", "publisher_id"], "left"
    )


def _gaps(measured: DataFrame) -> DataFrame:
    in_order = Window.partitionBy(*_KEYS).orderBy("published_ns")
    gap = (F.col("published_ns") - F.lag("published_ns").over(in_order)) * 1e-9
    totals = (
        measured.withColumn("gap", gap)
        .groupBy(*_KEYS)
        .agg(
            F.count("*").alias("publications"),
            F.min("published_ns").alias("first_ns"),
            F.max("published_ns").alias("last_ns"),
            F.avg("gap").alias("mean_gap"),
            F.var_pop("gap").alias("variance"),
        )
    )
    known = (F.col("publications") >= 3) & (F.col("mean_gap") > 0)
    return totals.withColumn("ca2", F.when(known, F.col("variance") / F.pow("mean_gap", F.lit(2.0))))


def _sizes(measured: DataFrame) -> DataFrame:
    size = F.col("size_bytes").cast("bigint")
    binned = measured.groupBy(*_KEYS, bin_of(size).alias("bin")).agg(
        F.count("*").alias("count"),
        F.sum(size).alias("sum"),
        F.sum(size.cast("double") * size).alias("squares"),
    )
    totals = binned.groupBy(*_KEYS).agg(
        (F.sum("sum") / F.sum("count")).alias("mean_size_bytes"),
        (F.sum("squares") / F.sum("count")).alias("mean_square"),
        F.sort_array(
            F.collect_list(F.struct((F.col("sum") / F.col("count")).alias("size_bytes"), F.col("count")))
        ).alias("sizes"),
    )
    square = F.pow("mean_size_bytes", F.lit(2.0))
    # Rounding may leave a hair below 0 where all sizes are equal.
    scv = F.greatest(F.col("mean_square") / square - 1, F.lit(0.0))
    return totals.withColumn("size_scv", F.when(F.col("mean_size_bytes") > 0, scv))


def _observed(measured: DataFrame, measured_from_ns: Column) -> DataFrame:
    """From the end of warm-up, or the first event of a clock that does not start at 0, to the last event."""
    ends = measured.groupBy("run").agg(
        F.min("published_ns").alias("begins"), F.max("published_ns").alias("ends")
    )
    begins = F.when(measured_from_ns > 0, measured_from_ns).otherwise(F.col("begins"))
    return ends.select("run", ((F.col("ends") - begins) * 1e-9).alias("observed_seconds"))
