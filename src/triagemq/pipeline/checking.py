"""Trace runs in Spark: read as they are, every row with the reason why it cannot be used, or none.

A reason is found from the row itself; that a row is a copy of another, or the only one of a clock that was not set, is
found afterwards, and only if there are any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from triagemq.clock import UNIX_TIMES_FROM_NS
from triagemq.pipeline.inputs import TraceInput
from triagemq.pipeline.partitions import in_pieces
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
_LARGEST_CLASS = NO_CLASS - 1
_DUPLICATE = "duplicate"
_UNSET = "clock not set"
_GROUPED = ["run", "table", "reason", "unix"]
_COUNTED = "run int, table int, reason string, unix boolean, rows bigint, repeated bigint"
_STAMPED = ("publications", "deliveries")
"""The tables whose published_ns is the publishers' own time."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Rows of one trace table of all runs, with `reason` (null for a good row), `source` and `line`."""

    table: str
    rows: DataFrame

    def good(self) -> DataFrame:
        """Rows that can be used, with the columns of the trace and, if they say when, whether it is after warm-up."""
        columns = ["run", *TABLES[self.table].names, *(["measured"] if self.table in _TIMES else [])]
        return self.rows.where("reason is null").select(columns)

    def bad(self) -> DataFrame:
        """Rows set aside, as the quarantine takes them."""
        return self.rows.where("reason is not null").select(
            "run",
            F.lit(self.table).alias("table"),
            "reason",
            "source",
            "line",
            F.to_json(F.struct(*TABLES[self.table].names)).alias("raw"),
        )


def check_runs(
    spark: SparkSession, runs: Mapping[int, TraceInput], partitions: int
) -> tuple[dict[str, Checked], dict[tuple[int, str | None], int]]:
    """The trace tables that have rows, and for each run how many rows have each reason (None for the good ones).

    One pass counts rows by reason and looks for keys that come twice, and for times that cannot be of one clock; only
    if there are any are the rows looked at again, to keep the first of each and those of a clock that was set.
    """
    present = [table for table in _KEYS if any(run.manifest.rows(table) for run in runs.values())]
    if not present:
        return {}, Counter()
    with ThreadPoolExecutor() as pool:
        read = pool.map(lambda table: _read_all(spark, table, runs, partitions), present)
        checked = dict(zip(present, read, strict=True))
    keys = [each.rows.select([*_GROUPED, "key", "other"]) for each in checked.values()]
    # The exchange first: nearly all keys are different, so that counting before it would only cost.
    together = reduce(DataFrame.unionByName, keys).repartition(partitions, "key")
    sums = in_pieces(together, _count, _COUNTED).toArrow()
    sums = sums.group_by(_GROUPED).aggregate([("rows", "sum"), ("repeated", "sum")])
    found = list(zip(*(column.to_pylist() for column in sums.columns), strict=True))
    tables = list(_KEYS)
    live = {run for run, _, reason, unix, *_ in found if reason is None and unix}
    counts: Counter[tuple[int, str | None]] = Counter()
    for run, number, reason, unix, times, repeated in found:
        table = tables[number]
        if reason is None and run in live and unix is False:
            counts[run, _UNSET] += times
            checked[table] = Checked(table, _mark_unset(run, checked[table].rows))
        else:
            copies = repeated if reason is None else 0
            counts[run, reason] += times - copies
            if copies:
                counts[run, _DUPLICATE] += copies
    for table in {tables[number] for _, number, reason, _, _, again in found if reason is None and again}:
        checked[table] = Checked(table, _mark_duplicates(table, checked[table].rows))
    return checked, counts


def _count(rows: pa.Table) -> pa.Table:
    """How many rows of each run and table have each reason, and how many of them have the key of another."""
    keys = rows.group_by([*_GROUPED, "key", "other"]).aggregate([([], "count_all")])
    sums = keys.group_by(_GROUPED).aggregate([("count_all", "sum"), ([], "count_all")])
    repeated = pc.subtract(sums["count_all_sum"], sums["count_all"])
    return sums.append_column("repeated", repeated).rename_columns({"count_all_sum": "rows"})


def _mark_unset(run: int, rows: DataFrame) -> DataFrame:
    """Give the good rows of this run that are not of a calendar the reason: others of it are."""
    unset = (F.col("run") == run) & F.col("reason").isNull() & (F.col("published_ns") < UNIX_TIMES_FROM_NS)
    return rows.withColumn("reason", F.when(unset, _UNSET).otherwise(F.col("reason")))


def _read_all(spark: SparkSession, table: str, runs: Mapping[int, TraceInput], partitions: int) -> Checked:
    parts = [_read(spark, table, number, run) for number, run in runs.items() if run.manifest.rows(table)]
    rows = reduce(DataFrame.unionByName, parts)
    return Checked(table, rows.coalesce(1) if partitions == 1 else rows)


def _read(spark: SparkSession, table: str, number: int, run: TraceInput) -> DataFrame:
    files: tuple[InputFile, ...] = run.files[table]
    rows = spark.read.schema(from_arrow_schema(TABLES[table])).parquet(*(file.spark_path for file in files))
    key, other = _KEYS[table]
    # Whether a time is of a calendar or, as in simulations, since the start; null where a publisher did not take it.
    unix = f"published_ns >= {UNIX_TIMES_FROM_NS}" if table in _STAMPED else "cast(null as boolean)"
    return rows.selectExpr(
        "*",
        "_metadata.file_path AS source",
        f"{number} AS run",
        "_metadata.row_index + 1 AS line",
        f"{_reason(table, run)} AS reason",
        f"{list(_KEYS).index(table)} AS table",
        f"{unix} AS unix",
        f"{_TIMES.get(table, 0)} >= {run.manifest.measured_from_ns} AS measured",
        f"bigint({key}) AS key",
        f"bigint({other}) AS other",
    )


def _mark_duplicates(table: str, rows: DataFrame) -> DataFrame:
    """Give all but the first of the good rows with equal keys the reason."""
    keys = [F.expr(key) for key in _KEYS[table]]
    same = Window.partitionBy("run", *keys, F.col("reason").isNull()).orderBy("source", "line")
    again = F.col("reason").isNull() & (F.row_number().over(same) > 1)
    return rows.withColumn("reason", F.when(again, _DUPLICATE).otherwise(F.col("reason")))


def _reason(table: str, run: TraceInput) -> str:
    """The first thing that is wrong with a row; null if nothing is. What is not known is not wrong."""
    sizes = {"negative size": "size_bytes < 0"}
    outcomes = ", ".join(f"'{outcome.name}'" for outcome in Outcome)
    wrong = {
        "publications": sizes | _unknown(run, "topic", "publisher"),
        "deliveries": sizes
        | {
            "impossible priority class": f"priority_class NOT BETWEEN 0 AND {_LARGEST_CLASS}",
            "unknown outcome": f"outcome NOT IN ({outcomes})",
        }
        | _unknown(run, "topic", "subscription")
        | {
            "delivered without a time": f"outcome = '{Outcome.delivered.name}' AND delivered_ns IS NULL",
            "clock going backwards": "delivered_ns < published_ns OR dequeued_ns < enqueued_ns",
        },
        "hops": _unknown(run, "port") | {"clock going backwards": "dequeued_ns < enqueued_ns"},
        "queue_samples": {"negative counter": " OR ".join(f"{name} < 0" for name in _COUNTERS)}
        | _unknown(run, "port"),
    }
    times = {"negative time": f"{_TIMES[table]} < 0"} if table in _TIMES else {}
    needed = " OR ".join(f"{field.name} IS NULL" for field in TABLES[table] if not field.nullable)
    cases = {"missing value": needed} | times | wrong[table]
    return " ".join(["CASE", *(f"WHEN {wrong} THEN '{text}'" for text, wrong in cases.items()), "END"])


def _unknown(run: TraceInput, *kinds: str) -> dict[str, str]:
    """Ids are row numbers of the scenario, or have names in the manifest; without either any will do."""
    known = {kind: run.known(f"{kind}s") for kind in kinds}
    return {
        f"unknown {kind}": f"{kind}_id < 0" + (f" OR {kind}_id >= {count}" if count is not None else "")
        for kind, count in known.items()
    }
