"""What performance tables have in common: success, mean, percentiles and maximum from a latency histogram."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import IntegerType, StructField, StructType

from triagemq.pipeline.latency_bins import bin_middle, percentile_bins
from triagemq.pipeline.partitions import in_pieces
from triagemq.pipeline.tables.latency_histogram import OUTCOMES

FIGURES = f"""
    count                 bigint  COMMENT 'copies of events published after warm-up',
    {", ".join(f"{outcome} bigint" for outcome in OUTCOMES)},
    late                  bigint  COMMENT 'delivered after the time that is judged: no success',
    success_rate          double  COMMENT '(delivered - late) / count; null if nothing was published',
    mean_latency_seconds  double  COMMENT 'of the delivered; from whole nanoseconds, exact',
    p50                   double  COMMENT 'latency in seconds, within 0.8 %, equal to the simulator',
    p95                   double  COMMENT 'latency in seconds',
    p99                   double  COMMENT 'latency in seconds',
    max                   double  COMMENT 'latency in seconds, exact'
"""
"""Columns that `figures` makes."""

FORECAST = """
    forecast_success_rate          double  COMMENT 'of the plan that the run came with; null without one',
    forecast_mean_latency_seconds  double,
    forecast_p95                   double  COMMENT 'latency in seconds',
    forecast_p99                   double  COMMENT 'latency in seconds',
    forecast_sampled               int     COMMENT 'subscriptions that a sample was followed of: no formula',
    forecast_flag                  string  COMMENT 'what makes it approximate; null where it claims to be right',
    forecast_latency_error         double  COMMENT 'the relative error to expect; 0 where it claims to be right',
    forecast_success_error         double  COMMENT 'the same of the success rate'
"""
"""Columns that dimensions.py makes."""

_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_SECONDS = 1e-9


def add_up(histogram: DataFrame, *keys: str, also: tuple[Column, ...] = ()) -> DataFrame:
    """What became of the copies of several subscriptions or classes, for each value of the keys; without bins."""
    return histogram.groupBy(*keys).agg(
        *(F.sum(counted).alias(counted) for counted in (*OUTCOMES, "late", "in_time")),
        F.sum("latency_sum_ns").cast("decimal(38,0)").alias("latency_sum_ns"),
        F.max("latency_max_ns").alias("latency_max_ns"),
        *also,
    )


def shares(added: DataFrame) -> DataFrame:
    """Add count, success_rate, mean_latency_seconds and max."""
    mean_ns = F.col("latency_sum_ns").cast("double") / F.col("delivered")
    return (
        added.withColumn("count", sum((F.col(outcome) for outcome in OUTCOMES), F.lit(0)))
        .withColumn("success_rate", F.try_divide(F.col("delivered") - F.col("late"), F.col("count")))
        .withColumn("mean_latency_seconds", F.when(F.col("delivered") > 0, mean_ns * _SECONDS))
        .withColumn("max", F.col("latency_max_ns") * _SECONDS)
    )


def figures(added: DataFrame) -> DataFrame:
    """The same, and p50, p95 and p99, in the place of `bins`."""
    others = [each for each in added.schema if each.name != "bins"]
    wanted = StructType([*others, *(StructField(f"{name}_bin", IntegerType()) for name in _SHARES)])
    found = shares(in_pieces(added, _percentiles, wanted))
    # The middle of a bin may lie above everything in it.
    longest = F.col("latency_max_ns").cast("double")
    return found.withColumns(
        {name: F.least(bin_middle(F.col(f"{name}_bin")), longest) * _SECONDS for name in _SHARES}
    ).drop(*(f"{name}_bin" for name in _SHARES))


def _percentiles(rows: pa.Table) -> pa.Table:
    found = percentile_bins(rows["bins"].combine_chunks(), list(_SHARES.values()))
    for name, number in zip(_SHARES, found, strict=True):
        rows = rows.append_column(f"{name}_bin", number)
    return rows


def exact_mean(column: str) -> Column:
    """The mean, the same to the last bit however the rows are spread: decimals add up exactly."""
    return F.avg(F.col(column).try_cast("decimal(28,12)")).cast("double").alias(column)
