"""Settings of Spark: those that the user has set, and for the rest what suits the data and a small machine.

Set are, the later the stronger, spark-defaults.conf (of SPARK_CONF_DIR, else of SPARK_HOME), PYSPARK_SUBMIT_ARGS and
the command's own --master and --conf. A process that spark-submit has started finds all of that in Java already.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from triagemq.errors import ParameterError, PipelineError
from triagemq.pipeline.java import CdsCache, Java

SMALL_ROWS = 3_000_000
"""Below this many rows, starting and compiling cost more than the work: the JVM stops at its first compiler."""

_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:MetaspaceSize=256m")
"""One compiler, and no collection of garbage only because many classes are loaded."""

_SPARING_COMPILER = (
    "-XX:Tier4InvocationThreshold=200000",
    "-XX:Tier4MinInvocationThreshold=20000",
    "-XX:Tier4CompileThreshold=500000",
    "-XX:Tier4BackEdgeThreshold=2000000",
    "-XX:LoopUnrollLimit=8",
)
"""The best compiler only for what runs millions of times: it would take a quarter of the time of 50 million rows."""

_COMPILED_ROWS = 100_000
"""Below this many rows it takes longer to compile a query than to interpret it."""

ONE_PARTITION_ROWS = 400_000
"""Below this many rows every table is made by one task: nothing is exchanged, and Spark has less to plan."""

_MOST_PARTITIONS = 512

_MASTERS = ("local", "spark://", "yarn", "k8s://")

_SUBMITTED = "PYSPARK_SUBMIT_ARGS"

_LOGGING = Path(__file__).with_name("spark-log4j2.properties")


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """How Spark is run. Without a master it is where Spark's own settings say, else this machine.

    `conf` is handed to Spark as it is, `rows` says about how much data there will be. Commands of the same `kind` share
    what makes Java start quickly.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    ui: bool = False
    rows: int = 0
    memory: str | None = None
    kind: str = "tables"

    def __post_init__(self) -> None:
        """Refuse what cannot be done before a command opens its output."""
        remote = os.environ.get("SPARK_REMOTE") or _submitted().remote or self.conf.get("spark.remote")
        if self.master is not None and self.master.startswith("sc://"):
            remote = self.master
        if remote:
            raise PipelineError(_no_connect(remote))
        if self.master is not None and not self.master.startswith(_MASTERS):
            # Spark would print a page of Java, which cannot be caught.
            raise ParameterError(
                "master",
                f"is {self.master!r}; Spark knows local[*], spark://HOST:PORT, yarn and k8s://HOST:PORT",
            )


def shuffle_partitions(rows: int, cores: int = 1) -> int:
    """Partitions of an exchange: small enough for a hash table that stays in the processor's cache.

    >>> shuffle_partitions(1000), shuffle_partitions(50_000_000), shuffle_partitions(10**12)
    (1, 125, 512)
    """
    wanted = -(-rows // ONE_PARTITION_ROWS)
    return max(1 if rows < ONE_PARTITION_ROWS else cores, min(wanted, _MOST_PARTITIONS))


class SparkSettings:
    """The settings of one session. `given` are those that the user has set; the rest is chosen by them."""

    def __init__(self, options: SparkOptions, given: Mapping[str, str]) -> None:
        self._options = options
        self._explicit = {**options.conf, **({"spark.master": options.master} if options.master else {})}
        self._given = {**given, **self._explicit}
        self.master = self._given.get("spark.master", "local[*]")
        self.local = self.master.startswith("local")

    @classmethod
    def before_java(cls, options: SparkOptions) -> SparkSettings:
        """As far as files and the environment say."""
        submitted = _submitted()
        given = _defaults(submitted.properties_file)
        given |= dict(setting.partition("=")[::2] for setting in submitted.conf)
        named = {
            "spark.master": submitted.master or given.get("spark.master") or os.environ.get("MASTER"),
            "spark.app.name": submitted.name,
        }
        return cls(options, given | {name: value for name, value in named.items() if value})

    def chosen(self) -> dict[str, str]:
        """What is set for this session besides what was given, with the options of the command."""
        rows, cores = self._options.rows, len(os.sched_getaffinity(0))
        settings = {
            "spark.app.name": "triagemq",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": str(shuffle_partitions(rows, cores)),
            # Everything the tables are keyed by is small beside the rows; a hash table beats a sort.
            "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
            "spark.sql.parquet.compression.codec": "zstd",
            "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
            # Spark would add up after every single row how large a batch has become: a third of what it takes to hand
            # one over.
            "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
            # Plans are changed on the way by what the first parts found; for little data that costs more than it saves.
            "spark.sql.adaptive.enabled": str(rows >= SMALL_ROWS).lower(),
            # Else pyspark tells Java for every column and function in which line it stands: half of all calls to Java.
            "spark.python.sql.dataFrameDebugging.enabled": "false",
            "spark.sql.dataFrameQueryContext.enabled": "false",
        }
        if rows < ONE_PARTITION_ROWS:
            # Two sides in one partition are joined where they are; a broadcast is a job of its own.
            settings |= {
                "spark.sql.optimizer.disableHints": "true",
                "spark.sql.autoBroadcastJoinThreshold": "-1",
            }
            # Each hash table and each sort takes a page at once, of 64 MB if it may.
            settings["spark.buffer.pageSize"] = "2m"
        if rows < _COMPILED_ROWS:
            settings |= {
                "spark.sql.codegen.wholeStage": "false",
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            }
        if self.local:
            settings |= {"spark.ui.enabled": "false", "spark.local.dir": tempfile.gettempdir()}
        if self._on_this_machine:
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        chosen = {name: value for name, value in settings.items() if name not in self._given}
        # These are no tuning: times without a zone, and what says that a table is whole, mean one thing everywhere.
        chosen["spark.sql.session.timeZone"] = "UTC"
        chosen["spark.sql.execution.arrow.pyspark.enabled"] = "true"
        chosen["spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs"] = "false"
        if self._options.ui:
            chosen["spark.ui.enabled"] = "true"
        return chosen | self._explicit

    def environment(self, java: Java, archive: CdsCache | None) -> dict[str, str]:
        """What must be in the environment when Java starts; what is chosen there is weaker than all settings."""
        java_options = [os.environ.get("SPARK_SUBMIT_OPTS", "")]
        if not (_conf_directory() / "log4j2.properties").is_file():
            java_options.append(f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
        if self.local:
            java_options += ["-XX:+UseSerialGC", "-XX:-UsePerfData"]
            java_options += _QUICK_START if self._options.rows < SMALL_ROWS else _SPARING_COMPILER
        if archive is not None:
            java_options += archive.java_options()
        wanted = {
            "JAVA_HOME": str(java.wrapped()),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_SUBMIT_OPTS": " ".join(java_options).strip(),
        }
        if self._explicit and _SUBMITTED in os.environ:
            # What comes last is heard: behind what was said there, and before the program's name.
            submitted, shell, rest = os.environ[_SUBMITTED].rpartition("pyspark-shell")
            arguments = [text for setting in self._explicit.items() for text in ("--conf", "=".join(setting))]
            arguments += ["--master", self.master] if "spark.master" in self._explicit else []
            wanted[_SUBMITTED] = f"{submitted} {shlex.join(arguments)} {shell}{rest}"
        if self.local and "SPARK_DRIVER_MEMORY" not in os.environ:
            wanted["SPARK_DRIVER_MEMORY"] = self._options.memory or _driver_memory()
        if self.local:
            # The C library would keep what was freed apart for each of many threads, in Java and in Python's workers.
            wanted["MALLOC_ARENA_MAX"] = os.environ.get("MALLOC_ARENA_MAX", "2")
        if self._on_this_machine:
            # Our process is the driver of what it has just started itself, on this machine, as this user.
            wanted["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
        return wanted | self.worker_python()

    def worker_python(self) -> dict[str, str]:
        """The Python of workers on this machine, for the environment of a session: this process's own, unless set."""
        if not self._on_this_machine or "spark.pyspark.python" in self._given:
            return {}
        return {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}

    @property
    def _on_this_machine(self) -> bool:
        return self.local or "://127.0.0.1" in self.master or "://localhost" in self.master


def _submitted() -> argparse.Namespace:
    """What concerns us of the arguments that pyspark is to start spark-submit with."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("master", "remote", "name", "properties-file"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--conf", "-c", action="append", default=[])
    return parser.parse_known_args(shlex.split(os.environ.get(_SUBMITTED, "")))[0]


def _defaults(properties_file: str | None) -> dict[str, str]:
    """The settings in spark-defaults.conf, or in the file that was named instead of it."""
    path = Path(properties_file) if properties_file else _conf_directory() / "spark-defaults.conf"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror}") from error
    found = (re.match(r"\s*([^#!\s=:][^\s=:]*)\s*[\s=:]\s*(.*?)\s*$", line) for line in text.splitlines())
    return {setting[1]: setting[2] for setting in found if setting is not None}


def _conf_directory() -> Path:
    if stated := os.environ.get("SPARK_CONF_DIR"):
        return Path(stated)
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / "conf"
    import pyspark

    return Path(pyspark.__file__).parent / "conf"


def _no_connect(remote: str) -> str:
    return (
        f"{remote}: Spark Connect has no access to the cluster's file systems, which tables are published with; "
        "unset SPARK_REMOTE, and name a cluster with --master"
    )


def _driver_memory() -> str:
    """A quarter of what there is, as Java takes by itself; on a small machine half of it, at most 2.5 GiB.

    With Python's part, all processes of a command then fit into 4 GiB.
    """
    total = _memory_bytes() // 2**20
    return f"{max(512, min(2560, total // 2), total // 4)}m"


def _memory_bytes(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """The memory of the machine, or what a control group leaves this process of it."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            # The limit of a group is that of all groups in it.
            group = groups / controllers / path.strip("/")
            for folder in (group, *group.parents):
                for name in ("memory.max", "memory.limit_in_bytes"):
                    with contextlib.suppress(OSError, ValueError):
                        limits.append(int((folder / name).read_text()))
    return min(limits)
