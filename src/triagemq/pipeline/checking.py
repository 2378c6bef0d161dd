"""Trace runs in Spark: read as they are, every row with the reason why it cannot be used, or none.

A reason is found from the row itself; that a row is a copy of another, or the only one of a clock that was not set, is
found afterwards, and only if there are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812

from triagemq.clock import UNIX_TIMES_FROM_NS
from triagemq.pipeline.inputs import TraceInput
from triagemq.pipeline.partitions import few_rows, in_one_piece, spread
from triagemq.pipeline.store import InputFile
from triagemq.pipeline.tables.latency_histogram import NO_CLASS
from triagemq.pipeline.tables.port_load import COUNTERS
from triagemq.trace import TABLES, Outcome

# What must not come twice, as two numbers for each table.
_KEYS = {
    "publications": ("publication_id", "0"),
    "deliveries": ("publication_id", "subscription_id"),
    "hops": ("publication_id", "shiftleft(bigint(subscription_id), 32) + hop"),
    "queue_samples": ("sampled_ns", "shiftleft(bigint(port_id), 32) + queue"),
}
_COUNTERS = (*COUNTERS, "backlog_bytes", "backlog_packets")
_TIMES = {"publications": "published_ns", "deliveries": "published_ns", "queue_samples": "sampled_ns"}
_SPARK_TYPES = {"int32": "int", "int64": "bigint", "string": "string"}
_LARGEST_CLASS = NO_CLASS - 1
_DUPLICATE = "duplicate"
_UNSET = "clock not set"
_STAMPED = ("publications", "deliveries")
"""The tables whose published_ns is the publishers' own time."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Rows of one trace table of all runs, with `reason` (null for a good row), `source` and `line`."""

    table: str
    rows: DataFrame

    def good(self) -> DataFrame:
        """Rows that can be used, with the columns of the trace only."""
        return self.rows.where(F.col("reason").isNull()).select("run", *TABLES[self.table].names)

    def bad(self) -> DataFrame:
        """Rows set aside, as the quarantine takes them."""
        return self.rows.where(F.col("reason").isNotNull()).select(
            "run",
            F.lit(self.table).alias("table"),
            "reason",
            "source",
            "line",
            F.to_json(F.struct(*TABLES[self.table].names)).alias("raw"),
        )


def spark_schema(table: str) -> str:
    """The schema of a trace table as Spark reads it, so that it need not open a file to find out."""
    return ", ".join(f"{field.name} {_SPARK_TYPES.get(str(field.type), 'string')}" for field in TABLES[table])


def check_runs(
    spark: SparkSession, runs: Mapping[int, TraceInput], partitions: int
) -> tuple[dict[str, Checked], dict[tuple[int, str | None], int]]:
    """The trace tables of these runs, and for each run how many rows have each reason (None for the good ones).

    One pass counts rows by reason and looks for keys that come twice, and for times that cannot be of one clock; only
    if there are any are the rows looked at again, to keep the first of each and those of a clock that was set.
    """
    checked = {table: _read_all(spark, table, runs, partitions) for table in _KEYS}
    keys = [
        each.rows.select(
            "run",
            F.lit(number).alias("table"),
            "reason",
            _is_unix(table).alias("unix"),
            *(
                F.expr(key).cast("bigint").alias(name)
                for key, name in zip(_KEYS[table], ("key", "other"), strict=True)
            ),
        )
        for number, (table, each) in enumerate(checked.items())
    ]
    # The exchange first: nearly all keys are different, so that counting before it would only cost.
    times = (
        spread(reduce(DataFrame.unionByName, keys), partitions, "key")
        .groupBy("run", "table", "reason", "unix", "key", "other")
        .agg(F.count("*").alias("times"))
    )
    sums = times.groupBy("run", "table", "reason", "unix").agg(F.sum("times"), F.sum(F.col("times") - 1))
    found = sums.collect()
    live = {run for run, _, reason, unix, *_ in found if reason is None and unix}
    counts: Counter[tuple[int, str | None]] = Counter()
    for run, number, reason, unix, rows, repeated in found:
        table = list(_KEYS)[number]
        if reason is None and run in live and unix is False:
            counts[run, _UNSET] += rows
            checked[table] = Checked(table, _mark_unset(run, checked[table].rows))
        else:
            copies = repeated if reason is None else 0
            counts[run, reason] += rows - copies
            if copies:
                counts[run, _DUPLICATE] += copies
    for table in {
        list(_KEYS)[number] for _, number, reason, _, _, again in found if reason is None and again
    }:
        checked[table] = Checked(table, _mark_duplicates(table, checked[table].rows))
    return checked, counts


def _is_unix(table: str) -> Column:
    """Whether a row's time is of a calendar or, as in simulations, since the start; null where it is nobody's own."""
    time = F.col("published_ns") if table in _STAMPED else F.lit(None).cast("bigint")
    return time >= UNIX_TIMES_FROM_NS


def _mark_unset(run: int, rows: DataFrame) -> DataFrame:
    """Give the good rows of this run that are not of a calendar the reason: others of it are."""
    unset = (F.col("run") == run) & F.col("reason").isNull() & (F.col("published_ns") < UNIX_TIMES_FROM_NS)
    return rows.withColumn("reason", F.when(unset, _UNSET).otherwise(F.col("reason")))


def _read_all(spark: SparkSession, table: str, runs: Mapping[int, TraceInput], partitions: int) -> Checked:
    parts = [_read(spark, table, number, run) for number, run in runs.items() if run.manifest.rows(table)]
    if not parts:
        schema = f"{spark_schema(table)}, source string, run int, line bigint, reason string"
        return Checked(table, few_rows(spark, [], schema))
    return Checked(table, in_one_piece(reduce(DataFrame.unionByName, parts), partitions))


def _read(spark: SparkSession, table: str, number: int, run: TraceInput) -> DataFrame:
    files: tuple[InputFile, ...] = run.files[table]
    rows = spark.read.schema(spark_schema(table)).parquet(*(file.spark_path for file in files))
    return (
        rows.select(
            "*", F.col("_metadata.file_path").alias("source"), F.col("_metadata.row_index").alias("index")
        )
        .withColumn("run", F.lit(number))
        .withColumn("line", F.col("index") + 1)
        .withColumn("reason", _reason(table, run))
        .drop("index")
    )


def _mark_duplicates(table: str, rows: DataFrame) -> DataFrame:
    """Give all but the first of the good rows with equal keys the reason."""
    keys = [F.expr(key) for key in _KEYS[table]]
    same = Window.partitionBy("run", *keys, F.col("reason").isNull()).orderBy("source", "line")
    again = F.col("reason").isNull() & (F.row_number().over(same) > 1)
    return rows.withColumn("reason", F.when(again, _DUPLICATE).otherwise(F.col("reason")))


def _reason(table: str, run: TraceInput) -> Column:
    """The first thing that is wrong with a row; null if nothing is."""
    sizes = {"negative size": F.col("size_bytes") < 0}
    wrong = {
        "publications": sizes | _unknown(run, "topic", "publisher"),
        "deliveries": sizes
        | {
            "impossible priority class": ~F.col("priority_class").between(0, _LARGEST_CLASS),
            "unknown outcome": ~F.col("outcome").isin([outcome.name for outcome in Outcome]),
        }
        | _unknown(run, "topic", "subscription")
        | {
            "delivered without a time": (F.col("outcome") == Outcome.delivered.name)
            & F.col("delivered_ns").isNull(),
            "clock going backwards": _any(
                F.col("delivered_ns") < F.col("published_ns"), F.col("dequeued_ns") < F.col("enqueued_ns")
            ),
        },
        "hops": _unknown(run, "port")
        | {"clock going backwards": F.col("dequeued_ns") < F.col("enqueued_ns")},
        "queue_samples": {"negative counter": _any(*(F.col(name) < 0 for name in _COUNTERS))}
        | _unknown(run, "port"),
    }
    times = {"negative time": F.col(_TIMES[table]) < 0} if table in _TIMES else {}
    needed = [F.col(field.name).isNull() for field in TABLES[table] if not field.nullable]
    found = F.lit(None).cast("string")
    for text, condition in reversed(({"missing value": _any(*needed)} | times | wrong[table]).items()):
        found = F.when(condition, text).otherwise(found)
    return found


def _any(*conditions: Column) -> Column:
    """Whether one of them is true; one that cannot be told is not."""
    return reduce(lambda one, other: one | other, (F.coalesce(each, F.lit(False)) for each in conditions))


def _unknown(run: TraceInput, *kinds: str) -> dict[str, Column]:
    """Ids are row numbers of the scenario, or have names in the manifest; without either any will do."""
    wrong = {}
    for kind in kinds:
        number, known = F.col(f"{kind}_id"), run.known(f"{kind}s")
        wrong[f"unknown {kind}"] = number < 0 if known is None else (number < 0) | (number >= known)
    return wrong
