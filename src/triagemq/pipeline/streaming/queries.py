"""The queries of a stream: one for each run, since every run has its own clock, and so its own watermark.

A batch is published once: the manifest says which was the last, and a batch that Spark hands over again after a kill
only brings its state store up to date. What windows still need of older cells lies in files that the manifest retains.
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
from triagemq.pipeline.causes import cause_of
from triagemq.pipeline.partitions import table_of
from triagemq.pipeline.store import PublishedRun, TableFile, TableStore
from triagemq.pipeline.store.store import MERGED_AT_ONCE
from triagemq.pipeline.streaming.events import FOREVER_NS, Packing, StreamSettings
from triagemq.pipeline.streaming.post import Poster
from triagemq.pipeline.streaming.runs import BrokerRuns, FoundRun, TraceRuns
from triagemq.pipeline.streaming.sources import MqttSource, PublicationsSource
from triagemq.pipeline.streaming.windows import (
    CELLS,
    COUNTED,
    COUNTERS,
    COUNTS,
    KEYS,
    counters,
    joined_spans,
    rates,
    recent,
)
from triagemq.pipeline.tables.topic_rates import SCHEMA as RATES
from triagemq.trace.blocks import NEVER_NS

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
_SCHEMAS = {_CELLS: CELLS, "stream_counters": COUNTERS, "topic_rates": RATES}
_MOST_POSTED_ROWS = 5_000
publishing = threading.Lock()
"""Of all runs in one process, one at a time changes the manifest."""


@dataclass(eq=False)
class Queries:
    """Starts a query for every run that appears, and knows how all of them are doing."""

    session: SparkSession
    store: TableStore
    settings: StreamSettings
    runs: TraceRuns | BrokerRuns
    poster: Poster | None
    trigger: Mapping[str, Any]
    most_rows: int
    _waiting: deque[FoundRun] = field(default_factory=deque)
    _active: list[RunQuery] = field(default_factory=list)
    _all: list[RunQuery] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)
    _events: int = 0
    _next_look: float = 0.0
    _looked: set[str] = field(default_factory=set)
    _slow_starts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.session.dataSource.register(PublicationsSource)
        self.session.dataSource.register(MqttSource)
        self.store.begin()

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
                if not self._again(run, failure):
                    raise PipelineError(f"the stream does not begin: {cause_of(failure)}") from failure
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

    def end(self, seconds: float = -1) -> None:
        """Take no more batches; those that are being made are waited for, for so long."""
        for each in self._active:
            each.end(seconds)
        if seconds < 0:
            while self._active:
                self._retire(self._active[0])

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
            new = {"number": len(states), "batch": -1, "closed_ns": NEVER_NS, "cells": {}}
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
            .options(rows=self.most_rows, open_ns=self.settings.open_ns, packing=json.dumps(asdict(packing)))
            .option("client", f"triagemq-{self.store.manifest.mark[:14]}")
            .options(**run.options)
            .load()
        )
        query = RunQuery(self.store, self.settings, run, state["number"], self.poster)
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
            # Spark reports on standard error that it was interrupted, as intended.
            with contextlib.suppress(Exception):
                self.session.sparkContext.setLogLevel("OFF")
                each.query.stop()
                self.session.sparkContext.setLogLevel("ERROR")
        self._active.remove(each)
        if failure is not None and not self._again(each.run, failure):
            if each.failure is not None:
                raise each.failure from failure
            raise PipelineError(f"the stream failed: {cause_of(failure)}") from failure

    def _again(self, run: FoundRun, failure: Exception) -> bool:
        """Have a query started once more that was only too slow to begin."""
        if _TOO_SLOW not in cause_of(failure):
            return False
        self._slow_starts[run.run_id] += 1
        self._waiting.append(run)
        return self._slow_starts[run.run_id] < _MOST_STARTS


@dataclass(eq=False)
class RunQuery:
    """The query of one run: takes its batches, as `foreachBatch` calls it, and remembers how it went."""

    store: TableStore
    settings: StreamSettings
    run: FoundRun
    number: int
    poster: Poster | None
    failure: TriageError | None = None
    batches: int = 0
    events: int = 0
    windows: int = 0
    latest_ns: int = NEVER_NS
    busy_seconds: float = 0.0
    query: Any = None
    """The StreamingQuery that hands the batches over, once it has begun."""
    _read_before: int | None = None
    _is_over: bool = False
    _quiet_since: float | None = None
    _quiet_events: int = 0
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, found: DataFrame, batch_id: int) -> None:
        """Bring one batch into the table."""
        with self._busy:
            if self._is_over:
                # To return would tell Spark that the batch is done.
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
        """How far the query has come, as Spark says after every batch."""
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

    def end(self, seconds: float = -1) -> None:
        """Take no more, and wait for the batch that is being made, for so long."""
        self._is_over = True
        if self._busy.acquire(timeout=seconds):
            self._busy.release()

    @property
    def _state(self) -> dict[str, Any]:
        """What the manifest says of this run: its last batch, how far it is closed, and the files of its cells."""
        return dict(self.store.manifest.extra["runs"][self.run.run_id])

    def _publish(self, found: pa.Table, batch_id: int) -> None:
        """The cells of a batch; windows that end where the last of them does, or before, are closed."""
        run_id, settings, state = self.run.run_id, self.settings, self._state
        before_ns, last_ns = state["closed_ns"], pc.max(found["start_ns"]).as_py()
        closed_ns = min(last_ns + settings.cell_ns, FOREVER_NS)
        is_note = pc.and_(pc.is_null(found["topic_id"]), pc.is_null(found["topic"]))
        notes, new = found.filter(is_note), found.filter(pc.invert(is_note))
        until, manifest = state["cells"], self.store.manifest
        retained = tuple(file for file in manifest.retained if file.name in until)
        older = table_of(self.store.read(retained), CELLS)
        outages = joined_spans([*state.get("outages", []), *_spans(notes)])
        cells = table_of([older, new], CELLS)
        made = table_of([rates(cells, run_id, settings, before_ns, closed_ns, outages)], RATES)
        needed_ns = settings.needed_ns(closed_ns)
        retained = tuple(file for file in retained if until[file.name] > needed_ns)
        if len(retained) >= MERGED_AT_ONCE:
            retained = self._written(_CELLS, recent(older, settings, closed_ns))
        retained += self._written(_CELLS, new)
        run = manifest.runs.get(run_id) or PublishedRun("stream", self.run.source, 0, 0, 0, {}, {})
        run = self._counted(run, new, notes)
        earlier = run.tables.get("topic_rates", ())
        if len(made):
            earlier = self.store.appended(earlier, "topic_rates", made, run=self.number)
        run = replace(run, tables={**run.tables, "topic_rates": earlier})
        state |= {"batch": batch_id, "closed_ns": closed_ns, "outages": outages}
        state["cells"] = {file.name: until.get(file.name, closed_ns) for file in retained}
        with publishing:
            manifest = self.store.manifest
            others = (file for file in manifest.retained if file.name not in until)
            extra = {**manifest.extra, "runs": {**manifest.extra["runs"], run_id: state}}
            self.store.publish({run_id: run}, retained=(*others, *retained), extra=extra)
        self.windows += len(made)
        if self.poster is not None and len(made):
            latest = made.sort_by([("window_start_ns", "descending")]).slice(0, _MOST_POSTED_ROWS)
            self.poster.put("topic_rates", batch_id, latest, of=len(made))

    def _counted(self, run: PublishedRun, new: pa.Table, notes: pa.Table) -> PublishedRun:
        """The run with the events of new cells, by topic and as a whole."""
        events, late, duplicates = (_sum(new[name]) for name in COUNTED)
        reasons = {name: run.reasons.get(name, 0) for name in ("late", "duplicate", "lost", "queued")}
        more = {
            "late": late,
            "duplicate": duplicates,
            "lost": _sum(notes["late"]),
            "queued": _sum(notes["bytes"]),
        }
        reasons = {name: count + more[name] for name, count in reasons.items()}
        aside = reasons["late"] + reasons["duplicate"]
        rows_in = run.rows_in + events
        before = run.tables.get("stream_counters", ())
        totals = counters(table_of([*self.store.read(before), new], COUNTS), self.run.run_id)
        return replace(
            run,
            rows_read=rows_in + aside,
            rows_in=rows_in,
            quarantined=aside,
            reasons={
                name: count for name, count in reasons.items() if count or name in ("late", "duplicate")
            },
            tables={**run.tables, "stream_counters": self._written("stream_counters", totals)},
        )

    def _written(self, table: str, rows: pa.Table) -> tuple[TableFile, ...]:
        """The file of some rows; none if there are none."""
        rows = table_of([rows], _SCHEMAS[table])
        return (self.store.write(table, rows, run=self.number),) if len(rows) else ()


def _offset(stated: str | None) -> dict[str, Any]:
    """An offset of a source as progress has it; empty before the first."""
    return json.loads(stated or "null") or {}


def _spans(notes: pa.Table) -> list[list[int]]:
    """The outages that notes tell."""
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
