"""Reads what a run recorded into Arrow, after checking that all of it is there; and removes runs after their time."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triagemq.errors import ParameterError, TraceError
from triagemq.trace.manifest import (
    FORECAST_NAME,
    INCOMPLETE_NAME,
    MANIFEST_NAME,
    PLAN_NAME,
    SCENARIO_NAME,
    Manifest,
    Progress,
    read_manifest,
    read_progress,
)
from triagemq.trace.schema import TABLES, Outcome


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs found in a directory: whole ones, and those that were interrupted or are still going on."""

    complete: tuple[Path, ...]
    incomplete: tuple[Path, ...]


def runs(path: str | Path) -> Runs:
    """The directory itself, if it is a run, or else the runs directly in it, by name."""
    root = Path(path)
    try:
        found = [root] if _is_run(root) else sorted(filter(_is_run, root.iterdir()))
    except OSError as error:
        raise TraceError(f"{root}: cannot be read: {error.strerror}") from error
    complete = tuple(run for run in found if (run / MANIFEST_NAME).exists())
    return Runs(complete, tuple(run for run in found if run not in complete))


def _is_run(path: Path) -> bool:
    # The manifest twice: a run that finishes meanwhile has lost its INCOMPLETE after the first question.
    return any((path / name).exists() for name in (MANIFEST_NAME, INCOMPLETE_NAME, MANIFEST_NAME))


@dataclass(frozen=True, slots=True)
class Trace:
    """One run. `manifest` is None for a run that is not complete, which `open` returns only with
    `allow_incomplete`.

    >>> import tempfile
    >>> from triagemq.trace import TraceWriter
    >>> directory = tempfile.TemporaryDirectory()
    >>> with TraceWriter(directory.name, scenario_text="topics: []", plan_text=None, producer="x") as writer:
    ...     writer.deliveries({
    ...         "publication_id": [0, 0], "subscription_id": [0, 1], "subscriber_id": [0, 1],
    ...         "topic_id": [0, 0], "flow_id": [0, 1], "priority_class": [0, 0],
    ...         "published_ns": [10, 10], "enqueued_ns": [15, -1], "dequeued_ns": [20, -1],
    ...         "delivered_ns": [30, -1], "size_bytes": [100, 100], "outcome": [0, 1]})
    ...     _ = writer.finish(measured_from_ns=0)
    >>> trace = Trace.open(directory.name)
    >>> trace.table("deliveries", columns=["delivered_ns", "outcome"]).to_pylist()
    [{'delivered_ns': 30, 'outcome': 'delivered'}, {'delivered_ns': None, 'outcome': 'dropped_by_policy'}]
    >>> trace.counts()["delivered"], trace.scenario_text
    (1, 'topics: []')
    >>> directory.cleanup()
    """

    path: Path
    run_id: str
    manifest: Manifest | None
    parts: Mapping[str, tuple[Path, ...]]

    @classmethod
    def open(cls, path: str | Path, *, run_id: str | None = None, allow_incomplete: bool = False) -> Trace:
        """Open a run, or the run of that id (its beginning is enough) among several in a directory.

        The manifest, its version and the presence and size of every file are checked. With `allow_incomplete`
        a run without a manifest is opened too, as far as its finished files go: for one that is still being
        written.
        """
        root = Path(path)
        if not root.is_dir():
            raise ParameterError(str(root), "there is no such directory")
        found = runs(root)
        ids = {run: _state(run).run_id for run in found.complete + found.incomplete}
        if not ids:
            raise TraceError(f"{root}: is no trace: neither a manifest.json nor an INCOMPLETE was found")
        chosen = [run for run, its_id in ids.items() if run_id is None or its_id.startswith(run_id)]
        if len(chosen) != 1:
            problem = "holds several runs" if chosen else f"has no run {run_id}"
            names = ", ".join(f"{its_id} ({run.name})" for run, its_id in ids.items())
            raise TraceError(f"{root}: {problem}; choose by run_id from: {names}")
        run = chosen[0]
        state = _state(run)
        if isinstance(state, Manifest):
            return cls(run, state.run_id, state, _listed_parts(run, state))
        # Shorter names first: after a day of one file a second the numbers outgrow their five digits.
        found_parts = sorted(_parts(run), key=lambda part: (len(part.name), part.name))
        # A table that it did not come to make is empty, not missing.
        parts = {table: tuple(part for part in found_parts if part.parent.name == table) for table in TABLES}
        if not allow_incomplete:
            there = ", ".join(f"{table} {len(files)}" for table, files in parts.items() if files) or "none"
            raise TraceError(
                f"{run}: {state}; finished files: {there}; its figures would be wrong: run it again"
            )
        return cls(run, state.run_id, None, parts)

    @property
    def scenario_text(self) -> str:
        """The scenario of the run, as it was given to the writer."""
        return self._text(SCENARIO_NAME)

    @property
    def plan_text(self) -> str | None:
        """The plan of the run, as it was given to the writer; None if it ran without."""
        has_plan = self.manifest.has_plan if self.manifest else (self.path / PLAN_NAME).exists()
        return self._text(PLAN_NAME) if has_plan else None

    def table(
        self, name: str, columns: Sequence[str] | None = None, filters: pc.Expression | None = None
    ) -> pa.Table:
        """Some columns of the rows that pass `filters`, an expression of pyarrow's over these columns."""
        schema = self._schema(name, columns)
        tables = [schema.empty_table()]
        for part in self.parts[name]:
            try:
                with pa.OSFile(str(part)) as file:
                    rows = pq.ParquetFile(file).read(schema.names)
            except (pa.ArrowException, OSError) as error:
                raise TraceError(f"{self.path / name}: cannot be read: {error}") from error
            tables.append(
                rows.select(schema.names) if filters is None else rows.filter(filters).select(schema.names)
            )
        return pa.concat_tables(tables)

    def counts(self, from_ns: int = 0) -> dict[str, int]:
        """How many deliveries had each outcome, of those published at `from_ns` or later."""
        later = pc.field("published_ns") >= from_ns
        outcomes = self.table("deliveries", ["outcome", "published_ns"], later)["outcome"]
        counted = {entry["values"]: entry["counts"] for entry in pc.value_counts(outcomes).to_pylist()}
        return {outcome.name: counted.get(outcome.name, 0) for outcome in Outcome}

    def _schema(self, name: str, columns: Sequence[str] | None) -> pa.Schema:
        if name not in self.parts:
            raise TraceError(f"{self.path}: has no table {name!r}; it has {', '.join(self.parts)}")
        schema = TABLES[name]
        if columns is None:
            return schema
        unknown = [column for column in columns if column not in schema.names]
        if unknown:
            raise TraceError(f"{name}: has no column {', '.join(unknown)}; it has {', '.join(schema.names)}")
        return pa.schema([schema.field(column) for column in columns])

    def _text(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except OSError as error:
            raise TraceError(f"{self.path / name}: cannot be read: {error.strerror}") from error


def _state(run: Path) -> Manifest | Progress:
    # The manifest decides: a run killed between writing it and removing INCOMPLETE has both, and is whole.
    # Read twice: a run that finishes meanwhile has lost its INCOMPLETE after the first read.
    state = read_manifest(run) or read_progress(run) or read_manifest(run)
    if state is None:
        raise TraceError(f"{run}: was removed while it was being opened")
    return state


def _listed_parts(run: Path, manifest: Manifest) -> dict[str, tuple[Path, ...]]:
    for part in (part for parts in manifest.tables.values() for part in parts):
        path = run / part.name
        try:
            size_bytes = path.stat().st_size
        except OSError as error:
            raise TraceError(
                f"{path}: {error.strerror}; the manifest lists it: restore it or run again"
            ) from error
        if size_bytes != part.size_bytes:
            raise TraceError(
                f"{path}: has {size_bytes} bytes instead of {part.size_bytes}; restore it or run again"
            )
    return {table: tuple(run / part.name for part in parts) for table, parts in manifest.tables.items()}


def remove_old_runs(directory: Path, keep_seconds: float) -> list[Path]:
    """Remove the runs in a directory that ended longer ago; returns them.

    A reader of one of them gets an error that names a missing file: the manifest goes last. A run that was killed
    has none; it ended when its last file was written, and its process must be gone.
    """
    if not directory.is_dir():
        return []
    before = time.time() - keep_seconds
    removed = []
    found = runs(directory)
    for run in (*found.complete, *found.incomplete):
        with contextlib.suppress(TraceError):
            state = _state(run)
            if isinstance(state, Manifest):
                ended = datetime.fromisoformat(state.finished).timestamp()
                files = [run / part.name for parts in state.tables.values() for part in parts]
            else:
                ended = math.inf if state.is_running() else _last_write(run)
                files = [*_parts(run), *run.glob(".outcomes-*")]
            if ended < before:
                _remove(run, files)
                removed.append(run)
    return removed


def _last_write(run: Path) -> float:
    times = [0.0]
    for path in (run / INCOMPLETE_NAME, *_parts(run)):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(times)


def _parts(run: Path) -> list[Path]:
    return [part for table in TABLES for part in (run / table).glob("part-*.parquet")]


def _remove(run: Path, files: list[Path]) -> None:
    """Files first, the manifest last; directories only if nothing else is in them."""
    names = (SCENARIO_NAME, PLAN_NAME, FORECAST_NAME, INCOMPLETE_NAME, MANIFEST_NAME)
    for path in (*files, *(run / name for name in names)):
        path.unlink(missing_ok=True)
    for folder in (*(run / table for table in TABLES), run):
        with contextlib.suppress(OSError):
            folder.rmdir()
