"""A progress bar for Spark: how many tables are made, and how far the tasks of the present ones are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from triagemq.progress import Bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.25


class TableProgress:
    """Shows the work of a job on standard error, if somebody wants to see it."""

    def __init__(self, *, enabled: bool) -> None:
        self._progress = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            quiet=not enabled,
        )
        self._enabled = enabled
        self._task = self._progress.add_task("starting Spark", total=None, detail="")
        self._done = 0
        self._tracker: Any = None
        self._asking = threading.Lock()
        self._ended = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="spark-progress", daemon=True)

    def __enter__(self) -> Self:
        self._progress.start()
        if self._enabled:
            self._poller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._poller.is_alive():
            self._poller.join()
        self._progress.stop()

    @contextlib.contextmanager
    def watching(self, spark: SparkSession, tables: int) -> Iterator[None]:
        """Spark makes so many tables in this block, and has started: its tasks can be counted."""
        self._progress.update(self._task, total=tables)
        # A session of Spark Connect has no tracker; the bar then moves table by table.
        with contextlib.suppress(Exception):
            self._tracker = spark.sparkContext.statusTracker()
        try:
            yield
        finally:
            with self._asking:
                self._tracker = None

    def begin(self, table: str) -> None:
        """The next table is being made."""
        self._progress.update(self._task, description=table)

    def finish(self, tables: int = 1) -> None:
        """So many more tables are made."""
        self._done += tables
        self._progress.update(self._task, completed=self._done)

    def _poll(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            with self._asking:
                self._ask()

    def _ask(self) -> None:
        if self._tracker is None:
            return
        done = total = 0
        for stage in self._tracker.getActiveStageIds():
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                done += info.numCompletedTasks
                total += info.numTasks
        share = done / total if total else 0.0
        self._progress.update(
            self._task, completed=self._done + share, detail=f"{done}/{total} tasks" if total else ""
        )
