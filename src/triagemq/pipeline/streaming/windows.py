"""From events to windows, in Spark: cells that the watermark has passed, and the windows that are made of them.

A cell is the longest stretch of time from which all windows can be put together. Spark keeps the events of open cells
in its state store and hands each cell over once, whole. Windows are cut at whole multiples on the clock of the run, as
in `topic_rates` of `triage pipeline run`; the 10 s windows have the same figures there. A window without events has no
row, and none begins before time 0.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.streaming.settings import LONG_NS, StreamSettings
from triagemq.pipeline.tables.topic_rates import burstiness, with_rates

COUNTERS_SCHEMA = "run_id string, topic_id int, topic string, events bigint, late bigint, duplicates bigint"
_KEYS = ("topic_id", "topic")


def cells(events: DataFrame, settings: StreamSettings) -> DataFrame:
    """The cells of a stream of rows as `events` describes them, each when the watermark has passed its end.

    A duplicate is an event with the number, time and size of another one of its topic. Both are in one cell, so that
    the state which counts it is all that is needed to know it again.
    """
    lists = ("published_ns", "publication_ids", "size_bytes")
    times, numbers, sizes = (F.flatten(F.col(f"rows.{name}")).alias(name) for name in lists)
    grouped = (
        events.withWatermark("published_at", f"{settings.delay_ns // 1_000_000} milliseconds")
        .groupBy(*_KEYS, F.window("published_at", f"{settings.cell_ns // 1_000_000} milliseconds"))
        .agg(
            F.collect_list(F.struct(*lists)).alias("rows"),
            F.sum("bytes").alias("bytes"),
            F.sum("late").alias("late"),
        )
        .select(*_KEYS, "window", times, numbers, sizes, "bytes", "late")
    )
    has_copies = F.size(F.array_distinct("publication_ids")) < F.size("publication_ids")
    once = grouped.withColumn("sorted", F.when(has_copies, F.sort_array(F.arrays_zip(*lists)))).withColumn(
        "once", F.filter("sorted", lambda each, at: (at == 0) | (each != F.get("sorted", at - 1)))
    )
    bytes_once = F.aggregate("once.size_bytes", F.lit(0).cast("bigint"), lambda total, size: total + size)
    accepted = F.coalesce("once.published_ns", "published_ns")
    return once.select(
        *_KEYS,
        (F.unix_micros("window.start") * 1000).alias("start_ns"),
        F.size(accepted).cast("bigint").alias("publications"),
        F.coalesce(bytes_once, "bytes").alias("bytes"),
        accepted.alias("published_ns"),
        "late",
        (F.size("published_ns") - F.size(accepted)).cast("bigint").alias("duplicates"),
    ).where("publications + late > 0")


def recent(cells: DataFrame, settings: StreamSettings, closed_ns: int) -> DataFrame:
    """What the windows after this moment need of the cells before it: times only where burstiness is open."""
    is_open = F.col("start_ns") >= closed_ns // LONG_NS * LONG_NS
    return cells.where(F.col("start_ns") >= settings.needed_ns(closed_ns)).withColumn(
        "published_ns", F.when(is_open, F.col("published_ns"))
    )


def rates(
    cells: DataFrame, run_id: str, settings: StreamSettings, before_ns: int, closed_ns: int
) -> DataFrame:
    """The rows of `topic_rates` for windows that end after one moment and not after another."""
    start = _start_in(LONG_NS)
    ends = start + LONG_NS
    long = burstiness(
        cells.where((ends > before_ns) & (ends <= closed_ns) & (F.col("publications") > 0))
        .groupBy(*_KEYS, start.alias("window_start_ns"))
        .agg(
            F.sum("publications").alias("publications"),
            F.sum("bytes").alias("bytes"),
            F.sort_array(F.flatten(F.collect_list("published_ns"))).alias("times"),
        )
    )
    sliding = _sliding(cells, settings, before_ns, closed_ns)
    if settings.window_ns == LONG_NS:
        # These have a row with burstiness.
        sliding = sliding.where(F.col("window_start_ns") % LONG_NS != 0)
    both = with_rates(sliding.drop("following"), settings.window_seconds).unionByName(
        with_rates(long, LONG_NS / 1e9), allowMissingColumns=True
    )
    return both.withColumn("run_id", F.lit(run_id))


def _sliding(cells: DataFrame, settings: StreamSettings, before_ns: int, closed_ns: int) -> DataFrame:
    """A running sum over what enters and leaves: as many steps as there are cells, however many windows hold each."""
    step, length = settings.slide_ns, settings.window_ns
    first = max(0, before_ns // step * step - length + step)
    last = closed_ns // step * step - length
    start, count, size = _start_in(step), F.col("publications"), F.col("bytes")
    enters = F.greatest(start - (length - step), F.lit(first)).alias("window_start_ns")
    leaves = (start + step).alias("window_start_ns")
    changes = F.array(
        F.struct(enters, count, size),
        F.struct(leaves, (-count).alias("publications"), (-size).alias("bytes")),
    )
    until_now = Window.partitionBy(*_KEYS).orderBy("window_start_ns")
    following = F.coalesce(F.lead("window_start_ns").over(until_now), F.lit(last + step))
    summed = (
        cells.where((start >= first) & (count > 0))
        .select(*_KEYS, F.inline(changes))
        .where(F.col("window_start_ns") <= last)
        .groupBy(*_KEYS, "window_start_ns")
        .agg(F.sum("publications").alias("publications"), F.sum("bytes").alias("bytes"))
        .select(
            *_KEYS,
            "window_start_ns",
            F.sum("publications").over(until_now).alias("publications"),
            F.sum("bytes").over(until_now).alias("bytes"),
            following.alias("following"),
        )
    )
    starts = F.sequence(F.col("window_start_ns"), F.col("following") - step, F.lit(step))
    return summed.where("publications > 0").withColumn("window_start_ns", F.explode(starts))


def counters(before: DataFrame, cells: DataFrame, run_id: str) -> DataFrame:
    """The rows of `stream_counters`: what became of all events of every topic so far."""
    counted = ("events", "late", "duplicates")
    new = cells.withColumnRenamed("publications", "events").select(*_KEYS, *counted)
    return (
        before.select(*_KEYS, *counted)
        .unionByName(new)
        .groupBy(*_KEYS)
        .agg(*(F.sum(name).alias(name) for name in counted))
        .select(F.lit(run_id).alias("run_id"), *_KEYS, *counted)
    )


def _start_in(length_ns: int) -> Column:
    return F.col("start_ns") - F.col("start_ns") % length_ns
