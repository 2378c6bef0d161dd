"""`triage pipeline archive`: the events of a log with their payloads, to study an incident afterwards.

Payloads are in logs only: a Trace says how large an event was, not what was in it. Each file holds the events of one
day, so that a day expires by taking its files out of the manifest; rows that were set aside are counted and not stored,
because they have no time after which they could be removed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from triagemq.errors import PipelineError
from triagemq.pipeline.inputs import Input, LogInput, TraceInput, published
from triagemq.pipeline.mapping import Mapping
from triagemq.pipeline.run import PipelineResult, take_in
from triagemq.pipeline.session import SparkOptions, explained, spark_session
from triagemq.pipeline.store import PublishedRun, TableFile, TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVENTS = "events"
SCHEMA = """
    run_id        string     COMMENT 'the log',
    published_at  timestamp  COMMENT 'in whole microseconds, UTC',
    published_ns  bigint     COMMENT 'since 1970',
    topic         string,
    publisher     string,
    payload       binary     COMMENT 'the octets of the value',
    size_bytes    int        COMMENT 'as the mapping says; else the number of octets'
"""
_DAY_NS = 86_400 * 1_000_000_000
_OWNER_ALONE = 0o700


@dataclass(frozen=True, slots=True)
class ArchiveResult(PipelineResult):
    """The same with the number of events that have expired."""

    expired: int = 0


def archive(
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    mapping: Mapping,
    keep_days: int | None = None,
    options: SparkOptions | None = None,
) -> ArchiveResult:
    """Archive every log that `out` lacks, or has in another form; days past `keep_days` expire.

    A new `out` can be entered by its owner alone.
    """
    expired = 0

    def process(todo: list[Input], store: TableStore) -> None:
        nonlocal expired
        if not store.manifest.runs and store.place.local is not None:
            store.place.local.chmod(_OWNER_ALONE)
        if todo:
            most = max(each.rows for each in todo)
            wanted = replace(options or SparkOptions(), rows=most)
            with spark_session(wanted) as spark, explained("Spark could not archive"):
                for log in map(_with_payloads, todo):
                    store.begin()
                    store.publish({log.run_id: _archive(spark, store, log)})
        if keep_days is not None:
            expired = _expire(store, keep_days)

    found = take_in(inputs, out, kind="archive", mapping=mapping, process=process, require=_with_payloads)
    return ArchiveResult(**asdict(found) | {"skipped": found.skipped}, expired=expired)


def _with_payloads(each: Input) -> LogInput:
    if isinstance(each, TraceInput):
        raise PipelineError(
            f"{each.source}: is a trace, which says how large events were and not what was in them; record them with a "
            "subscriber to everything, and archive its log (see docs/reference/archive.md)"
        )
    if each.mapping.value is None and each.mapping.values is None:
        raise PipelineError(
            f"{each.source}: the mapping does not say where the payload is; add value: COLUMN"
        )
    return each


def _archive(spark: SparkSession, store: TableStore, log: LogInput) -> PublishedRun:
    from triagemq.pipeline.ingest import ingest
    from triagemq.pipeline.store.store import write_table

    parsed = ingest(spark, log, store.work("log"))
    days = write_table(transform(parsed.readings(), log.run_id), store, EVENTS, runs=2, tasks=2)
    files = tuple(file for day in sorted(days) for file in days[day])
    return published(parsed.log, parsed.counts(), {EVENTS: files})


def transform(readings: DataFrame, run_id: str) -> DataFrame:
    """The readings of a log as rows of the table; `run` is the day in UTC, and each task has a stretch of time."""
    from pyspark.sql import functions as F  # noqa: N812

    from triagemq.pipeline.partitions import schema_of

    return (
        readings.withColumns(
            {
                "run_id": F.lit(run_id),
                "published_at": F.expr("timestamp_micros(published_ns div 1000)"),
                "run": F.floor(F.col("published_ns") / _DAY_NS).cast("bigint"),
            }
        )
        .to(schema_of(f"{SCHEMA}, run bigint"))
        .repartitionByRange("run", "published_ns")
        .sortWithinPartitions("run", "published_ns")
    )


def _expire(store: TableStore, keep_days: int) -> int:
    """Take files out of the manifest whose last event is older than so many days; returns how many events went."""
    oldest_ns = time.time_ns() - keep_days * _DAY_NS
    events, changed = sum(file.rows for file in store.manifest.files(EVENTS)), {}
    for run_id, run in store.manifest.runs.items():
        files = run.tables[EVENTS]
        recent = tuple(file for file in files if _last_ns(store, file, oldest_ns) >= oldest_ns)
        if recent != files:
            changed[run_id] = replace(run, tables={EVENTS: recent})
    if changed:
        store.publish(changed)
    return events - sum(file.rows for file in store.manifest.files(EVENTS))


def _last_ns(store: TableStore, file: TableFile, oldest_ns: int) -> int:
    """The end of a file's day; where `oldest_ns` is within that day, its last event, as the footer says."""
    end_ns = (int(file.name.split("/")[-2].partition("=")[2]) + 1) * _DAY_NS - 1
    if not end_ns - _DAY_NS < oldest_ns <= end_ns:
        return end_ns
    footer = (store.place / file.name).footer()
    column = footer.schema.names.index("published_ns")
    groups = (footer.row_group(group).column(column) for group in range(footer.num_row_groups))
    return max((group.statistics.max for group in groups if group.is_stats_set), default=end_ns)
