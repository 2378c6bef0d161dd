"""TableBlocks: the row groups of a table of a run that may still be written, in the order in which they were.

Parts of a run are numbered without gaps, so a position in a run is two numbers, and an event's place in the order of
its run does not depend on when it is read. Where the run lies may be any file system of Arrow's.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from triagemq.trace.manifest import INCOMPLETE_NAME, MANIFEST_NAME

NEVER_NS = -(1 << 62)
"""Before every event."""
_PART = re.compile(r"part-(\d+)\.parquet")
_ROWS_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True)
class Position:
    """How far a run has been read: up to row group `row_group` of part `part`, which is the next one."""

    part: int = 0
    row_group: int = 0
    events: int = 0
    latest_ns: int = NEVER_NS
    finished: bool = False


class TableBlocks:
    """The blocks of a table, each a row group of a part file, with the latest time in one of its columns."""

    def __init__(self, url: str, table: str, time_column: str) -> None:
        self._system, root = fs.FileSystem.from_uri(url)
        self._run = str(root).rstrip("/")
        self._folder = f"{self._run}/{table}"
        self._time_column = time_column
        self._footers: dict[str, list[tuple[int, int]]] = {}

    def after(self, position: Position) -> Iterator[tuple[str, int, Position]]:
        """Path and row group of every block from a position on, and the position after it."""
        while True:
            path = f"{self._folder}/part-{position.part:05d}.parquet"
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

    def read(self, path: str, row_group: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a block, some at a time."""
        with pq.ParquetFile(path, filesystem=self._system) as file:
            yield from file.iter_batches(_ROWS_AT_ONCE, row_groups=[row_group], columns=list(columns))

    def forget(self) -> None:
        """Forget the footers that have been read."""
        self._footers.clear()

    def has_ended(self) -> bool:
        """Whether nothing will be added: the run is whole, or its writer says that it gave up."""
        if self._system.get_file_info(f"{self._run}/{MANIFEST_NAME}").type != fs.FileType.NotFound:
            return True
        try:
            with self._system.open_input_stream(f"{self._run}/{INCOMPLETE_NAME}") as file:
                return bool(json.loads(file.read()).get("ended"))
        except (OSError, ValueError, AttributeError):
            return False

    def _first_part_from(self, part: int) -> int | None:
        place = fs.FileSelector(self._folder, allow_not_found=True)
        found = (_PART.fullmatch(info.base_name) for info in self._system.get_file_info(place))
        return min((int(match[1]) for match in found if match and int(match[1]) >= part), default=None)

    def _footer(self, path: str) -> list[tuple[int, int]]:
        """Rows and latest time of each row group; FileNotFoundError while there is no such part."""
        if path not in self._footers:
            with pq.ParquetFile(path, filesystem=self._system) as file:
                groups = range(file.num_row_groups)
                self._footers[path] = [self._rows_and_latest(file, group) for group in groups]
        return self._footers[path]

    def _rows_and_latest(self, file: pq.ParquetFile, row_group: int) -> tuple[int, int]:
        metadata = file.metadata.row_group(row_group)
        if metadata.num_rows == 0:
            return 0, NEVER_NS
        column = metadata.column(file.schema_arrow.get_field_index(self._time_column))
        return metadata.num_rows, column.statistics.max
