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

from triagemq.errors import PipelineError
from triagemq.pipeline import SparkOptions
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
def test_connect_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PipelineError, match="sc://host: Spark Connect has no access"):
        SparkOptions(master="sc://host")
    monkeypatch.setenv("SPARK_REMOTE", "sc://other")
    with pytest.raises(PipelineError, match="sc://other: Spark Connect has no access"):
        SparkSettings.before_java(SparkOptions())


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
    assert {"triagemq/__init__.py", "triagemq/pipeline/sweep/run.py"} <= set(names)
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
            'Caused by: java.io.IOException: Cannot run program "python3": error=2, No such file or directory',
            "the executors have no python3; set PYSPARK_PYTHON",
        ),
    ],
)
def test_what_executors_lack_is_named(said: str, cause: str) -> None:
    assert cause_of(RuntimeError(said)).startswith(cause)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_spark_submit_runs_a_command_where_it_says(trace: Path, tmp_path: Path) -> None:
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = {name: value for name, value in os.environ.items() if name not in NOBODY} | {
        "JAVA_HOME": str(find_java().wrapped()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = [home / "bin" / "spark-submit", "--master", "local[1]", "--name", "submitted"]
    command += ["--conf", f"spark.eventLog.dir={tmp_path.as_uri()}", "--conf", "spark.eventLog.enabled=true"]
    command += ["--conf", "spark.eventLog.compress=false", "--conf", "spark.ui.enabled=false"]
    command += [ROOT / "examples" / "spark_submit.py", "pipeline", "run", trace, "--out", tmp_path / "out"]
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["added"] == ["one"]
    said = "".join(log.read_text() for log in tmp_path.rglob("events_*"))
    assert '"spark.master":"local[1]"' in said
    assert '"spark.app.name":"submitted"' in said
