"""Part files in one directory, each whole or not there; one process at a time adds to them.

OUT/sweep.json                       says that the directory is a sweep's, and the mark of what is being made there
OUT/results/part-<mark>-<random>     the rows of some finished simulations
OUT/results/.part-<mark>-<random>    one that is being written
OUT/.lock                            held while a sweep runs
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from triagemq.errors import OutputError, PipelineError
from triagemq.pipeline.claim import LOCK_NAME, hold, new_mark, refuse_foreign
from triagemq.trace.manifest import flush_directory, write_durably

__all__ = ["SWEEP_NAME", "PartFiles"]

SWEEP_NAME = "sweep.json"
_RESULTS = "results"
_WHAT = "results of a sweep"


class PartFiles:
    """Rows of one schema. Use `PartFiles.open`."""

    def __init__(self, directory: Path, schema: pa.Schema, mark: str) -> None:
        self._directory = directory
        self._parts = directory / _RESULTS
        self._schema = schema
        self._mark = mark

    @classmethod
    @contextlib.contextmanager
    def open(cls, directory: Path, schema: pa.Schema, *, kind: str = "sweep") -> Iterator[PartFiles]:
        """Take the directory, and remove the part that a killed command of this kind left unfinished."""
        _own_mark(directory, kind)
        with hold(directory, what=_WHAT):
            mark = _own_mark(directory, kind)
            try:
                if mark is None:
                    mark = new_mark()
                    write_durably(directory / SWEEP_NAME, json.dumps({"kind": kind, "mark": mark}) + "\n")
                (directory / _RESULTS).mkdir(exist_ok=True)
            except OSError as error:
                raise OutputError(
                    f"{directory}: results cannot be written there: {error.strerror}"
                ) from error
            for unfinished in (directory / _RESULTS).glob(f".part-{mark}-*"):
                unfinished.unlink(missing_ok=True)
            yield cls(directory, schema, mark)

    def add(self, rows: pa.Table) -> None:
        """Keep the rows of some whole simulations; when this returns, they survive anything."""
        name = f"part-{self._mark}-{uuid.uuid4().hex}.parquet"
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
        tables = [_read_part(path, wanted) for path in self._whole()]
        return pa.concat_tables([wanted.empty_table(), *tables])

    def remove(self) -> None:
        """Nothing of it is needed any more: take away what this sweep made, and the directory if it is empty then."""
        for path in (*self._whole(), self._directory / SWEEP_NAME, self._directory / LOCK_NAME):
            path.unlink(missing_ok=True)
        for place in (self._parts, self._directory):
            with contextlib.suppress(OSError):
                place.rmdir()

    def _whole(self) -> list[Path]:
        return sorted(self._parts.glob(f"part-{self._mark}-*.parquet"))


def _own_mark(directory: Path, kind: str) -> str | None:
    """The mark of a directory that a command of this kind has taken; None if it is empty or not there."""
    path = directory / SWEEP_NAME
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        refuse_foreign(directory, what=_WHAT)
        return None
    except (OSError, ValueError) as error:
        raise OutputError(f"{path}: cannot be read: {error}; choose another directory") from error
    if not isinstance(found, dict) or found.get("kind") != kind or not isinstance(found.get("mark"), str):
        raise OutputError(f"{path}: is not a {kind}'s; choose another directory")
    return str(found["mark"])


def _read_part(path: Path, wanted: pa.Schema) -> pa.Table:
    try:
        # Not read_table, which would make columns of folder names such as a=b.
        with pq.ParquetFile(path) as file:
            return file.read(columns=wanted.names).select(wanted.names).cast(wanted)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise PipelineError(
            f"{path}: is not a part of a sweep's results: {error}; remove it, its simulations then run again"
        ) from error
