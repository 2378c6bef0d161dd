"""From events to cells, in Spark: it keeps the events of open cells in its state store, by its watermark.

A cell is the longest stretch of time from which all windows can be put together. Spark hands each over once, whole,
when the watermark has passed its end.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.streaming.settings import StreamSettings
from triagemq.pipeline.streaming.windows import KEYS


def cells(events: DataFrame, settings: StreamSettings) -> DataFrame:
    """The cells of a stream of rows as `events` describes them, each when the watermark has passed its end.

    A duplicate is an event with the number, time and size of another one of its topic. Both are in one cell, so that
    the state which counts it is all that is needed to know it again.
    """
    lists = ("published_ns", "publication_ids", "size_bytes")
    times, numbers, sizes = (F.flatten(F.col(f"rows.{name}")).alias(name) for name in lists)
    grouped = (
        events.withWatermark("published_at", f"{settings.delay_ns // 1_000_000} milliseconds")
        .groupBy(*KEYS, F.window("published_at", f"{settings.cell_ns // 1_000_000} milliseconds"))
        .agg(
            F.collect_list(F.struct(*lists)).alias("rows"),
            F.sum("bytes").alias("bytes"),
            F.sum("late").alias("late"),
        )
        .select(*KEYS, "window", times, numbers, sizes, "bytes", "late")
    )
    has_copies = F.size(F.array_distinct("publication_ids")) < F.size("publication_ids")
    once = grouped.withColumn("sorted", F.when(has_copies, F.sort_array(F.arrays_zip(*lists)))).withColumn(
        "once", F.filter("sorted", lambda each, at: (at == 0) | (each != F.get("sorted", at - 1)))
    )
    bytes_once = F.aggregate("once.size_bytes", F.lit(0).cast("bigint"), lambda total, size: total + size)
    accepted = F.coalesce("once.published_ns", "published_ns")
    return once.select(
        *KEYS,
        (F.unix_micros("window.start") * 1000).alias("start_ns"),
        F.size(accepted).cast("bigint").alias("events"),
        F.coalesce(bytes_once, "bytes").alias("bytes"),
        accepted.alias("published_ns"),
        "late",
        (F.size("published_ns") - F.size(accepted)).cast("bigint").alias("duplicates"),
    ).where("events + late > 0")
