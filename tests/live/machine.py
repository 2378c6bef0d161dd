"""A machine for one test: its own processes, network, /run and temporary directory. What is left there is all there is.

Made of namespaces of the kernel around one idle process; everything else is shared with the real machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CAMPUS = ROOT / "examples" / "building-campus.yaml"
TRIAGE = str(Path(sys.executable).parent / "triage")
LONG_SECONDS = 100.0

SMALL = """
name: A small fire
overhead_bytes: 49
planning: {flows_per_subscriber: 2, priority_classes: 7}
brokers: {campus: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 320000, buffer_packets: 1000}}
publishers: {sensors: {publishes: {smoke: {rate_per_second: 100, size_bytes: 100, sizes: constant}}}}
subscribers:
  crew: {port: radio, subscribes: {smoke: log:10}}
  chief: {port: radio, subscribes: {smoke: log:10}}
"""

# One process that reaps whoever loses its parent, and does nothing else.
_IDLE = """
import os, signal, sys, time
print("ready", flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.02)
"""


class Machine:
    """`run` and `start` commands on it; `seen` is what one could find there afterwards."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.root = Path(f"/proc/{pid}/root")
        self._enter = ["nsenter", "-t", str(pid), "-m", "-n", "-p", "--"]
        self._started: list[Running] = []

    def start(self, *command: str, folder: Path) -> Running:
        running = Running(
            subprocess.Popen(
                [*self._enter[:-1], f"--wd={folder}", "--", *command],
                env=os.environ | {"TMPDIR": "/run/tmp", "NO_COLOR": "1", "COLUMNS": "120"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        self._started.append(running)
        return running

    def gone(self) -> None:
        """All its processes have been killed."""
        for running in self._started:
            running.outer.communicate(timeout=LONG_SECONDS)

    def run(
        self, *command: str, folder: Path, seconds: float = LONG_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        running = self.start(*command, folder=folder)
        try:
            said, complained = running.outer.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            running.kill()
            raise
        return subprocess.CompletedProcess(command, running.outer.returncode, said, complained)

    def seen(self) -> dict[str, list[str]]:
        """Everything that a run could leave behind."""
        return {
            "namespaces": self._names("run/netns"),
            "temporary": self._names("run/tmp"),
            "journal": self._names("run/triagemq"),
            "processes": self._processes(),
            "links": self._said("ip", "-brief", "link"),
            "queues": self._said("tc", "qdisc"),
        }

    def pid_of(self, words: str) -> int | None:
        """The process with these words in its command, by its number there."""
        found = [line.split()[1] for line in self._processes() if words in line]
        return int(found[0]) if found else None

    def journal(self) -> list[str]:
        return self._names("run/triagemq")

    def _names(self, folder: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self.root / folder))
        return []

    def _processes(self) -> list[str]:
        """All but the idle one and who asks."""
        listed = self._said("ps", "-eww", "-o", "stat=", "-o", "pid=", "-o", "args=")
        return [
            line
            for line in listed
            if not line.startswith("Z") and line.split()[1] != "1" and "ps -eww" not in line
        ]

    def _said(self, *command: str) -> list[str]:
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, check=True)
        return [line.strip() for line in done.stdout.splitlines()]


class Running:
    """A command on the machine. `pid` is its number on the real one."""

    def __init__(self, outer: subprocess.Popen[str]) -> None:
        self.outer = outer

    @property
    def pid(self) -> int | None:
        """nsenter waits for the command, its only child. None when that has ended."""
        children = Path(f"/proc/{self.outer.pid}/task/{self.outer.pid}/children")
        while self.outer.poll() is None:
            if listed := children.read_text().split():
                return int(listed[0])
            time.sleep(0.02)
        return None

    def ready(self) -> dict[str, Any]:
        """What `triage emulate --json` says on standard error when everything is built."""
        assert self.outer.stderr is not None
        said = []
        for line in self.outer.stderr:
            said.append(line)
            with contextlib.suppress(ValueError):
                facts = json.loads(line)
                assert isinstance(facts, dict)
                return facts
        raise AssertionError(f"it ended before it was ready: {''.join(said)}")

    def signal(self, number: signal.Signals) -> None:
        """For one that may end at any moment: then there is nobody left to be told."""
        with contextlib.suppress(ProcessLookupError):
            if (pid := self.pid) is not None:
                os.kill(pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.outer.communicate(timeout=LONG_SECONDS)

    def finish(self) -> subprocess.CompletedProcess[str]:
        said, complained = self.outer.communicate(timeout=LONG_SECONDS)
        return subprocess.CompletedProcess((), self.outer.returncode, said, complained)


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    prepare = "mount -t tmpfs none /run && mkdir /run/tmp && ip link set lo up && exec"
    with subprocess.Popen(
        [
            *("unshare", "-m", "-n", "-p", "--fork", "--mount-proc", "--kill-child"),
            *("sh", "-c", f'{prepare} "$0" -c "$1"', sys.executable, _IDLE),
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        (inner,) = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        made = Machine(int(inner))
        try:
            yield made
        finally:
            holder.kill()
            holder.wait()
            made.gone()


def until(what: Callable[[], Any], seconds: float = LONG_SECONDS) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain"
        time.sleep(0.02)
