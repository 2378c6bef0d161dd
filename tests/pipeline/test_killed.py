"""kill -9 at random moments of `pipeline run`: of the command, of an executor, of a worker with what it has.

The tables are those of an undisturbed run, and who reads them all the while sees whole runs and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from tests.pipeline.exact import exact_rows, exact_tables
from tests.pipeline.standalone import Standalone, standalone

from triagemq.pipeline import Tables, run_pipeline
from triagemq.pipeline.store import Location, current_manifest

COMMAND = """
import sys
from triagemq.pipeline import SparkOptions, run_pipeline
conf = {"spark.executor.memory": "600m", "spark.executor.cores": "1", "spark.cores.max": "2"}
# What a session for many rows has: exchanges, and files written by tasks.
conf |= {"spark.sql.shuffle.partitions": "2"}
run_pipeline([sys.argv[2]], sys.argv[3], options=SparkOptions(master=sys.argv[1], conf=conf))
"""
KILLS = 10
Expected = Mapping[Path, dict[str, list[str]]]


@pytest.fixture(scope="module")
def expected(
    spark: object, trace: Path, write_trace: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Expected:
    """Two traces of one run, each of which takes the place of the other, and the tables of each."""
    folder = tmp_path_factory.mktemp("undisturbed")
    other = write_trace(folder / "other", seed=2, publications=200, run_id="one")
    found = {}
    for number, each in enumerate((trace, other)):
        run_pipeline([each], folder / str(number))
        found[each] = exact_tables(Tables(folder / str(number)))
    return found


def start(master: str, trace: Path, out: Path) -> subprocess.Popen[bytes]:
    # Its own group: what the command started dies with it here, as it would when a machine goes down.
    command = [sys.executable, "-c", COMMAND, master, str(trace), str(out)]
    return subprocess.Popen(command, start_new_session=True)


def published(out: Path) -> str | None:
    """The identity of the run that is published."""
    manifest = current_manifest(Location(out))
    return manifest.runs["one"].identity if manifest is not None and manifest.runs else None


def kill_driver(process: subprocess.Popen[bytes], cluster: object, chance: random.Random) -> None:
    os.killpg(process.pid, signal.SIGKILL)


def kill_executor(process: subprocess.Popen[bytes], cluster: Standalone, chance: random.Random) -> None:
    while process.poll() is None:
        if found := cluster.executors():
            os.kill(chance.choice(found), signal.SIGKILL)
            return
        time.sleep(0.05)


def kill_worker(process: subprocess.Popen[bytes], cluster: Standalone, chance: random.Random) -> None:
    number = chance.randrange(2)
    cluster.kill_worker(number)
    cluster.start_worker(number)


def kill_some_times(kill: Callable[..., None], cluster: Standalone, expected: Expected, out: Path) -> None:
    """Kill at random moments, spread over the time that an undisturbed run takes, which the first one is."""
    chance, master = random.Random(KILLS), cluster.address
    traces, killed, tried = list(expected), 0, 1
    begun = time.monotonic()
    assert start(master, traces[0], out).wait(timeout=300) == 0
    longest = time.monotonic() - begun
    (out / "deliveries" / "mine.txt").write_text("not of this store")
    while killed < KILLS:
        before = published(out)
        process = start(master, traces[tried % 2], out)
        try:
            process.wait(timeout=longest * (killed + chance.random()) / KILLS)
        except subprocess.TimeoutExpired:
            kill(process, cluster, chance)
            killed += 1
        status = process.wait(timeout=200)
        assert status == (-signal.SIGKILL if kill is kill_driver and status else 0)
        # Whatever was published, there is something to do the next time.
        tried += published(out) != before
        assert tried <= 3 * KILLS, "most were over before their moment came"


@contextlib.contextmanager
def read_all_the_while(out: Path, expected: Expected) -> Iterator[list[str]]:
    """Read every table again and again; the names of those that were read. What is no whole run is an error."""
    ended, seen, wrong = threading.Event(), [], []

    def read() -> None:
        try:
            while not ended.wait(0.1):
                if published(out) is None:
                    continue
                tables = Tables(out)
                for name in tables.rows:
                    rows = exact_rows(tables, name)
                    if rows not in [whole[name] for whole in expected.values()]:
                        wrong.append(f"{name}: {len(rows)} rows that are of no whole run")
                    seen.append(name)
        except Exception as error:
            wrong.append(repr(error))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield seen
    finally:
        ended.set()
        reader.join()
    assert wrong == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", [kill_driver, kill_executor, kill_worker])
def test_tables_after_kills_are_those_of_an_undisturbed_run(
    kill: Callable[..., None], trace: Path, expected: Expected, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(standalone(tmp_path / "logs"))
        seen = stack.enter_context(read_all_the_while(out, expected))
        kill_some_times(kill, cluster, expected, out)
    assert set(seen) == set(Tables(out).rows)
    run_pipeline([trace], out)
    tables = Tables(out)
    assert exact_tables(tables) == expected[trace]
    assert {out / name for name in tables.manifest.names()} == set(out.rglob("*.parquet"))
    assert not (out / "_work").exists()
    assert (out / "deliveries" / "mine.txt").read_text() == "not of this store"
