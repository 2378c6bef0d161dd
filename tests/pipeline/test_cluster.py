"""A standalone Spark whose two workers have disks of their own and no triagemq gives the figures of this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.exact import exact_rows
from tests.pipeline.standalone import HOME, PACKAGE, Standalone, quick_java, standalone

from triagemq.lab.generators import table2
from triagemq.lab.sweep import run_sweep
from triagemq.pipeline import Tables, run_pipeline
from triagemq.pipeline.streaming import stream_pipeline
from triagemq.scenario import dumps, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
TRIAGE = [sys.executable, "-m", "triagemq"]
SMALL = {
    "spark.executor.memory": "600m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    # What a session for many rows has: exchanges, broadcasts, and files written where the rows are.
    "spark.sql.shuffle.partitions": "3",
    "spark.executor.extraJavaOptions": quick_java(),
}
needs_root = pytest.mark.needs_root("gives workers disks of their own")


@dataclass(frozen=True)
class Shared:
    """A cluster, and the only folder that all of it shares."""

    cluster: Standalone
    folder: Path

    def arguments(self, command: str, out: str, folder: str) -> list[str]:
        """A command on what is in the folder, as somebody calls it who may call it otherwise."""
        if command == "sweep":
            choice = ["--vary", "rho=0.8,1.6", "--seeds", "2", "--publications", "500"]
            return ["sweep", str(self.folder / "scenario.yaml"), *choice, "--out", f"{folder}/{out}"]
        if command == "stream":
            # What grows is read by Python's tasks, from file systems that Arrow knows.
            return ["pipeline", "stream", str(self.folder / "one"), "--once", "--out", f"{folder}/{out}"]
        runs = [f"{folder}/{each}" for each in ("one", "two")]
        return ["pipeline", "run", *runs, "--out", f"{folder}/{out}"]


def conf(settings: dict[str, str]) -> list[str]:
    return [text for name, value in settings.items() for text in ("--conf", f"{name}={value}")]


def called(command: list[str]) -> None:
    environment = os.environ | {"SPARK_SUBMIT_OPTS": quick_java()}
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # spark-submit hands on there what a program says on its standard error, too.
    assert json.loads(done.stdout[done.stdout.index("{") :])


@pytest.fixture(scope="module")
def shared(
    trace: Path, write_trace: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("shared") / "store"
    shutil.copytree(trace, folder / "one")
    write_trace(folder / "two", seed=2, publications=300, run_id="two", damage=True)
    scenario = table2(seed=1, subscribers=2, subscriptions=(20, 10))
    (folder / "scenario.yaml").write_text(dumps(scenario))
    with standalone(folder.parent / "logs", shared=folder) as cluster:
        yield Shared(cluster, folder)


@pytest.fixture(scope="module")
def run_here(spark: object, shared: Shared) -> Tables:
    run_pipeline([shared.folder / "one", shared.folder / "two"], shared.folder / "run here")
    return Tables(shared.folder / "run here")


@pytest.fixture(scope="module")
def sweep_here(spark: object, shared: Shared) -> Tables:
    out, scenario = shared.folder / "sweep here", load(shared.folder / "scenario.yaml")
    run_sweep(scenario, {"rho": [0.8, 1.6]}, 2, publications=500, out=out)
    return Tables(out)


@pytest.fixture(scope="module")
def stream_here(spark: SparkSession, shared: Shared) -> Tables:
    stream_pipeline(shared.folder / "one", shared.folder / "stream here", once=True)
    return Tables(shared.folder / "stream here")


def by_options(shared: Shared, name: str, command: str) -> list[str]:
    """--master and --conf."""
    settings = SMALL | {"spark.app.name": name}
    arguments = shared.arguments(command, name, str(shared.folder))
    return [*TRIAGE, *arguments, "--master", shared.cluster.address, *conf(settings)]


def by_conf(shared: Shared, name: str, command: str) -> list[str]:
    """--conf alone."""
    settings = SMALL | {"spark.app.name": name, "spark.master": shared.cluster.address}
    return [*TRIAGE, *shared.arguments(command, name, str(shared.folder)), *conf(settings)]


def by_defaults(shared: Shared, name: str, command: str) -> list[str]:
    """A spark-defaults.conf."""
    settings = SMALL | {"spark.app.name": name, "spark.master": shared.cluster.address}
    folder = shared.folder.parent / f"conf-{name}"
    folder.mkdir()
    text = "".join(f"{key} {value}\n" for key, value in settings.items())
    (folder / "spark-defaults.conf").write_text(text)
    return ["env", f"SPARK_CONF_DIR={folder}", *TRIAGE, *shared.arguments(command, name, str(shared.folder))]


def by_submit(shared: Shared, name: str, command: str) -> list[str]:
    """spark-submit of the example."""
    settings = {"JAVA_HOME", "SPARK_HOME", "SPARK_LOCAL_IP"}
    told = [f"{key}={shared.cluster.environment[key]}" for key in settings]
    told += [f"PYSPARK_PYTHON={sys.executable}", f"PYTHONPATH={PACKAGE}"]
    submit = [str(HOME / "bin" / "spark-submit"), "--master", shared.cluster.address, "--name", name]
    example = str(ROOT / "examples" / "spark_submit.py")
    arguments = shared.arguments(command, name, str(shared.folder))
    return ["env", *told, *submit, *conf(SMALL), example, *arguments]


def by_mount_table(shared: Shared, name: str, command: str) -> list[str]:
    """A default file system that only Hadoop knows, and paths of it."""
    arguments = shared.arguments(command, name, "viewfs://cluster/data")
    return [*TRIAGE, *arguments, "--master", shared.cluster.address, *conf(_mounted(shared, name))]


def beside_mount_table(shared: Shared, name: str, command: str) -> list[str]:
    """The same default, and plain paths, which are not of it."""
    arguments = shared.arguments(command, name, str(shared.folder))
    return [*TRIAGE, *arguments, "--master", shared.cluster.address, *conf(_mounted(shared, name))]


def _mounted(shared: Shared, name: str) -> dict[str, str]:
    return SMALL | {
        "spark.app.name": name,
        "spark.hadoop.fs.defaultFS": "viewfs://cluster/",
        "spark.hadoop.fs.viewfs.mounttable.cluster.link./data": shared.folder.as_uri(),
    }


WAYS = (by_options, by_conf, by_defaults, by_submit, by_mount_table, beside_mount_table)


WHERE = """
import json, sys
from triagemq.pipeline import SparkOptions, spark_session

def where(batches):
    import pyarrow, triagemq.scenario
    yield from (pyarrow.RecordBatch.from_pydict({"file": [triagemq.scenario.__file__]}) for each in batches)

with spark_session(SparkOptions(sys.argv[1], json.loads(sys.argv[2]))) as spark:
    print(json.dumps([row.file for row in spark.range(1).mapInArrow(where, "file string").collect()]))
"""


@needs_root
@pytest.mark.timeout(600)
def test_executors_get_the_package_from_the_driver(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with standalone(tmp_path / "logs", workers=1, shared=tmp_path / "store") as cluster:
        settings = json.dumps(SMALL | {"spark.app.name": "where"})
        command = [sys.executable, "-c", WHERE, cluster.address, settings]
        environment = os.environ | {"SPARK_SUBMIT_OPTS": quick_java()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (file,) = json.loads(done.stdout)
        assert file.endswith("triagemq.zip/triagemq/scenario/__init__.py")
        assert "where" in cluster.applications()


@needs_root
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("way", "command"),
    [
        pytest.param(way, command, id=f"{way.__name__}-{command}")
        for way in WAYS
        for command in ("run", "sweep", "stream")
    ],
)
def test_a_cluster_gives_the_figures_of_this_machine_to_the_last_bit(
    way: Callable[[Shared, str, str], list[str]],
    command: str,
    shared: Shared,
    request: pytest.FixtureRequest,
) -> None:
    name = f"{way.__name__}-{command}"
    called(way(shared, name, command))
    found = Tables(shared.folder / name)
    expected: Tables = request.getfixturevalue(f"{command}_here")
    assert found.rows == expected.rows
    assert sum(expected.rows.values()) > 10
    for table in expected.rows:
        assert exact_rows(found, table) == exact_rows(expected, table), table
    assert name in shared.cluster.applications()


@needs_root
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_executors_without_this_disk_are_noticed_and_nothing_is_published(shared: Shared) -> None:
    out = shared.folder.parent / "not shared"
    traces = [str(shared.folder / "one")]
    command = [*TRIAGE, "pipeline", "run", *traces, "--out", str(out), "--master", shared.cluster.address]
    done = subprocess.run([*command, *conf(SMALL)], capture_output=True, text=True)
    assert done.returncode != 0
    assert re.search(r"\w+: [\d,]+ rows were made and 0 are in .*share this disk", done.stderr), done.stderr
    assert Tables(out).rows == {}
