"""How far a long command is: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import threading

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

LINE_SECONDS = 5.0


class Bar(Progress):
    """Rich's bar where there is a terminal. Elsewhere lines, which come also while there is no news of the work.

    `quiet`: neither, because standard error is for something else.
    """

    def __init__(
        self,
        *columns: ProgressColumn,
        console: Console,
        quiet: bool = False,
    ) -> None:
        super().__init__(
            *columns,
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._ended = threading.Event()
        self._teller: threading.Thread | None = None
        self._tells = not quiet and not console.is_terminal

    def start(self) -> None:
        super().start()
        if self._tells and self._teller is None:
            self._teller = threading.Thread(target=self._tell, name="progress", daemon=True)
            self._teller.start()

    def stop(self) -> None:
        self._ended.set()
        if self._teller is not None:
            self._teller.join()
        super().stop()

    def _tell(self) -> None:
        while not self._ended.wait(LINE_SECONDS):
            for task in self.tasks:
                if task.total is None or task.completed < task.total:
                    share = "" if task.total is None else f" {task.percentage:.0f} %"
                    more = "".join(f", {text}" for text in task.fields.values() if text)
                    self.console.print(
                        f"{task.description}:{share} after {task.elapsed or 0.0:.0f} s{more}",
                        markup=False,
                        emoji=False,
                        highlight=False,
                        soft_wrap=True,
                    )


class TableProgress(Bar):
    """Shows the steps of a job of Spark, mostly tables, on standard error, if enabled."""

    def __init__(self, *, enabled: bool) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        super().__init__(*columns, console=Console(stderr=True), quiet=not enabled)
        self._job = self.add_task("starting Spark", total=None)

    def expect(self, steps: int) -> None:
        """Spark has started, and has so many steps to do."""
        self.update(self._job, total=steps, completed=-1)

    def begin(self, step: str) -> None:
        """The next step is begun; the one before it counts as done."""
        self.update(self._job, description=step, advance=1)
