"""TraceWriter: records a run. Rows go in as NumPy columns; Parquet comes out on a thread of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import uuid
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

import triagemq
from triagemq.errors import OutputError, ParameterError, TraceError
from triagemq.files import flush_directory, write_durably
from triagemq.trace.manifest import (
    FORECAST_NAME,
    INCOMPLETE_NAME,
    MANIFEST_NAME,
    PLAN_NAME,
    SCENARIO_NAME,
    Manifest,
    Progress,
)
from triagemq.trace.parts import BackgroundWriter, PartFiles, Rotation
from triagemq.trace.schema import TABLES, Columns, record_batches

_ADVICE = {
    errno.ENOSPC: "make room there or write to another disk",
    errno.EDQUOT: "make room there or write to another disk",
    errno.EFBIG: "the limit on the size of a file is too low (ulimit -f)",
    errno.EACCES: "choose a directory you may write to",
    errno.EPERM: "choose a directory you may write to",
    errno.EROFS: "choose a directory you may write to",
    errno.ENOENT: "do not remove the directory while the run goes on",
}


class TraceWriter:
    """Writes the Trace of one run into a new or empty directory.

    Each table has a method that takes all its columns at once (see `triagemq.trace.schema`); -1 stands for
    null, an outcome is its code. The arrays are copied and may be used again at once; a call waits while more
    than `queue_bytes` are still to be written. Any number of threads may call. `row_group_rows` is the unit
    of writing; a file is closed and becomes visible after `rotate_rows` rows or, for a run that is watched
    while it lasts, `rotate_seconds` after its first row. A run that must not end with a full disk `pauses`: rows that
    cannot be written are left out, and the manifest lists the gaps. With `keep_seconds` files are removed after that
    time; the manifest has their number, and figures begin behind them.

    `finish` makes the trace valid. Leaving the context otherwise gives it up: there is no manifest
    then, and the file INCOMPLETE has the time and the reason.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with TraceWriter(directory + "/run", scenario_text="", plan_text=None, producer="doc") as trace:
    ...         trace.publications({"publication_id": [0, 1], "topic_id": [3, 3], "publisher_id": [0, -1],
    ...                             "published_ns": [0, 500], "size_bytes": [100, 120]})
    ...         manifest = trace.finish(measured_from_ns=0)
    >>> manifest.rows("publications")
    2
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        scenario_text: str,
        plan_text: str | None,
        producer: str,
        run_id: str | None = None,
        scenario_fingerprint: str | None = None,
        with_hops: bool = False,
        row_group_rows: int = 1 << 19,
        rotate_rows: int | None = 1 << 24,
        rotate_seconds: float | None = None,
        queue_bytes: int = 128 << 20,
        pauses: bool = False,
        keep_seconds: float | None = None,
    ) -> None:
        for parameter, value in (
            ("row_group_rows", row_group_rows),
            ("rotate_rows", rotate_rows),
            ("rotate_seconds", rotate_seconds),
            ("queue_bytes", queue_bytes),
            ("keep_seconds", keep_seconds),
        ):
            if value is not None and not value > 0:
                raise ParameterError(parameter, f"must be positive, is {value}")
        self._path = Path(directory)
        self._scenario_fingerprint = scenario_fingerprint
        self._has_plan = plan_text is not None
        self._row_group_rows = row_group_rows
        self._ended = False
        self._progress = Progress(run_id or str(uuid.uuid4()), producer, _now(), os.getpid())
        tables = [table for table in TABLES if with_hops or table != "hops"]
        try:
            _claim(self._path, self._progress)
        except OSError as error:
            raise self._output_error(error) from error
        try:
            write_durably(self._path / SCENARIO_NAME, scenario_text)
            if plan_text is not None:
                write_durably(self._path / PLAN_NAME, plan_text)
            # All of them from the start: a streaming reader can only watch a directory that is there.
            for table in tables:
                (self._path / table).mkdir()
        except OSError as error:
            self._note_end(_describe(error))
            raise self._output_error(error) from error
        rotation = Rotation(row_group_rows, rotate_rows, rotate_seconds, keep_seconds)
        self._tables = {table: PartFiles(self._path, table, rotation) for table in tables}
        self._background = BackgroundWriter(self._tables, queue_bytes, pauses=pauses)

    @property
    def path(self) -> Path:
        """The directory of this run."""
        return self._path

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._progress.run_id

    @property
    def with_hops(self) -> bool:
        """Whether this run records the ports that deliveries pass; a producer looks before it collects them."""
        return "hops" in self._tables

    def shown(self, table: str) -> int:
        """How many rows of a table are visible to readers by now, or never will be."""
        parts = self._tables[table]
        lost = parts.removed.rows + sum(gap.rows for gap in tuple(parts.gaps))
        return lost + sum(part.rows for part in tuple(parts.finished))

    @property
    def lost_rows(self) -> int:
        """How many rows could not be written."""
        return sum(gap.rows for parts in self._tables.values() for gap in tuple(parts.gaps))

    def publications(self, columns: Columns) -> None:
        """Add rows: events that publishers handed in."""
        self._add("publications", columns)

    def deliveries(self, columns: Columns) -> None:
        """Add rows: copies of events for subscriptions, and what became of them."""
        self._add("deliveries", columns)

    def hops(self, columns: Columns) -> None:
        """Add rows: ports passed by deliveries. Only in a run opened with `with_hops=True`."""
        self._add("hops", columns)

    def queue_samples(self, columns: Columns) -> None:
        """Add rows: counters and backlogs of queues at an instant."""
        self._add("queue_samples", columns)

    def decisions(self, columns: Columns) -> None:
        """Add rows: what was decided during the run, and why."""
        self._add("decisions", columns)

    def finish(self, *, measured_from_ns: int, extra: Mapping[str, Any] | None = None) -> Manifest:
        """Write everything out and make the trace valid.

        `measured_from_ns` is the end of warm-up: figures are computed from what was published then or later.
        `extra` is stored in the manifest as it is. If anything fails the trace is given up.
        """
        if self._ended:
            raise TraceError(f"the trace {self._path} has already been finished or given up")
        try:
            self._background.end()
            self._raise_failure()
            manifest = Manifest(
                run_id=self.run_id,
                producer=self._progress.producer,
                started=self._progress.started,
                finished=_now(),
                measured_from_ns=max(
                    int(measured_from_ns), *(parts.removed.until_ns for parts in self._tables.values())
                ),
                scenario_fingerprint=self._scenario_fingerprint,
                has_plan=self._has_plan,
                tables={table: tuple(parts.finished) for table, parts in self._tables.items()},
                versions={
                    "triagemq": triagemq.__version__,
                    "python": platform.python_version(),
                    "pyarrow": pa.__version__,
                    "numpy": np.__version__,
                },
                extra=dict(extra or {}) | self._missing(),
            )
            try:
                for table in self._tables:
                    flush_directory(self._path / table)
                write_durably(self._path / MANIFEST_NAME, manifest.to_json())
            except OSError as error:
                raise self._output_error(error) from error
        except BaseException as error:
            self.abort(_describe(error))
            raise
        self._ended = True
        self._note_success()
        return manifest

    def _missing(self) -> dict[str, Any]:
        gaps = [asdict(gap) for parts in self._tables.values() for gap in parts.gaps]
        removed = [asdict(parts.removed) for parts in self._tables.values() if parts.removed.parts]
        return ({"gaps": gaps} if gaps else {}) | ({"removed": removed} if removed else {})

    def abort(self, reason: str) -> None:
        """Give the trace up, with the reason in INCOMPLETE; finished files stay. Does nothing after `finish`."""
        if self._ended:
            return
        self._ended = True
        self._background.end(aborted=True)
        if (self._path / MANIFEST_NAME).exists():
            # Interrupted between the manifest and the return of `finish`: nothing is missing.
            self._note_success()
        else:
            self._note_end(reason)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort(_describe(error))
        elif not self._ended:
            self.abort("the program left the run without finishing it")
            raise TraceError(f"the trace {self._path} was left without finish(); it is not valid")

    def _add(self, table: str, columns: Columns) -> None:
        if table not in self._tables:
            raise TraceError(f"this run does not record {table}; open its TraceWriter with with_{table}=True")
        for rows in record_batches(table, columns, self._row_group_rows):
            self._background.put(table, rows)
            self._raise_failure()

    def _note_success(self) -> None:
        # With a manifest the run is whole, whether or not this file can still be removed.
        with contextlib.suppress(OSError):
            (self._path / INCOMPLETE_NAME).unlink()

    def _note_end(self, reason: str) -> None:
        given_up = replace(self._progress, ended=_now(), reason=reason)
        # On a full or vanished disk the INCOMPLETE of the start has to do.
        with contextlib.suppress(OSError):
            write_durably(self._path / INCOMPLETE_NAME, given_up.to_json())

    def _raise_failure(self) -> None:
        failure = self._background.failure
        if isinstance(failure, OSError):
            raise self._output_error(failure) from failure
        if failure is not None:
            raise TraceError(f"cannot write the trace {self._path}: {_describe(failure)}") from failure

    def _output_error(self, error: OSError) -> OutputError:
        what = os.strerror(error.errno) if error.errno is not None else str(error)
        advice = _ADVICE.get(error.errno or 0, "check the disk and run again")
        return OutputError(f"cannot write the trace {self._path}: {what}; {advice}")


def add_forecast(run: str | Path, text: str) -> None:
    """Store the forecast of a run's plan with it, while it is written or afterwards."""
    path = Path(run) / FORECAST_NAME
    try:
        write_durably(path, text)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {_describe(error)}") from error


def _claim(path: Path, progress: Progress) -> None:
    """Make the directory, or take an empty one; INCOMPLETE marks it from the first moment."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        names = set(os.listdir(path))
    except (FileExistsError, NotADirectoryError) as error:
        raise OutputError(
            f"{path}: a trace needs a directory, and a file is there; choose another place"
        ) from error
    if MANIFEST_NAME in names:
        raise OutputError(f"{path}: already holds the trace of a run; choose another directory or remove it")
    if INCOMPLETE_NAME in names:
        raise OutputError(
            f"{path}: holds the trace of a run that was interrupted or is still going on; "
            "choose another directory or remove it"
        )
    if names:
        raise OutputError(f"{path}: exists and is not empty; choose another directory or remove it")
    try:
        # Exclusive: of two runs that found the directory empty, one gets it.
        with (path / INCOMPLETE_NAME).open("x", encoding="utf-8") as file:
            file.write(progress.to_json())
    except FileExistsError as error:
        raise OutputError(
            f"{path}: another run has just begun to write here; choose another directory"
        ) from error


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
