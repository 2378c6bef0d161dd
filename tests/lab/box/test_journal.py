"""The journal: entries are there before the thing, known by their owner, and gone after it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from triagemq.errors import NetworkError
from triagemq.lab.box.journal import Journal, open_entries, owner_lives

_NOTE = """
import sys, time
from triagemq.lab.box.journal import Journal
Journal(sys.argv[1]).note("process", pid=1)
print("noted", flush=True)
time.sleep(600)
"""


def test_entries_come_in_order_and_go(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    names = [journal.note("namespace", name=f"tq{number}") for number in range(20)]
    entries = open_entries(journal.directory)
    assert [entry.facts["name"] for entry in entries] == [f"tq{number}" for number in range(20)]
    assert all(owner_lives(entry) and entry.owner_pid == os.getpid() for entry in entries)
    journal.done(names[0])
    journal.done(names[0])
    Journal(journal.directory).done(entries[1])
    assert [entry.id for entry in open_entries(journal.directory)] == names[2:]


def test_an_owner_that_was_killed_is_known_as_dead(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _NOTE, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        (entry,) = open_entries(tmp_path)
        assert owner_lives(entry)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not owner_lives(entry), "what waits for its parent to look is dead"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert not owner_lives(entry)


def test_a_process_number_that_is_used_again_is_not_the_owner(tmp_path: Path) -> None:
    Journal(tmp_path).note("directory", path="x")
    (entry,) = open_entries(tmp_path)
    assert not owner_lives(dataclasses.replace(entry, owner_start=entry.owner_start - 1))
    assert not owner_lives(dataclasses.replace(entry, boot="another"))


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert open_entries(tmp_path / "nowhere") == []


def test_half_written_and_strange_files_do_no_harm(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    (tmp_path / ".00000000000000000001-1-0").write_text("{")
    assert open_entries(tmp_path) == []
    journal.note("directory", path="x")
    (tmp_path / "1.json").write_text("[]")
    with pytest.raises(NetworkError, match="not a journal entry"):
        open_entries(tmp_path)


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(NetworkError, match="other users"):
        Journal(shared)
    with pytest.raises(NetworkError, match="other users"):
        open_entries(shared)
