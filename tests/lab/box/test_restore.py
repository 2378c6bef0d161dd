"""After kill -9 at any moment, restoring leaves nothing of a box behind, and touches nothing else."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.lab.box.campuses import TWO_SWITCHES
from tests.lab.box.traffic import lives, traces_of

from triagemq.lab.box import Box, lay_out, new_run
from triagemq.lab.box.journal import Journal, open_entries
from triagemq.lab.box.namespaces import create_namespace, remove_namespace
from triagemq.lab.box.restore import restore
from triagemq.network.linux.netlink import namespace_path
from triagemq.scenario import loads

HOLDER = """
import sys
from triagemq.lab.box import Box, lay_out
from triagemq.lab.box.journal import Journal
from triagemq.lab.generators import prototype
run, directory, folder = sys.argv[1:]
layout = lay_out(prototype(subscribers=12), run)
print("ready", flush=True)
while True:
    with Box(layout, journal=Journal(directory)) as box:
        for host in layout.hosts[:4]:
            # Without the signal that ends children with their parent, which a change of user clears.
            command = ["setpriv", "--pdeathsig", "clear", "sleep", "600"]
            pid = box.processes.start(host.namespace, command).pid
            print(pid, flush=True)
"""


def kill_at_a_random_moment(tmp_path: Path, moment: float) -> None:
    run, directory = new_run(), tmp_path / "journal"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, run, str(directory), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        time.sleep(moment)
        holder.kill()
        holder.wait()
        pids = [int(line) for line in holder.stdout.read().split("\n")[:-1]]
    spaces = {os.stat(namespace_path(name)).st_ino for name in traces_of(run)}
    restored = restore(directory)
    assert restored.failed == ()
    assert restored.in_use == 0
    assert traces_of(run) == []
    assert open_entries(directory) == []
    assert not any(lives(pid) for pid in pids)
    assert processes_in(spaces) == []
    assert restore(directory) == type(restored)((), (), 0), "twice is once"


@pytest.mark.needs_root("it makes namespaces of the network")
@pytest.mark.parametrize("number", range(3))
def test_kill_9_then_restore_leaves_nothing(tmp_path: Path, number: int) -> None:
    kill_at_a_random_moment(tmp_path, random.uniform(0, 0.5))


@pytest.mark.needs_root("it makes namespaces of the network")
@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_kill_9_at_ten_random_moments_then_restore_leaves_nothing(tmp_path: Path, number: int) -> None:
    kill_at_a_random_moment(tmp_path, random.uniform(0, 3))


@pytest.mark.needs_root("it makes namespaces of the network")
def test_a_box_in_use_is_left_alone_unless_everything_must_go(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    layout = lay_out(loads(TWO_SWITCHES), new_run())
    with Box(layout, journal=journal) as box:
        running = box.processes.start(layout.switch_namespace, ["sleep", "600"])
        untouched = restore(tmp_path)
        assert (untouched.removed, untouched.in_use) == ((), len(layout.namespaces) + 1)
        assert lives(running.pid)
        restored = restore(tmp_path, everything=True)
        assert restored.removed[0] == f"process {running.pid} (sleep)"
        assert set(restored.removed[1:]) == {f"namespace {name}" for name in layout.namespaces}
        assert not lives(running.pid)
        assert traces_of(layout.run) == []


@pytest.mark.needs_root("it makes namespaces of the network")
def test_what_is_not_in_the_journal_stays(tmp_path: Path) -> None:
    name = f"tq{new_run()}-stranger"
    create_namespace(name)
    try:
        gone = abandoned(tmp_path, "namespace", name=f"{name}-gone")
        restore(tmp_path)
        assert not gone.exists()
        assert namespace_path(name).exists()
    finally:
        remove_namespace(name)


def test_directories_of_the_dead_go_too(tmp_path: Path) -> None:
    folder, journal = tmp_path / "switches", tmp_path / "journal"
    (folder / "logs").mkdir(parents=True)
    abandoned(journal, "directory", path=str(folder))
    restored = restore(journal)
    assert (restored.removed, restored.failed) == ((f"directory {folder}",), ())
    assert not folder.exists()


@pytest.mark.parametrize("facts", [{}, {"name": "../netns"}, {"name": 7}, {"name": ""}])
def test_a_damaged_entry_is_reported_and_kept(tmp_path: Path, facts: dict[str, object]) -> None:
    entry = abandoned(tmp_path, "namespace", **facts)
    restored = restore(tmp_path)
    assert restored.removed == ()
    assert "damaged" in restored.failed[0]
    assert entry.exists()


def test_nothing_to_restore(tmp_path: Path) -> None:
    assert restore(tmp_path / "nowhere").removed == ()


def abandoned(directory: Path, kind: str, **facts: object) -> Path:
    """An entry of a process that has died since."""
    noting = f"Journal({str(directory)!r}).note({kind!r}, **{facts!r})"
    program = f"from triagemq.lab.box.journal import Journal; print({noting})"
    name = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    return directory / f"{name.strip()}.json"


def processes_in(spaces: set[int]) -> list[int]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}/ns/net").st_ino in spaces and lives(int(name)):
                found.append(int(name))
    return found
