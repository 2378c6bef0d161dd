"""The batch job: new runs and logs in, all tables out. Read, transform, write, table by table, then publish."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from triagemq.pipeline.checking import Checked, check_runs
from triagemq.pipeline.dimensions import Dimensions
from triagemq.pipeline.ingest import ingest, names_to_ids, with_plausible_times
from triagemq.pipeline.inputs import LogInput, TraceInput
from triagemq.pipeline.partitions import few_rows, in_one_piece, partitions_of
from triagemq.pipeline.progress import TableProgress
from triagemq.pipeline.store import PublishedRun, TableFile, TableStore
from triagemq.pipeline.store.writing import write_table, write_work
from triagemq.pipeline.tables import (
    class_performance,
    deliveries,
    latency_histogram,
    port_load,
    port_summary,
    publication_profile,
    publications,
    quarantine,
    quarantine_summary,
    queue_features,
    run_summary,
    subscription_performance,
    topic_correlation,
    topic_rates,
    topic_summary,
)

TABLES: Mapping[str, Any] = {
    "publications": publications,
    "deliveries": deliveries,
    "quarantine": quarantine,
    "quarantine_summary": quarantine_summary,
    "latency_histogram": latency_histogram,
    "subscription_performance": subscription_performance,
    "class_performance": class_performance,
    "topic_rates": topic_rates,
    "topic_summary": topic_summary,
    "topic_correlation": topic_correlation,
    "publication_profile": publication_profile,
    "port_load": port_load,
    "port_summary": port_summary,
    "queue_features": queue_features,
    "run_summary": run_summary,
}
"""Every table and its module, in the order in which they are made."""

SCENARIOS = "scenarios"
"""One row per run with a scenario: run_id and the text."""

# While one table waits for its last task or for files to be named, the next one works.
_AT_ONCE = 2
_SMALL_AT_ONCE = 4


class Batch:
    """The tables of some runs, made together and written to a store. `run` numbers them within the batch."""

    def __init__(
        self,
        spark: SparkSession,
        store: TableStore,
        inputs: list[TraceInput | LogInput],
        progress: TableProgress,
    ) -> None:
        self._spark = spark
        self._store = store
        self._written: dict[str, dict[int, tuple[TableFile, ...]]] = {}
        self._log_names: dict[str, list[DataFrame]] = {"topic": [], "publisher": []}
        self._inputs = dict(enumerate(inputs))
        self._traces = {run: each for run, each in self._inputs.items() if isinstance(each, TraceInput)}
        self._logs = {run: each for run, each in self._inputs.items() if isinstance(each, LogInput)}
        self._progress = progress
        self._partitions = partitions_of(spark)
        self._counts: dict[tuple[int, str | None], int] = {}

    def make(self) -> dict[str, PublishedRun]:
        """Make all tables; returns what the manifest is to say of each run."""
        self._progress.begin("checking")
        checked, self._counts = check_runs(self._spark, self._traces, self._partitions)
        readings, rejected = self._ingest()
        self._write_base(checked, readings, rejected)
        self._write_figures(checked)
        self._write("run_summary", self._summary())
        self._keep_scenarios()
        return {each.run_id: self._published(run) for run, each in self._inputs.items()}

    def _write_base(
        self, checked: Mapping[str, Checked], readings: DataFrame | None, rejected: list[DataFrame]
    ) -> None:
        """Valid rows with their names, and those set aside: what all other tables are made from."""
        self._dimensions = Dimensions.of(self._spark, self._traces, self._partitions)
        self._topics = self._with_log_names(self._dimensions.topics, "topic")
        self._publishers = self._with_log_names(self._dimensions.publishers, "publisher")
        valid = checked["publications"].good()
        if readings is not None:
            valid = valid.unionByName(self._numbered(readings))
        made = [
            lambda: self._write(
                "publications",
                publications.transform(valid, self._topics, self._publishers, self._measured_from()),
            )
        ]
        if self._has("deliveries"):
            good = checked["deliveries"].good()
            made.append(lambda: self._write("deliveries", deliveries.transform(good, self._measured_from())))
        if any(reason is not None for _, reason in self._counts):
            bad = [each.bad() for each in checked.values()] + rejected
            together = reduce(DataFrame.unionByName, bad)
            made.append(lambda: self._write("quarantine", quarantine.transform(together)))
        self._all(made)

    def _write_figures(self, checked: Mapping[str, Checked]) -> None:
        """Everything computed from the valid rows; first what only needs those, then what needs the former."""
        published, measured_from_ns = self._read("publications"), self._measured_from()
        first = [
            lambda: self._write("topic_rates", topic_rates.transform(published, self._topics)),
            lambda: self._write(
                "publication_profile",
                publication_profile.transform(published, self._topics, self._publishers, measured_from_ns),
            ),
        ]
        if self._has("deliveries"):
            said = any(each.classes for each in self._traces.values())
            histogram = latency_histogram.transform(
                self._read("deliveries"),
                self._dimensions.classes if said else None,
                self._partitions,
                deadlines=self._deadlines(),
                judged_until_ns=self._judged_until(),
                whose=not all(each.known("subscriptions") for each in self._traces.values()),
            )
            first.insert(0, lambda: self._write("latency_histogram", histogram))
        samples = checked["queue_samples"].good()
        if self._has("queue_samples"):
            ports = self._dimensions.ports
            first.append(
                lambda: self._write("port_load", port_load.transform(samples, ports, measured_from_ns))
            )
            first.append(
                lambda: self._write("queue_features", self._queue_features(samples, checked["hops"]))
            )
        self._all(first)
        second = [
            lambda: self._write(
                "topic_correlation",
                topic_correlation.transform(published, self._read("publication_profile"), self._topics),
            ),
            lambda: self._write(
                "topic_summary",
                topic_summary.transform(
                    self._read("topic_rates"), self._read("publication_profile"), measured_from_ns
                ),
            ),
        ]
        if self._has("queue_samples"):
            second.append(
                lambda: self._write("port_summary", port_summary.transform(self._read("port_load")))
            )
        if self._written.get("quarantine"):
            second.append(
                lambda: self._write(
                    "quarantine_summary", quarantine_summary.transform(self._read("quarantine"))
                )
            )
        if self._has("deliveries"):
            counted = self._read("latency_histogram")
            promised = self._dimensions.class_forecasts
            second.append(
                lambda: self._write("class_performance", class_performance.transform(counted, promised))
            )
            second.append(
                lambda: self._write(
                    "subscription_performance",
                    subscription_performance.transform(counted, self._dimensions.subscriptions),
                )
            )
        self._all(second)

    def _queue_features(self, samples: DataFrame, hops: Checked) -> DataFrame:
        interval = queue_features.INTERVAL_NS
        phase = samples.groupBy("run").agg((F.min("sampled_ns") % interval).alias("phase_ns"))
        with_hops = [run for run, each in self._traces.items() if each.manifest.rows("hops") > 0]
        passed = (
            self._read("deliveries").where(~F.col("run").isin(with_hops))
            if with_hops
            else self._read("deliveries")
        )
        single = passed.join(F.broadcast(self._dimensions.subscribers), ["run", "subscriber_id"]).select(
            "run", "port_id", F.col("priority_class").alias("queue"), "enqueued_ns", "dequeued_ns"
        )
        several = hops.good().select("run", "port_id", "queue", "enqueued_ns", "dequeued_ns")
        packets = single.unionByName(several).join(F.broadcast(phase), "run")
        delays = queue_features.queueing_delays(packets)
        return queue_features.transform(samples, delays, self._dimensions.ports, phase, self._measured_from())

    # Foreign logs

    def _ingest(self) -> tuple[DataFrame | None, list[DataFrame]]:
        """Logs are parsed once, into the working directory; everything else starts from there."""
        readings, rejected = [], []
        for run, log in self._logs.items():
            self._progress.begin(log.source)
            parsed = ingest(self._spark, log)
            kept = write_work(parsed.rows, self._store.work(f"log-{run}"), what=log.source)
            parsed = with_plausible_times(type(parsed)(kept, parsed.values_per_row), log.mapping)
            readings.append(parsed.readings().withColumn("run", F.lit(run)))
            rejected.append(parsed.bad().withColumn("run", F.lit(run)))
            self._count_log(run, parsed.rows)
            for column, ids in names_to_ids(parsed.readings(), ["topic", "publisher"]).items():
                numbered = ids.withColumn("run", F.lit(run))
                place = self._store.work(f"{column}-names-{run}")
                self._log_names[column].append(write_work(numbered, place, what=f"{log.source}: {column}s"))
        return (reduce(DataFrame.unionByName, readings) if readings else None), rejected

    def _with_log_names(self, names: DataFrame, column: str) -> DataFrame:
        return reduce(DataFrame.unionByName, self._log_names[column], names)

    def _numbered(self, readings: DataFrame) -> DataFrame:
        for column, names in self._log_names.items():
            readings = readings.join(F.broadcast(reduce(DataFrame.unionByName, names)), ["run", column])
        return readings.select(
            "run", "publication_id", "topic_id", "publisher_id", "published_ns", "size_bytes"
        )

    # Counting

    def _count_log(self, run: int, rows: DataFrame) -> None:
        for reason, count in rows.groupBy("reason").count().collect():
            self._counts[run, reason] = count

    def _reasons(self, run: int) -> dict[str, int]:
        found = {
            reason: count
            for (each, reason), count in self._counts.items()
            if each == run and reason is not None
        }
        return dict(sorted(found.items()))

    def _published(self, run: int) -> PublishedRun:
        each, reasons = self._inputs[run], self._reasons(run)
        rows_in, quarantined = self._counts.get((run, None), 0), sum(reasons.values())
        tables = {table: self._written.get(table, {}).get(run, ()) for table in (*TABLES, SCENARIOS)}
        rows_read = rows_in + quarantined
        return PublishedRun(
            each.identity, each.source, rows_read, rows_in, quarantined, reasons, tables, each.notes
        )

    def _summary(self) -> DataFrame:
        rows = []
        for run, each in self._inputs.items():
            published = self._published(run)
            manifest = each.manifest if isinstance(each, TraceInput) else None
            scenario = each.scenario if isinstance(each, TraceInput) else None
            rows.append(
                {
                    "run": run,
                    "source": each.source,
                    "producer": manifest.producer if manifest else "log",
                    "started": manifest.started if manifest else None,
                    "finished": manifest.finished if manifest else None,
                    "scenario": scenario.name if scenario else None,
                    "measured_from_ns": manifest.measured_from_ns if manifest else 0,
                    "rows_read": published.rows_read,
                    "rows_in": published.rows_in,
                    "quarantined": published.quarantined,
                }
            )
        known = few_rows(self._spark, [pa.Table.from_pylist(rows)], run_summary.KNOWN)
        return run_summary.transform(
            known,
            self._read("publications"),
            self._read("publication_profile"),
            self._read("latency_histogram"),
            self._read("subscription_performance"),
        )

    def _keep_scenarios(self) -> None:
        """The scenario of each run, as it was given: who has the tables needs the trace no more."""
        for run, each in self._traces.items():
            text = pa.table({"run_id": [each.run_id], "text": [each.scenario_text]})
            self._written.setdefault(SCENARIOS, {})[run] = (self._store.write(SCENARIOS, text, run=run),)

    # Reading and writing

    def _has(self, table: str) -> bool:
        return any(each.manifest.rows(table) > 0 for each in self._traces.values())

    def _measured_from(self) -> Column:
        """The end of warm-up, by run. A foreign log has none."""
        ends = [
            each.manifest.measured_from_ns if isinstance(each, TraceInput) else 0
            for each in self._inputs.values()
        ]
        return (
            F.array(*(F.lit(end).cast("bigint") for end in ends))[F.col("run")]
            if len(ends) > 1
            else F.lit(ends[0])
        )

    def _judged_until(self) -> Column | None:
        """By run, after which time what is delivered is no success; null where all counts, None if it does for all."""
        ends = [
            each.judged_until_ns if isinstance(each, TraceInput) else None for each in self._inputs.values()
        ]
        if all(end is None for end in ends):
            return None
        return F.array(*(F.lit(end).cast("bigint") for end in ends))[F.col("run")]

    def _deadlines(self) -> DataFrame | None:
        """The latency that subscriptions ask for, in ns as the simulator has it; None if none does."""
        asked = (
            each.scenario is not None and np.isfinite(each.scenario.subscriptions.max_latency_seconds).any()
            for each in self._traces.values()
        )
        if not any(asked):
            return None
        deadline_ns = F.rint(F.col("max_latency_seconds") * 1e9).cast("bigint").alias("deadline_ns")
        wanted = self._dimensions.subscriptions.where("max_latency_seconds is not null")
        return wanted.select("run", "subscription_id", deadline_ns)

    def _all(self, made: list[Callable[[], None]]) -> None:
        with ThreadPoolExecutor(_SMALL_AT_ONCE if self._partitions == 1 else _AT_ONCE) as pool:
            for each in [pool.submit(make) for make in made]:
                each.result()

    def _write(self, table: str, frame: DataFrame) -> None:
        self._progress.begin(table)
        schema = StructType.fromDDL(f"{TABLES[table].SCHEMA}, run int")
        assert isinstance(schema, StructType)
        run_ids = F.array(*(F.lit(each.run_id) for each in self._inputs.values()))
        rows = frame.withColumn("run_id", run_ids[F.col("run")]).to(schema)
        self._written[table] = write_table(rows, self._store, table, len(self._inputs), self._partitions)
        self._progress.finish()

    def _read(self, table: str) -> DataFrame:
        """A table of this batch, with `run`; without rows if none was written."""
        schema = f"{TABLES[table].SCHEMA}, run int"
        if not any(self._written.get(table, {}).values()):
            return few_rows(self._spark, [], schema)
        place = self._store.folder(table).spark_path
        return in_one_piece(self._spark.read.schema(schema).parquet(place), self._partitions)
