"""A standalone Spark with two workers on loopback, started from the pip package, makes the same tables."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import triagemq
from triagemq.pipeline import Tables, run_pipeline
from triagemq.pipeline.java import find_java
from triagemq.pipeline.sweep import run_sweep
from triagemq.scenario.generators import table2

COMMAND = """
import sys
from triagemq.pipeline import SparkOptions, run_pipeline
conf = {"spark.executor.memory": "600m", "spark.executor.cores": "1", "spark.cores.max": "2"}
# What a session for many rows has: exchanges, broadcasts, Python workers, and files written where the rows are.
conf |= {"spark.sql.shuffle.partitions": "3", "spark.sql.optimizer.disableHints": "false"}
run_pipeline(sys.argv[3:], sys.argv[2], options=SparkOptions(master=sys.argv[1], conf=conf))
"""


SWEEP = """
import sys
from triagemq.pipeline import SparkOptions
from triagemq.pipeline.sweep import run_sweep
from triagemq.scenario.generators import table2
conf = {"spark.executor.memory": "600m", "spark.executor.cores": "1", "spark.cores.max": "1"}
options = SparkOptions(master=sys.argv[1], conf=conf)
scenario = table2(seed=1, subscribers=2, subscriptions=(20, 10))
run_sweep(scenario, {"rho": [0.8, 1.6]}, 2, publications=500, out=sys.argv[2], options=options)
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(port: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with socket.socket() as caller:
            if caller.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens on port {port}")


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master and two workers of one core each; its address."""
    with cluster(tmp_path, workers=2) as address:
        yield address


@contextmanager
def cluster(tmp_path: Path, *, workers: int, inside: Sequence[str] = ()) -> Iterator[str]:
    """A master and some workers, which are started by the command `inside`."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "JAVA_HOME": str(find_java().wrapped()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    processes: list[subprocess.Popen[bytes]] = []

    def run(name: str, *arguments: str, inside: Sequence[str] = ()) -> None:
        with (tmp_path / f"{name}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [*inside, home / "bin" / "spark-class", *arguments],
                    env=environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    try:
        run(
            "master",
            "org.apache.spark.deploy.master.Master",
            *("--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"),
        )
        wait_for(port, 60)
        for number in range(workers):
            run(
                f"worker-{number}",
                "org.apache.spark.deploy.worker.Worker",
                *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"),
                *("--work-dir", str(tmp_path / f"worker-{number}"), address),
                inside=inside,
            )
        yield address
    finally:
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.timeout(400)
def test_a_cluster_makes_the_same_tables_as_local_mode(
    master: str,
    spark: object,
    trace: Path,
    write_trace: Callable[..., Path],
    assert_same_tables: Callable[[Tables, Tables], None],
    tmp_path: Path,
) -> None:
    traces = [trace, write_trace(tmp_path / "second", seed=2, publications=300, run_id="two", damage=True)]
    run_pipeline(traces, tmp_path / "local")
    out = tmp_path / "out"
    command = [sys.executable, "-c", COMMAND, master, str(out), *map(str, traces)]
    subprocess.run(command, check=True, timeout=300)
    logs = "".join(path.read_text() for path in tmp_path.glob("worker-*.log"))
    assert logs.count("Launched executor") + logs.count("Asked to launch executor") >= 2
    assert_same_tables(Tables(out), Tables(tmp_path / "local"))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_executors_without_this_disk_are_noticed_and_nothing_is_published(
    trace: Path, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("gives a worker a disk of its own, which only root may")
    out = tmp_path / "out"
    out.mkdir()
    # The same paths for the worker, but for the output: there it has another disk.
    inside = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(out)]
    with cluster(tmp_path, workers=1, inside=inside) as address:
        command = [sys.executable, "-c", COMMAND, address, str(out), str(trace)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert re.search(r"PipelineError: \w+: [\d,]+ rows were made and 0 are in .*share this disk", done.stderr)
    assert Tables(out).rows == {}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_workers_need_no_triagemq_of_their_own(
    spark: object,
    trace: Path,
    assert_same_tables: Callable[[Tables, Tables], None],
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("hides the package from a worker, which only root may")
    package = Path(triagemq.__file__).parents[1]
    inside = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(package)]
    with cluster(tmp_path, workers=1, inside=inside) as address:
        for command, arguments in ((COMMAND, [tmp_path / "out", trace]), (SWEEP, [tmp_path / "sweep"])):
            called = [sys.executable, "-c", command, address, *map(str, arguments)]
            done = subprocess.run(called, capture_output=True, text=True, timeout=200)
            assert done.returncode == 0, done.stderr
    run_pipeline([trace], tmp_path / "local")
    assert_same_tables(Tables(tmp_path / "out"), Tables(tmp_path / "local"))
    scenario = table2(seed=1, subscribers=2, subscriptions=(20, 10))
    here = run_sweep(scenario, {"rho": [0.8, 1.6]}, 2, publications=500, out=tmp_path / "here")
    again = run_sweep(scenario, {"rho": [0.8, 1.6]}, 2, publications=500, out=tmp_path / "sweep")
    assert again.equals(here)
