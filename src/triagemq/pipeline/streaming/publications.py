"""The publications of a live trace as a Spark stream: which blocks there are, in which order, and how to read them.

A block is one row group of a part file. Spark's own file source orders files by their modification time, which a
copied trace does not keep, remembers the name of every file for ever, and cannot stop in the middle of a large
file. Parts of a run are numbered without gaps, so here the position in a run is two numbers, and an event's place
in the order of its run does not depend on when it was read.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from triagemq.pipeline.streaming.events import EVENTS, FOREVER_NS, NEVER_NS, Packing, tick
from triagemq.trace.manifest import INCOMPLETE_NAME, MANIFEST_NAME

_TAKEN = ("topic_id", "publication_id", "published_ns", "size_bytes")

# An empty task costs 20-40 ms, as much as reading this many rows.
_ROWS_PER_TASK = 300_000
_ROWS_AT_ONCE = 100_000
_PART = re.compile(r"part-(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run has been read: up to row group `row_group` of part `part`, which is the next one."""

    part: int = 0
    row_group: int = 0
    events: int = 0
    latest_ns: int = NEVER_NS
    finished: bool = False


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
        self._system, root = fs.FileSystem.from_uri(url)
        self._run = str(root).rstrip("/")
        self._most_rows = most_rows
        self._packing = packing
        self._drains = False
        self._end: Position | None = None
        self._footers: dict[str, list[tuple[int, int]]] = {}

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
        for path, row_group, position in self._blocks(before):
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
            with pq.ParquetFile(path, filesystem=self._system) as file:
                for rows in file.iter_batches(_ROWS_AT_ONCE, row_groups=[row_group], columns=list(_TAKEN)):
                    columns = (rows.column(name).to_numpy() for name in _TAKEN)
                    yield self._packing.packed(*columns, earlier_ns=earlier_ns)
        if not partition.value:
            yield tick(FOREVER_NS)

    def commit(self, end: dict[str, Any]) -> None:
        """What was read will not be asked for again."""
        self._footers.clear()

    def _advanced(self, position: Position, most_rows: int | None) -> Position:
        if position.finished:
            return position
        # Asked before looking for parts: when a run says that it is finished, all of its parts are there.
        finished = _has_ended(self._system, self._run)
        begin = position.events
        for *_, after in self._blocks(position):
            if self._end is not None and after.events > self._end.events:
                break
            if most_rows is not None and after.events - begin > most_rows and position.events > begin:
                return position
            position = after
        return replace(position, finished=finished if self._end is None else self._end.finished)

    def _blocks(self, position: Position) -> Iterator[tuple[str, int, Position]]:
        """Path and row group of every block from a position on, and the position after it."""
        while True:
            path = f"{self._run}/publications/part-{position.part:05d}.parquet"
            try:
                footer = self._footer(path)
            except FileNotFoundError:
                later = self._first_part_from(position.part)
                if later is None:
                    return
                if later > position.part:
                    # Parts appear in order: those that are missing before others were removed (`--keep-trace`).
                    gone = f"parts {position.part} to {later - 1} were removed before they were read"
                    print(f"{self._run}: {gone}", file=sys.stderr, flush=True)
                    position = replace(position, part=later, row_group=0)
                continue
            for row_group in range(position.row_group, len(footer)):
                rows, latest_ns = footer[row_group]
                last = row_group + 1 == len(footer)
                position = replace(
                    position,
                    part=position.part + 1 if last else position.part,
                    row_group=0 if last else row_group + 1,
                    events=position.events + rows,
                    latest_ns=max(position.latest_ns, latest_ns),
                )
                yield path, row_group, position
            if not footer:
                position = replace(position, part=position.part + 1)

    def _first_part_from(self, part: int) -> int | None:
        place = fs.FileSelector(f"{self._run}/publications", allow_not_found=True)
        found = (_PART.fullmatch(info.base_name) for info in self._system.get_file_info(place))
        return min((int(match[1]) for match in found if match and int(match[1]) >= part), default=None)

    def _footer(self, path: str) -> list[tuple[int, int]]:
        """Rows and latest publication of each row group; FileNotFoundError while there is no such part."""
        if path not in self._footers:
            with pq.ParquetFile(path, filesystem=self._system) as file:
                groups = range(file.num_row_groups)
                self._footers[path] = [_rows_and_latest(file, group) for group in groups]
        return self._footers[path]


def _rows_and_latest(file: pq.ParquetFile, row_group: int) -> tuple[int, int]:
    metadata = file.metadata.row_group(row_group)
    if metadata.num_rows == 0:
        return 0, NEVER_NS
    known = metadata.column(file.schema_arrow.get_field_index("published_ns")).statistics
    if known is not None and known.has_min_max:
        return metadata.num_rows, known.max
    times = file.read_row_group(row_group, columns=["published_ns"]).column(0).to_numpy()
    return metadata.num_rows, int(times.max())


def _has_ended(system: fs.FileSystem, run: str) -> bool:
    """Whether nothing will be added: the run is whole, or its writer says that it gave up."""
    if system.get_file_info(f"{run}/{MANIFEST_NAME}").type != fs.FileType.NotFound:
        return True
    try:
        with system.open_input_stream(f"{run}/{INCOMPLETE_NAME}") as file:
            return bool(json.loads(file.read()).get("ended"))
    except (OSError, ValueError, AttributeError):
        return False
