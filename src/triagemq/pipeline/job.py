"""The batch job: new runs and logs in, all tables out. Read, transform, write, table by table, then publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.checking import Checked, check_runs
from triagemq.pipeline.dimensions import dimensions
from triagemq.pipeline.ingest import ingest, names_to_ids
from triagemq.pipeline.inputs import Input, LogInput, TraceInput, published
from triagemq.pipeline.partitions import ends_by_run, joined, partitions_of, schema_of, table_of, to_spark
from triagemq.pipeline.store import PublishedRun, TableFile, TableStore
from triagemq.pipeline.store.store import write_table
from triagemq.pipeline.tables import (
    latency_histogram,
    performance,
    port_load,
    publication_profile,
    queue_features,
    run_summary,
    topic_correlation,
    topic_rates,
    valid_rows,
)
from triagemq.progress import TableProgress

TABLES: Mapping[str, str] = {
    "publications": valid_rows.PUBLICATIONS,
    "deliveries": valid_rows.DELIVERIES,
    "quarantine": valid_rows.QUARANTINE,
    "quarantine_summary": valid_rows.QUARANTINE_SUMMARY,
    "latency_histogram": latency_histogram.SCHEMA,
    "subscription_performance": performance.SUBSCRIPTIONS,
    "class_performance": performance.CLASSES,
    "topic_rates": topic_rates.SCHEMA,
    "topic_summary": topic_rates.SUMMARY,
    "topic_correlation": topic_correlation.SCHEMA,
    "publication_profile": publication_profile.SCHEMA,
    "port_load": port_load.SCHEMA,
    "port_summary": port_load.SUMMARY,
    "queue_features": queue_features.SCHEMA,
    "run_summary": run_summary.SCHEMA,
}
"""Every table and its columns, in the order in which they are made."""

SCENARIOS = "scenarios"
"""One row per run with a scenario: run_id and the text."""

_LOG_NAMES = ("topic", "publisher")
"""The names that the events of a log have instead of ids."""

Made = dict[str, Callable[[], DataFrame]]

# While one table waits for its last task or for files to be named, the next one works.
_AT_ONCE = 2
_SMALL_AT_ONCE = 4


class Batch:
    """The tables of some runs, made together and written to a store. `run` numbers them within the batch."""

    def __init__(
        self,
        spark: SparkSession,
        store: TableStore,
        inputs: Sequence[Input],
        progress: TableProgress,
    ) -> None:
        self._spark = spark
        self._store = store
        self._written: dict[str, dict[int, tuple[TableFile, ...]]] = {}
        self._inputs = dict(enumerate(inputs))
        self._traces = {run: each for run, each in self._inputs.items() if isinstance(each, TraceInput)}
        self._logs = {run: each for run, each in self._inputs.items() if isinstance(each, LogInput)}
        self._dimensions = dimensions(self._traces)
        self._names = {name: [self._dimensions[f"{name}s"]] for name in ("topic", "publisher", "port")}
        self._progress = progress
        self._partitions = partitions_of(spark)
        self._counts: dict[tuple[int, str | None], int] = {}

    def make(self) -> dict[str, PublishedRun]:
        """Make all tables; returns the entry of each run in the manifest."""
        self._progress.begin("checking")
        checked, self._counts = check_runs(self._spark, self._traces, self._partitions)
        readings, rejected = self._ingest()
        self._write_base(checked, readings, rejected)
        self._write_figures(checked)
        self._write("run_summary", self._summary)
        self._keep_scenarios()
        return {each.run_id: self._published(run) for run, each in self._inputs.items()}

    def _write_base(
        self, checked: Mapping[str, Checked], readings: DataFrame | None, rejected: list[DataFrame]
    ) -> None:
        """Valid rows, and those set aside: what all other tables are made from."""
        valid = [checked["publications"].good()] if "publications" in checked else []
        if readings is not None:
            valid.append(self._numbered(readings))
        made: Made = {"publications": lambda: reduce(DataFrame.unionByName, valid)} if valid else {}
        if "deliveries" in checked:
            made["deliveries"] = checked["deliveries"].good
        if any(reason is not None for _, reason in self._counts):
            bad = [each.bad() for each in checked.values()] + rejected
            made["quarantine"] = lambda: reduce(DataFrame.unionByName, bad)
        self._write_all(made)

    def _write_figures(self, checked: Mapping[str, Checked]) -> None:
        """Everything computed from the valid rows; first what only needs those, then what needs the former."""
        rows = self._rows
        measured_from_ns = {run: each.described["measured_from_ns"] for run, each in self._inputs.items()}
        times = publication_profile.run_times(rows("publications"), measured_from_ns)
        first: Made = {
            "topic_rates": lambda: topic_rates.transform(rows("publications")),
            "publication_profile": lambda: publication_profile.transform(rows("publications"), times),
        }
        second: Made = {
            "topic_correlation": lambda: topic_correlation.transform(
                rows("publications"), rows("publication_profile")
            ),
            "topic_summary": lambda: topic_rates.summarize(
                rows("topic_rates"),
                rows("publication_profile").select("run", "topic_id", "outages", "outage_seconds"),
                self._by_run(lambda run: _seconds(times, run), "double"),
            ),
        }
        if "deliveries" in checked:
            # The longest of all: it begins first.
            first = {"latency_histogram": self._latency_histogram} | first
            second |= {
                "class_performance": lambda: performance.by_class(
                    rows("latency_histogram"), self._dimensions["class_forecasts"]
                ),
                "subscription_performance": lambda: performance.by_subscription(
                    rows("latency_histogram"), self._dimensions["subscriptions"]
                ),
            }
        if "queue_samples" in checked:
            samples, ports = checked["queue_samples"].good(), self._dimensions["ports"]
            first["port_load"] = lambda: port_load.transform(samples, to_spark(self._spark, ports))
            first["queue_features"] = lambda: self._queue_features(samples, checked.get("hops"))
            second["port_summary"] = lambda: port_load.summarize(rows("port_load"))
        if self._written.get("quarantine"):
            second["quarantine_summary"] = lambda: valid_rows.quarantine_summary(rows("quarantine"))
        self._write_all(first)
        self._write_all(second)

    def _latency_histogram(self) -> DataFrame:
        # After which time what is delivered is no success.
        cut_off = {run: each.cut_off_ns for run, each in self._traces.items()}
        return latency_histogram.transform(
            self._rows("deliveries"),
            self._dimensions["subscriptions"],
            self._dimensions["classes"],
            self._partitions,
            cut_off_ns=self._by_run(cut_off.get)
            if any(until is not None for until in cut_off.values())
            else None,
        )

    def _queue_features(self, samples: DataFrame, hops: Checked | None) -> DataFrame:
        ends = ends_by_run(samples, "sampled_ns")
        phase_ns = self._by_run(
            lambda run: ends[run][0] % queue_features.INTERVAL_NS if run in ends else None
        )
        with_hops = [run for run, each in self._traces.items() if each.manifest.rows("hops") > 0]
        passed = self._rows("deliveries").where(~F.col("run").isin(with_hops))
        subscribers = F.broadcast(to_spark(self._spark, self._dimensions["subscribers"]))
        packets = passed.join(subscribers, ["run", "subscriber_id"]).select(
            "run", "port_id", F.col("priority_class").alias("queue"), "enqueued_ns", "dequeued_ns"
        )
        if hops is not None:
            packets = packets.unionByName(hops.good().select(packets.columns))
        return queue_features.transform(samples, packets, phase_ns)

    # Foreign logs

    def _ingest(self) -> tuple[DataFrame | None, list[DataFrame]]:
        """Logs are parsed once, into the working directory; everything else starts from there."""
        readings, rejected = [], []
        for run, log in self._logs.items():
            self._progress.begin(log.source)
            parsed = ingest(self._spark, log, self._store.work(f"log-{run}"))
            self._inputs[run] = parsed.log
            readings.append(parsed.readings().withColumn("run", F.lit(run)))
            rejected.append(parsed.bad().withColumn("run", F.lit(run)))
            self._counts |= {(run, reason): count for reason, count in parsed.counts().items()}
            for column, names in names_to_ids(parsed.readings(), _LOG_NAMES, run).items():
                self._names[column].append(names)
        return (reduce(DataFrame.unionByName, readings) if readings else None), rejected

    def _numbered(self, readings: DataFrame) -> DataFrame:
        measured = F.lit(True).alias("measured")
        for column in _LOG_NAMES:
            known = F.broadcast(to_spark(self._spark, pa.concat_tables(self._names[column])))
            readings = readings.join(known, ["run", column])
        return readings.select(
            "run", "publication_id", "topic_id", "publisher_id", "published_ns", "size_bytes", measured
        )

    # Counting

    def _published(self, run: int) -> PublishedRun:
        each = self._inputs[run]
        counts = {reason: count for (of, reason), count in self._counts.items() if of == run}
        tables = {table: self._written.get(table, {}).get(run, ()) for table in (*TABLES, SCENARIOS)}
        return published(each, counts, tables)

    def _summary(self) -> DataFrame:
        known = []
        for run, each in self._inputs.items():
            counted = self._published(run)
            row = {name: getattr(counted, name) for name in ("rows_read", "rows_in", "quarantined")}
            row["publications"] = sum(file.rows for file in counted.tables["publications"])
            known.append({"run": run, "source": each.source} | each.described | row)
        used = (self._rows(name).select(*columns).toArrow() for name, columns in run_summary.USED.items())
        return to_spark(self._spark, run_summary.transform(known, *used))

    def _keep_scenarios(self) -> None:
        """The scenario of each run, as it was given: users of the tables do not need the trace."""
        for run, each in self._traces.items():
            text = pa.table({"run_id": [each.run_id], "text": [each.scenario_text]})
            self._written.setdefault(SCENARIOS, {})[run] = (self._store.write(SCENARIOS, text, run=run),)

    # Reading and writing

    def _by_run(self, value_of: Callable[[int], float | None], kind: str = "bigint") -> Column:
        values = [F.lit(value_of(run)).cast(kind) for run in self._inputs]
        return F.array(*values)[F.col("run")] if len(values) > 1 else values[0]

    def _write_all(self, made: Made) -> None:
        with ThreadPoolExecutor(_SMALL_AT_ONCE if self._partitions == 1 else _AT_ONCE) as pool:
            for each in [pool.submit(self._write, table, make) for table, make in made.items()]:
                each.result()

    def _write(self, table: str, make: Callable[[], DataFrame]) -> None:
        self._progress.begin(table)
        ids = F.array(*(F.lit(each.run_id) for each in self._inputs.values()))
        schema, rows = schema_of(self._schema(table)), make()
        for name in schema.names:
            if f"{name}_id" in rows.columns and name not in rows.columns:
                rows = joined(rows, self._names_of(name), ("run", f"{name}_id"))
        rows = rows.withColumn("run_id", ids[F.col("run")]).to(schema)
        self._written[table] = write_table(rows, self._store, table, len(self._inputs), self._partitions)

    def _names_of(self, name: str) -> pa.Table:
        """The names for the ids of a column: those of other_topic_id are topics, too."""
        kind = name.removeprefix("other_")
        found = pa.concat_tables(self._names[kind]).select(["run", f"{kind}_id", kind])
        return found.rename_columns(["run", f"{name}_id", name])

    def _rows(self, table: str) -> DataFrame:
        """A table of this batch, with `run`."""
        schema = self._schema(table)
        if not any(self._written.get(table, {}).values()):
            return to_spark(self._spark, table_of([], schema))
        rows = self._spark.read.schema(schema).parquet(self._store.folder(table).spark_path)
        return rows.coalesce(1) if self._partitions == 1 else rows

    @staticmethod
    def _schema(table: str) -> str:
        return f"{TABLES[table]}, run int"


def _seconds(times: publication_profile.RunTimes, run: int) -> float:
    """For how long a run was observed."""
    begins, ends = times.get(run, (0, 0))
    return (ends - begins) * 1e-9
