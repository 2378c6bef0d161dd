"""The queries of a stream: one for each run, since every run has its own clock, and so its own watermark."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from triagemq.errors import PipelineError
from triagemq.pipeline.causes import cause_of
from triagemq.pipeline.store import TableStore
from triagemq.pipeline.streaming import broker, publications, windows
from triagemq.pipeline.streaming.events import FOREVER_NS, Packing
from triagemq.pipeline.streaming.post import Poster
from triagemq.pipeline.streaming.runs import BrokerRuns, FoundRun, TraceRuns
from triagemq.pipeline.streaming.settings import StreamSettings
from triagemq.pipeline.streaming.sink import BatchSink, publishing
from triagemq.trace.blocks import NEVER_NS

_CHECKPOINT = "_checkpoint"
_MOST_AT_ONCE = 4
"""A query has a process that looks for news; what is quiet makes room for a run that waits."""
_QUIET_SECONDS = 5.0
_LOOK_SECONDS = 0.5
"""Between two looks for new runs."""
_TOO_SLOW = "Python worker failed to connect back"
_MOST_STARTS = 6
"""Spark gives the process that looks for news ten seconds to begin, and can be told nothing else: a busy machine takes
longer. What a query had begun, the next one does again."""


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
    _active: list[BatchSink] = field(default_factory=list)
    _sinks: list[BatchSink] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic)
    _events: int = 0
    _next_look: float = 0.0
    _looked: set[str] = field(default_factory=set)
    _slow_starts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.session.dataSource.register(publications.PublicationsSource)
        self.session.dataSource.register(broker.MqttSource)
        self.store.begin()

    def follow(self, until_idle_seconds: float | None) -> bool:
        """Look for new runs, and for queries that have ended; False when all is done."""
        once = "availableNow" in self.trigger
        if time.monotonic() >= self._next_look:
            self._waiting.extend(run for run in self.runs.found() if not self._is_done(run))
            self._next_look = math.inf if once else time.monotonic() + _LOOK_SECONDS
        for each in list(self._active):
            if not each.query.isActive or each.ended:
                self._retire(each)
        if self._waiting and len(self._active) >= _MOST_AT_ONCE:
            quietest = max(self._active, key=BatchSink.quiet_seconds)
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
        """For how long every run that is there has been looked at, and none had news."""
        self._looked |= {each.run.run_id for each in self._active if each.quiet_seconds()}
        is_new = {run.run_id for run in (*self._waiting, *(each.run for each in self._active))} - self._looked
        events = self.total("events")
        if is_new or events != self._events or any(each.has_news for each in self._active):
            self._since, self._events = time.monotonic(), events
        return time.monotonic() - self._since

    def end(self, seconds: float = -1) -> None:
        """Take no more batches; those that are being made are waited for, for so long."""
        for each in self._active:
            each.end(seconds)
        if seconds < 0:
            while self._active:
                self._retire(self._active[0])

    def total(self, name: str) -> Any:
        """The sum of a figure of all sinks."""
        return sum(getattr(sink, name) for sink in self._sinks)

    @property
    def latest_ns(self) -> int:
        """The time of the latest event of all runs."""
        return max((sink.latest_ns for sink in self._sinks), default=NEVER_NS)

    def _is_done(self, run: FoundRun) -> bool:
        """Whether all of a run that has ended is in the table; a new one gets its number, for good."""
        with publishing:
            manifest = self.store.manifest
            states = manifest.extra.get("runs", {})
            if run.run_id in states:
                return bool(states[run.run_id]["closed_ns"] == FOREVER_NS)
            new = {"number": len(states), "batch": -1, "closed_ns": NEVER_NS, "cells": {}, "gone": 0}
            extra = {
                "settings": asdict(self.settings),
                "cells": windows.CELLS,
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
        sink = BatchSink(
            self.session, self.store, self.settings, run, state["number"], checkpoint, self.poster
        )
        sink.query = (
            cells(rows, self.settings)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", checkpoint.url)
            .trigger(**self.trigger)
            .start()
        )
        self._sinks.append(sink)
        self._active.append(sink)

    def _retire(self, each: BatchSink) -> None:
        """Stop a query that has nothing to do any more, or has ended; its error, if that is why."""
        each.end()
        failure = each.query.exception()
        if each.query.isActive:
            # Spark reports on standard error that it was interrupted, which is what was asked for.
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
        .groupBy(*windows.KEYS, F.window("published_at", f"{settings.cell_ns // 1_000_000} milliseconds"))
        .agg(
            F.collect_list(F.struct(*lists)).alias("rows"),
            F.sum("bytes").alias("bytes"),
            F.sum("late").alias("late"),
        )
        .select(*windows.KEYS, "window", times, numbers, sizes, "bytes", "late")
    )
    has_copies = F.size(F.array_distinct("publication_ids")) < F.size("publication_ids")
    once = grouped.withColumn("sorted", F.when(has_copies, F.sort_array(F.arrays_zip(*lists)))).withColumn(
        "once", F.filter("sorted", lambda each, at: (at == 0) | (each != F.get("sorted", at - 1)))
    )
    bytes_once = F.aggregate("once.size_bytes", F.lit(0).cast("bigint"), lambda total, size: total + size)
    accepted = F.coalesce("once.published_ns", "published_ns")
    return once.select(
        *windows.KEYS,
        (F.unix_micros("window.start") * 1000).alias("start_ns"),
        F.size(accepted).cast("bigint").alias("events"),
        F.coalesce(bytes_once, "bytes").alias("bytes"),
        accepted.alias("published_ns"),
        "late",
        (F.size("published_ns") - F.size(accepted)).cast("bigint").alias("duplicates"),
    ).where("events + late > 0")
