"""Who says how Spark runs: whoever set anything is heard, and only what nobody set is chosen here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import ClassVar

import pytest
from tests.pipeline.standalone import quick_java

from triagemq.cli.main import run as triage
from triagemq.errors import PipelineError
from triagemq.pipeline import SparkOptions, session
from triagemq.pipeline.session import _package_sent, cause_of, chosen_settings, find_java

ROOT = Path(__file__).parents[2]
NOBODY = ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE", "MASTER", "SPARK_LOCAL_IP")


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of Spark's settings, and nothing set anywhere else."""
    for name in NOBODY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


def test_where_nobody_set_anything_it_is_this_machine_and_tuned_for_it() -> None:
    chosen = chosen_settings(SparkOptions(), {})
    assert chosen["spark.driver.host"] == "127.0.0.1"
    assert chosen["spark.sql.shuffle.partitions"] == "1"
    assert "spark.master" not in chosen, "Spark's own default is this machine"


def test_what_is_set_is_not_chosen() -> None:
    given = {
        "spark.master": "spark://head:7077",
        "spark.sql.shuffle.partitions": "77",
        "spark.app.name": "mine",
    }
    chosen = chosen_settings(SparkOptions(), given)
    assert not {*given, "spark.driver.host"} & set(chosen)


def test_the_command_is_heard_before_everything_else() -> None:
    options = SparkOptions("local[3]", {"spark.app.name": "ours"})
    chosen = chosen_settings(options, {"spark.master": "yarn", "spark.app.name": "theirs"})
    assert (chosen["spark.master"], chosen["spark.app.name"]) == ("local[3]", "ours")


@pytest.mark.usefixtures("conf")
def test_connect_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "^sc://host: Spark Connect cannot run"
    with pytest.raises(PipelineError, match=refusal):
        SparkOptions(master="sc://host")
    with pytest.raises(PipelineError, match=refusal):
        SparkOptions(conf={"spark.remote": "sc://host"})
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(PipelineError, match=refusal):
        SparkOptions()


@pytest.mark.usefixtures("conf")
@pytest.mark.parametrize("command", ["run", "stream", "sweep"])
def test_a_command_that_connect_refuses_leaves_no_output(
    command: str,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    arguments = {
        "run": ["pipeline", "run", str(trace)],
        "stream": ["pipeline", "stream", str(trace), "--once"],
        "sweep": ["sweep", str(ROOT / "examples" / "building-fire.yaml"), "--vary", "rho=1"],
    }
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert triage([*arguments[command], "--out", str(out)]) != 0
    assert "Spark Connect cannot run" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("total", "heap"), [(0.5, "512m"), (4, "2048m"), (8, "2560m"), (64, "16384m"), (256, "65536m")]
)
def test_the_heap_grows_with_the_machine(total: float, heap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_memory_bytes", lambda: int(total * 2**30))
    assert session._driver_memory() == heap


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/pods/one", "pods/one/memory.max"),
        ("0::/pods/one", "pods/memory.max"),
        ("0::/", "memory.max"),
        ("4:memory:/pods/one", "memory/pods/one/memory.limit_in_bytes"),
        ("4:memory:/not/seen/here", "memory/memory.limit_in_bytes"),
    ],
)
def test_the_limit_of_a_control_group_is_respected(line: str, file: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text(f"9:name=systemd:/\n{line}\n")
    whole = session._memory_bytes(tmp_path, tmp_path / "no such file")
    assert session._memory_bytes(tmp_path, own) == whole
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("max\n")
    assert session._memory_bytes(tmp_path, own) == whole
    (tmp_path / file).write_text(f"{2**28}\n")
    assert session._memory_bytes(tmp_path, own) == 2**28


def test_the_whole_package_is_sent_to_executors_and_gone_afterwards() -> None:
    class Context:
        sent = Path()
        _python_includes: ClassVar[list[str]] = []

        def addArchive(self, path: str) -> None:  # noqa: N802
            self.sent = Path(path)

    class Session:
        sparkContext = Context()  # noqa: N815

    with _package_sent(Session()):  # type: ignore[arg-type]
        names = zipfile.ZipFile(Session.sparkContext.sent).namelist()
    assert {"triagemq/__init__.py", "triagemq/lab/sweep/run.py"} <= set(names)
    assert not any(name.endswith(".pyc") for name in names)
    assert Session.sparkContext._python_includes == [Session.sparkContext.sent.name]
    assert not Session.sparkContext.sent.exists()


def test_java_itself_hears_what_is_set_for_the_driver(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (conf / "spark-defaults.conf").write_text(
        "# ours\nspark.driver.memory 555m\nspark.driver.extraJavaOptions: -Dtheirs=1\n"
        "spark.sql.shuffle.partitions=77\n"
    )
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 666m --name 'a name' pyspark-shell")
    # The first command of a user.
    monkeypatch.setenv("XDG_CACHE_HOME", str(conf.parent / "cache"))
    code = (
        "from triagemq.pipeline import SparkOptions, spark_session\n"
        "told = {'spark.driver.memory': '777m', 'spark.driver.maxResultSize': '77m'}\n"
        "with spark_session(SparkOptions(conf=told)) as spark:\n"
        "    java = spark.sparkContext._jvm.java.lang\n"
        "    print(java.Runtime.getRuntime().maxMemory() >> 20, java.System.getProperty('theirs'))\n"
        "    print(*(spark.conf.get(f'spark.{name}') for name in ('driver.maxResultSize', 'sql.shuffle.partitions')))\n"
        "    print(spark.sparkContext.appName)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    memory, *others = done.stdout.split(maxsplit=4)
    assert others == ["1", "77m", "77", "a name\n"]
    assert 700 < int(memory) <= 777
    assert not done.stderr


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
            "  File \"worker.py\", line 1\nModuleNotFoundError: No module named 'numba.core'\n",
            "the executors' Python has no package 'numba'; install it",
        ),
        (
            "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
            'Traceback (most recent call last):\n  File "worker.py", line 1\n'
            "pyspark.errors.exceptions.base.PySparkImportError: [PACKAGE_NOT_INSTALLED] PyArrow >= 18.0.0 must be "
            "installed; however, it was not found.\n",
            "the executors' Python has no package 'pyarrow'; install it",
        ),
        (
            'Caused by: java.io.IOException: Cannot run program "python3": error=2, No such file or directory',
            "the executors have no python3; set PYSPARK_PYTHON",
        ),
    ],
)
def test_what_executors_lack_is_named(said: str, cause: str) -> None:
    assert cause_of(RuntimeError(said)).startswith(cause)


def submit(folder: Path, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run spark-submit on a machine whose `python3` has no packages; only the driver's Python is named."""
    import pyspark

    shim = folder / "bin" / "python3"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    shim.chmod(0o755)
    unset = (*NOBODY, "PYSPARK_PYTHON")
    given = {name: value for name, value in os.environ.items() if name not in unset} | {
        "JAVA_HOME": str(find_java().wrapped()),
        "PATH": f"{shim.parent}:{os.environ['PATH']}",
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": quick_java(),
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = [Path(pyspark.__file__).parent / "bin" / "spark-submit", "--master", "local[1]", *arguments]
    return subprocess.run(command, env=given | environment, capture_output=True, text=True, timeout=280)


SUBMITTED = """
from triagemq.pipeline import SparkOptions, spark_session
from triagemq.pipeline.session import explained
with spark_session(SparkOptions()) as spark, explained("failed"):
    print(spark.range(0, 3, 1, 1).mapInArrow(lambda batches: batches, "id bigint").count())
"""


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({}, "3"),
        (
            {"PYSPARK_PYTHON": "python3"},
            "PipelineError: failed: the executors' Python has no package 'pyarrow'",
        ),
    ],
)
def test_spark_submit_on_this_machine_runs_workers_with_the_drivers_python(
    named: dict[str, str], said: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text(SUBMITTED)
    done = submit(tmp_path, "--conf", "spark.ui.enabled=false", tmp_path / "script.py", **named)
    assert said in done.stdout + done.stderr
    assert (done.returncode == 0) == (not named)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_submit_runs_a_command_where_it_says(trace: Path, tmp_path: Path) -> None:
    command = ["--name", "submitted"]
    command += ["--conf", f"spark.eventLog.dir={tmp_path.as_uri()}", "--conf", "spark.eventLog.enabled=true"]
    command += ["--conf", "spark.eventLog.compress=false", "--conf", "spark.ui.enabled=false"]
    command += [ROOT / "examples" / "spark_submit.py", "pipeline", "run", trace, "--out", tmp_path / "out"]
    done = submit(tmp_path, *command, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["added"] == ["one"]
    said = "".join(log.read_text() for log in tmp_path.rglob("events_*"))
    assert '"spark.master":"local[1]"' in said
    assert '"spark.app.name":"submitted"' in said
