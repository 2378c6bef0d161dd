"""latency_histogram: per subscription and priority class, what became of its copies and how long they took.

The other figures of deliveries are computed from this table, which is as long as there are subscriptions, not copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.latency_bins import COUNT_BITS
from triagemq.pipeline.partitions import in_pieces, spread
from triagemq.trace import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

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
_MARKS = ("late", "in_time")
_ROWS_AT_ONCE = 1 << 21
"""Of so many latencies the sums of their upper and lower 32 bits are exact as floating-point numbers."""
_BIN_BITS = 12
_CODES = 1 << _BIN_BITS
"""More than there are bins: what became of a copy that was not delivered is counted behind the last of them."""
_UNDELIVERED = tuple(outcome for outcome in Outcome if outcome is not Outcome.delivered)

NO_CLASS = 0xFFFF
"""In a packed key: the copy was sent in none."""

_COUNTED = f"""
    key bigint, delivered bigint, {", ".join(f"{outcome.name} bigint" for outcome in _UNDELIVERED)},
    {", ".join(f"{name} bigint" for name in _MARKS)}, {", ".join(f"{name} int" for name in _WHOSE)},
    high bigint, low bigint, latency_max_ns bigint, bins array<bigint>
"""


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

    Spark hands over two numbers a row, the keys packed into one, and the latency or, below 0, the outcome; and only
    where a run needs them, marks. NumPy counts two million of them at a time in a third of the time of Spark's hash
    tables. What is exchanged and added up is then one row, with its bins, for each key and piece.
    """
    key = F.shiftleft(F.col("run").cast("bigint"), 48) + F.shiftleft(
        F.col("subscription_id").cast("bigint"), 16
    )
    value = F.when(F.col("outcome") == Outcome.delivered.name, F.col("delivered_ns") - F.col("published_ns"))
    for outcome in _UNDELIVERED:
        value = value.when(F.col("outcome") == outcome.name, F.lit(-int(outcome)).cast("bigint"))
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
    files = max(1, partitions // _PARTITIONS_PER_FILE)
    return _unpacked(_added_up(in_pieces(measured, _count, _COUNTED, _ROWS_AT_ONCE), partitions, files))


def _count(rows: pa.Table) -> pa.Table:
    """One row for each key: what became of its copies, the bins of their latencies, their sum and the longest."""
    import numpy as np
    import pyarrow as pa

    from triagemq.trace.latency_bins import BINS, bins_of

    encoded = rows["key"].combine_chunks().dictionary_encode()
    keys, at, value = encoded.dictionary, encoded.indices.to_numpy(), rows["value"].to_numpy()

    def sums(place: Any, weights: Any) -> Any:
        return np.bincount(place, weights, len(keys)).astype(np.int64)

    delivered = value >= 0
    code = (at.astype(np.int64) << _BIN_BITS) + np.where(delivered, bins_of(value), value + _CODES)
    code.sort()
    first = np.flatnonzero(np.diff(code, prepend=-1))
    count = np.diff(first, append=len(code))
    of, number = code[first] >> _BIN_BITS, code[first] & (_CODES - 1)
    is_bin = number < BINS
    took, whose = value[delivered], at[delivered]
    longest = np.full(len(keys), -1)
    np.maximum.at(longest, whose, took)
    lists = np.searchsorted(of[is_bin], np.arange(len(keys) + 1)).astype(np.int32)
    columns = {"key": keys, "delivered": sums(of[is_bin], count[is_bin])}
    for outcome in _UNDELIVERED:
        such = number == _CODES - int(outcome)
        columns[outcome.name] = sums(of[such], count[such])
    for name in _MARKS:
        marked = rows[name].to_numpy() if name in rows.column_names else np.zeros(len(at))
        columns[name] = sums(at, marked)
    for name in _WHOSE:
        # The same in all rows of a subscription.
        known = np.zeros(len(keys), np.int32)
        if name in rows.column_names:
            known[at] = rows[name].to_numpy()
        columns[name] = pa.array(known, mask=np.full(len(keys), name not in rows.column_names))
    columns |= {"high": sums(whose, took >> 32), "low": sums(whose, took & 0xFFFFFFFF)}
    columns["latency_max_ns"] = pa.array(longest, mask=longest < 0)
    packed = (number[is_bin] << COUNT_BITS) + count[is_bin]
    columns["bins"] = pa.ListArray.from_arrays(pa.array(lists), pa.array(packed))
    return pa.table(columns)


def _added_up(counted: DataFrame, partitions: int, files: int) -> DataFrame:
    """One row for each key, with each of its bins once."""
    sums = ("delivered", *(outcome.name for outcome in _UNDELIVERED), *_MARKS, "high", "low")
    added = (
        spread(counted, files, "key")
        .groupBy("key")
        .agg(
            *(F.sum(name).alias(name) for name in sums),
            *(F.min(name).alias(name) for name in _WHOSE),
            F.max("latency_max_ns").alias("latency_max_ns"),
            F.flatten(F.collect_list("bins")).alias("bins"),
        )
        .select(*counted.columns)
    )
    # What was counted in one piece has every bin once already. A row may have thousands of bins: few at a time.
    return added if partitions == 1 else in_pieces(added, _merge_bins, _COUNTED, 1)


def _merge_bins(rows: pa.Table) -> pa.Table:
    """The same rows, the counts of equal bins in each of them added up."""
    import numpy as np
    import pyarrow as pa

    lists = rows["bins"].combine_chunks()
    packed, lengths = lists.flatten().to_numpy(), lists.value_lengths().to_numpy()
    code = (np.repeat(np.arange(len(lists)), lengths) << _BIN_BITS) + (packed >> COUNT_BITS)
    order = np.argsort(code)
    first = np.flatnonzero(np.diff(code[order], prepend=-1))
    count = np.add.reduceat(packed[order] & ((1 << COUNT_BITS) - 1), first) if len(first) else first
    code = code[order][first]
    offsets = np.searchsorted(code >> _BIN_BITS, np.arange(len(lists) + 1)).astype(np.int32)
    merged = pa.array(((code & (_CODES - 1)) << COUNT_BITS) + count)
    place = rows.column_names.index("bins")
    return rows.set_column(place, "bins", pa.ListArray.from_arrays(pa.array(offsets), merged))


def _unpacked(added: DataFrame) -> DataFrame:
    """The key as its columns again, and the sum of latencies as one number."""
    key = F.col("key")
    total_ns = F.col("high").cast("decimal(20,0)") * (1 << 32) + F.col("low")
    return (
        added.withColumn("run", F.shiftright(key, 48).cast("int"))
        .withColumn("subscription_id", F.shiftright(key, 16).bitwiseAND(F.lit(0xFFFFFFFF)).cast("int"))
        .withColumn("priority_class", F.nullif(key.bitwiseAND(F.lit(0xFFFF)), F.lit(NO_CLASS)).cast("int"))
        .withColumn("latency_sum_ns", total_ns.cast("decimal(38,0)"))
        .drop("key", "high", "low")
    )
