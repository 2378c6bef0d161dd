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
from triagemq.pipeline import SparkOptions, settings
from triagemq.pipeline.causes import cause_of
from triagemq.pipeline.java import find_java
from triagemq.pipeline.session import _package_sent
from triagemq.pipeline.settings import SparkSettings

ROOT = Path(__file__).parents[2]
NOBODY = ("PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_HOME", "SPARK_REMOTE", "MASTER", "SPARK_LOCAL_IP")


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of Spark's settings, and nothing set anywhere else."""
    for name in NOBODY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("conf")
def test_where_nobody_set_anything_it_is_this_machine_and_tuned_for_it() -> None:
    settings = SparkSettings.before_java(SparkOptions())
    assert settings.local
    assert settings.chosen()["spark.driver.host"] == "127.0.0.1"
    assert settings.chosen()["spark.sql.shuffle.partitions"] == "1"
    assert "spark.master" not in settings.chosen(), "Spark's own default is this machine"
    wanted = settings.environment(find_java(), None)
    assert "SPARK_DRIVER_MEMORY" in wanted
    assert "UseSerialGC" in wanted["SPARK_SUBMIT_OPTS"]


def test_spark_defaults_are_heard(conf: Path) -> None:
    (conf / "spark-defaults.conf").write_text(
        "# ours\nspark.master   spark://head:7077\nspark.sql.shuffle.partitions=77\n"
        "spark.driver.extraJavaOptions: -Dmine=1\n\n"
    )
    settings = SparkSettings.before_java(SparkOptions())
    assert (settings.master, settings.local) == ("spark://head:7077", False)
    chosen = settings.chosen()
    assert "spark.master" not in chosen
    assert "spark.sql.shuffle.partitions" not in chosen
    assert "spark.driver.host" not in chosen
    wanted = settings.environment(find_java(), None)
    assert "SPARK_DRIVER_MEMORY" not in wanted
    assert "PYSPARK_PYTHON" not in wanted, "what this machine calls Python may not be there"


def test_what_pyspark_is_to_be_submitted_with_is_heard_before_the_defaults(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (conf / "spark-defaults.conf").write_text("spark.master yarn\nspark.app.name theirs\n")
    given = "--master spark://a:1 --conf spark.buffer.pageSize=9m --name mine --jars x.jar pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", given)
    settings = SparkSettings.before_java(SparkOptions())
    assert settings.master == "spark://a:1"
    assert not {"spark.app.name", "spark.buffer.pageSize"} & set(settings.chosen())
    assert "PYSPARK_SUBMIT_ARGS" not in settings.environment(find_java(), None), "pyspark reads it itself"


def test_the_command_is_heard_before_everything_else(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (conf / "spark-defaults.conf").write_text("spark.master yarn\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://a:1 pyspark-shell")
    chosen = SparkSettings.before_java(SparkOptions("local[3]", {"spark.app.name": "ours"})).chosen()
    assert (chosen["spark.master"], chosen["spark.app.name"]) == ("local[3]", "ours")


def test_spark_home_has_the_defaults_where_no_folder_is_named(
    conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR")
    monkeypatch.setenv("SPARK_HOME", str(conf))
    (conf / "conf").mkdir()
    (conf / "conf" / "spark-defaults.conf").write_text("spark.master local[7]\n")
    assert SparkSettings.before_java(SparkOptions()).master == "local[7]"


@pytest.mark.usefixtures("conf")
@pytest.mark.parametrize(
    ("setting", "value"),
    [("SPARK_REMOTE", "sc://host"), ("PYSPARK_SUBMIT_ARGS", "--remote sc://host pyspark-shell")],
)
def test_connect_is_refused_in_one_line(setting: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = "^sc://host: Spark Connect has no access"
    with pytest.raises(PipelineError, match=refusal):
        SparkOptions(master="sc://host")
    with pytest.raises(PipelineError, match=refusal):
        SparkOptions(conf={"spark.remote": "sc://host"})
    monkeypatch.setenv(setting, value)
    with pytest.raises(PipelineError, match=refusal):
        SparkOptions()


@pytest.mark.usefixtures("conf")
@pytest.mark.parametrize("command", ["run", "archive", "stream", "sweep"])
def test_a_command_that_connect_refuses_leaves_no_output(
    command: str,
    trace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "log.csv").write_text("time,value\n1,2\n")
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("{time: {column: time, unit: s}, topic: t, publisher: p, value: value}")
    out = tmp_path / "out"
    arguments = {
        "run": ["pipeline", "run", str(trace)],
        "archive": ["pipeline", "archive", str(tmp_path / "log.csv"), "--mapping", str(mapping)],
        "stream": ["pipeline", "stream", str(trace), "--once"],
        "sweep": ["sweep", str(ROOT / "examples" / "building-fire.yaml"), "--vary", "rho=1"],
    }
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    assert triage([*arguments[command], "--out", str(out)]) != 0
    assert "Spark Connect has no access" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("total", "heap"), [(0.5, "512m"), (4, "2048m"), (8, "2560m"), (64, "16384m"), (256, "65536m")]
)
def test_the_heap_grows_with_the_machine(total: float, heap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_memory_bytes", lambda: int(total * 2**30))
    assert settings._driver_memory() == heap


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
    whole = settings._memory_bytes(tmp_path, tmp_path / "no such file")
    assert settings._memory_bytes(tmp_path, own) == whole
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("max\n")
    assert settings._memory_bytes(tmp_path, own) == whole
    (tmp_path / file).write_text(f"{2**28}\n")
    assert settings._memory_bytes(tmp_path, own) == 2**28


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
        "spark.driver.memory 555m\nspark.driver.extraJavaOptions -Dtheirs=1\n"
    )
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 666m --name 'a name' pyspark-shell")
    # The first command of a user: Java has saved no classes yet, and must not say why it cannot.
    monkeypatch.setenv("XDG_CACHE_HOME", str(conf.parent / "cache"))
    code = (
        "from triagemq.pipeline import SparkOptions, spark_session\n"
        "told = {'spark.driver.memory': '777m', 'spark.driver.maxResultSize': '77m'}\n"
        "with spark_session(SparkOptions(conf=told)) as spark:\n"
        "    java = spark.sparkContext._jvm.java.lang\n"
        "    print(java.Runtime.getRuntime().maxMemory() >> 20, java.System.getProperty('theirs'))\n"
        "    print(spark.sparkContext.getConf().get('spark.driver.maxResultSize'), spark.sparkContext.appName)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    memory, *others = done.stdout.split(maxsplit=3)
    assert others == ["1", "77m", "a name\n"]
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
from triagemq.pipeline.causes import explained
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
