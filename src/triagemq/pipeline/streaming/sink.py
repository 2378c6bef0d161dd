"""What happens to each micro-batch: its cells are written, the windows that they close are made, all is published.

A batch is published once: the manifest says which was the last, and a batch that Spark hands over again after a kill
only brings its state store up to date. What windows still need of older cells lies in files that the manifest keeps.
Everything is made by Spark's tasks; here is nothing that grows with topics, windows or time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from triagemq.errors import PipelineError, TriageError
from triagemq.pipeline.store import Location, PublishedRun, TableFile, TableStore
from triagemq.pipeline.store.store import MERGED_AT_ONCE, crowded
from triagemq.pipeline.store.writing import append_table
from triagemq.pipeline.streaming.events import FOREVER_NS, NEVER_NS
from triagemq.pipeline.streaming.post import Poster
from triagemq.pipeline.streaming.runs import FoundRun
from triagemq.pipeline.streaming.settings import StreamSettings
from triagemq.pipeline.streaming.windows import COUNTERS_SCHEMA, counters, rates, recent

_CELLS = "_cells"
_COUNTED = ("events", "late", "duplicates")
_SMALL_ROWS = 100_000
"""So few cells are one task's work."""
_MOST_POSTED_ROWS = 5_000
publishing = threading.Lock()
"""Of all runs in one process, one at a time changes the manifest."""


@dataclass(eq=False)
class BatchSink:
    """Takes the batches of one run, as `foreachBatch` calls it, and remembers how it went."""

    store: TableStore
    settings: StreamSettings
    run: FoundRun
    number: int
    checkpoint: Location
    poster: Poster | None
    failure: TriageError | None = None
    batches: int = 0
    events: int = 0
    windows: int = 0
    latest_ns: int = NEVER_NS
    busy_seconds: float = 0.0
    _read_before: int | None = None
    _gone: int = 0
    has_news: bool = False
    """Whether a batch with new events is being made just now."""
    query: StreamingQuery = field(init=False)
    """What hands the batches over, once it has begun."""
    _is_over: bool = False
    _quiet_since: float | None = None
    _quiet_events: int = 0
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.run.format == "mqtt":
            self._gone = self._taken_and_not_kept()

    def __call__(self, cells: DataFrame, batch_id: int) -> None:
        """Bring one batch into the table."""
        with self._busy:
            if self._is_over:
                # To return would tell Spark that the batch is done.
                raise InterruptedError("the stream is being stopped")
            started = time.monotonic()
            try:
                self._take(cells, batch_id)
            except TriageError as error:
                self.failure = error
                raise
            finally:
                self.has_news = False
            self.busy_seconds += time.monotonic() - started

    @property
    def ended(self) -> bool:
        """Whether all events of a run that has ended are in the table."""
        return bool(self._state["closed_ns"] == FOREVER_NS)

    def quiet_seconds(self) -> float:
        """For how long it has looked for news and found none; 0 while Spark still starts it or works on a batch."""
        now = time.monotonic()
        waits = self.query.status["message"].startswith("Waiting")
        if self.events != self._quiet_events or (self._quiet_since is None and not waits):
            self._quiet_since, self._quiet_events = (now if waits else None), self.events
        elif self._quiet_since is None or self.has_news:
            self._quiet_since = now
        return 0.0 if self._quiet_since is None else now - self._quiet_since

    def end(self, seconds: float = -1) -> None:
        """Take no more, and wait for the batch that is being made, for so long."""
        self._is_over = True
        if self._busy.acquire(timeout=seconds):
            self._busy.release()

    @property
    def _state(self) -> dict[str, Any]:
        """What the manifest says of this run: its last batch, how far it is closed, and the files of its cells."""
        return dict(self.store.manifest.extra["runs"][self.run.run_id])

    def _take(self, cells: DataFrame, batch_id: int) -> None:
        watermark_ms, offset = self._planned(batch_id)
        if self._read_before is None:
            self._read_before = self._planned(batch_id - 1)[1]["events"] if batch_id else 0
        read = offset["events"] - self._read_before
        self.has_news = read != self.events
        state, closed_ns = self._state, self.settings.closed_ns(watermark_ms)
        if batch_id <= state["batch"] or closed_ns <= state["closed_ns"]:
            # Published already, or nothing is closed: the state of the open cells is all that changes.
            cells.write.format("noop").mode("overwrite").save()
        else:
            self._publish(cells, batch_id, closed_ns, offset.get("lost", 0))
        self.batches += 1
        self.events = read
        self.latest_ns = offset["latest_ns"]

    def _publish(self, cells: DataFrame, batch_id: int, closed_ns: int, lost: int) -> None:
        spark, run_id, state = cells.sparkSession, self.run.run_id, self._state
        new = self._append(_CELLS, cells)
        published = self.store.manifest.runs.get(run_id)
        tables = {} if published is None else dict(published.tables)
        until = dict(state["cells"]) | {file.name: closed_ns for file in new}
        known = tuple(file for file in self.store.manifest.kept if file.name in until)
        made_of = self._read(spark, (*known, *new), cells.schema)
        closing = rates(made_of, run_id, self.settings, state["closed_ns"], closed_ns)
        if sum(file.rows for file in new) < _SMALL_ROWS:
            closing = closing.coalesce(1)
        before = self._read(spark, tables.get("stream_counters", ()), COUNTERS_SCHEMA)
        counted = counters(before, self._read(spark, new, cells.schema), run_id).coalesce(1)
        with ThreadPoolExecutor(1) as beside:
            windows = beside.submit(self._append, "topic_rates", closing)
            tables["stream_counters"], totals = append_table(
                counted, self.store, "stream_counters", self.number, summed=_COUNTED
            )
            added = windows.result()
        # Only what is published is merged: it is removed when it is not any more.
        tables["topic_rates"] = (*self._merged(closing, tables.get("topic_rates", ())), *added)
        needed_ns = self.settings.needed_ns(closed_ns)
        kept = tuple(file for file in known if until[file.name] > needed_ns)
        if len(kept) >= MERGED_AT_ONCE:
            one = recent(self._read(spark, kept, cells.schema), self.settings, closed_ns).coalesce(1)
            kept = self._append(_CELLS, one)
            until |= {file.name: closed_ns for file in kept}
        kept += new
        gone, self._gone = state["gone"] + self._gone, 0
        made = state | {"batch": batch_id, "closed_ns": closed_ns, "gone": gone}
        made["cells"] = {file.name: until[file.name] for file in kept}
        aside = {"late": totals["late"], "duplicate": totals["duplicates"]}
        aside |= {"lost": lost + gone} if lost + gone else {}
        run = PublishedRun(
            identity="stream",
            source=self.run.source,
            rows_read=sum(totals[name] for name in _COUNTED),
            rows_in=totals["events"],
            quarantined=totals["late"] + totals["duplicates"],
            reasons=aside,
            tables=tables,
        )
        with publishing:
            manifest = self.store.manifest
            others = (file for file in manifest.kept if file.name not in state["cells"])
            extra = {**manifest.extra, "runs": {**manifest.extra["runs"], run_id: made}}
            self.store.publish({run_id: run}, kept=(*others, *kept), extra=extra)
        rows = sum(file.rows for file in added)
        self.windows += rows
        if self.poster is not None and rows:
            latest = self._read(spark, added, closing.schema).orderBy("window_start_ns", ascending=False)
            self.poster.put("topic_rates", batch_id, latest.limit(_MOST_POSTED_ROWS).toArrow(), of=rows)

    def _append(self, table: str, rows: DataFrame) -> tuple[TableFile, ...]:
        return append_table(rows, self.store, table, self.number)[0]

    def _merged(self, like: DataFrame, files: Sequence[TableFile]) -> tuple[TableFile, ...]:
        """These files, or the one that is made of too many of them."""
        same = crowded(files)
        if not same:
            return tuple(files)
        one = self._read(like.sparkSession, same, like.schema).coalesce(1)
        return (*(file for file in files if file not in same), *self._append("topic_rates", one))

    def _read(self, spark: SparkSession, files: Iterable[TableFile], schema: StructType | str) -> DataFrame:
        paths = [(self.store.place / file.name).spark_path for file in files]
        return spark.read.schema(schema).parquet(*paths)

    def _taken_and_not_kept(self) -> int:
        """Messages of a batch that was begun and not finished: they cannot be had again."""
        done = [
            max((int(entry.name) for entry in place.entries() if entry.name.isdecimal()), default=-1)
            for place in (self.checkpoint / "offsets", self.checkpoint / "commits")
            if place.exists()
        ]
        if len(done) < 2 or done[0] <= done[1]:
            return 0
        return int(self._planned(done[0])[1]["events"] - self._planned(done[1])[1]["events"])

    def _planned(self, batch_id: int) -> tuple[int, dict[str, Any]]:
        """Watermark and end of a batch: Spark writes them down before it starts it, and tells them nowhere else."""
        path = self.checkpoint / "offsets" / str(batch_id)
        try:
            _version, metadata, offset = path.read().decode().splitlines()
            return int(json.loads(metadata)["batchWatermarkMs"]), dict(json.loads(offset))
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(
                f"{path.given}: Spark's record of the batch cannot be read: {error}"
            ) from error
