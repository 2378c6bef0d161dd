"""One Ctrl-C ends a command, whatever it is doing, with the right exit code, and leaves no process behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MAIN = "from triagemq.cli import main; main()"
MOST_SECONDS = 2.0
SCENARIO = Path(__file__).parents[2] / "examples" / "building-fire.yaml"

DEAF = """
import os, subprocess, sys, time
from triagemq.cli import app, main
@app.app.command("deaf")
def deaf():
    child = subprocess.Popen([sys.executable, "-c", "import os, time; os.fork(); os.setsid(); time.sleep(600)"])
    print(child.pid, flush=True)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass
main()
"""
"""A command that swallows the exception, as a callback of the compiler does, and whose children hear nothing."""

LATE = """
import os, signal
from triagemq.cli import main
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT):
        kill(pid, number)
late = Late()
main()
"""
"""The signal comes when Python takes itself apart, and has given signals back to the system."""


def press(
    command: list[str],
    folder: Path,
    after_seconds: float | None,
    number: int = signal.SIGINT,
    *,
    group: bool = False,
) -> tuple[int, str, str]:
    """Run, send the signal once, and say how it ended; that must be soon. None: when it has said something."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "compiled"), "NO_COLOR": "1"}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        said = ""
        if after_seconds is None:
            assert process.stdout is not None
            said = process.stdout.readline()
        else:
            _wait_until_it_listens(process)
            time.sleep(after_seconds)
        assert process.poll() is None, process.communicate()
        (os.killpg if group else os.kill)(process.pid, number)
        pressed = time.monotonic()
        output, errors = process.communicate(timeout=60)
        assert time.monotonic() - pressed < MOST_SECONDS
    return process.returncode, said + output, errors


def _wait_until_it_listens(process: subprocess.Popen[str]) -> None:
    """Python by itself does not catch SIGTERM: until `triage` does, the interpreter is still being loaded."""
    caught = 0
    while not caught >> (signal.SIGTERM - 1) & 1:
        assert process.poll() is None
        time.sleep(0.005)
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)


@pytest.mark.parametrize("part", range(3))
def test_a_command_that_compiles_ends_at_any_moment(tmp_path: Path, part: int) -> None:
    command = [sys.executable, "-c", MAIN, "simulate", str(SCENARIO), "--publications", "500000000"]
    moment = random.uniform(part, 1 + part)
    code, output, errors = press(command, tmp_path, moment, group=part == 1)
    # It may have said before that it compiles.
    assert (code, output, errors.splitlines()[-1:]) == (130, "", ["triage: interrupted"]), moment
    assert len(errors.splitlines()) <= 2, errors


@pytest.mark.parametrize(
    ("number", "words"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")]
)
def test_a_command_that_does_not_heed_it_is_ended_with_all_its_children(
    tmp_path: Path, number: int, words: str
) -> None:
    code, output, errors = press([sys.executable, "-c", DEAF, "deaf"], tmp_path, None, number)
    assert (code, errors) == (128 + number, f"triage: {words}\n")
    assert not _of_session(int(output))


def _of_session(leader: int) -> list[str]:
    """Processes that live and are the child, or what it has forked."""
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] not in "ZX" and (each.parent.name == str(leader) or int(fields[3]) == leader):
            found.append(each.parent.name)
    return found


def test_a_command_that_runs_until_it_is_ended_ends_well_even_before_it_is_ready(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAIN, "up", "--gateway", "127.0.0.1:0", "--rest", "127.0.0.1:0"]
    code, output, errors = press(command, tmp_path, random.uniform(0.0, 0.8))
    assert (code, output, errors) == (0, "", "triage: ended before it was ready\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_exchange_that_runs_ends_within_two_seconds_of_a_signal(tmp_path: Path, number: int) -> None:
    options = ["--gateway", "127.0.0.1:0", "--rest", "127.0.0.1:0", "--json"]
    code, output, errors = press([sys.executable, "-c", MAIN, "up", *options], tmp_path, None, number)
    assert json.loads(output)["ready"]
    assert (code, errors) == (0, "")


def test_what_has_ended_well_is_not_ended_by_a_signal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE, "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
