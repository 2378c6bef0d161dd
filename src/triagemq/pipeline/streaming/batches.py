"""What happens to each micro-batch: Spark reduces its events to panes, the closed windows go into the table."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from triagemq.errors import PipelineError, TriageError
from triagemq.pipeline.store import Location
from triagemq.pipeline.streaming.events import NEVER_NS, Integers, packed
from triagemq.pipeline.streaming.post import Poster
from triagemq.pipeline.streaming.publications import Position, positions
from triagemq.pipeline.streaming.reduction import COUNT, KEPT, PANE, REDUCED, REDUCED_SCHEMA, Reduction
from triagemq.pipeline.streaming.table import RunFacts, StreamTable
from triagemq.pipeline.streaming.windows import StreamSettings, closed_windows, open_panes
from triagemq.scenario import loads
from triagemq.trace.manifest import INCOMPLETE_NAME, MANIFEST_NAME, SCENARIO_NAME

__all__ = ["Batches"]

_ROWS_PER_TASK = 500_000


class Batches:
    """Takes the batches of a stream one by one, as `foreachBatch` calls it, and remembers how it went."""

    def __init__(
        self, table: StreamTable, settings: StreamSettings, checkpoint: Path, poster: Poster | None
    ) -> None:
        self._table = table
        self._settings = settings
        self._checkpoint = checkpoint
        self._poster = poster
        self._facts: dict[str, RunFacts] = {}
        self._busy = threading.Lock()
        self._ended = False
        self.failure: TriageError | None = None
        self.batches = 0
        self.events = 0
        self.windows = 0
        self.latest_ns = NEVER_NS
        self.busy_seconds = 0.0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Bring one batch into the table."""
        with self._busy:
            if self._ended:
                # To return would tell Spark that the batch is done.
                raise InterruptedError("the stream is being stopped")
            started = time.monotonic()
            try:
                self._take(frame, batch_id)
            except TriageError as error:
                self.failure = error
                raise
            self.busy_seconds += time.monotonic() - started

    @property
    def busy(self) -> bool:
        """Whether a batch is being made just now."""
        return self._busy.locked()

    def end(self, seconds: float = -1) -> bool:
        """Take no more, and wait for the batch that is being made; False if it is not done after so long."""
        self._ended = True
        done = self._busy.acquire(timeout=seconds)
        if done:
            self._busy.release()
        return done

    def _take(self, frame: DataFrame, batch_id: int) -> None:
        before = positions(self._table.offset)
        now = self._planned(batch_id)
        moved = {name: at for name, at in now.items() if at != before.get(name)}
        if not moved:
            return
        expected = sum(at.rows for at in now.values()) - sum(at.rows for at in before.values())
        reduced = self._reduced(frame, now, expected)
        kinds = reduced.column("kind")
        counts = reduced.filter(pc.equal(kinds, COUNT))
        counted = sum(pc.sum(counts.column(name)).as_py() or 0 for name in ("events", "late", "duplicates"))
        if counted != expected:
            raise PipelineError(
                f"{self._settings.source}: {expected} new events should be there, and {counted} were read: "
                "was the trace changed? Nothing was added to the table; run again"
            )
        kept = reduced.filter(pc.equal(kinds, KEPT))
        panes = pa.concat_tables(
            [part.filter(pc.equal(part.column("kind"), PANE)) for part in (self._table.state, reduced)]
        )
        columns = {name: panes.column(name).to_numpy() for name in REDUCED.names}
        numbers = 1 + max(at.number for at in now.values())
        windows = closed_windows(
            columns, self._settings, self._closed(before, numbers), self._closed(now, numbers)
        )
        still_open = open_panes(
            columns["run"], columns["time_ns"], self._settings, self._closed(now, numbers)
        )
        state = pa.concat_tables([panes.filter(pa.array(still_open)), kept])
        rows = self._table.commit(
            {name: asdict(at) for name, at in now.items()},
            {at.number: self._known_facts(name) for name, at in moved.items()},
            windows,
            counts,
            state,
        )
        if self._poster is not None:
            self._poster.put("topic_rates", self._table.version, rows)
        self.batches += 1
        self.events += expected
        self.windows += len(windows)
        self.latest_ns = max(at.latest_ns for at in moved.values())

    def _reduced(self, frame: DataFrame, now: Mapping[str, Position], rows: int) -> pa.Table:
        session = frame.sparkSession
        state = self._table.state
        kept = state.filter(pc.equal(state.column("kind"), KEPT))
        if len(kept):
            frame = frame.union(session.createDataFrame(_again(kept), schema=frame.schema))
        closed = {at.number: self._settings.closed_ns(at.latest_ns, at.finished) for at in now.values()}
        reduction = Reduction(self._settings.pane_ns, self._settings.delay_ns, closed)
        tasks = 1 + (rows + len(kept)) // _ROWS_PER_TASK
        # What comes back is bounded by the most rows of a batch, not by the length of the stream.
        return (
            frame.repartition(tasks, "run", "topic_id")
            .mapInArrow(reduction, REDUCED_SCHEMA)
            .toArrow()
            .cast(REDUCED)
        )

    def _closed(self, reached: Mapping[str, Position], numbers: int) -> Integers:
        closed = np.full(numbers, NEVER_NS, dtype=np.int64)
        for at in reached.values():
            closed[at.number] = self._settings.closed_ns(at.latest_ns, at.finished)
        return closed

    def _planned(self, batch_id: int) -> dict[str, Position]:
        """Where the batch ends: Spark writes it down before it starts a batch, and tells it nowhere else."""
        path = self._checkpoint / "offsets" / str(batch_id)
        try:
            _version, _metadata, offset = path.read_text(encoding="utf-8").splitlines()
            return positions(json.loads(offset))
        except (OSError, ValueError, TypeError) as error:
            raise PipelineError(f"{path}: Spark's record of the batch cannot be read: {error}") from error

    def _known_facts(self, name: str) -> RunFacts:
        if name not in self._facts:
            self._facts[name] = _facts(self._settings.source, name)
        others = [other for other, facts in self._facts.items() if facts.run_id == self._facts[name].run_id]
        if len(others) > 1:
            raise PipelineError(
                f"{self._settings.source}: {' and '.join(others)} hold the same run {self._facts[name].run_id}; "
                "remove one of them"
            )
        return self._facts[name]


def _again(kept: pa.Table) -> pa.Table:
    """Kept events in the form in which the source delivers events: before all others, and never late."""
    # By time, as they were accepted: of two with the same id, the later one is what new ones are compared with.
    kept = kept.sort_by("time_ns")
    columns = (
        kept.column(name).to_numpy() for name in ("run", "topic_id", "publication_id", "time_ns", "bytes")
    )
    return pa.Table.from_batches([packed(*columns, first_row=-1, earlier_ns=NEVER_NS)])


def _facts(source: str, name: str) -> RunFacts:
    run = Location(source) / name if name else Location(source)
    # Asked twice: a run that finishes meanwhile has lost its INCOMPLETE after the first question.
    stated: dict[str, Any] = {}
    for each in (MANIFEST_NAME, INCOMPLETE_NAME, MANIFEST_NAME):
        if not stated and (run / each).exists():
            stated = json.loads((run / each).read())
    topics = None
    if (run / SCENARIO_NAME).exists():
        try:
            scenario = loads(
                (run / SCENARIO_NAME).read().decode("utf-8", errors="replace"), file=SCENARIO_NAME
            )
            topics = tuple(scenario.topics.name)
        except TriageError:
            # It costs the names, not the figures; `triage pipeline run` says what is wrong with it.
            topics = None
    return RunFacts(str(stated.get("run_id") or run.name), run.given, topics)
