"""Processes inside namespaces: noted in the journal before they do anything, and ended by their ids.

Nothing of them can be left behind unnoticed: a process ends with the thread that started it, and does nothing before it
stands in the journal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from triagemq.errors import NetworkError
from triagemq.lab.box.journal import Journal, process_start
from triagemq.network.linux.netlink import namespace_path

LAUNCHER = Path(__file__).with_name("launch.py")

GRACE_SECONDS = 5.0
"""How long a process may take to end after SIGTERM, before SIGKILL."""


class Running:
    """A process in a namespace, the leader of a session of its own: when it started (see `journal.process_start`), and
    its entry in the journal."""

    def __init__(self, process: subprocess.Popen[bytes], start: int, note: str) -> None:
        self._process, self.start, self.note = process, start, note
        self.pid = process.pid

    def exit_code(self) -> int | None:
        """What it ended with; None while it runs."""
        return self._process.poll()

    def wait(self, timeout_seconds: float | None = None) -> int:
        """What it ends with; TimeoutError if it does not in time."""
        try:
            return self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} still runs after {timeout_seconds} seconds") from None


class Processes:
    """The processes of one box."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._running: list[Running] = []
        self._closed = False
        # The kernel ends a child with the thread that started it, so that thread lives as long as they do.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="starter")

    def start(
        self,
        namespace: str,
        command: Sequence[str | os.PathLike[str]],
        *,
        environment: Mapping[str, str] | None = None,
        folder: str | os.PathLike[str] | None = None,
        output: str | os.PathLike[str] | None = None,
        errors: str | os.PathLike[str] | None = None,
        niceness: int | None = None,
    ) -> Running:
        """Start a command in a namespace, what it prints appended to files (`errors` next to `output` by default).

        It gets the `niceness` if this user may give it.
        """
        if not namespace_path(namespace).exists():
            raise NetworkError(f"there is no namespace {namespace} to start {command[0]} in")
        if self._closed:
            raise NetworkError(f"the box is being removed; {command[0]} is not started in it any more")
        words = [os.fspath(word) for word in command]

        def start() -> Running:
            with contextlib.ExitStack() as open_files:
                printed = _opened(open_files, output)
                complained = printed if errors is None else _opened(open_files, errors)
                settings = {"env": environment, "cwd": folder, "stdout": printed, "stderr": complained}
                try:
                    running = _launch(self._journal, namespace, words, niceness, settings)
                except OSError as error:
                    raise NetworkError(f"{words[0]} cannot be started: {error.strerror}") from None
            self._running.append(running)
            return running

        return self._starter.submit(start).result()

    def end(self, running: Running, grace_seconds: float = GRACE_SECONDS) -> int:
        """Ask a process and its children to end, and then make them; what it ended with."""
        self._end([running], grace_seconds)
        return running.wait()

    def close(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """End all of them, all at once; idempotent."""
        if not self._closed:
            self._closed = True
            self._starter.submit(int).result()  # What was being started before has been started now.
            self._end(list(self._running), grace_seconds)
            self._starter.shutdown()

    def _end(self, chosen: Sequence[Running], grace_seconds: float) -> None:
        _end_sessions({running.pid: running.start for running in chosen}, grace_seconds, reap=chosen)
        for running in chosen:
            running.wait()
            self._journal.done(running.note)
            if running in self._running:
                self._running.remove(running)


def _launch(
    journal: Journal,
    namespace: str,
    command: Sequence[str],
    niceness: int | None,
    settings: Mapping[str, Any],
) -> Running:
    """Start a command in a namespace, as the leader of a session of its own; `settings` are those of Popen."""
    gate, leave = os.pipe()
    try:
        try:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(LAUNCHER)),
                    *(os.fspath(namespace_path(namespace)), str(os.getpid()), str(gate), *command),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[gate],
                start_new_session=True,
                **settings,
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
    return Running(process, start, note)


def end_session(pid: int, start: int, grace_seconds: float = GRACE_SECONDS) -> bool:
    """End a process of another run, and the session it led; whether there was anything to end."""
    return _end_sessions({pid: start}, grace_seconds)


def _end_sessions(leaders: Mapping[int, int], grace_seconds: float, reap: Sequence[Running] = ()) -> bool:
    """Ask all processes of some sessions to end, and make those that have not in time; whether there were any."""
    members = found = _members(leaders)
    _signal(members, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while members:
        time.sleep(0.01)
        for running in reap:
            running.exit_code()
        members = _members(leaders)
        if time.monotonic() > deadline:
            _signal(members, signal.SIGKILL)
    return bool(found)


def _signal(members: Sequence[int], number: signal.Signals) -> None:
    for member in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(member, number)


def _members(leaders: Mapping[int, int]) -> list[int]:
    """The living processes of the sessions that some processes, each with its start, lead or led.

    The kernel gives a number to no new process while a session has it; so if a process of that number started at
    another time, the session is long gone.
    """
    there = {pid: start for pid, start in leaders.items() if process_start(pid) in (None, start)}
    members = []
    for name in os.listdir("/proc") if there else ():
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
            start = there.get(int(fields[3]))
            if start is not None and fields[0] not in "ZX" and int(fields[19]) >= start:
                members.append(int(name))
    return members


def _opened(open_files: contextlib.ExitStack, path: str | os.PathLike[str] | None) -> IO[bytes] | int:
    if path is None:
        return subprocess.DEVNULL
    try:
        return open_files.enter_context(open(path, "ab"))
    except OSError as error:
        raise NetworkError(f"{os.fspath(path)} cannot be written: {error.strerror}") from None
