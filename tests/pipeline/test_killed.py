"""kill -9 at random moments of `pipeline run` and `pipeline stream`: of the command, of an executor, of a worker.

The tables are those of an undisturbed command, and who reads them all the while sees whole runs, or windows that stay
as they are, and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.exact import exact_rows, exact_tables
from tests.pipeline.standalone import Standalone, quick_java, standalone
from tests.pipeline.test_stream import SCENARIO, UNIX_NS, publish, some_blocks

from triagemq.pipeline import Tables, run_pipeline
from triagemq.pipeline.store import Location, current_manifest
from triagemq.pipeline.streaming import stream_pipeline
from triagemq.trace import TraceWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMAND = """
import sys
from triagemq.pipeline import SparkOptions, run_pipeline
from triagemq.pipeline.streaming import stream_pipeline
conf = {"spark.executor.memory": "600m", "spark.executor.cores": "1", "spark.cores.max": "2"}
# What a session for many rows has: exchanges, and files written by tasks.
conf |= {"spark.sql.shuffle.partitions": "2"}
what, master, source, out, conf["spark.executor.extraJavaOptions"] = sys.argv[1:]
options = SparkOptions(master=master, conf=conf)
if what == "run":
    run_pipeline([source], out, options=options)
else:
    from triagemq.pipeline.streaming import queries

    queries.MOST_ROWS = 200
    stream_pipeline(source, out, once=True, options=options)
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


def start(what: str, cluster: Standalone, source: Path, out: Path) -> subprocess.Popen[bytes]:
    # Its own group: what the command started dies with it here, as it would when a machine goes down.
    command = [sys.executable, "-c", COMMAND, what, cluster.address, str(source), str(out), quick_java()]
    environment = os.environ | {"SPARK_SUBMIT_OPTS": quick_java()}
    return subprocess.Popen(command, env=environment, start_new_session=True)


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


def kill_some_times(
    kill: Callable[..., None], cluster: Standalone, begin: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """Kill at random moments, spread over the time that an undisturbed command takes, which the first one is."""
    chance, began = random.Random(KILLS), time.monotonic()
    assert begin().wait() == 0
    longest = time.monotonic() - began
    moments = [longest * (number + chance.random()) / KILLS for number in range(KILLS)]
    # A command survives what is not itself, but Spark gives a task up that has failed four times.
    at_once = 1 if kill is kill_driver else 3
    for _ in range(3 * KILLS):
        started, process = time.monotonic(), begin()
        # Those that come early and those that come late, in one command.
        for moment in moments[:: -(-len(moments) // at_once)]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=max(0.0, started + moment - time.monotonic()))
                # It was faster than the first one.
                moments = [each * 0.8 for each in moments]
                break
            kill(process, cluster, chance)
            moments.remove(moment)
        status = process.wait()
        assert status == (-signal.SIGKILL if kill is kill_driver and status else 0)
        if not moments:
            return
    pytest.fail("most were over before their moment came")


@contextlib.contextmanager
def all_the_while(look: Callable[[], None]) -> Iterator[None]:
    """Look again and again; what goes wrong then is an error at the end."""
    ended, wrong = threading.Event(), []

    def watch() -> None:
        try:
            while not ended.wait(0.3):
                look()
        except BaseException as error:
            wrong.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    assert wrong == []


def assert_nothing_is_left_over(out: Path) -> None:
    assert {out / name for name in Tables(out).manifest.names()} == set(out.glob("[!_]*/**/*.parquet"))
    assert not (out / "_work").exists()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kill", [kill_driver, kill_executor, kill_worker])
def test_tables_after_kills_are_those_of_an_undisturbed_run(
    kill: Callable[..., None], trace: Path, expected: Expected, tmp_path: Path
) -> None:
    out, traces, states, seen = tmp_path / "out", list(expected), list[str | None](), set[str]()

    def begin() -> subprocess.Popen[bytes]:
        """Make the tables of the trace that is not published."""
        if not states or states[-1] != published(out):
            states.append(published(out))
        if len(states) == 2:
            (out / "deliveries" / "mine.txt").write_text("not of this store")
        return start("run", cluster, traces[(len(states) - 1) % 2], out)

    def look() -> None:
        tables = Tables(out) if published(out) is not None else None
        for name in tables.rows if tables is not None else ():
            assert exact_rows(tables, name) in [whole[name] for whole in expected.values()], name
            seen.add(name)

    with standalone(tmp_path / "logs") as cluster, all_the_while(look):
        kill_some_times(kill, cluster, begin)
    assert seen == set(Tables(out).rows)
    run_pipeline([trace], out)
    assert exact_tables(Tables(out)) == expected[trace]
    assert_nothing_is_left_over(out)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kill", [kill_driver, kill_executor, kill_worker])
def test_the_table_after_kills_is_that_of_an_undisturbed_stream(
    kill: Callable[..., None], spark: SparkSession, tmp_path: Path
) -> None:
    out, root, seen = tmp_path / "out", tmp_path / "run", set[str]()
    blocks = iter(some_blocks(9, begin_ns=UNIX_NS, blocks=3 * (3 * KILLS + 1), rows=100))
    described = {"scenario_text": SCENARIO, "plan_text": None, "producer": "test", "run_id": "killed"}
    writer = TraceWriter(root, rotate_rows=100, **described)

    def begin() -> subprocess.Popen[bytes]:
        """More of the trace is there, and is taken in some batches."""
        for block in itertools.islice(blocks, 3):
            publish(writer, block)
        return start("stream", cluster, root, out)

    def look() -> None:
        tables = Tables(out) if list(out.glob("manifest-*")) else None
        if tables is not None and "topic_rates" in tables.rows:
            rows = exact_rows(tables, "topic_rates")
            assert len(rows) == len(set(rows))
            seen.update(rows)

    with standalone(tmp_path / "logs") as cluster, all_the_while(look):
        kill_some_times(kill, cluster, begin)
    writer.finish(measured_from_ns=0)
    for place in (out, tmp_path / "undisturbed"):
        stream_pipeline(root, place, once=True)
    undisturbed = exact_tables(Tables(tmp_path / "undisturbed"))
    assert exact_tables(Tables(out)) == undisturbed
    assert seen
    assert seen <= set(undisturbed["topic_rates"])
