"""The Parquet files of each table: `part-00000.parquet` and so on, each visible only when whole; and their thread."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from triagemq.errors import TraceError
from triagemq.trace.schema import TABLES, delta_columns, dictionary_columns

# Behind delta encoding a higher level finds nothing more: level 3 is no smaller, level -1 is 9 % larger and
# hardly faster (tests/trace/write_speed.py).
_COMPRESSION_LEVEL = 1


@dataclass(frozen=True, slots=True)
class PartFile:
    """A finished file as the manifest lists it; `name` is relative to the directory of the run."""

    name: str
    rows: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Gap:
    """Rows that could not be written, collected from one time to another, after so many parts of their table."""

    table: str
    parts: int
    from_ns: int
    until_ns: int
    rows: int


@dataclass(slots=True)
class Removed:
    """Parts of a table whose retention time is over; their rows were written before `until_ns`."""

    table: str
    parts: int = 0
    rows: int = 0
    until_ns: int = 0


@dataclass(frozen=True, slots=True)
class Rotation:
    """When a row group is written and when a file is closed and shown: by rows, and for live runs by age."""

    row_group_rows: int
    rotate_rows: int | None
    rotate_seconds: float | None
    keep_seconds: float | None = None
    """After this time a part is removed, while the run goes on."""


class PartFiles:
    """Turns the rows of one table into part files. Used by one thread only.

    A file being written has a leading dot, which Spark, Arrow and shell patterns pass over; when it is closed
    and on disk it is renamed, so a reader of the directory only ever sees whole files.
    """

    def __init__(self, run: Path, table: str, rotation: Rotation, *, first: int = 0) -> None:
        """`first` is the number of the first part, where a run has some already."""
        self._first = first
        self.finished: list[PartFile] = []
        self._run = run
        self._table = table
        self._schema = TABLES[table]
        self._rotation = rotation
        self._sink: pa.NativeFile | None = None
        self._file: pq.ParquetWriter | None = None
        self._file_rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self.due: float | None = None
        """When the open part must be closed, on the monotonic clock; None if nothing waits for it."""
        self._began_ns = 0
        self.gaps: list[Gap] = []
        self.removed = Removed(table)
        self._published_at: list[float] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take some rows; write a row group when there are enough of them."""
        if self.due is None:
            self.due = self._due_from_now()
        if not self._waiting_rows and not self._file_rows:
            self._began_ns = time.time_ns()
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        while self._waiting_rows >= (most := self._next_group_rows()):
            self._write(most)
            if self._file_rows == self._rotation.rotate_rows:
                self._publish()
                self.due = self._due_from_now() if self._waiting_rows else None

    def close_part(self) -> None:
        """Finish the open part, if it has rows, and give it its final name."""
        if self._waiting_rows:
            self._write(self._waiting_rows)
        self.due = None
        if self._file is not None:
            self._publish()

    def finish(self) -> None:
        """Close the last part. A table without rows gets a part without rows: readers find its schema."""
        self.close_part()
        if not self.finished:
            self._open()
            self._publish()

    def skip(self) -> None:
        """Give up the open part, note the gap, and be ready for the next rows."""
        rows = self._file_rows + self._waiting_rows
        self.discard()
        now_ns = time.time_ns()
        parts = self.removed.parts + len(self.finished)
        if self.gaps and self.gaps[-1].parts == parts:
            last = self.gaps.pop()
            self.gaps.append(replace(last, until_ns=now_ns, rows=last.rows + rows))
        else:
            self.gaps.append(Gap(self._table, parts, self._began_ns, now_ns, rows))

    def discard(self) -> None:
        """Give up the open part and remove what was written of it; the finished ones stay."""
        self._waiting.clear()
        self._waiting_rows = self._file_rows = 0
        self.due = None
        file, self._file = self._file, None
        sink, self._sink = self._sink, None
        if file is not None:
            # Without this it would write a footer when it is collected, and complain of the full disk once
            # more.
            file.is_open = False
        with contextlib.suppress(OSError):
            if sink is not None:
                sink.close()
            self._hidden_path().unlink(missing_ok=True)

    def _due_from_now(self) -> float | None:
        seconds = self._rotation.rotate_seconds
        return None if seconds is None else time.monotonic() + seconds

    def _next_group_rows(self) -> int:
        if self._rotation.rotate_rows is None:
            return self._rotation.row_group_rows
        return min(self._rotation.row_group_rows, self._rotation.rotate_rows - self._file_rows)

    def _write(self, rows: int) -> None:
        table = pa.Table.from_batches(self._waiting, schema=self._schema)
        file = self._file or self._open()
        file.write_table(table.slice(0, rows), row_group_size=rows)
        self._file_rows += rows
        self._waiting = table.slice(rows).to_batches()
        self._waiting_rows -= rows

    def _open(self) -> pq.ParquetWriter:
        self._sink = pa.OSFile(str(self._hidden_path()), "wb")
        self._file = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            compression_level=_COMPRESSION_LEVEL,
            use_dictionary=dictionary_columns(self._schema),
            column_encoding=dict.fromkeys(delta_columns(self._schema), "DELTA_BINARY_PACKED"),
        )
        return self._file

    def _publish(self) -> None:
        assert self._file is not None
        assert self._sink is not None
        self._file.close()
        self._sink.close()
        self._file = self._sink = None
        hidden = self._hidden_path()
        with hidden.open("rb") as written:
            sha256 = hashlib.file_digest(written, "sha256").hexdigest()
            # Renaming before the data is on disk could show an empty file after a power cut.
            os.fsync(written.fileno())
            size_bytes = os.fstat(written.fileno()).st_size
        name = f"{self._table}/part-{self._number():05d}.parquet"
        hidden.rename(self._run / name)
        self.finished.append(PartFile(name, self._file_rows, size_bytes, sha256))
        self._file_rows = 0
        if self._rotation.keep_seconds is not None:
            self._published_at.append(time.time())
            self._remove_old(time.time() - self._rotation.keep_seconds)

    def _remove_old(self, before: float) -> None:
        while self._published_at and self._published_at[0] < before:
            part = self.finished.pop(0)
            (self._run / part.name).unlink(missing_ok=True)
            self.removed.parts += 1
            self.removed.rows += part.rows
            self.removed.until_ns = int(self._published_at.pop(0) * 1e9)

    def _number(self) -> int:
        return self._first + self.removed.parts + len(self.finished)

    def _hidden_path(self) -> Path:
        return self._run / self._table / f".part-{self._number():05d}.parquet"


class BackgroundWriter:
    """Hands rows to the part files of their tables on its own thread, which alone touches these until it has ended.

    When the thread fails, `failure` has its exception, and no call waits any more.
    """

    def __init__(self, tables: Mapping[str, PartFiles], queue_bytes: int, *, pauses: bool = False) -> None:
        """With `pauses`, rows that the disk does not take are left out, and the thread goes on with the next ones."""
        self._tables = tables
        self._pauses = pauses
        self._queue_bytes = queue_bytes
        self._queue: deque[tuple[PartFiles, pa.RecordBatch]] = deque()
        self.waiting_bytes = 0
        self._closing = False
        self._aborted = False
        self.failure: BaseException | None = None
        self._changed = threading.Condition()
        # A daemon: a program that dies without ending its run must not hang on a thread waiting for rows.
        self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)
        self._thread.start()

    def put(self, table: str, rows: pa.RecordBatch) -> None:
        """Queue some rows, waiting for room; after a failure they are dropped."""

        def has_room() -> bool:
            # Rows larger than the whole queue must still pass, alone.
            return not self.waiting_bytes or self.waiting_bytes + rows.nbytes <= self._queue_bytes

        with self._changed:
            self._changed.wait_for(lambda: self.failure or self._closing or has_room())
            if self.failure is None:
                if self._closing:
                    raise TraceError("the trace has been finished or given up; nothing can be added to it")
                self._queue.append((self._tables[table], rows))
                self.waiting_bytes += rows.nbytes
                self._changed.notify_all()

    def end(self, *, aborted: bool = False) -> None:
        """Write queued rows and finish all files, or, aborted, drop the rows and remove unfinished files."""
        with self._changed:
            self._closing = True
            self._aborted |= aborted
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._aborted:
                # Sleep until there are rows, or a part is old enough to be closed.
                times = [parts.due for parts in self._tables.values() if parts.due is not None]
                timeout = max(0.0, min(times) - time.monotonic()) if times else None
                with self._changed:
                    self._changed.wait_for(lambda: self._queue or self._closing, timeout)
                    if self._closing and not self._queue:
                        break
                    parts, rows = self._queue.popleft() if self._queue else (None, None)
                    self.waiting_bytes -= rows.nbytes if rows is not None else 0
                    self._changed.notify_all()
                if parts is not None:
                    self._write(parts, parts.add, rows)
                for each in self._tables.values():
                    if each.due is not None and each.due <= time.monotonic():
                        self._write(each, each.close_part)
            for each in self._tables.values() if not self._aborted else ():
                each.finish()
        except BaseException as failure:  # the caller's thread raises it
            self.failure = failure
        finally:
            with self._changed:
                self._queue.clear()
                self.waiting_bytes = 0
                self._changed.notify_all()
            if self._aborted or self.failure is not None:
                for each in self._tables.values():
                    each.discard()

    def _write(self, parts: PartFiles, write: Callable[..., None], *rows: pa.RecordBatch) -> None:
        try:
            write(*rows)
        except OSError:
            if not self._pauses:
                raise
            parts.skip()
