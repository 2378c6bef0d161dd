"""Processes inside namespaces: where they run, what they get, and that they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.box.traffic import eventually, lives

from triagemq.errors import NetworkError
from triagemq.lab.box import new_run
from triagemq.lab.box.journal import Journal, open_entries, process_start
from triagemq.lab.box.namespaces import create_namespace, remove_namespace
from triagemq.lab.box.processes import LAUNCHER, Processes, end_session
from triagemq.network.linux.netlink import namespace_path

pytestmark = pytest.mark.needs_root("it makes namespaces of the network")

STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
)
POLITE = """
import signal, sys, time
def end(number, frame):
    time.sleep(0.3)
    print("good-bye", flush=True)
    sys.exit(0)
signal.signal(15, end)
print("ready", flush=True)
time.sleep(600)
"""
PARENT = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"tq{new_run()}-alone"
    create_namespace(name)
    yield name
    remove_namespace(name)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal")


@pytest.fixture
def processes(journal: Journal) -> Iterator[Processes]:
    started = Processes(journal)
    yield started
    started.close(grace_seconds=0)


def test_a_command_runs_in_the_namespace_with_the_environment_and_files_given(
    processes: Processes, namespace: str, tmp_path: Path
) -> None:
    running = processes.start(
        namespace,
        ["sh", "-c", 'readlink /proc/self/ns/net; echo "$FIRE"; pwd; echo trouble >&2; exit 3'],
        environment={"FIRE": "third floor", "PATH": os.environ["PATH"]},
        folder=tmp_path,
        output=tmp_path / "output",
        errors=tmp_path / "errors",
    )
    assert running.wait(30) == 3
    inode = os.stat(namespace_path(namespace)).st_ino
    assert (tmp_path / "output").read_text() == f"net:[{inode}]\nthird floor\n{tmp_path}\n"
    assert (tmp_path / "errors").read_text() == "trouble\n"


def test_a_process_is_noted_with_its_start_and_forgotten_at_its_end(
    processes: Processes, namespace: str, journal: Journal
) -> None:
    running = processes.start(namespace, ["sleep", "600"])
    (entry,) = open_entries(journal.directory)
    assert (entry.kind, entry.facts["pid"]) == ("process", running.pid)
    assert entry.facts["start"] == process_start(running.pid)
    assert processes.end(running) == -signal.SIGTERM
    assert open_entries(journal.directory) == []
    assert not lives(running.pid)


def test_what_ignores_the_request_is_killed(processes: Processes, namespace: str, tmp_path: Path) -> None:
    running = processes.start(namespace, [sys.executable, "-c", STUBBORN], output=tmp_path / "out")
    assert eventually((tmp_path / "out").read_text)
    assert processes.end(running, grace_seconds=0.1) == -signal.SIGKILL


def test_children_end_with_their_parent(processes: Processes, namespace: str, tmp_path: Path) -> None:
    running = processes.start(namespace, [sys.executable, "-c", PARENT], output=tmp_path / "out")
    assert eventually((tmp_path / "out").read_text)
    child = int((tmp_path / "out").read_text())
    assert lives(child)
    processes.end(running)
    assert eventually(lambda: not lives(child))


def test_closing_ends_all_and_twice_is_once(processes: Processes, namespace: str, journal: Journal) -> None:
    pids = [processes.start(namespace, ["sleep", "600"]).pid for _ in range(3)]
    processes.close()
    processes.close()
    assert not any(lives(pid) for pid in pids)
    assert open_entries(journal.directory) == []


def test_closing_leaves_time_to_end_in_order(processes: Processes, namespace: str, tmp_path: Path) -> None:
    running = processes.start(namespace, [sys.executable, "-c", POLITE], output=tmp_path / "out")
    assert eventually((tmp_path / "out").read_text)
    processes.close(grace_seconds=60)
    assert running.exit_code() == 0
    assert (tmp_path / "out").read_text() == "ready\ngood-bye\n"
    with pytest.raises(NetworkError, match="being removed"):
        processes.start(namespace, ["true"])


def test_processes_die_with_a_starter_that_is_killed(namespace: str, tmp_path: Path) -> None:
    program = f"""
import time
from triagemq.lab.box.journal import Journal
from triagemq.lab.box.processes import Processes
processes = Processes(Journal({str(tmp_path / "journal")!r}))
print(processes.start({namespace!r}, ["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert lives(pid)
        starter.kill()
    assert eventually(lambda: not lives(pid))


def test_a_starter_that_dies_before_it_noted_the_process_leaves_none(namespace: str) -> None:
    gate, leave = os.pipe()
    with subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            LAUNCHER,
            namespace_path(namespace),
            str(os.getpid()),
            str(gate),
            "true",
        ],
        pass_fds=[gate],
    ) as launched:
        os.close(gate)
        os.close(leave)
        assert launched.wait(30) == 1


def test_a_command_that_does_not_exist_says_so(processes: Processes, namespace: str, tmp_path: Path) -> None:
    running = processes.start(namespace, ["no-such-command"], errors=tmp_path / "errors")
    assert running.wait(30) == 1
    assert "cannot run no-such-command" in (tmp_path / "errors").read_text()


def test_a_namespace_that_does_not_exist_is_refused(processes: Processes) -> None:
    with pytest.raises(NetworkError, match="no namespace tq-nowhere"):
        processes.start("tq-nowhere", ["true"])


def test_a_file_that_cannot_be_written_is_named(processes: Processes, namespace: str, tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="cannot be written"):
        processes.start(namespace, ["true"], output=tmp_path / "nowhere" / "out")


def test_a_process_that_took_over_a_number_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        start = process_start(stranger.pid)
        assert start is not None
        assert not end_session(stranger.pid, start - 1)
        time.sleep(0.1)
        assert lives(stranger.pid)
        assert end_session(stranger.pid, start)
        assert stranger.wait(30) == -signal.SIGTERM
