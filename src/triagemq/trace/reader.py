"""Trace: reads what a run recorded into Arrow and pandas, after checking that all of it is there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triagemq.errors import MissingDependencyError, ParameterError, TraceError
from triagemq.trace.manifest import (
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

if TYPE_CHECKING:
    import pandas as pd

_FILES_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs found in a directory: whole ones, and those that were interrupted or are still going on."""

    complete: tuple[Path, ...]
    incomplete: tuple[Path, ...]


def runs(path: str | Path) -> Runs:
    """The directory itself, if it is a run, or else the runs directly in it, by name."""
    root = Path(path)
    complete: list[Path] = []
    incomplete: list[Path] = []
    if not _sort_run(root, complete, incomplete):
        try:
            inside = sorted(child for child in root.iterdir() if child.is_dir())
        except OSError as error:
            raise TraceError(f"{root}: cannot be read: {error.strerror}") from error
        for child in inside:
            _sort_run(child, complete, incomplete)
    return Runs(tuple(complete), tuple(incomplete))


@dataclass(frozen=True, slots=True)
class Trace:
    """One run. `manifest` is None for a run that is not complete, which `open` gives only to those who ask
    for it.

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
        ids = {run: _run_id(run) for run in found.complete + found.incomplete}
        if not ids:
            raise TraceError(f"{root}: is no trace: neither a manifest.json nor an INCOMPLETE was found")
        chosen = [run for run, its_id in ids.items() if run_id is None or its_id.startswith(run_id)]
        if len(chosen) != 1:
            problem = "holds several runs" if chosen else f"has no run {run_id}"
            names = ", ".join(f"{its_id} ({run.name})" for run, its_id in ids.items())
            raise TraceError(f"{root}: {problem}; choose by run_id from: {names}")
        return _open_run(chosen[0], allow_incomplete=allow_incomplete)

    @property
    def complete(self) -> bool:
        """Whether the run finished, so that nothing will be added."""
        return self.manifest is not None

    @property
    def scenario_text(self) -> str:
        """The scenario of the run, as it was given to the writer."""
        return self._text(SCENARIO_NAME)

    @property
    def plan_text(self) -> str | None:
        """The plan of the run, as it was given to the writer; None if it ran without."""
        has_plan = self.manifest.has_plan if self.manifest else (self.path / PLAN_NAME).exists()
        return self._text(PLAN_NAME) if has_plan else None

    def table(self, name: str, columns: Sequence[str] | None = None, filters: Any = None) -> pa.Table:
        """Some columns of the rows that pass `filters`: an expression, or tuples as pyarrow takes them."""
        # Imported late: it imports pandas, which would delay every program that only writes.
        import pyarrow.dataset as ds

        schema = self._schema(name, columns)
        expression = pq.filters_to_expression(filters) if isinstance(filters, list) else filters
        tables, layout = [schema.empty_table()], ds.ParquetFileFormat()
        parts = self.parts[name]
        for first in range(0, len(parts), _FILES_AT_ONCE):
            # Opened and closed here: Arrow closes what it opens on a thread of its own, some time after it has
            # returned, and a disk that holds an open file cannot be unmounted.
            with self._explained(name), ExitStack() as stack:
                fragments = [
                    layout.make_fragment(stack.enter_context(pa.OSFile(str(part))))
                    for part in parts[first : first + _FILES_AT_ONCE]
                ]
                dataset = ds.FileSystemDataset(fragments, TABLES[name], layout)
                tables.append(dataset.to_table(columns=schema.names, filter=expression))
        return pa.concat_tables(tables)

    def batches(
        self, name: str, columns: Sequence[str] | None = None, batch_rows: int = 1 << 16
    ) -> Iterator[pa.RecordBatch]:
        """The rows in the order they were written, some at a time: memory does not grow with the run."""
        schema = self._schema(name, columns)
        for part in self.parts[name]:
            with self._explained(name), pq.ParquetFile(part) as file:
                for batch in file.iter_batches(batch_size=batch_rows, columns=schema.names):
                    # A Parquet file keeps the order of its own columns, whatever order was requested.
                    yield batch.select(schema.names)

    def pandas(self, name: str, columns: Sequence[str] | None = None, filters: Any = None) -> pd.DataFrame:
        """As `table`, for pandas; nullable integers stay integers (Int64): a float loses nanoseconds."""
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise MissingDependencyError("pandas", "pipeline") from error
        keep_integers = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}.get
        table = self.table(name, columns, filters)
        return pd.DataFrame(
            {
                field.name: table.column(field.name).to_pandas(
                    types_mapper=keep_integers if field.nullable else None
                )
                for field in table.schema
            }
        )

    def counts(self, from_ns: int = 0) -> dict[str, int]:
        """How many deliveries had each outcome, of those published at `from_ns` or later."""
        totals = dict.fromkeys((outcome.name for outcome in Outcome), 0)
        columns = ["outcome", "published_ns"] if from_ns > 0 else ["outcome"]
        for batch in self.batches("deliveries", columns):
            outcomes = batch.column("outcome")
            if from_ns > 0:
                outcomes = outcomes.filter(pc.greater_equal(batch.column("published_ns"), from_ns))
            for entry in pc.value_counts(outcomes).to_pylist():
                totals[entry["values"]] += entry["counts"]
        return totals

    def verify(self) -> None:
        """Read every file and compare its SHA-256 with the manifest's; `open` compares only the sizes."""
        if self.manifest is None:
            raise TraceError(f"{self.path}: has no manifest to compare with")
        for part in (part for parts in self.manifest.tables.values() for part in parts):
            path = self.path / part.name
            try:
                with path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
            if sha256 != part.sha256:
                raise TraceError(
                    f"{path}: damaged: its content is not what was written; run again or restore it"
                )

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

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise TraceError(f"{self.path / name}: cannot be read: {error}") from error


def _sort_run(path: Path, complete: list[Path], incomplete: list[Path]) -> bool:
    # The manifest decides: a run killed between writing it and removing INCOMPLETE has both, and is whole.
    # Looked at again, because a run that finishes meanwhile has lost its INCOMPLETE after the first question.
    manifest = path / MANIFEST_NAME
    if manifest.exists():
        complete.append(path)
    elif (path / INCOMPLETE_NAME).exists():
        incomplete.append(path)
    elif manifest.exists():
        complete.append(path)
    else:
        return False
    return True


def _state(run: Path) -> Manifest | Progress:
    state = read_manifest(run) or read_progress(run) or read_manifest(run)
    if state is None:
        raise TraceError(f"{run}: was removed while it was being opened")
    return state


def _run_id(run: Path) -> str:
    return _state(run).run_id


def _open_run(run: Path, *, allow_incomplete: bool) -> Trace:
    state = _state(run)
    if isinstance(state, Manifest):
        return Trace(run, state.run_id, state, _listed_parts(run, state))
    parts = _visible_parts(run)
    if not allow_incomplete:
        raise TraceError(_incomplete_message(run, state, parts))
    return Trace(run, state.run_id, None, parts)


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


def _visible_parts(run: Path) -> dict[str, tuple[Path, ...]]:
    """Finished files of a run without a manifest. A table that it did not come to make is empty, not missing."""
    return {
        # Shorter names first: after a day of one file a second the numbers outgrow their five digits.
        table: tuple(
            sorted((run / table).glob("part-*.parquet"), key=lambda part: (len(part.name), part.name))
        )
        for table in TABLES
    }


def _incomplete_message(run: Path, progress: Progress, parts: Mapping[str, tuple[Path, ...]]) -> str:
    there = ", ".join(f"{table} {len(files)}" for table, files in parts.items() if files) or "none"
    return f"{run}: {progress}; finished files: {there}; its figures would be wrong: run it again"
