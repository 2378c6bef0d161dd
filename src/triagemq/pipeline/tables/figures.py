"""What performance tables have in common: success, mean, percentiles and maximum from a latency histogram."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.latency_bins import bin_middle, packed_bin, percentile_bin, unpacked_bin
from triagemq.pipeline.tables.latency_histogram import OUTCOMES

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_SECONDS = 1e-9


def add_up(histogram: DataFrame, *keys: str, also: tuple[Column, ...] = ()) -> DataFrame:
    """Histograms of several subscriptions or classes as one for each value of the keys."""
    totals = histogram.groupBy(*keys).agg(
        *(F.sum(outcome).alias(outcome) for outcome in (*OUTCOMES, "late")),
        F.sum("latency_sum_ns").cast("decimal(38,0)").alias("latency_sum_ns"),
        F.max("latency_max_ns").alias("latency_max_ns"),
        *also,
    )
    bin_number, count = unpacked_bin(F.col("packed"))
    bins = (
        histogram.select(*keys, F.explode("bins").alias("packed"))
        .select(*keys, bin_number.alias("bin"), count.alias("count"))
        .groupBy(*keys, "bin")
        .agg(F.sum("count").alias("count"))
        .groupBy(*keys)
        .agg(F.collect_list(packed_bin(F.col("bin"), F.col("count"))).alias("bins"))
    )
    return totals.join(bins, list(keys), "left")


def figures(histogram: DataFrame) -> DataFrame:
    """Add count, success_rate, mean_latency_seconds, p50, p95, p99 and max (all latencies in seconds)."""
    count = sum((F.col(outcome) for outcome in OUTCOMES), F.lit(0))
    found = histogram.withColumn("count", count).withColumn("packed", F.sort_array("bins"))
    # Columns of their own: an expression that is used in several places is computed in each of them.
    found = found.withColumns(
        {
            f"{name}_bin": percentile_bin(F.col("packed"), F.col("delivered"), share)
            for name, share in _SHARES.items()
        }
    )
    # The middle of a bin may lie above everything in it.
    longest = F.col("latency_max_ns").cast("double")
    found = found.withColumns(
        {name: F.least(bin_middle(F.col(f"{name}_bin")), longest) * _SECONDS for name in _SHARES}
    )
    mean_ns = F.col("latency_sum_ns").cast("double") / F.col("delivered")
    return (
        found.withColumn("success_rate", F.try_divide(F.col("delivered") - F.col("late"), F.col("count")))
        .withColumn("mean_latency_seconds", F.when(F.col("delivered") > 0, mean_ns * _SECONDS))
        .withColumn("max", F.col("latency_max_ns") * _SECONDS)
        .drop("packed", *(f"{name}_bin" for name in _SHARES))
    )


def exact_mean(column: str) -> Column:
    """The mean, the same to the last bit however the rows are spread: decimals add up exactly."""
    return F.avg(F.col(column).try_cast("decimal(28,12)")).cast("double").alias(column)
