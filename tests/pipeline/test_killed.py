"""kill -9 at random moments of `pipeline run`, then run again: the tables are those of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from triagemq.pipeline import Tables, run_pipeline

COMMAND = """
import sys
from triagemq.pipeline import SparkOptions, run_pipeline
run_pipeline([sys.argv[1]], sys.argv[2], options=SparkOptions(master="local[2]"))
"""


def start(trace: Path, out: Path) -> subprocess.Popen[bytes]:
    # Its own group: what the command started dies with it here, as it would when a machine goes down.
    return subprocess.Popen([sys.executable, "-c", COMMAND, str(trace), str(out)], start_new_session=True)


def kill_some_times(trace: Path, out: Path, times: int, seed: int) -> int:
    """Kill at random moments, the first ones spread over the time an undisturbed run takes; returns how many died."""
    chance = random.Random(seed)
    killed = 0
    longest = 20.0
    for number in range(times):
        process = start(trace, out)
        begun = time.monotonic()
        wait = longest * (number + chance.random()) / times
        try:
            process.wait(timeout=wait)
            longest = time.monotonic() - begun
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            killed += 1
        if list(out.glob("manifest-*")) and (published := Tables(out)).manifest.runs:
            # Whatever is published is whole.
            published.records("class_performance")
    return killed


@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_tables_after_kills_are_those_of_an_undisturbed_run(
    times: int,
    trace: Path,
    tables: Tables,
    assert_same_tables: Callable[[Tables, Tables], None],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    assert kill_some_times(trace, out, times, seed=times) >= 1
    run_pipeline([trace], out)
    assert_same_tables(Tables(out), tables)
    listed = {
        str(out / file.name) for table in Tables(out).rows for file in Tables(out).manifest.files(table)
    }
    assert listed == {str(path) for path in out.rglob("*.parquet")}
    assert not (out / "_work").exists()
