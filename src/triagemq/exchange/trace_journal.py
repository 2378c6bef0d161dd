"""What became of QoS 1 and 2 copies that are not delivered, kept from the decision on until the Trace shows it.

    RUN/.outcomes-<number>    rows as the table of deliveries has them, integers of eight octets

Rows of the Trace are collected in memory and shown every few seconds; a kill loses the latest. That an acknowledged
message is not delivered must never be lost, so such rows are written here before the broker is told that the message is
taken over: the system keeps what a killed process has written. The next start adds to the killed run what it lacks.
"""

from __future__ import annotations

import contextlib
from collections import deque
from pathlib import Path
from typing import BinaryIO

import numpy as np

from triagemq.trace import Trace, runs
from triagemq.trace.columns import blocks
from triagemq.trace.parts import PartFiles, Rotation
from triagemq.trace.schema import TABLES

DELIVERY_COLUMNS = tuple(TABLES["deliveries"].names)
"""What a row has, in this order."""

_PATTERN = ".outcomes-*"
_MOST_ROWS = 1 << 19

Row = tuple[int, ...]


class OutcomeJournal:
    """The rows of one run that it does not show yet, in files of some seconds each."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._rows: list[Row] = []
        self._number = 0
        self._file: BinaryIO | None = None
        # Files that are closed, with how many rows the run must show before they are superfluous.
        self._closed: deque[tuple[int, Path]] = deque()

    def add(self, row: Row) -> None:
        """A row, in the order of the table's columns; `keep` makes it last."""
        self._rows.append(row)

    def keep(self) -> None:
        """From now on a kill cannot lose them. A full disk can: then the run itself is being given up."""
        rows, self._rows = self._rows, []
        if rows:
            with contextlib.suppress(OSError):
                if self._file is None:
                    self._file = self._path().open("ab", buffering=0)
                self._file.write(np.array(rows, dtype=np.int64).tobytes())

    def handed_over(self, rows: int) -> None:
        """The run was given so many rows by now, all of these among them."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._closed.append((rows, self._path()))
            self._number += 1

    def shown(self, rows: int) -> None:
        """The run shows so many rows."""
        while self._closed and self._closed[0][0] <= rows:
            self._closed.popleft()[1].unlink(missing_ok=True)

    def finish(self) -> None:
        """The run is whole."""
        self.handed_over(0)
        while self._closed:
            self._closed.popleft()[1].unlink(missing_ok=True)

    def _path(self) -> Path:
        return self._run / f".outcomes-{self._number}"


def recover(directory: Path) -> int:
    """Give every killed run in a directory the rows that it does not show; returns how many there were.

    Nobody may be writing to any of them.
    """
    added = 0
    if not directory.is_dir():
        return added
    found = runs(directory)
    for run in (*found.complete, *found.incomplete):
        files = sorted(run.glob(_PATTERN), key=lambda path: int(path.name.rpartition("-")[2]))
        if run in found.incomplete and files:
            added += _add(run, files)
        for path in files:
            path.unlink(missing_ok=True)
    return added


def _add(run: Path, files: list[Path]) -> int:
    size = 8 * len(DELIVERY_COLUMNS)
    octets = [path.read_bytes() for path in files]
    # The last row may be half written.
    table = np.concatenate(
        [np.frombuffer(each[: len(each) // size * size], dtype=np.int64) for each in octets]
    ).reshape(-1, len(DELIVERY_COLUMNS))
    trace = Trace.open(run, allow_incomplete=True)
    shown = trace.table("deliveries", columns=["publication_id", "subscription_id"])
    known = set(zip(*(column.to_pylist() for column in shown.columns), strict=True))
    table = table[[(row[0], row[1]) not in known for row in table.tolist()]]
    if len(table):
        parts = PartFiles(
            run, "deliveries", Rotation(_MOST_ROWS, None, None), first=len(trace.parts["deliveries"])
        )
        for block in blocks("deliveries", dict(zip(DELIVERY_COLUMNS, table.T, strict=True)), _MOST_ROWS):
            parts.add(block)
        parts.close_part()
    return len(table)
