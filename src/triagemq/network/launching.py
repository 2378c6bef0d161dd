"""Starting a process in a network namespace so that nothing of it can be left behind unnoticed.

The process ends with the thread that started it, and does nothing before it stands in the journal.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from triagemq.network.journal import Journal, process_start

__all__ = ["LAUNCHER", "Launched", "launch_noted"]

LAUNCHER = Path(__file__).with_name("launch.py")


class Launched(NamedTuple):
    """A process, when it started (see `journal.process_start`), and its entry in the journal."""

    process: subprocess.Popen[bytes]
    start: int
    note: str


def launch_noted(
    journal: Journal,
    namespace: str | os.PathLike[str],
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
    output: IO[bytes] | int = subprocess.DEVNULL,
    errors: IO[bytes] | int = subprocess.DEVNULL,
    niceness: int | None = None,
) -> Launched:
    """Start a command in the namespace of that file, as the leader of a session of its own.

    It gets the `niceness` if this user may give it.
    """
    gate, leave = os.pipe()
    try:
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(LAUNCHER)),
                    *(os.fspath(namespace), str(os.getpid()), str(gate), *command),
                ],
                env=None if environment is None else dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                pass_fds=[gate],
                start_new_session=True,
            )
        finally:
            os.close(gate)
        start = process_start(process.pid) or 0
        note = journal.note("process", pid=process.pid, start=start, command=command[0])
        if niceness is not None:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
        # It may have been killed already; then its exit code says so.
        with contextlib.suppress(BrokenPipeError):
            os.write(leave, b"\n")
    finally:
        os.close(leave)
    return Launched(process, start, note)
