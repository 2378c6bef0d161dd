"""Rows of finished simulations in a store, some at a time: what is added survives anything."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from triagemq.errors import PipelineError
from triagemq.pipeline.store import PublishedRun, Store, TableFile

__all__ = ["KeptRows"]

_TABLE = "results"


class KeptRows:
    """Rows of one schema. Use `KeptRows.open`."""

    def __init__(self, store: Store, schema: pa.Schema) -> None:
        self._store = store
        self._schema = schema

    @classmethod
    @contextlib.contextmanager
    def open(cls, directory: str | Path, schema: pa.Schema, *, kind: str) -> Iterator[KeptRows]:
        """Take the directory for a command of this kind."""
        with Store.open(directory, kind=kind) as store:
            yield cls(store, schema)

    def add(self, rows: pa.Table) -> None:
        """Keep the rows of some whole simulations; when this returns, they survive anything."""
        if not self._store.token:
            self._store.begin()
        files = self._store.appended(self._files(), _TABLE, rows.cast(self._schema))
        count = sum(file.rows for file in files)
        kind = self._store.manifest.kind
        self._store.publish({kind: PublishedRun(kind, kind, count, count, 0, {}, {_TABLE: files})})

    def read(self, columns: Sequence[str]) -> pa.Table:
        """These columns of all rows, in any order."""
        wanted = pa.schema([self._schema.field(name) for name in columns])
        try:
            tables = [
                table.select(columns).cast(wanted) for table in self._store.read(self._files(), columns)
            ]
        except (pa.ArrowException, KeyError) as error:
            raise PipelineError(f"{self._store.place.given}: holds other results: {error}") from error
        return pa.concat_tables([wanted.empty_table(), *tables])

    def remove(self) -> None:
        """Nothing of it is needed any more."""
        self._store.forget()

    def _files(self) -> list[TableFile]:
        return self._store.manifest.files(_TABLE)
