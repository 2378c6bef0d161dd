"""The publications of a live trace as a Spark stream, block by block.

Spark's own file source orders files by their modification time, which a copied trace does not keep, remembers the name
of every file for ever, and cannot stop in the middle of a large file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from triagemq.pipeline.streaming.events import EVENTS, FOREVER_NS, Packing, tick
from triagemq.trace.blocks import Position, TableBlocks

_TAKEN = ("topic_id", "publication_id", "published_ns", "size_bytes")

# An empty task costs 20-40 ms, as much as reading this many rows.
_ROWS_PER_TASK = 300_000


class PublicationsSource(DataSource):
    """Spark's `readStream.format("publications")`: options url (of a run), rows (most of a batch) and packing."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format`."""
        return "publications"

    def schema(self) -> StructType:
        """Columns of a row."""
        return from_arrow_schema(EVENTS)

    def streamReader(self, schema: Any) -> PublicationsReader:  # noqa: N802
        """Called by Spark in a process of its own."""
        options = self.options
        packing = Packing(**json.loads(options["packing"]))
        return PublicationsReader(options["url"], int(options["rows"]), packing)


class PublicationsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Finds new blocks of a run and reads them; an offset is a `Position`."""

    def __init__(self, url: str, most_rows: int, packing: Packing) -> None:
        self._blocks = TableBlocks(url, "publications", "published_ns")
        self._most_rows = most_rows
        self._packing = packing
        self._drains = False
        self._end: Position | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new checkpoint begins."""
        return asdict(Position())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Batches of a backlog are bounded, so that memory is."""
        return ReadMaxRows(self._most_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there at the first look is all that is read."""
        self._drains = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """As far as the limit lets the next batch go, and at least one block."""
        position = Position(**start)
        if self._drains and self._end is None:
            self._end = self._advanced(position, None)
        return asdict(self._advanced(position, limit.max_rows if isinstance(limit, ReadMaxRows) else None))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The blocks between two offsets, some for each task, as plain tuples that any process can read."""
        before, after = Position(**start), Position(**end)
        tasks: list[list[tuple[str, int, int]]] = []
        free, reached = 0, before
        for path, row_group, position in self._blocks.after(before):
            if position.events > after.events:
                break
            if free <= 0:
                tasks.append([])
                free = _ROWS_PER_TASK
            tasks[-1].append((path, row_group, reached.latest_ns))
            free -= position.events - reached.events
            reached = position
        if after.finished and not before.finished:
            tasks.append([])
        return [InputPartition(blocks) for blocks in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some blocks; without any, that no more will come. Runs in a worker."""
        for path, row_group, earlier_ns in partition.value:
            for rows in self._blocks.read(path, row_group, _TAKEN):
                columns = (rows.column(name).to_numpy() for name in _TAKEN)
                yield self._packing.packed(*columns, earlier_ns=earlier_ns)
        if not partition.value:
            yield tick(FOREVER_NS)

    def commit(self, end: dict[str, Any]) -> None:
        """What was read will not be asked for again."""
        self._blocks.forget()

    def _advanced(self, position: Position, most_rows: int | None) -> Position:
        if position.finished:
            return position
        # Asked before looking for parts: when a run says that it is finished, all of its parts are there.
        finished = self._blocks.has_ended()
        begin = position.events
        for *_, after in self._blocks.after(position):
            if self._end is not None and after.events > self._end.events:
                break
            if most_rows is not None and after.events - begin > most_rows and position.events > begin:
                return position
            position = after
        return replace(position, finished=finished if self._end is None else self._end.finished)
