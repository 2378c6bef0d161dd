"""A child process: started, watched, started again when it ends, with a log of a bounded size.

It dies with its parent, whatever ends that: a killed command leaves nothing behind that would hold its ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import shutil
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from triagemq.errors import TriageError
from triagemq.files import PRIVATE_UMASK, private_file
from triagemq.programs import send_signal
from triagemq.waiting import Tasks

_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 10.0
_SHORTEST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 2.0
# A child that has lived for so long has not been started in vain.
_LONG_LIFE_SECONDS = 1.0


def dying_with_parent() -> Callable[[], None]:
    """What a child does between fork and exec (`preexec_fn`); where the system has no such thing, nothing."""
    parent = os.getpid()
    # Looked up here: there is little that may be done after a fork.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # It has died in between.
                os.kill(os.getpid(), signal.SIGKILL)

    return prepare


def wait_for_killed() -> None:
    """Until no process is being killed, at most five seconds: one ends when the kernel has carried out its request."""
    deadline = time.monotonic() + 5.0
    while any(map(_is_killed, Path("/proc").glob("[0-9]*/status"))) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_killed(status: Path) -> bool:
    """Whether SIGKILL, the ninth bit, is pending for a process."""
    with contextlib.suppress(OSError):
        return any(
            int(mask, 16) & 0x100 for mask in re.findall(r"(?:Sig|Shd)Pnd:\s*(\w+)", status.read_text())
        )
    return False


class Supervised:
    """A child process; a subclass says how it is launched and how long its log may be."""

    most_log_bytes = 10_000_000

    def __init__(self, name: str, log: Path, *, restart: bool = True) -> None:
        self.name = name
        self.log = log
        """Its standard error."""
        self.restarts = 0
        self.problem = ""
        """Why it does not run, if that is so."""
        self.restarting = restart
        """Is it started again when it ends?"""
        self._process: Process | None = None
        self._tasks = Tasks()
        # How much of the log is of processes before this one.
        self._logged_before = 0

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    async def _launch(self) -> None:
        """Start it, and wait until it is ready; TriageError if it is not."""
        raise NotImplementedError

    def _has_ended(self, code: int) -> None:
        """It has ended and will be started again."""

    def watch(self) -> None:
        """See from now on that it stays."""
        self._tasks.start(self._watch())

    async def stop(self, seconds: float = _STOP_SECONDS) -> int | None:
        """Ask it to end, and make it end if it has not after so long; its exit code."""
        await self._tasks.close()
        process = self._process
        if process is None:
            return None
        if process.returncode is None:
            send_signal(process, signal.SIGTERM)
            try:
                async with asyncio.timeout(seconds):
                    await process.wait()
            except TimeoutError:
                await self._end_now(process)
        return process.returncode

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it runs."""
        if self._process is not None:
            send_signal(self._process, number)

    def bound_log(self) -> None:
        """Move a long log aside, in place of the one before; the process goes on writing where it did."""
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > self.most_log_bytes:
                before = self.log.with_name(f"{self.log.name}.1")
                private_file(before)
                shutil.copyfile(self.log, before)
                os.truncate(self.log, 0)

    def last_words(self) -> str:
        """What it has written last."""
        return last_words(self.log, self._logged_before)

    async def _spawn(self, command: Sequence[str], **options: Any) -> Process:
        """Run a command with its standard error in the log."""
        self.bound_log()
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_file(self.log)
        with self.log.open("ab") as log:
            self._logged_before = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=DEVNULL,
                stderr=log,
                # A group of its own: Ctrl-C reaches the parent alone, which ends its children in their order.
                start_new_session=True,
                preexec_fn=dying_with_parent(),
                umask=PRIVATE_UMASK,
                **options,
            )
        return self._process

    async def _end_now(self, process: Process) -> None:
        send_signal(process, signal.SIGKILL)
        await process.wait()

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        pause = _SHORTEST_PAUSE_SECONDS
        while True:
            assert self._process is not None
            begun = clock()
            code = await self._process.wait()
            if not self.restarting:
                return
            if clock() - begun > _LONG_LIFE_SECONDS:
                pause = _SHORTEST_PAUSE_SECONDS
            else:
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
            self.restarts += 1
            self._has_ended(code)
            await asyncio.sleep(pause)
            try:
                await self._launch()
                self.problem = ""
            except (TriageError, OSError) as error:
                # The next round of this loop finds it ended and tries again.
                self.problem = str(error)


def last_words(log: Path, since: int = 0) -> str:
    """The end of a log in one line, for an error message: what was written `since`, if anything was."""
    try:
        written = log.read_bytes()
    except OSError:
        written = b""
    lines = (written[since:] or written).decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "its log is empty"
