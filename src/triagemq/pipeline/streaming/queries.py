"""The queries of a stream: one for each run, since every run has its own clock, and so its own watermark."""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from triagemq.errors import PipelineError
from triagemq.pipeline.causes import cause_of
from triagemq.pipeline.store import Store
from triagemq.pipeline.streaming import broker, events, publications
from triagemq.pipeline.streaming.events import FOREVER_NS, NEVER_NS, Packing
from triagemq.pipeline.streaming.post import Poster
from triagemq.pipeline.streaming.runs import FoundRun, StreamRuns
from triagemq.pipeline.streaming.settings import StreamSettings
from triagemq.pipeline.streaming.sink import Sink
from triagemq.pipeline.streaming.windows import cells

__all__ = ["Queries"]

_CHECKPOINT = "_checkpoint"
_MOST_AT_ONCE = 4
"""A query has a process that looks for news; what is quiet makes room for a run that waits."""
_QUIET_SECONDS = 5.0


class Queries:
    """Starts a query for every run that appears, and knows how all of them are doing."""

    def __init__(
        self,
        session: SparkSession,
        store: Store,
        settings: StreamSettings,
        runs: StreamRuns,
        poster: Poster | None,
        trigger: Mapping[str, Any],
        most_rows: int,
    ) -> None:
        self._session = session
        self._store = store
        self._settings = settings
        self._runs = runs
        self._poster = poster
        self._trigger = trigger
        self._most_rows = most_rows
        self._waiting: deque[FoundRun] = deque()
        self._active: list[_Active] = []
        self._sinks: list[Sink] = []
        self._since = time.monotonic()
        self._looks = 0
        # Workers get the code instead of importing it: they start sooner, and a cluster needs no triagemq.
        for module in (events, publications):
            register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        session.dataSource.register(publications.PublicationsSource)
        session.dataSource.register(broker.MqttSource)
        store.begin()

    def follow(self, until_idle_seconds: float | None) -> bool:
        """Look for new runs, and for queries that have ended; False when all is done."""
        once = "availableNow" in self._trigger
        if not once or not self._looks:
            self._waiting.extend(run for run in self._runs.found() if not self._is_done(run))
        self._looks += 1
        for each in list(self._active):
            if not each.query.isActive or each.sink.ended:
                self._retire(each)
        if self._waiting and len(self._active) >= _MOST_AT_ONCE:
            quietest = max(self._active, key=_Active.quiet_seconds)
            if quietest.quiet_seconds() >= _QUIET_SECONDS:
                self._retire(quietest)
                self._waiting.append(quietest.run)
        while self._waiting and len(self._active) < _MOST_AT_ONCE:
            self._start(self._waiting.popleft())
        if once:
            return bool(self._active)
        quiet = min((each.quiet_seconds() for each in self._active), default=time.monotonic() - self._since)
        return bool(until_idle_seconds is None or self._waiting or quiet < until_idle_seconds)

    def end(self, seconds: float = -1) -> None:
        """Take no more batches; those that are being made are waited for, for so long."""
        for each in self._active:
            each.sink.end(seconds)
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
        manifest = self._store.manifest
        states = manifest.extra.get("runs", {})
        if run.run_id in states:
            return bool(states[run.run_id]["closed_ns"] == FOREVER_NS)
        new = {"number": len(states), "batch": -1, "closed_ns": NEVER_NS, "cells": {}, "gone": 0}
        extra = {"settings": asdict(self._settings), "runs": {**states, run.run_id: new}}
        with Sink.publishing:
            self._store.publish({}, kept=manifest.kept, extra=extra)
        return False

    def _start(self, run: FoundRun) -> None:
        state = self._store.manifest.extra["runs"][run.run_id]
        checkpoint = self._store.place / _CHECKPOINT / f"run={state['number']}"
        if state["batch"] >= 0 and not (checkpoint / "offsets").exists():
            raise PipelineError(
                f"{checkpoint.given}: is gone, and with it what was not in the table yet; choose another directory"
            )
        packing = Packing(self._settings.cell_ns, self._settings.delay_ns, run.topics)
        rows = (
            self._session.readStream.format(run.format)
            .options(
                rows=self._most_rows, open_ns=self._settings.open_ns, packing=json.dumps(asdict(packing))
            )
            .options(**run.options)
            .load()
        )
        sink = Sink(self._store, self._settings, run, state["number"], checkpoint, self._poster)
        query = (
            cells(rows, self._settings)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", checkpoint.url)
            .trigger(**self._trigger)
            .start()
        )
        self._sinks.append(sink)
        self._active.append(_Active(run, sink, query))

    def _retire(self, each: _Active) -> None:
        """Stop a query that has nothing to do any more, or has ended; its error, if that is why."""
        each.sink.end()
        failure = each.query.exception()
        if each.query.isActive:
            # Spark reports on standard error that it was interrupted, which is what was asked for.
            with contextlib.suppress(Exception):
                self._session.sparkContext.setLogLevel("OFF")
                each.query.stop()
                self._session.sparkContext.setLogLevel("ERROR")
        self._active.remove(each)
        if failure is not None:
            if each.sink.failure is not None:
                raise each.sink.failure from failure
            raise PipelineError(f"the stream failed: {cause_of(failure)}") from failure


class _Active:
    """A query that runs."""

    def __init__(self, run: FoundRun, sink: Sink, query: StreamingQuery) -> None:
        self.run = run
        self.sink = sink
        self.query = query
        self._since: float | None = None
        self._seen = 0

    def quiet_seconds(self) -> float:
        """For how long it has looked for news and found none; 0 while Spark still starts it or works on a batch."""
        now, done = time.monotonic(), self.sink.events
        waits = self.query.status["message"].startswith("Waiting")
        if done != self._seen or (self._since is None and not waits):
            self._since, self._seen = (now if waits else None), done
        elif self._since is None or self.sink.busy:
            self._since = now
        return 0.0 if self._since is None else now - self._since
