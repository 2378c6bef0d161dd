"""One process of the exchange: started, waited for until it says that it is ready, started again when it ends.

A child prints one JSON line when it is ready; what it says on standard error goes to its log. It dies with its parent,
whatever ends that, so that a killed `triage up` leaves nothing behind that would hold its ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from triagemq.errors import ParameterError, TriageError
from triagemq.exchange.broker.process import dying_with_parent
from triagemq.exchange.private_files import PRIVATE_UMASK, private_file
from triagemq.programs import send_signal
from triagemq.waiting import end

HURRY_SECONDS = 0.5
"""What a process that may be killed at any moment gets to end by itself, when the user waits for it."""

HURRY_STORING_SECONDS = 1.0
"""The same for one that has something to write at its end, and lives without."""

_READY_SECONDS = 60.0
_STOP_SECONDS = 10.0
_SHORTEST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
# A child that has lived for so long has not been started in vain.
_LONG_LIFE_SECONDS = 1.0
_LONGEST_LINE = 1 << 20
_MOST_LOG_BYTES = 10_000_000


class ChildError(TriageError):
    """A process of the exchange does not start; `exit_code` tells those apart whose configuration is impossible."""

    def __init__(self, words: str, exit_code: int | None = None) -> None:
        if exit_code == ParameterError.exit_code:
            self.exit_code = ParameterError.exit_code
        super().__init__(words)


class EndedError(TriageError):
    """The user has ended it, which is no failure, before there was anything to tell."""

    exit_code = 0

    def __init__(self) -> None:
        super().__init__("ended before it was ready")


class Child:
    """`module` is run with this Python. `started` is called with what it said each time it became ready."""

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
        self.name = name
        self.restarts = 0
        self.problem = ""
        """Why it does not run, if it could not be started again."""
        self.said: dict[str, Any] = {}
        self._command = [sys.executable, "-m", module, *arguments]
        self._log = log
        self._restart = restart
        self._started = started
        self._process: Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = False
        self._is_ready = False

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it runs and has said that it is ready."""
        return self._is_ready and self.pid is not None

    @property
    def restarting(self) -> bool:
        """Whether it is started again when it ends."""
        return self._restart

    async def start(self) -> dict[str, Any]:
        """Start it, wait until it is ready, and see that it stays; returns what it said."""
        await self._launch()
        self._watcher = asyncio.get_running_loop().create_task(self._watch())
        return self.said

    async def wait(self) -> int:
        """Until a child that is not restarted has ended; its exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, seconds: float = _STOP_SECONDS) -> int | None:
        """Ask it to end, and make it end if it has not after so long; its exit code."""
        self._stopping = True
        await end(self._watcher)
        process = self._process
        if process is None:
            return None
        if process.returncode is None:
            send_signal(process, signal.SIGTERM)
            try:
                async with asyncio.timeout(seconds):
                    await process.wait()
            except TimeoutError:
                send_signal(process, signal.SIGKILL)
                await process.wait()
        return process.returncode

    def kill(self) -> None:
        """End it at once, whatever it does; it is started again."""
        if self._process is not None:
            send_signal(self._process, signal.SIGKILL)

    def bound_log(self) -> None:
        """Move a long log aside, in place of the one before; the process goes on writing where it did."""
        with contextlib.suppress(OSError):
            if self._log.stat().st_size > _MOST_LOG_BYTES:
                before = self._log.with_name(f"{self._log.name}.1")
                private_file(before)
                shutil.copyfile(self._log, before)
                os.truncate(self._log, 0)

    def last_words(self) -> str:
        """The end of its log in one line, for an error message."""
        return last_words(self._log)

    async def _launch(self) -> None:
        self._is_ready = False
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_file(self._log)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
                # A group of its own: Ctrl-C reaches the parent alone, which ends its children in their order.
                start_new_session=True,
                preexec_fn=dying_with_parent(),
                umask=PRIVATE_UMASK,
                limit=_LONGEST_LINE,
            )
        stdout = self._process.stdout
        assert stdout is not None
        try:
            async with asyncio.timeout(_READY_SECONDS):
                line = await stdout.readline()
        except TimeoutError:
            send_signal(self._process, signal.SIGKILL)
            await self._process.wait()
            raise ChildError(
                f"the {self.name} is not ready after {_READY_SECONDS:.0f} s; see {self._log}"
            ) from None
        try:
            self.said = json.loads(line)
        except ValueError:
            code = await self._process.wait()
            raise ChildError(
                f"the {self.name} ended before it was ready: {self.last_words()}", code
            ) from None
        # Whatever else it prints must not fill the pipe.
        draining = asyncio.get_running_loop().create_task(_drain(stdout))
        draining.add_done_callback(lambda task: task.exception())
        self._is_ready = True
        if self._started is not None:
            self._started(self.said)

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        pause = _SHORTEST_PAUSE_SECONDS
        while True:
            assert self._process is not None
            begun = clock()
            await self._process.wait()
            if self._stopping or not self._restart:
                return
            pause = (
                _SHORTEST_PAUSE_SECONDS
                if clock() - begun > _LONG_LIFE_SECONDS
                else min(2 * pause, _LONGEST_PAUSE_SECONDS)
            )
            self.restarts += 1
            await asyncio.sleep(pause)
            try:
                await self._launch()
                self.problem = ""
            except (ChildError, OSError) as error:
                # The next round of this loop finds it ended and tries again.
                self.problem = str(error)


async def _drain(stdout: asyncio.StreamReader) -> None:
    with contextlib.suppress(ValueError, OSError):
        while await stdout.read(_LONGEST_LINE):
            pass


def last_words(log: Path) -> str:
    """The end of a log in one line, for an error message."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].strip() if lines else "it said nothing"
