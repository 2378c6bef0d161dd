"""The publications of live traces as a Spark stream: which blocks there are, in which order, and how to read them.

A block is one row group of a part file. Spark's own file source orders files by their modification time, which a
copied trace does not keep, remembers the name of every file for ever, and cannot stop in the middle of a large
file. Parts of a run are numbered without gaps, so here the position in a run is two numbers, and an event's place
in the order of its run does not depend on when it was read.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from triagemq.pipeline.streaming.events import EVENTS_SCHEMA, NEVER_NS, packed
from triagemq.trace.manifest import INCOMPLETE_NAME, MANIFEST_NAME

__all__ = ["Position", "PublicationsSource", "positions"]

_TAKEN = ("topic_id", "publication_id", "published_ns", "size_bytes")

# An empty task costs 20-40 ms, as much as reading this many rows.
_ROWS_PER_TASK = 300_000
_PART = re.compile(r"part-(\d+)\.parquet")


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run has been read: up to row group `row_group` of part `part`, which is the next one."""

    number: int
    part: int = 0
    row_group: int = 0
    rows: int = 0
    latest_ns: int = NEVER_NS
    finished: bool = False


class Block(NamedTuple):
    """One row group, and what came before it in its run."""

    path: str
    run: int
    row_group: int
    first_row: int
    rows: int
    earlier_ns: int


def positions(offset: Mapping[str, Any]) -> dict[str, Position]:
    """The position in every run, from the offset that Spark keeps. A run is named by its directory.

    >>> positions({"live": {"number": 0, "part": 3, "row_group": 0, "rows": 70, "latest_ns": 5, "finished": False}})
    {'live': Position(number=0, part=3, row_group=0, rows=70, latest_ns=5, finished=False)}
    """
    return {name: Position(**stated) for name, stated in offset.items()}


class PublicationsSource(DataSource):
    """Spark's `readStream.format("publications")`: options url, rows (most rows of a batch) and start (an offset)."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format`."""
        return "publications"

    def schema(self) -> str:
        """Columns of an event."""
        return EVENTS_SCHEMA

    def streamReader(self, schema: Any) -> PublicationsReader:  # noqa: N802
        """Called by Spark in a process of its own."""
        options = self.options
        return PublicationsReader(options["url"], int(options["rows"]), json.loads(options["start"]))


class PublicationsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Finds new blocks and reads them. `end` is where a stream stops that was asked to drain what is there."""

    def __init__(self, url: str, most_rows: int, start: dict[str, Any]) -> None:
        self._system, root = fs.FileSystem.from_uri(url)
        self._root = str(root).rstrip("/")
        self._most_rows = most_rows
        self._start = start
        self._end: dict[str, Position] | None = None
        self._footers: dict[str, list[tuple[int, int]]] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new checkpoint begins: where the table ends that is there already."""
        return self._start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Batches of a backlog are bounded, so that memory is."""
        return ReadMaxRows(self._most_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember what is there now."""
        self._end = self._advanced(positions(self._start), None)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """As far as the limit lets the next batch go; at least one block of every run that has a new one."""
        most_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached = self._advanced(positions(start), most_rows)
        return {name: asdict(position) for name, position in reached.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The blocks between two offsets, some for each task, as plain tuples that any process can read."""
        before = positions(start)
        tasks: list[list[tuple[Any, ...]]] = []
        for name, position in positions(end).items():
            free = 0
            for block, reached in self._blocks(name, before.get(name, Position(position.number))):
                if reached.rows > position.rows:
                    break
                if free <= 0:
                    tasks.append([])
                    free = _ROWS_PER_TASK
                tasks[-1].append(tuple(block))
                free -= block.rows
        return [InputPartition(blocks) for blocks in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some blocks. Runs in a worker."""
        for path, run, row_group, first_row, _, earlier_ns in partition.value:
            with pq.ParquetFile(path, filesystem=self._system) as file:
                rows = file.read_row_group(row_group, columns=list(_TAKEN))
            columns = [rows.column(name).to_numpy() for name in _TAKEN]
            yield packed(np.full(len(rows), run), *columns, first_row=first_row, earlier_ns=earlier_ns)

    def commit(self, end: dict[str, Any]) -> None:
        """What was read will not be asked for again."""
        self._footers.clear()

    def _advanced(self, start: Mapping[str, Position], most_rows: int | None) -> dict[str, Position]:
        reached = dict(start)
        names = _run_names(self._system, self._root)
        names = [name for name in names if self._end is None or name in self._end]
        open_names = [name for name in names if not (name in start and start[name].finished)]
        share = None if most_rows is None else max(1, most_rows // max(1, len(open_names)))
        for name in open_names:
            reached[name] = self._advance_run(name, reached.get(name, Position(len(reached))), share)
        return reached

    def _advance_run(self, name: str, position: Position, most_rows: int | None) -> Position:
        # Asked before looking for parts: when a run says that it is finished, all of its parts are there.
        finished = _has_ended(self._system, self._run_path(name))
        end = None if self._end is None else self._end[name]
        begin = position.rows
        for _, after in self._blocks(name, position):
            if end is not None and after.rows > end.rows:
                break
            if most_rows is not None and after.rows - begin > most_rows and position.rows > begin:
                return position
            position = after
        return replace(position, finished=finished if end is None else end.finished)

    def _blocks(self, name: str, position: Position) -> Iterator[tuple[Block, Position]]:
        """Every block from a position on, with the position after it."""
        while True:
            path = f"{self._run_path(name)}/publications/part-{position.part:05d}.parquet"
            try:
                footer = self._footer(path)
            except FileNotFoundError:
                later = self._first_part_from(name, position.part)
                if later is None:
                    return
                if later > position.part:
                    # Parts appear in order: those that are missing before others were removed (`--keep-trace`).
                    gone = f"parts {position.part} to {later - 1} were removed before they were read"
                    print(f"{self._run_path(name)}: {gone}", file=sys.stderr, flush=True)
                    position = replace(position, part=later, row_group=0)
                continue
            for row_group in range(position.row_group, len(footer)):
                rows, latest_ns = footer[row_group]
                block = Block(path, position.number, row_group, position.rows, rows, position.latest_ns)
                last = row_group + 1 == len(footer)
                position = replace(
                    position,
                    part=position.part + 1 if last else position.part,
                    row_group=0 if last else row_group + 1,
                    rows=position.rows + rows,
                    latest_ns=max(position.latest_ns, latest_ns),
                )
                yield block, position
            if not footer:
                position = replace(position, part=position.part + 1)

    def _first_part_from(self, name: str, part: int) -> int | None:
        place = fs.FileSelector(f"{self._run_path(name)}/publications", allow_not_found=True)
        found = (_PART.fullmatch(info.base_name) for info in self._system.get_file_info(place))
        return min((int(match[1]) for match in found if match and int(match[1]) >= part), default=None)

    def _footer(self, path: str) -> list[tuple[int, int]]:
        """Rows and latest publication of each row group; FileNotFoundError while there is no such part."""
        if path not in self._footers:
            with pq.ParquetFile(path, filesystem=self._system) as file:
                groups = range(file.num_row_groups)
                self._footers[path] = [_rows_and_latest(file, group) for group in groups]
        return self._footers[path]

    def _run_path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def _rows_and_latest(file: pq.ParquetFile, row_group: int) -> tuple[int, int]:
    metadata = file.metadata.row_group(row_group)
    if metadata.num_rows == 0:
        return 0, NEVER_NS
    known = metadata.column(file.schema_arrow.get_field_index("published_ns")).statistics
    if known is not None and known.has_min_max:
        return metadata.num_rows, known.max
    times = file.read_row_group(row_group, columns=["published_ns"]).column(0).to_numpy()
    return metadata.num_rows, int(times.max())


def _run_names(system: fs.FileSystem, root: str) -> list[str]:
    """The directory itself (an empty name), if it is a run, or else the runs directly in it."""
    if _exists(system, f"{root}/publications"):
        return [""]
    inside = system.get_file_info(fs.FileSelector(root))
    names = sorted(info.base_name for info in inside if info.type == fs.FileType.Directory)
    return [name for name in names if _exists(system, f"{root}/{name}/publications")]


def _exists(system: fs.FileSystem, path: str) -> bool:
    return bool(system.get_file_info(path).type != fs.FileType.NotFound)


def _has_ended(system: fs.FileSystem, run: str) -> bool:
    """Whether nothing will be added: the run is whole, or its writer says that it gave up."""
    if _exists(system, f"{run}/{MANIFEST_NAME}"):
        return True
    try:
        with system.open_input_stream(f"{run}/{INCOMPLETE_NAME}") as file:
            return bool(json.loads(file.read()).get("ended"))
    except (OSError, ValueError, AttributeError):
        return False
