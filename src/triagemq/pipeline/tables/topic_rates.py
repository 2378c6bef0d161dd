"""topic_rates: one row per topic and window in which it had events: 10 s ones with burstiness, and 200 ms ones.

Windows are cut at whole multiples of their length on the clock of the run. A window without events has no row, and
200 ms windows are told only where ten events came within 10 s: among fewer they say no more than when each came. The
figures of the 10 s windows count all 200 ms windows in them.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.partitions import Rows, here, joined, spread

SCHEMA = """
    run_id               string,
    topic_id             int,
    topic                string  COMMENT 'null where the run came without a scenario',
    window_seconds       double  COMMENT '0.2 or 10',
    window_start_ns      bigint,
    publications         bigint,
    rate_per_second      double,
    bytes                bigint,
    bytes_per_second     double,
    index_of_dispersion  double  COMMENT '10 s only: variance / mean of the counts of its 200 ms windows; Poisson is 1',
    ca2                  double  COMMENT '10 s only: squared coefficient of variation of the gaps; null below 3 events'
"""

SHORT_SECONDS = 0.2
LONG_SECONDS = 10.0
_SHORT_IN_LONG = 50
SHORT_NS = 200_000_000
_LONG_NS = SHORT_NS * _SHORT_IN_LONG
_KEYS = ("run", "topic_id")
_RATES = {"rate": "publications", "bytes": "bytes"}
DENSE = 10
"""Events in 10 s from which on 200 ms windows are told."""


def transform(publications: DataFrame, topics: pa.Table) -> Rows:
    """Rates of measured publications in both kinds of windows, with names."""
    keys = (*_KEYS, "long")
    long = F.expr(f"published_ns div {_LONG_NS} * {_LONG_NS} AS long")
    short = F.expr(f"published_ns div {SHORT_NS} * {SHORT_NS} AS window_start_ns")
    measured = publications.where("measured").select(*_KEYS, "published_ns", "size_bytes", long)
    # Once all events of a topic in 10 s are together, nothing else is exchanged.
    together = spread(measured, *keys)
    in_10_seconds = F.sum("publications").over(Window.partitionBy(*keys))
    dense = (
        with_rates(_counted(together.groupBy(*keys, short)), SHORT_SECONDS)
        .withColumn("in_10_seconds", in_10_seconds)
        .where(F.col("in_10_seconds") >= DENSE)
        .drop("in_10_seconds", "long")
    )
    bursty = burstiness(_counted(together.groupBy(*keys), _times())).withColumnRenamed(
        "long", "window_start_ns"
    )
    both = dense.unionByName(with_rates(bursty, LONG_SECONDS), allowMissingColumns=True)
    return joined(here(both), topics, ("run", "topic_id"))


def long_windows(publications: DataFrame, *keys: str) -> DataFrame:
    """Events, bytes and burstiness of a stream in 10 s windows of `published_at`, by keys."""
    window = F.window("published_at", f"{round(LONG_SECONDS)} seconds")
    counted = _counted(publications.groupBy(window, *keys), _times())
    return burstiness(
        counted.withColumn("window_start_ns", F.unix_micros("window.start") * 1000).drop("window")
    )


def _counted(windows: GroupedData, *also: Column) -> DataFrame:
    return windows.agg(
        F.count("*").alias("publications"), F.sum(F.col("size_bytes").cast("bigint")).alias("bytes"), *also
    )


def _times() -> Column:
    """One walk over the sorted times of a window finds how bursty it was."""
    return F.sort_array(F.collect_list("published_ns")).alias("times")


def burstiness(windows: DataFrame) -> DataFrame:
    """10 s windows with both figures, in the place of the sorted `times` of their events."""
    added = (
        windows.withColumn("squares", _squares(F.col("times")))
        .withColumn("seconds", (F.element_at("times", -1) - F.col("times")[0]) * 1e-9)
        .drop("times")
    )
    count = F.col("publications")
    mean = count / _SHORT_IN_LONG
    variance = (F.col("squares.counts") - count * mean) / (_SHORT_IN_LONG - 1)
    gaps = count - 1
    mean_gap = F.col("seconds") / gaps
    known = (count >= 3) & (F.col("seconds") > 0)
    return (
        added.withColumn("index_of_dispersion", variance / mean)
        .withColumn("ca2", F.when(known, F.col("squares.gaps") / gaps / (mean_gap * mean_gap) - 1))
        .drop("squares", "seconds")
    )


def _squares(sorted_times: Column) -> Column:
    """Sum of the squared counts of the 200 ms windows, and of the squared gaps in seconds, in one walk."""

    def add(state: Column, time: Column) -> Column:
        window = F.call_function("div", time, F.lit(SHORT_NS))
        in_same = F.when(window == state["window"], state["in_window"]).otherwise(0)
        gap = (time - state["time"]) * 1e-9
        return F.struct(
            time.alias("time"),
            window.alias("window"),
            (in_same + 1).alias("in_window"),
            # (n + 1)^2 = n^2 + 2 n + 1
            (state["counts"] + 2 * in_same + 1).alias("counts"),
            (state["gaps"] + gap * gap).alias("gaps"),
        )

    nothing = F.struct(
        sorted_times[0].alias("time"),
        F.lit(-1).cast("bigint").alias("window"),
        F.lit(0).alias("in_window"),
        F.lit(0).cast("bigint").alias("counts"),
        F.lit(0.0).alias("gaps"),
    )
    return F.aggregate(sorted_times, nothing, add)


def event_time(nanoseconds: Column) -> Column:
    """Nanoseconds as the time type of Spark, which counts microseconds; window boundaries are whole ones."""
    return F.timestamp_micros(F.call_function("div", nanoseconds, F.lit(1000)))


def with_rates(windows: DataFrame, seconds: float) -> DataFrame:
    """Windows of a length with that and what comes in a second."""
    rates = {f"{name}_per_second": F.col(of) / seconds for name, of in _RATES.items()}
    return windows.withColumns({"window_seconds": F.lit(seconds), **rates})
