"""A progress bar for Spark: how many tables are made, and how far the tasks of the present ones are."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["TableProgress"]

_POLL_SECONDS = 0.25


class TableProgress:
    """Shows the work of a job on standard error while a person is looking; nothing at all otherwise."""

    def __init__(self, spark: SparkSession, tables: int, *, enabled: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not (enabled and console.is_terminal),
        )
        self._task = self._progress.add_task("tables", total=tables, detail="")
        self._done = 0
        self._tracker: Any = None
        try:
            self._tracker = spark.sparkContext.statusTracker()
        except Exception:  # a session of Spark Connect has no tracker; the bar then moves table by table
            self._tracker = None
        self._ended = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="spark-progress", daemon=True)

    def __enter__(self) -> Self:
        self._progress.start()
        if not self._progress.disable:
            self._poller.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._poller.is_alive():
            self._poller.join()
        self._progress.stop()

    def begin(self, table: str) -> None:
        """The next table is being made."""
        self._progress.update(self._task, description=table)

    def finish(self, tables: int = 1) -> None:
        """So many more tables are made."""
        self._done += tables
        self._progress.update(self._task, completed=self._done)

    def _poll(self) -> None:
        while self._tracker is not None and not self._ended.wait(_POLL_SECONDS):
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
