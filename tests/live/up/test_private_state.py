"""What an exchange keeps is its user's alone: keys, tokens and messages cannot be read by others of the machine."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.live.up.exchanging import LONG_SECONDS, TRIAGE, TWO_PORTS, Up

from triagemq.coordinator.store import Store
from triagemq.errors import ParameterError
from triagemq.files import private_directory
from triagemq.gateway.store import GatewayStore

NOBODY = 65_534
OTHERS = stat.S_IRWXG | stat.S_IRWXO
FROM_OUTSIDE = """
import os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
for folder, folders, files in os.walk(sys.argv[1]):
    print(folder, folders, files)
for path in sys.argv[2:]:
    try:
        os.open(path, os.O_RDONLY)
    except PermissionError:
        continue
    print(path)
"""


def _entries(directory: Path) -> list[Path]:
    return [directory, *directory.rglob("*")]


def _open_to_others(directory: Path) -> list[str]:
    return [
        f"{path} {stat.filemode(path.lstat().st_mode)}"
        for path in _entries(directory)
        if path.lstat().st_mode & OTHERS
    ]


@pytest.mark.needs_root("it acts as somebody else")
def test_another_user_reads_nothing_of_a_running_exchange(tmp_path: Path) -> None:
    state = tmp_path / "state"
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    mask = os.umask(0)
    try:
        running = Up(tmp_path / "up", "--state", str(state), "--access", file=TWO_PORTS)
    finally:
        os.umask(mask)
    with running:
        running.ready()
        deadline = time.monotonic() + LONG_SECONDS
        while not (state / "gateway" / "state.json").exists():
            assert time.monotonic() < deadline, "the gateway keeps nothing"
            time.sleep(0.05)
        found = _entries(state)
        names = {path.name for path in found}
        assert names >= {"coordinator.sqlite-wal", "coordinator.sqlite-shm", "gateway.sqlite", "control.sock"}
        assert names >= {
            "state.json",
            "mosquitto.conf",
            "passwords",
            "rights",
            "gateway.json",
            "gateway.log",
            "lock",
        }
        assert _open_to_others(state) == []
        outside = subprocess.run(
            [sys.executable, "-c", FROM_OUTSIDE, str(state), *map(str, found)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert outside.stdout == ""


def test_a_state_directory_that_was_opened_to_others_is_closed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o755)
    (state / "gateway.sqlite").touch()
    private_directory(state)
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_a_directory_of_other_things_is_not_closed_but_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    (shared / "letters").touch()
    with pytest.raises(ParameterError, match="give a directory of its own, or chmod 700 it"):
        private_directory(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755


@pytest.mark.needs_root("it acts as somebody else")
def test_a_state_directory_of_somebody_else_is_refused_in_one_line(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, NOBODY, NOBODY)
    for command in (["up"], ["gateway", "--listen", "127.0.0.1:0", "--broker", "mqtt://127.0.0.1:1"]):
        ended = subprocess.run(
            [*TRIAGE, *command, "--state", str(theirs)],
            capture_output=True,
            text=True,
            timeout=LONG_SECONDS,
            check=False,
        )
        assert ended.returncode == 2
        assert ended.stdout == ""
        assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr
        assert f"{theirs} belongs to another user" in ended.stderr


def test_a_gateway_that_makes_its_own_certificate_starts_in_a_new_directory(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = ["gateway", "--listen", "127.0.0.1:0", "--broker", "mqtt://127.0.0.1:1", "--dtls", "--json"]
    with subprocess.Popen(
        [*TRIAGE, *command, "--state", str(state)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        try:
            assert "listen" in running.stdout.readline()
            assert (state / "certificate" / "certificate.pem").exists()
            assert _open_to_others(state) == []
        finally:
            running.kill()


def test_databases_are_private_whatever_the_umask_says(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        store = Store(f"sqlite:///{tmp_path / 'coordinator.sqlite'}")
        gateway = GatewayStore(tmp_path / "gateway")
    finally:
        os.umask(mask)
    try:
        assert stat.S_IMODE((tmp_path / "gateway").stat().st_mode) == 0o700
        for path in (*tmp_path.glob("*.sqlite*"), *tmp_path.glob("gateway/*")):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    finally:
        store.close_now()
        gateway.close()
