"""A progress bar for Spark: how many tables are made, and how far the tasks of the present ones are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from triagemq.progress import Bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TableProgress(Bar):
    """Shows the work of a job on standard error, if somebody wants to see it."""

    def __init__(self, *, enabled: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]}"))
        super().__init__(*columns, TimeElapsedColumn(), console=Console(stderr=True), quiet=not enabled)
        self._running = _RunningTasks()
        self._made = self.add_task("starting Spark", total=None, tasks=self._running)

    @contextlib.contextmanager
    def watching(self, spark: SparkSession, tables: int) -> Iterator[None]:
        """Spark makes so many tables in this block, and has started: its tasks can be counted."""
        self.update(self._made, total=tables)
        self._running.tracker = spark.sparkContext.statusTracker()
        try:
            yield
        finally:
            self._running.tracker = None

    def begin(self, table: str) -> None:
        """The next table is being made."""
        self.update(self._made, description=table)

    def finish(self) -> None:
        """One more table is made."""
        self.advance(self._made)


class _RunningTasks:
    """How many tasks of the stages at work are done, whenever the bar asks."""

    tracker: Any = None

    def __str__(self) -> str:
        with contextlib.suppress(Exception):
            # Java may go at any time; the command says so, not its bar.
            stages = [self.tracker.getStageInfo(stage) for stage in self.tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                done = sum(stage.numCompletedTasks for stage in known)
                return f"{done}/{sum(stage.numTasks for stage in known)} tasks"
        return ""

    def __bool__(self) -> bool:
        return bool(str(self))
