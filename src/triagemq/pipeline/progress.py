"""A progress bar for Spark: how many tables are made, and how far the tasks of the present ones are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from triagemq.progress import Bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TableProgress:
    """Shows the work of a job on standard error, if somebody wants to see it."""

    def __init__(self, *, enabled: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]}"))
        console = Console(stderr=True)
        self._bar = Bar(*columns, TimeElapsedColumn(), console=console, quiet=not enabled)
        self._tasks = _RunningTasks()
        self._task = self._bar.add_task("starting Spark", total=None, tasks=self._tasks)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @contextlib.contextmanager
    def watching(self, spark: SparkSession, tables: int) -> Iterator[None]:
        """Spark makes so many tables in this block, and has started: its tasks can be counted."""
        self._bar.update(self._task, total=tables)
        self._tasks.tracker = spark.sparkContext.statusTracker()
        try:
            yield
        finally:
            self._tasks.tracker = None

    def begin(self, table: str) -> None:
        """The next table is being made."""
        self._bar.update(self._task, description=table)

    def finish(self) -> None:
        """One more table is made."""
        self._bar.advance(self._task)


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
