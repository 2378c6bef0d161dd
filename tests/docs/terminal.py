"""A reader's terminal: one plain shell in a fresh checkout, without settings."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONG_SECONDS = 110.0
ENDING_SECONDS = 10.0
ORDINARY_PATH = "/usr/local/bin:/usr/bin:/bin"
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def fresh_checkout(place: Path) -> Path:
    """The project's files in a folder of their own, with the `.venv` that `make install` builds."""
    shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(".*", "__pycache__", "out"))
    (place / ".venv").symlink_to(sys.prefix)
    return place


class Terminal:
    """Folder, variables and background jobs persist from one command to the next."""

    def __init__(self, folder: Path, notes: Path) -> None:
        self._printed = notes / "printed"
        shell = ["bash", "--noprofile", "--norc"]
        path = ORDINARY_PATH
        if os.geteuid() == 0:
            # A separate loopback interface: another process of the machine may use the ports of a page.
            shell = ["unshare", "--net", "sh", "-c", f"ip link set lo up && exec {shlex.join(shell)}"]
            path = ROOT_PATH
        self._shell = subprocess.Popen(
            shell,
            cwd=folder,
            env={"HOME": os.environ["HOME"], "PATH": path, "LANG": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self.run("set -m")  # jobs, as in a terminal: kill %1, wait %2

    def run(self, command: str) -> tuple[int, str]:
        """The exit code and the output."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"eval {shlex.quote(command)} < /dev/null > {self._printed} 2>&1; echo $?\n")
        self._shell.stdin.flush()
        ended, _, _ = select.select([self._shell.stdout], [], [], LONG_SECONDS)
        assert ended, f"still running after {LONG_SECONDS} s: {command}"
        return int(self._shell.stdout.readline()), self._printed.read_text()

    def running(self) -> dict[int, str]:
        """Processes that were started here and still run, besides the shell."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state, _, _, session = (process / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self._shell.pid and state not in "ZX":
                    found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        return {pid: command for pid, command in found.items() if pid != self._shell.pid}

    def wait_until_idle(self) -> None:
        """Wait a limited time for ending processes."""
        deadline = time.monotonic() + ENDING_SECONDS
        while running := self.running():
            assert time.monotonic() < deadline, f"still running: {running}"
            time.sleep(0.05)

    def close(self) -> None:
        for pid in (*self.running(), self._shell.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._shell.communicate()
