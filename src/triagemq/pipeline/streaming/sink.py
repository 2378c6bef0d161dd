"""What happens to each micro-batch: its cells are written, the windows that they close are made, all is published.

A batch is published once: the manifest says which was the last, and a batch that Spark hands over again after a kill
only brings its state store up to date. What windows still need of older cells lies in files that the manifest keeps.
Everything is made by Spark's tasks; here is nothing that grows with topics, windows or time.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from triagemq.errors import PipelineError, TriageError
from triagemq.pipeline.store import Location, PublishedRun, Store, TableFile
from triagemq.pipeline.store.writing import append_table
from triagemq.pipeline.streaming.events import FOREVER_NS, NEVER_NS
from triagemq.pipeline.streaming.post import Poster
from triagemq.pipeline.streaming.runs import FoundRun
from triagemq.pipeline.streaming.settings import StreamSettings
from triagemq.pipeline.streaming.windows import CELLS_SCHEMA, COUNTERS_SCHEMA, counters, rates, recent

__all__ = ["Sink"]

_CELLS = "_cells"
_COUNTED = ("events", "late", "duplicates")
_MERGED_AT_ONCE = 16
_LARGE_ROWS = 4_000_000
"""A file of this many rows is not merged any more."""
_MOST_POSTED_ROWS = 5_000


class Sink:
    """Takes the batches of one run, as `foreachBatch` calls it, and remembers how it went."""

    publishing = threading.Lock()
    """Of all runs in one process, one at a time changes the manifest."""

    def __init__(
        self,
        store: Store,
        settings: StreamSettings,
        run: FoundRun,
        number: int,
        checkpoint: Location,
        poster: Poster | None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._run = run
        self._number = number
        self._checkpoint = checkpoint
        self._poster = poster
        self._busy = threading.Lock()
        self._is_over = False
        self._has_news = False
        self._read_before: int | None = None
        self._gone = self._taken_and_not_kept() if run.format == "mqtt" else 0
        self.failure: TriageError | None = None
        self.batches = 0
        self.events = 0
        self.windows = 0
        self.latest_ns = NEVER_NS
        self.busy_seconds = 0.0

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
                self._has_news = False
            self.busy_seconds += time.monotonic() - started

    @property
    def busy(self) -> bool:
        """Whether a batch with new events is being made just now."""
        return self._has_news

    @property
    def ended(self) -> bool:
        """Whether all events of a run that has ended are in the table."""
        return bool(self._state["closed_ns"] == FOREVER_NS)

    def end(self, seconds: float = -1) -> None:
        """Take no more, and wait for the batch that is being made, for so long."""
        self._is_over = True
        if self._busy.acquire(timeout=seconds):
            self._busy.release()

    @property
    def _state(self) -> dict[str, Any]:
        """What the manifest says of this run: its last batch, how far it is closed, and the files of its cells."""
        return dict(self._store.manifest.extra["runs"][self._run.run_id])

    def _take(self, cells: DataFrame, batch_id: int) -> None:
        watermark_ms, offset = self._planned(batch_id)
        if self._read_before is None:
            self._read_before = self._planned(batch_id - 1)[1]["events"] if batch_id else 0
        read = offset["events"] - self._read_before
        self._has_news = read != self.events
        state, closed_ns = self._state, self._settings.closed_ns(watermark_ms)
        if batch_id <= state["batch"] or closed_ns <= state["closed_ns"]:
            # Published already, or nothing is closed: the state of the open cells is all that changes.
            cells.write.format("noop").mode("overwrite").save()
        else:
            self._publish(cells, batch_id, closed_ns, offset.get("lost", 0))
        self.batches += 1
        self.events = read
        self.latest_ns = offset["latest_ns"]

    def _publish(self, cells: DataFrame, batch_id: int, closed_ns: int, lost: int) -> None:
        spark, state, number = cells.sparkSession, self._state, self._number
        new = self._append(_CELLS, cells)
        published = self._store.manifest.runs.get(self._run.run_id)
        tables = {} if published is None else dict(published.tables)
        known = [file for file in self._store.manifest.kept if file.name in state["cells"]]
        all_cells = self._read(spark, [*known, *new], CELLS_SCHEMA)
        closing = rates(all_cells, self._run.run_id, self._settings, state["closed_ns"], closed_ns)
        counted = counters(
            self._read(spark, tables.get("stream_counters", ()), COUNTERS_SCHEMA),
            self._read(spark, new, CELLS_SCHEMA),
            self._run.run_id,
        )
        with ThreadPoolExecutor(1) as beside:
            windows = beside.submit(self._append, "topic_rates", closing)
            tables["stream_counters"], totals = append_table(
                counted.coalesce(1), self._store, "stream_counters", number, summed=_COUNTED
            )
            added = windows.result()
        tables["topic_rates"] = self._merged(spark, (*tables.get("topic_rates", ()), *added))
        until = {file.name: state["cells"][file.name] for file in known}
        until |= {file.name: closed_ns for file in new}
        needed_ns = self._settings.needed_ns(closed_ns)
        kept = tuple(file for file in (*known, *new) if until[file.name] > needed_ns)
        if len(kept) >= _MERGED_AT_ONCE:
            one = recent(self._read(spark, kept, CELLS_SCHEMA), self._settings, closed_ns).coalesce(1)
            kept = self._append(_CELLS, one)
            until |= {file.name: closed_ns for file in kept}
        gone = state["gone"] + self._gone
        made = state | {"batch": batch_id, "closed_ns": closed_ns, "gone": gone}
        made["cells"] = {file.name: until[file.name] for file in kept}
        with self.publishing:
            self._list(tables, totals, lost + gone, made, kept)
        self._gone = 0
        self.windows += sum(file.rows for file in added)
        if self._poster is not None and added:
            latest = self._read(spark, added, None).orderBy("window_start_ns", ascending=False)
            rows = sum(file.rows for file in added)
            self._poster.put("topic_rates", batch_id, latest.limit(_MOST_POSTED_ROWS).toArrow(), of=rows)

    def _list(
        self,
        tables: dict[str, tuple[TableFile, ...]],
        totals: dict[str, int],
        lost: int,
        made: dict[str, Any],
        kept: tuple[TableFile, ...],
    ) -> None:
        manifest = self._store.manifest
        aside = {"late": totals["late"], "duplicate": totals["duplicates"]} | ({"lost": lost} if lost else {})
        run = PublishedRun(
            identity="stream",
            source=self._run.source,
            rows_read=sum(totals.values()),
            rows_in=totals["events"],
            quarantined=totals["late"] + totals["duplicates"],
            reasons=aside,
            tables=tables,
        )
        others = tuple(file for file in manifest.kept if file.name not in self._state["cells"])
        extra = dict(manifest.extra)
        extra["runs"] = {**extra["runs"], self._run.run_id: made}
        self._store.publish({self._run.run_id: run}, kept=(*others, *kept), extra=extra)

    def _append(self, table: str, rows: DataFrame) -> tuple[TableFile, ...]:
        return append_table(rows, self._store, table, self._number)[0]

    def _merged(self, spark: SparkSession, files: Sequence[TableFile]) -> tuple[TableFile, ...]:
        """Sixteen files of about the same size become one, or they would be many."""
        sizes = [math.floor(math.log(file.rows, _MERGED_AT_ONCE)) for file in files]
        for size in sorted(set(sizes)):
            same = [
                file
                for file, its in zip(files, sizes, strict=True)
                if its == size and file.rows < _LARGE_ROWS
            ]
            if len(same) >= _MERGED_AT_ONCE:
                one = self._read(spark, same, None).coalesce(1)
                return (*(file for file in files if file not in same), *self._append("topic_rates", one))
        return tuple(files)

    def _read(self, spark: SparkSession, files: Iterable[TableFile], schema: str | None) -> DataFrame:
        paths = [(self._store.place / file.name).spark_path for file in files]
        if not paths:
            assert schema is not None
            return spark.createDataFrame([], schema)
        return (spark.read if schema is None else spark.read.schema(schema)).parquet(*paths)

    def _taken_and_not_kept(self) -> int:
        """Messages of a batch that was begun and not finished: they cannot be had again."""
        done = [
            max((int(entry.name) for entry in place.entries() if entry.name.isdecimal()), default=-1)
            for place in (self._checkpoint / "offsets", self._checkpoint / "commits")
            if place.exists()
        ]
        if len(done) < 2 or done[0] <= done[1]:
            return 0
        return int(self._planned(done[0])[1]["events"] - self._planned(done[1])[1]["events"])

    def _planned(self, batch_id: int) -> tuple[int, dict[str, Any]]:
        """Watermark and end of a batch: Spark writes them down before it starts it, and tells them nowhere else."""
        path = self._checkpoint / "offsets" / str(batch_id)
        try:
            _version, metadata, offset = path.read().decode().splitlines()
            return int(json.loads(metadata)["batchWatermarkMs"]), dict(json.loads(offset))
        except (ValueError, TypeError, KeyError) as error:
            raise PipelineError(
                f"{path.given}: Spark's record of the batch cannot be read: {error}"
            ) from error
