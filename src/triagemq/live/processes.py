"""One process of the exchange: a module of ours, which prints one JSON line when it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from triagemq.errors import ParameterError, TriageError
from triagemq.processes import Supervised

HURRY_SECONDS = 0.5
"""What a process that may be killed at any moment gets to end by itself, when the user waits for it."""

HURRY_STORING_SECONDS = 1.0
"""The same for one that has something to write at its end, and lives without."""

_READY_SECONDS = 60.0
_LONGEST_LINE = 1 << 20


class ChildError(TriageError):
    """A process of the exchange does not start; `exit_code` is another one if its configuration is impossible."""

    def __init__(self, words: str, exit_code: int | None = None) -> None:
        if exit_code == ParameterError.exit_code:
            self.exit_code = ParameterError.exit_code
        super().__init__(words)


class EndedError(TriageError):
    """The user has ended it, which is no failure, before it was ready."""

    exit_code = 0

    def __init__(self) -> None:
        super().__init__("ended before it was ready")


class Child(Supervised):
    """`module` is run with this Python. `started` is called with the facts of its ready line each time."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        log: Path,
        restart: bool = True,
        started: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        super().__init__(name, log, restart=restart)
        self.facts: dict[str, Any] = {}
        self._command = [sys.executable, "-m", module, *arguments]
        self._started = started
        self._is_ready = False

    @property
    def is_ready(self) -> bool:
        """Whether it runs and is ready."""
        return self._is_ready and self.pid is not None

    async def start(self) -> dict[str, Any]:
        """Start it, wait until it is ready, and see that it stays; returns the facts of its ready line."""
        await self._launch()
        self.watch()
        return self.facts

    async def _launch(self) -> None:
        self._is_ready = False
        process = await self._spawn(self._command, stdout=PIPE, limit=_LONGEST_LINE)
        stdout = process.stdout
        assert stdout is not None
        try:
            async with asyncio.timeout(_READY_SECONDS):
                line = await stdout.readline()
        except TimeoutError:
            await self._end_now(process)
            raise ChildError(
                f"the {self.name} is not ready after {_READY_SECONDS:.0f} s; see {self.log}"
            ) from None
        try:
            self.facts = json.loads(line)
        except ValueError:
            code = await process.wait()
            raise ChildError(
                f"the {self.name} ended before it was ready: {self.last_words()}", code
            ) from None
        # Whatever else it prints must not fill the pipe.
        draining = asyncio.get_running_loop().create_task(_drain(stdout))
        draining.add_done_callback(lambda task: task.exception())
        self._is_ready = True
        if self._started is not None:
            self._started(self.facts)


async def _drain(stdout: asyncio.StreamReader) -> None:
    with contextlib.suppress(ValueError, OSError):
        while await stdout.read(_LONGEST_LINE):
            pass
