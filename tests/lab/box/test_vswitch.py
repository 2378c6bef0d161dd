"""Open vSwitch by hand: what it refuses, what is missing, and what a killed process leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.network.openflow.lab import Lab, eventually

from triagemq.errors import VirtualSwitchError
from triagemq.lab.box import VirtualSwitches
from triagemq.lab.box.journal import Journal, open_entries, process_start
from triagemq.lab.box.restore import restore

HOLDER = """
import sys, time
from triagemq.lab.box import VirtualSwitches
from triagemq.lab.box.journal import Journal
switches = VirtualSwitches(Journal(sys.argv[1]))
switches.open()
switches.add_switch("hall", 1, [])
print(switches.directory, flush=True)
time.sleep(600)
"""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with contextlib.closing(Lab(tmp_path)) as made:
        yield made


def test_a_machine_without_open_vswitch_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VirtualSwitchError, match="apt install openvswitch-switch"):
        VirtualSwitches(Journal(tmp_path / "journal")).open()
    assert open_entries(tmp_path / "journal") == []


@pytest.mark.needs_root("it makes namespaces of the network")
def test_a_port_that_is_not_there_is_refused_in_words(lab: Lab) -> None:
    with pytest.raises(VirtualSwitchError, match=r"nowhere cannot be a port of a switch: .*No such device"):
        lab.switches.add_switch("s1", 1, ["nowhere"])


@pytest.mark.needs_root("it makes namespaces of the network")
def test_a_killed_process_leaves_nothing_that_cannot_be_removed(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    # A process group of its own, as a user's command has.
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(journal)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert holder.stdout is not None
    with holder.stdout:
        directory = Path(holder.stdout.readline().strip())
        pids = [int((directory / f"{name}.pid").read_text()) for name in ("ovsdb-server", "ovs-vswitchd")]
        assert all(process_start(pid) is not None for pid in pids)
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    eventually(lambda: all(process_start(pid) is None for pid in pids), "switches end with their owner")
    assert directory.exists()
    restored = restore(journal)
    assert restored.failed == ()
    assert not directory.exists()
    assert open_entries(journal) == []
