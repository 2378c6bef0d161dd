"""Programs: where those of others are, which an ordinary user's PATH may not name, and signals to those that run."""

from __future__ import annotations

import contextlib
import os
import shutil
from asyncio.subprocess import Process

_SERVERS = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/opt/homebrew/sbin")


def search_path() -> str:
    """PATH, and where servers are."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), *_SERVERS))


def find_program(name: str) -> str | None:
    """Where a program is, if it is on this machine."""
    return shutil.which(name, path=search_path())


def send_signal(process: Process, number: int) -> None:
    """Signal a process, unless it is known to have ended.

    `Process.send_signal` would reap one that has just ended, and the event loop would never know its exit code.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
