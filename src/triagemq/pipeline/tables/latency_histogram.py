"""latency_histogram: per subscription and priority class, what became of its copies and how long they took.

The other figures of deliveries are computed from this table, which is as long as there are subscriptions, not copies.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.latency_bins import bin_of, exponent_of, packed_bin
from triagemq.pipeline.partitions import spread
from triagemq.trace import Outcome

OUTCOMES = tuple(outcome.name for outcome in Outcome)

SCHEMA = f"""
    run_id             string,
    subscription_id    int,
    subscriber_id      int            COMMENT 'null in runs whose subscriptions are known beforehand',
    topic_id           int,
    priority_class     int            COMMENT 'that triage gives, where the run says so; null where no plan covers it',
    {", ".join(f"{outcome} bigint" for outcome in OUTCOMES)},
    late               bigint         COMMENT 'of the delivered, those after the time that is judged: no success',
    in_time            bigint         COMMENT 'of the delivered, those within max_latency_seconds; 0 without one',
    latency_sum_ns     decimal(38,0)  COMMENT 'of the delivered; a whole number, so that means are exact',
    latency_max_ns     bigint,
    bins               array<bigint>  COMMENT 'latencies in ns: bin << 48 | count, see latency_bins'
"""

_PARTITIONS_PER_FILE = 16
_WHOSE = ("subscriber_id", "topic_id")

NO_CLASS = 0xFFFF
"""In a packed key: the copy was sent in none."""


def transform(
    deliveries: DataFrame,
    classes: DataFrame | None,
    partitions: int,
    *,
    deadlines: DataFrame | None = None,
    judged_until_ns: Column | None = None,
    whose: bool = False,
) -> DataFrame:
    """Count measured deliveries, and bin their latencies.

    `classes` says of which class the copies of some subscriptions are, whatever they were sent in (see dimensions.py).
    `deadlines` has the `deadline_ns` of those that ask for a latency, and `judged_until_ns` is an expression of `run`:
    what is delivered later is no success; null for runs in which all counts. `whose` also finds the subscriber and the
    topic of each subscription, where nothing else says it.

    The exchange comes before the counting: with some hundred bins for each subscription, counting first in every task
    would hardly make fewer rows. All rows of a subscription and class then meet in one task, in a hash table that is
    small enough for the processor's cache (half of the time of the usual two steps). What is exchanged is two numbers
    a row, the keys packed into one, and the latency or, below 0, the outcome; and only where a run needs them, marks.
    """
    key = F.shiftleft(F.col("run").cast("bigint"), 48) + F.shiftleft(
        F.col("subscription_id").cast("bigint"), 16
    )
    value = F.when(F.col("outcome") == Outcome.delivered.name, F.col("delivered_ns") - F.col("published_ns"))
    for outcome in Outcome:
        if outcome is not Outcome.delivered:
            value = value.when(F.col("outcome") == outcome.name, F.lit(-int(outcome)).cast("bigint"))
    is_latency = F.col("value") >= 0
    latency = F.when(is_latency, F.col("value"))
    latency_bin = bin_of(F.col("value"), F.col("exponent"))
    counted, sent_in = deliveries.where("measured"), F.coalesce("priority_class", F.lit(NO_CLASS))
    if classes is not None:
        counted = counted.join(F.broadcast(classes), ["run", "subscription_id"], "left")
        sent_in = F.coalesce("counted_class", sent_in)
    marks = {}
    if judged_until_ns is not None:
        marks["late"] = F.coalesce(F.col("delivered_ns") > judged_until_ns, F.lit(False))
    if deadlines is not None:
        counted = counted.join(F.broadcast(deadlines), ["run", "subscription_id"], "left")
        took = F.col("delivered_ns") - F.col("published_ns")
        marks["in_time"] = F.coalesce(took <= F.col("deadline_ns"), F.lit(False))
    measured = counted.select(
        (key + sent_in).alias("key"),
        value.alias("value"),
        *(mark.alias(name) for name, mark in marks.items()),
        *(_WHOSE if whose else ()),
    )
    binned = (
        spread(measured, partitions, "key")
        .withColumn("exponent", exponent_of(F.col("value")))
        .withColumn("bin", F.when(is_latency, latency_bin).otherwise(F.col("value").cast("int")))
        .groupBy("key", "bin")
        .agg(
            F.count("*").alias("count"),
            F.sum(latency).alias("sum"),
            F.max(latency).alias("max"),
            *(
                (F.count_if(name) if name in marks else F.lit(0).cast("bigint")).alias(name)
                for name in ("late", "in_time")
            ),
            *((F.min(name) if whose else F.lit(None).cast("int")).alias(name) for name in _WHOSE),
        )
    )
    return _unpacked(_gathered(binned)).coalesce(max(1, partitions // _PARTITIONS_PER_FILE))


def _gathered(binned: DataFrame) -> DataFrame:
    """The bins of each key in one row."""
    is_latency = F.col("bin") >= 0
    counts = [
        F.sum(F.when(F.col("bin") == -int(outcome), F.col("count")).otherwise(0)).alias(outcome.name)
        for outcome in Outcome
        if outcome is not Outcome.delivered
    ]
    # One bin's sum fits 64 bits, that of all latencies of an unstable queue may not: seconds and the rest apart.
    billion = F.lit(1_000_000_000).cast("bigint")
    return binned.groupBy("key").agg(
        F.sum(F.when(is_latency, F.col("count")).otherwise(0)).alias("delivered"),
        *counts,
        F.sum("late").alias("late"),
        F.sum("in_time").alias("in_time"),
        *(F.min(name).alias(name) for name in _WHOSE),
        F.sum(F.call_function("div", F.col("sum"), billion)).alias("seconds"),
        F.sum(F.col("sum") % billion).alias("nanoseconds"),
        F.max("max").alias("latency_max_ns"),
        F.collect_list(F.when(is_latency, packed_bin(F.col("bin"), F.col("count")))).alias("bins"),
    )


def _unpacked(gathered: DataFrame) -> DataFrame:
    """The key as its columns again, and the sum of latencies as one number."""
    key = F.col("key")
    total_ns = F.col("seconds").cast("decimal(20,0)") * 1_000_000_000 + F.col("nanoseconds")
    return (
        gathered.withColumn("run", F.shiftright(key, 48).cast("int"))
        .withColumn("subscription_id", F.shiftright(key, 16).bitwiseAND(F.lit(0xFFFFFFFF)).cast("int"))
        .withColumn("priority_class", F.nullif(key.bitwiseAND(F.lit(0xFFFF)), F.lit(NO_CLASS)).cast("int"))
        .withColumn("latency_sum_ns", total_ns.cast("decimal(38,0)"))
        .drop("key", "seconds", "nanoseconds")
    )
