"""The queries of a stream: one for each run, since every run has its own clock, and so its own watermark.

A batch is published once: the manifest has the number of the last one, and a batch that Spark repeats after a kill only
brings its state store up to date. What windows still need of older cells lies in a file that the manifest retains.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from triagemq.errors import PipelineError, TriageError
from triagemq.pipeline.partitions import table_of
from triagemq.pipeline.session import cause_of
from triagemq.pipeline.store import PublishedRun, TableStore
from triagemq.pipeline.streaming.runs import BrokerRuns, FoundRun, TraceRuns
from triagemq.pipeline.streaming.sources import MqttSource, PublicationsSource
from triagemq.pipeline.streaming.windows import (
    CELLS,
    FOREVER_NS,
    KEYS,
    Packing,
    StreamSettings,
    joined_spans,
    rates,
    recent,
)
from triagemq.pipeline.tables.topic_rates import SCHEMA as RATES
from triagemq.trace.blocks import NEVER_NS

MOST_ROWS = 1_000_000
"""Of one batch, unless a single row group has more."""
_CHECKPOINT = "_checkpoint"
_MOST_AT_ONCE = 4
"""A query has a process that looks for news; what is quiet makes room for a run that waits."""
_QUIET_SECONDS = 5.0
_LOOK_SECONDS = 0.5
"""Between two looks for new runs."""
_TOO_SLOW = "Python worker failed to connect back"
_MOST_STARTS = 6
"""Spark gives the process that looks for news ten seconds to begin, and has no setting for it: a busy machine takes
longer. What a query had begun, the next one does again."""

_CELLS = "_cells"
publishing = threading.Lock()
"""Of all runs in one process, one at a time changes the manifest."""


@dataclass(eq=False)
class Queries:
    """Starts a query for every run that appears, and knows how all of them are doing."""

    session: SparkSession
    store: TableStore
    settings: StreamSettings
    runs: TraceRuns | BrokerRuns
    trigger: Mapping[str, Any]
    _waiting: deque[FoundRun] = field(default_factory=deque)
    _active: list[RunQuery] = field(default_factory=list)
    _all: list[RunQuery] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)
    _events: int = 0
    _next_look: float = 0.0
    _looked: set[str] = field(default_factory=set)
    _slow_starts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        # Spark would report each query that is stopped; why one fails its exception says, too.
        self.session.sparkContext.setLogLevel("OFF")
        self.session.dataSource.register(PublicationsSource)
        self.session.dataSource.register(MqttSource)

    def follow(self, until_idle_seconds: float | None) -> bool:
        """Look for new runs, and for queries that have ended; False when all is done."""
        once = "availableNow" in self.trigger
        if time.monotonic() >= self._next_look:
            self._waiting.extend(run for run in self.runs.found() if not self._is_done(run))
            self._next_look = math.inf if once else time.monotonic() + _LOOK_SECONDS
        for each in list(self._active):
            each.note_progress()
            if not each.query.isActive or each.ended:
                self._retire(each)
        if self._waiting and len(self._active) >= _MOST_AT_ONCE:
            quietest = max(self._active, key=RunQuery.quiet_seconds)
            if quietest.quiet_seconds() >= _QUIET_SECONDS:
                self._waiting.append(quietest.run)
                self._retire(quietest)
        while self._waiting and len(self._active) < _MOST_AT_ONCE:
            run = self._waiting.popleft()
            try:
                self._start(run)
            except PySparkException as failure:
                self._again(run, failure, None)
        if once:
            return bool(self._active or self._waiting)
        return until_idle_seconds is None or self._idle_seconds() < until_idle_seconds

    def _idle_seconds(self) -> float:
        """For how long every run that is there has been looked at, and none had news; 0 while a batch is made."""
        quiet = {each.run.run_id: each.quiet_seconds() for each in self._active}
        self._looked |= {run_id for run_id, seconds in quiet.items() if seconds}
        events = self.total("events")
        if events != self._events or {*quiet, *(run.run_id for run in self._waiting)} - self._looked:
            self._since, self._events = time.monotonic(), events
        return time.monotonic() - self._since if all(quiet.values()) else 0.0

    def end(self) -> None:
        """Take no more batches; those that are being made are waited for."""
        for each in self._active:
            each.end()
        while self._active:
            self._retire(self._active[0])
        self.session.sparkContext.setLogLevel("ERROR")

    def total(self, name: str) -> Any:
        """The sum of a figure of all queries."""
        return sum(getattr(each, name) for each in self._all)

    @property
    def latest_ns(self) -> int:
        """The time of the latest event of all runs."""
        return max((each.latest_ns for each in self._all), default=NEVER_NS)

    def _is_done(self, run: FoundRun) -> bool:
        """Whether all of a run that has ended is in the table; a new one gets its number, for good."""
        with publishing:
            manifest = self.store.manifest
            states = manifest.extra.get("runs", {})
            if run.run_id in states:
                return bool(states[run.run_id]["closed_ns"] == FOREVER_NS)
            new = {"number": len(states), "batch": -1, "closed_ns": NEVER_NS, "cells": []}
            extra = {
                "settings": asdict(self.settings),
                "cells": CELLS,
                "runs": {**states, run.run_id: new},
            }
            self.store.publish({}, retained=manifest.retained, extra=extra)
        return False

    def _start(self, run: FoundRun) -> None:
        state = self.store.manifest.extra["runs"][run.run_id]
        checkpoint = self.store.place / _CHECKPOINT / f"run={state['number']}"
        if state["batch"] >= 0 and not (checkpoint / "offsets").exists():
            raise PipelineError(
                f"{checkpoint.given}: is gone, and with it what was not in the table yet; choose another directory"
            )
        packing = Packing(self.settings.cell_ns, self.settings.delay_ns, run.topics)
        rows = (
            self.session.readStream.format(run.format)
            .options(rows=MOST_ROWS, open_ns=self.settings.open_ns, packing=json.dumps(asdict(packing)))
            .option("client", f"triagemq-{self.store.manifest.mark[:14]}")
            .options(**run.options)
            .load()
        )
        query = RunQuery(self.store, self.settings, run, state["number"])
        query.query = (
            cells(rows, self.settings)
            .writeStream.foreachBatch(query)
            .option("checkpointLocation", checkpoint.url)
            .trigger(**self.trigger)
            .start()
        )
        self._all.append(query)
        self._active.append(query)

    def _retire(self, each: RunQuery) -> None:
        """Stop a query that has nothing to do any more, or has ended; its error, if that is why."""
        each.end()
        each.note_progress()
        failure = each.query.exception()
        if each.query.isActive:
            with contextlib.suppress(Exception):
                each.query.stop()
        self._active.remove(each)
        if failure is not None and not each.was_interrupted:
            self._again(each.run, failure, each.failure)

    def _again(self, run: FoundRun, failure: Exception, own: TriageError | None) -> None:
        """Have a query started once more that was only too slow to begin; else raise its own error, or Spark's."""
        cause = cause_of(failure)
        self._slow_starts[run.run_id] += 1
        if _TOO_SLOW not in cause or self._slow_starts[run.run_id] == _MOST_STARTS:
            raise own or PipelineError(f"the stream failed: {cause}") from failure
        self._waiting.append(run)


@dataclass(eq=False)
class RunQuery:
    """The query of one run: takes its batches, as `foreachBatch` calls it, and remembers how it went."""

    store: TableStore
    settings: StreamSettings
    run: FoundRun
    number: int
    failure: TriageError | None = None
    batches: int = 0
    events: int = 0
    windows: int = 0
    latest_ns: int = NEVER_NS
    busy_seconds: float = 0.0
    query: Any = None
    """The StreamingQuery that hands the batches over, once it has begun."""
    was_interrupted: bool = False
    """Whether Spark was refused a batch because the stream ends."""
    _read_before: int | None = None
    _is_over: bool = False
    _quiet_since: float | None = None
    _quiet_events: int = 0
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, found: DataFrame, batch_id: int) -> None:
        """Bring one batch into the table."""
        with self._busy:
            if self._is_over:
                # After a return Spark would take the batch for done.
                self.was_interrupted = True
                raise InterruptedError("the stream is being stopped")
            started = time.monotonic()
            self.note_progress()
            try:
                if batch_id <= self._state["batch"]:
                    # Published already: the state of the open cells is all that changes.
                    found.write.format("noop").mode("overwrite").save()
                elif len(rows := found.toArrow()):
                    self._publish(rows, batch_id)
            except TriageError as error:
                self.failure = error
                raise
            self.batches += 1
            self.busy_seconds += time.monotonic() - started

    @property
    def ended(self) -> bool:
        """Whether all events of a run that has ended are in the table."""
        return bool(self._state["closed_ns"] == FOREVER_NS)

    def note_progress(self) -> None:
        """Note the progress of the query, which Spark reports after every batch."""
        last = None if self.query is None else self.query.lastProgress
        if last is None or not last.sources:
            return
        if self._read_before is None:
            first = self.query.recentProgress[0].sources or last.sources
            self._read_before = _offset(first[0].startOffset).get("events", 0)
        reached = _offset(last.sources[0].endOffset)
        self.events = reached.get("events", self._read_before) - self._read_before
        self.latest_ns = reached.get("latest_ns", NEVER_NS)

    def quiet_seconds(self) -> float:
        """For how long it has looked for news and found none; 0 while Spark still starts it or works on a batch."""
        if not self.query.status["message"].startswith("Waiting"):
            return 0.0
        self.note_progress()
        if self._quiet_since is None or self.events != self._quiet_events:
            self._quiet_since, self._quiet_events = time.monotonic(), self.events
        return time.monotonic() - self._quiet_since

    def end(self) -> None:
        """Take no more, and wait for the batch that is being made."""
        self._is_over = True
        with self._busy:
            pass

    @property
    def _state(self) -> dict[str, Any]:
        """The state of this run in the manifest: its last batch, how far it is closed, and the files of its cells."""
        return dict(self.store.manifest.extra["runs"][self.run.run_id])

    def _publish(self, found: pa.Table, batch_id: int) -> None:
        """The cells of a batch; windows that end where the last of them does, or before, are closed."""
        run_id, settings, state = self.run.run_id, self.settings, self._state
        closed_ns = min(pc.max(found["start_ns"]).as_py() + settings.cell_ns, FOREVER_NS)
        is_note = pc.and_(pc.is_null(found["topic_id"]), pc.is_null(found["topic"]))
        notes, new = found.filter(is_note), found.filter(pc.invert(is_note))
        manifest, before = self.store.manifest, state["cells"]
        older = self.store.read(file for file in manifest.retained if file.name in before)
        cells = table_of([*older, new], CELLS)
        outages = joined_spans([*state.get("outages", []), *_spans(notes)])
        made = table_of([rates(cells, run_id, settings, state["closed_ns"], closed_ns, outages)], RATES)
        run = manifest.runs.get(run_id) or PublishedRun("stream", self.run.source, 0, 0, 0, {}, {})
        files = run.tables.get("topic_rates", ())
        if len(made):
            files = self.store.appended(files, "topic_rates", made, run=self.number)
        run = replace(_counted(run, new, notes), tables={"topic_rates": files} if files else {})
        needed = table_of([recent(cells, settings, closed_ns)], CELLS)
        retained = (self.store.write(_CELLS, needed, run=self.number),) if len(needed) else ()
        state |= {"batch": batch_id, "closed_ns": closed_ns, "outages": outages}
        state["cells"] = [file.name for file in retained]
        with publishing:
            manifest = self.store.manifest
            others = (file for file in manifest.retained if file.name not in before)
            extra = {**manifest.extra, "runs": {**manifest.extra["runs"], run_id: state}}
            self.store.publish({run_id: run}, retained=(*others, *retained), extra=extra)
        self.windows += len(made)


def _counted(run: PublishedRun, new: pa.Table, notes: pa.Table) -> PublishedRun:
    """The run with the events of new cells."""
    more = {
        "late": _sum(new["late"]),
        "duplicate": _sum(new["duplicates"]),
        "lost": _sum(notes["late"]),
        "queued": _sum(notes["bytes"]),
    }
    reasons = {name: run.reasons.get(name, 0) + count for name, count in more.items()}
    reasons = {name: count for name, count in reasons.items() if count or name in ("late", "duplicate")}
    rows_in, aside = run.rows_in + _sum(new["events"]), reasons["late"] + reasons["duplicate"]
    return replace(run, rows_read=rows_in + aside, rows_in=rows_in, quarantined=aside, reasons=reasons)


def _offset(text: str | None) -> dict[str, Any]:
    """An offset of a source as progress has it; empty before the first."""
    return json.loads(text or "null") or {}


def _spans(notes: pa.Table) -> list[list[int]]:
    """The outages in notes."""
    ends = [end for pair in notes["published_ns"].to_pylist() for end in pair]
    return [list(span) for span in zip(ends[::2], ends[1::2], strict=True)]


def _sum(column: pa.ChunkedArray) -> int:
    return int(pc.sum(column, min_count=0).as_py())


def cells(events: DataFrame, settings: StreamSettings) -> DataFrame:
    """The cells of a stream of rows as `events` describes them, each when the watermark has passed its end.

    A cell is the longest stretch of time from which all windows can be put together. Its events are in Spark's state.
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
    )
