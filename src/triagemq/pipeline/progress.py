"""A progress bar for Spark: how many steps are done, and how far the tasks of the present ones are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Task, TextColumn, TimeElapsedColumn

from triagemq.progress import Bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TableProgress(Bar):
    """Shows the progress of a job on standard error, if enabled."""

    def __init__(self, *, enabled: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]}"))
        super().__init__(*columns, TimeElapsedColumn(), console=Console(stderr=True), quiet=not enabled)
        self._tracker: Any = None
        self._finished = 0
        self._made = self.add_task("starting Spark", total=None, tasks="")

    @contextlib.contextmanager
    def watching(self, spark: SparkSession, steps: int) -> Iterator[None]:
        """Spark does so many steps in this block, and has started: its tasks can be counted."""
        self.update(self._made, total=steps)
        self._tracker = spark.sparkContext.statusTracker()
        try:
            yield
        finally:
            self._tracker = None

    def begin(self, step: str) -> None:
        """The next step, mostly a table, is begun."""
        self.update(self._made, description=step)

    def finish(self) -> None:
        """One more step is done."""
        self._finished += 1

    @property
    def tasks(self) -> list[Task]:
        """Read whenever they are shown: steps that are done, and the share of Spark's tasks in the present one."""
        found = super().tasks
        for task in found:
            done, total = self._running()
            task.fields["tasks"] = f"{done}/{total} tasks" if total else ""
            task.completed = max(task.completed, self._finished + done / (total + 1))
        return found

    def _running(self) -> tuple[int, int]:
        """How many tasks of the active stages are done, and all of them."""
        with contextlib.suppress(Exception):
            # Java may go at any time; the command says so, not its bar.
            stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
        return 0, 0
