"""What happens to each micro-batch: its cells are written, the windows that they close are made, all is published.

A batch is published once: the manifest says which was the last, and a batch that Spark hands over again after a kill
only brings its state store up to date. What windows still need of older cells lies in files that the manifest keeps.
The few rows of a live batch are made here, where a job of Spark's would take longer than all the rest; many are made by
its tasks, by the same functions. Nothing here grows with topics, windows or time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from triagemq.errors import PipelineError, TriageError
from triagemq.pipeline.partitions import in_pieces, partitions_of, table_of
from triagemq.pipeline.store import Location, PublishedRun, TableFile, TableStore
from triagemq.pipeline.store.store import MERGED_AT_ONCE, crowded
from triagemq.pipeline.store.writing import append_table
from triagemq.pipeline.streaming.events import FOREVER_NS
from triagemq.pipeline.streaming.post import Poster
from triagemq.pipeline.streaming.runs import FoundRun
from triagemq.pipeline.streaming.settings import StreamSettings
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

_CELLS = "_cells"
_SCHEMAS = {_CELLS: CELLS, "stream_counters": COUNTERS, "topic_rates": RATES}
_FEW = 200_000
_FEW_BYTES = 4_000_000
"""So many rows, or bytes of files with the times of events, are few."""
_ROWS_PER_TASK = 200_000
_MOST_POSTED_ROWS = 5_000
publishing = threading.Lock()
"""Of all runs in one process, one at a time changes the manifest."""


@dataclass(eq=False)
class BatchSink:
    """Takes the batches of one run, as `foreachBatch` calls it, and remembers how it went."""

    session: SparkSession
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
    _outages: list[list[int]] = field(default_factory=list)
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
            self._gone, self._outages = self._lost_in_unfinished_batch()

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
            self._publish(cells, batch_id, closed_ns, offset)
        self.batches += 1
        self.events = read
        self.latest_ns = offset["latest_ns"]

    def _publish(self, cells: DataFrame, batch_id: int, closed_ns: int, offset: Mapping[str, Any]) -> None:
        run_id, settings, state = self.run.run_id, self.settings, self._state
        before_ns, gone, self._gone = state["closed_ns"], state["gone"] + self._gone, 0
        nothing = PublishedRun("stream", self.run.source, 0, 0, 0, {"late": 0, "duplicate": 0}, {})
        run = self.store.manifest.runs.get(run_id, nothing)
        few = offset["events"] - gone - run.rows_read <= _FEW
        found = cells.toArrow() if few else cells
        new, counted = append_table(found, self.store, _CELLS, self.number, summed=COUNTED)
        until = dict(state["cells"]) | {file.name: closed_ns for file in new}
        known = tuple(file for file in self.store.manifest.retained if file.name in until)
        counts, needed = (*run.tables.get("stream_counters", ()), *new), (*known, *new)
        totals = self._made("stream_counters", counts, COUNTS, lambda rows: counters(rows, run_id))
        # No topic has more windows than end now, and no cell is in more than reach over it.
        topics, rows = (sum(file.rows for file in files) for files in (totals, needed))
        most = min(topics * (closed_ns - before_ns), rows * settings.window_ns) // settings.slide_ns
        outages = joined_spans([*state.get("outages", []), *self._outages, *offset.get("outages", [])])
        times = (before_ns, closed_ns, outages)
        added = self._made(
            "topic_rates", needed, CELLS, lambda rows: rates(rows, run_id, settings, *times), most
        )
        # Only what is published is merged: it is removed when it is not any more.
        earlier = run.tables.get("topic_rates", ())
        if same := crowded(earlier):
            merged = self._made("topic_rates", same, RATES)
            earlier = (*(file for file in earlier if file not in same), *merged)
        needed_ns = settings.needed_ns(closed_ns)
        retained = tuple(file for file in known if until[file.name] > needed_ns)
        if len(retained) >= MERGED_AT_ONCE:
            retained = self._made(_CELLS, retained, CELLS, lambda rows: recent(rows, settings, closed_ns))
            until |= {file.name: closed_ns for file in retained}
        retained += new
        made = state | {"batch": batch_id, "closed_ns": closed_ns, "gone": gone, "outages": outages}
        made["cells"] = {file.name: until[file.name] for file in retained}
        not_counted = {"lost": offset.get("lost", 0) + gone, "queued": offset.get("queued", 0)}
        reasons = {"late": run.reasons["late"] + counted["late"]}
        reasons["duplicate"] = run.reasons["duplicate"] + counted["duplicates"]
        run = replace(
            run,
            rows_read=run.rows_read + sum(counted.values()),
            rows_in=run.rows_in + counted["events"],
            quarantined=sum(reasons.values()),
            reasons=reasons | {reason: count for reason, count in not_counted.items() if count},
            tables={"stream_counters": totals, "topic_rates": (*earlier, *added)},
        )
        with publishing:
            manifest = self.store.manifest
            others = (file for file in manifest.retained if file.name not in state["cells"])
            extra = {**manifest.extra, "runs": {**manifest.extra["runs"], run_id: made}}
            self.store.publish({run_id: run}, retained=(*others, *retained), extra=extra)
        rows = sum(file.rows for file in added)
        self.windows += rows
        if self.poster is not None and rows:
            latest = self._read(added, RATES).orderBy("window_start_ns", ascending=False)
            self.poster.put("topic_rates", batch_id, latest.limit(_MOST_POSTED_ROWS).toArrow(), of=rows)

    def _made(
        self,
        table: str,
        files: Sequence[TableFile],
        columns: str,
        make: Callable[[pa.Table], pa.Table] | None = None,
        most_rows: int = 0,
    ) -> tuple[TableFile, ...]:
        """The rows of some files together, or what a function makes of them: here, if there are few, else in tasks."""
        rows, least_tasks = sum(file.rows for file in files), partitions_of(self.session)
        if max(most_rows, rows) <= _FEW and sum(file.size_bytes for file in files) <= _FEW_BYTES:
            few = table_of(self.store.read(files), columns)
            made = few if make is None else table_of([make(few)], _SCHEMAS[table])
            return append_table(made, self.store, table, self.number)[0]
        if make is None:
            found = self._read(files, columns).coalesce(least_tasks)
        else:
            # Topics apart; and few rows in each, since Python holds those of a task at once.
            found = self._read(files, columns).repartition(max(least_tasks, rows // _ROWS_PER_TASK), *KEYS)
        made = found if make is None else in_pieces(found, make, _SCHEMAS[table])
        return append_table(made, self.store, table, self.number)[0]

    def _read(self, files: Iterable[TableFile], columns: str) -> DataFrame:
        paths = [(self.store.place / file.name).spark_path for file in files]
        return self.session.read.schema(columns).parquet(*paths)

    def _lost_in_unfinished_batch(self) -> tuple[int, list[list[int]]]:
        """Messages of a batch that was begun and not finished, which cannot be had again, and their time."""
        done = [
            max((int(entry.name) for entry in place.entries() if entry.name.isdecimal()), default=-1)
            for place in (self.checkpoint / "offsets", self.checkpoint / "commits")
            if place.exists()
        ]
        if len(done) < 2 or done[0] <= done[1]:
            return 0, []
        begun, committed = (self._planned(batch)[1] for batch in done)
        return int(begun["events"] - committed["events"]), [[committed["told_ns"], begun["told_ns"]]]

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
