"""Part files in one directory, each whole or not there; one process at a time adds to them.

OUT/results/part-<random>.parquet    the rows of some finished simulations
OUT/.lock                            held while a sweep runs
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from triagemq.errors import OutputError, PipelineError
from triagemq.trace.manifest import flush_directory

__all__ = ["PartFiles"]


class PartFiles:
    """Rows of one schema. Use `PartFiles.open`."""

    def __init__(self, directory: Path, schema: pa.Schema) -> None:
        self._parts = directory / "results"
        self._schema = schema

    @classmethod
    @contextlib.contextmanager
    def open(cls, directory: Path, schema: pa.Schema) -> Iterator[PartFiles]:
        """Take the directory, and remove the part that a killed sweep left unfinished."""
        files = cls(directory, schema)
        try:
            files._parts.mkdir(parents=True, exist_ok=True)
            lock = (directory / ".lock").open("w")
        except OSError as error:
            raise OutputError(f"{directory}: results cannot be written there: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise OutputError(
                    f"{directory}: another sweep is running there; wait for it, or choose another directory"
                ) from error
            for unfinished in files._parts.glob(".part-*"):
                unfinished.unlink(missing_ok=True)
            yield files

    def add(self, rows: pa.Table) -> None:
        """Keep the rows of some whole simulations; when this returns, they survive anything."""
        name = f"part-{uuid.uuid4().hex}.parquet"
        hidden = self._parts / f".{name}"
        try:
            pq.write_table(rows.cast(self._schema), hidden, compression="zstd")
            with hidden.open("rb") as written:
                os.fsync(written.fileno())
            hidden.rename(self._parts / name)
            flush_directory(self._parts)
        except OSError as error:
            raise OutputError(
                f"{self._parts}: results cannot be written: {error.strerror or error}; "
                "make room and run again, what is finished is kept"
            ) from error

    def read(self, columns: Sequence[str]) -> pa.Table:
        """These columns of all rows, in any order."""
        wanted = pa.schema([self._schema.field(name) for name in columns])
        tables = [_read_part(path, wanted) for path in sorted(self._parts.glob("part-*.parquet"))]
        return pa.concat_tables([wanted.empty_table(), *tables])


def _read_part(path: Path, wanted: pa.Schema) -> pa.Table:
    try:
        # Not read_table, which would make columns of folder names such as a=b.
        with pq.ParquetFile(path) as file:
            return file.read(columns=wanted.names).select(wanted.names).cast(wanted)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise PipelineError(
            f"{path}: is not a part of a sweep's results: {error}; remove it, its simulations then run again"
        ) from error
