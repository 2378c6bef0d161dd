"""latency_histogram: per subscription and priority class, what became of its copies and how long they took.

The other figures of deliveries are computed from this table, which is as long as there are subscriptions, not copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.partitions import in_pieces
from triagemq.trace import NOT_WANTED, Outcome
from triagemq.trace.latency_bins import bin_middles, bins_of, packed_lists, percentile_bins, unpacked_lists

OUTCOMES = tuple(outcome.name for outcome in Outcome)

SCHEMA = f"""
    run_id             string,
    subscription_id    int,
    subscriber_id      int,
    topic_id           int,
    priority_class     int            COMMENT 'of the plan where the run has it, else of the copy; null without a plan',
    {", ".join(f"{outcome} bigint" for outcome in OUTCOMES)},
    late               bigint         COMMENT 'of the delivered, those after the cut-off: no success',
    in_time            bigint         COMMENT 'of the delivered, those within max_latency_seconds; 0 without one',
    latency_sum_ns     decimal(38,0)  COMMENT 'of the delivered; a whole number, so that means are exact',
    latency_max_ns     bigint,
    bins               array<bigint>  COMMENT 'latencies in ns: bin << 48 | count, see latency_bins'
"""

FIGURES = f"""
    count                 bigint  COMMENT 'copies of events published after warm-up',
    {", ".join(f"{outcome} bigint" for outcome in OUTCOMES)},
    late                  bigint  COMMENT 'delivered after the cut-off: no success',
    success_rate          double  COMMENT '(delivered - late) / (count - thinned - superseded); null without any',
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

_PARTITIONS_PER_FILE = 16
_WHOSE = ("subscriber_id", "topic_id")
_MARKS = ("late", "in_time")
_ROWS_AT_ONCE = 1 << 22
_SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_SECONDS = 1e-9
_LOW_BITS = 31
"""Of so many latencies the sums of their lower and of their upper bits are exact as floating-point numbers."""
_UNDELIVERED = {outcome.name: int(outcome) for outcome in Outcome if outcome is not Outcome.delivered}

NO_CLASS = 0xFFFF
"""In a packed key: the copy was sent in none."""

_COUNTED = f"""
    key bigint, delivered bigint, {", ".join(f"{outcome} bigint" for outcome in _UNDELIVERED)},
    {", ".join(f"{name} bigint" for name in _MARKS)}, {", ".join(f"{name} int" for name in _WHOSE)},
    latency_sum_ns decimal(38,0), latency_max_ns bigint, bins array<bigint>
"""


class _Known(NamedTuple):
    """A whole number for some subscriptions, by their keys without a class."""

    keys: pa.Array
    numbers: Any

    @classmethod
    def of(cls, rows: pa.Table, numbers: Any) -> _Known:
        keys = (rows["run"].to_numpy().astype(np.int64) << 48) + (rows["subscription_id"].to_numpy() << 16)
        return cls(pa.array(keys), np.asarray(numbers, np.int64))

    def look_up(self, keys: Any, unknown: int) -> Any:
        place = pc.index_in(pa.array(keys), self.keys).fill_null(len(self.keys))
        return np.append(self.numbers, unknown)[place.to_numpy()]


def transform(
    deliveries: DataFrame,
    subscriptions: pa.Table,
    classes: pa.Table,
    partitions: int,
    *,
    cut_off_ns: Column | None = None,
) -> DataFrame:
    """Count measured deliveries, and bin their latencies.

    `subscriptions` has the requested latencies, `classes` the class by which the copies of some are counted,
    whatever they were sent in (see dimensions.py), and `cut_off_ns` is an expression of `run`: what is delivered
    later is no success; null for runs in which all counts.

    Spark hands over two numbers a row, the keys packed into one, and the latency or, below 0, the outcome; and whose it
    is. NumPy counts four million of them at a time, in an array where Spark would need hash tables. What is exchanged
    and added up is then one row, with its bins, for each key and piece.
    """
    key = F.shiftleft(F.col("run").cast("bigint"), 48) + F.shiftleft(
        F.col("subscription_id").cast("bigint"), 16
    )
    value = F.when(F.col("outcome") == Outcome.delivered.name, F.col("delivered_ns") - F.col("published_ns"))
    for outcome, number in _UNDELIVERED.items():
        value = value.when(F.col("outcome") == outcome, F.lit(-number).cast("bigint"))
    columns = [(key + F.coalesce("priority_class", F.lit(NO_CLASS))).alias("key"), value.alias("value")]
    if cut_off_ns is not None:
        late = F.coalesce(F.col("delivered_ns") > cut_off_ns, F.lit(False))
        columns.append(late.alias("late"))
    limited = subscriptions.filter(subscriptions["max_latency_seconds"].is_valid())
    # In ns as the simulator has it.
    deadlines = _Known.of(limited, np.rint(limited["max_latency_seconds"].to_numpy() * 1e9))
    counted_in = _Known.of(classes, classes["counted_class"])

    def count(rows: pa.Table) -> pa.Table:
        return _count(rows, deadlines, counted_in)

    measured = deliveries.where("measured").select(*columns, *_WHOSE)
    counted = in_pieces(measured, count, _COUNTED, _ROWS_AT_ONCE)
    together = counted.repartition(max(1, partitions // _PARTITIONS_PER_FILE), "key")
    return in_pieces(together, _added_up, f"run int, {SCHEMA}")


def _count(rows: pa.Table, deadlines: _Known, counted_in: _Known) -> pa.Table:
    """One row for each key: what became of its copies, the bins of their latencies, their sum and the longest."""
    encoded = rows["key"].combine_chunks().dictionary_encode()
    keys, at, value = encoded.dictionary.to_numpy(), encoded.indices.to_numpy(), rows["value"].to_numpy()

    def sums(place: Any, weights: Any = None) -> Any:
        return np.bincount(place, weights, len(keys)).astype(np.int64)

    subscription, sent_in = keys & ~NO_CLASS, keys & NO_CLASS
    counted_class = counted_in.look_up(subscription, -1)
    columns: dict[str, Any] = {"key": subscription + np.where(counted_class < 0, sent_in, counted_class)}
    delivered = value >= 0
    lost, lost_at = -value[~delivered], at[~delivered]
    for outcome, number in _UNDELIVERED.items():
        columns[outcome] = sums(lost_at[lost == number])
    columns["late"] = sums(at, rows["late"].to_numpy()) if "late" in rows.column_names else sums(at[:0])
    for name in _WHOSE:
        # The same in all rows of a subscription.
        columns[name] = np.zeros(len(keys), np.int32)
        columns[name][at] = rows[name].to_numpy()
    took, at = value[delivered], at[delivered].astype(np.int64)
    columns["in_time"] = sums(at[took <= deadlines.look_up(subscription, -1)[at]])
    longest = np.full(len(keys), -1)
    np.maximum.at(longest, at, took)
    high, low = (
        pa.array(sums(at, part)).cast(pa.decimal128(19, 0))
        for part in (took >> _LOW_BITS, took & ((1 << _LOW_BITS) - 1))
    )
    columns["delivered"] = sums(at)
    columns["latency_sum_ns"] = pc.add(pc.multiply(high, pa.scalar(Decimal(1 << _LOW_BITS))), low)
    columns["latency_max_ns"] = pa.array(longest, mask=longest < 0)
    columns["bins"] = packed_lists(at, bins_of(took), None, len(keys))
    return pa.table(columns)


def _added_up(rows: pa.Table) -> pa.Table:
    """One row for each key, of several with what was counted in pieces, and the key as its columns again."""
    added, _ = add_up(rows, ["key"], smallest=_WHOSE)
    key = added["key"].to_numpy()
    sent_in = key & NO_CLASS
    columns = {
        "run": key >> 48,
        "subscription_id": (key >> 16) & 0xFFFFFFFF,
        "priority_class": pa.array(sent_in, mask=sent_in == NO_CLASS),
    }
    return pa.table(columns | {name: added[name] for name in added.column_names if name != "key"})


def add_up(histogram: pa.Table, keys: list[str], smallest: Sequence[str] = ()) -> tuple[pa.Table, Any]:
    """Add the outcomes of several subscriptions or classes up: a row for each value of the keys.

    The second result is the row of the sum for each row of the histogram.
    """
    sums = [name for name in (*OUTCOMES, *_MARKS, "latency_sum_ns") if name in histogram.column_names]
    aggregates = [*((name, "sum") for name in sums), *((name, "min") for name in smallest)]
    aggregates.append(("latency_max_ns", "max"))
    placed = histogram.append_column("place", pa.array(np.arange(len(histogram))))
    grouped = placed.group_by(keys, use_threads=False).aggregate([*aggregates, ("place", "list")])
    columns = {key: grouped[key] for key in keys}
    columns |= {name: grouped[f"{name}_{how}"] for name, how in aggregates}
    places, at = grouped["place_list"].combine_chunks(), np.empty(len(histogram), np.int64)
    at[places.flatten().to_numpy()] = np.repeat(np.arange(len(grouped)), places.value_lengths().to_numpy())
    if "bins" in histogram.column_names:
        row, number, count = unpacked_lists(histogram["bins"].combine_chunks())
        columns["bins"] = packed_lists(at[row], number, count, len(grouped))
    return pa.table(columns), at


def figures(added: pa.Table) -> pa.Table:
    """Add count, success_rate, mean_latency_seconds and max; and p50, p95 and p99 where there are `bins`."""
    count, unwanted, delivered, late = (
        sum(added[name].to_numpy() for name in names)
        for names in (OUTCOMES, [each.name for each in NOT_WANTED], ("delivered",), ("late",))
    )
    total_ns = added["latency_sum_ns"].cast(pa.float64()).to_numpy()
    longest_ns = added["latency_max_ns"].cast(pa.float64()).to_numpy()
    columns = {
        "count": pa.array(count),
        "success_rate": _ratio(delivered - late, count - unwanted),
        "mean_latency_seconds": _ratio(total_ns, delivered, _SECONDS),
        "max": pa.array(longest_ns * _SECONDS, from_pandas=True),
    }
    if "bins" in added.column_names:
        found = percentile_bins(added["bins"].combine_chunks(), list(_SHARES.values()))
        for name, number in zip(_SHARES, found, strict=True):
            # The middle of a bin may lie above everything in it.
            middle = bin_middles()[number.fill_null(0).to_numpy()]
            columns[name] = pa.array(np.minimum(middle, longest_ns) * _SECONDS, from_pandas=True)
    for name, values in columns.items():
        added = added.append_column(name, values)
    return added


def _ratio(above: Any, below: Any, scale: float = 1.0) -> pa.Array:
    """Null where nothing is divided by."""
    divided = np.divide(above, below, out=np.zeros(len(below)), where=below != 0)
    return pa.array(divided * scale, mask=below == 0)
