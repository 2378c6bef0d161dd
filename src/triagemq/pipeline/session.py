"""One Spark session per command: quiet, on loopback, sized for its data, and quick to start the second time."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from triagemq.errors import MissingDependencyError, ParameterError, PipelineError
from triagemq.pipeline.causes import cause_of
from triagemq.pipeline.class_archive import ClassArchive
from triagemq.pipeline.java import Java, cache_directory, find_java, write_cached

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SparkOptions", "abandon", "shuffle_partitions", "spark_session"]

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

_LEAVING_SECONDS = 0.3
"""What Java gets to remove its files when the user has ended a command and waits; it would take its time."""

_LOGGING = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n%ex{0}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
# The reason of a failed task reaches the user as the error of the command; here it would only come twice.
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler
logger.tasks.level = off
logger.writing.name = org.apache.spark.sql.execution.datasources
logger.writing.level = off
"""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """How Spark is run. Without a master it is this machine; `conf` is handed to Spark as it is.

    `rows` says about how much data there will be. Commands of the same `kind` share what makes Java start quickly.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    ui: bool = False
    rows: int = 0
    memory: str | None = None
    kind: str = "tables"

    def __post_init__(self) -> None:
        if self.master is not None and not self.master.startswith(_MASTERS):
            # Spark would say so in a page of Java that nobody can catch.
            raise ParameterError(
                "master",
                f"is {self.master!r}; Spark knows local[*], spark://HOST:PORT, yarn and k8s://HOST:PORT",
            )

    @property
    def local(self) -> bool:
        """Whether everything runs in one process on this machine."""
        return self.master is None or self.master.startswith("local")


def shuffle_partitions(rows: int, cores: int = 1) -> int:
    """Partitions of an exchange: small enough for a hash table that stays in the processor's cache.

    >>> shuffle_partitions(1000), shuffle_partitions(50_000_000), shuffle_partitions(10**12)
    (1, 125, 512)
    """
    wanted = -(-rows // ONE_PARTITION_ROWS)
    return max(1 if rows < ONE_PARTITION_ROWS else cores, min(wanted, _MOST_PARTITIONS))


@contextlib.contextmanager
def spark_session(options: SparkOptions) -> Iterator[SparkSession]:
    """A session for one command; the Java process has ended when the block is left.

    Inside another such block it is that block's session, with the options of the outer one: a process has one.

    >>> from triagemq.pipeline.session import SparkOptions, spark_session
    >>> with spark_session(SparkOptions(master="local[1]")) as spark:  # doctest: +SKIP
    ...     spark.range(3).count()
    3
    """
    already = _active()
    if already is not None:
        yield already
        return
    java = find_java()
    archive = ClassArchive(java, options.kind) if options.local else None
    with _environment(java, options, archive):
        spark = _start(options)
    process = _java_process(spark)
    with contextlib.suppress(Exception):
        # A thread of Spark's would report at length that Java has gone.
        spark.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    worked = False
    try:
        yield spark
        worked = True
    except (KeyboardInterrupt, SystemExit):
        abandon(spark)
        raise
    finally:
        # A failure of Spark on the way down must not hide the error that ended the block.
        # Without Java there is nothing to stop, and every question to it would wait in vain.
        if process is None or process.poll() is None:
            with contextlib.suppress(Exception):
                spark.stop()
        _end(process)
        if archive is not None:
            archive.close(keep=worked and (process is None or process.returncode == 0))


def abandon(spark: SparkSession) -> None:
    """End the Java process of a session now, whatever it is doing: what it has not published was never there."""
    process = _java_process(spark)
    if process is None or process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_LEAVING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _active() -> SparkSession | None:
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _start(options: SparkOptions) -> SparkSession:
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise MissingDependencyError(error.name or "pyspark", "pipeline") from error
    builder: Any = SparkSession.builder
    for name, value in _configuration(options).items():
        builder = builder.config(name, value)
    try:
        with _without_signals():
            started: SparkSession = builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        raise PipelineError(f"Spark does not start: {cause_of(error)}") from error
    except Exception as error:
        # py4j has no exception of its own base that can be imported without starting it.
        if type(error).__module__.startswith("py4j"):
            raise PipelineError(f"Spark does not start: {cause_of(error)}") from error
        raise
    return started


@contextlib.contextmanager
def _without_signals() -> Iterator[None]:
    """Spark would have Ctrl-C call Java, from within another call if need be; here the Java process is simply ended."""
    from pyspark import SparkContext

    module: Any = sys.modules[SparkContext.__module__]
    before, module.signal = module.signal, SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda *_: None)
    try:
        yield
    finally:
        module.signal = before


def _configuration(options: SparkOptions) -> dict[str, str]:
    cores = len(os.sched_getaffinity(0))
    settings = {
        "spark.app.name": "triagemq",
        "spark.master": options.master or "local[*]",
        "spark.ui.enabled": str(options.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(shuffle_partitions(options.rows, cores)),
        # Everything the tables are keyed by is small beside the rows; a hash table beats a sort.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        # Plans are changed on the way by what the first parts found; for little data that costs more than it saves.
        "spark.sql.adaptive.enabled": str(options.rows >= SMALL_ROWS).lower(),
        # Else pyspark tells Java for every column and function in which line it stands: half of all calls to Java.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        # The manifest is what says that a table is whole.
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    }
    if options.rows < ONE_PARTITION_ROWS:
        # Two sides in one partition are joined where they are; a broadcast is a job of its own.
        settings |= {"spark.sql.optimizer.disableHints": "true", "spark.sql.autoBroadcastJoinThreshold": "-1"}
        # Each hash table and each sort takes a page at once, of 64 MB if it may.
        settings["spark.buffer.pageSize"] = "2m"
    if options.rows < _COMPILED_ROWS:
        settings |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    if options.local:
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": tempfile.gettempdir(),
        }
    elif _is_loopback(options.master or ""):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings | dict(options.conf)


def _is_loopback(master: str) -> bool:
    return "://127.0.0.1" in master or "://localhost" in master


@contextlib.contextmanager
def _environment(java: Java, options: SparkOptions, archive: ClassArchive | None) -> Iterator[None]:
    """What must be in the environment before the Java process starts, and only then."""
    java_options = [f"-Dlog4j2.configurationFile={_logging_file().as_uri()}"]
    if options.local:
        java_options += ["-XX:+UseSerialGC", "-XX:-UsePerfData"]
        java_options += _QUICK_START if options.rows < SMALL_ROWS else _SPARING_COMPILER
    if archive is not None:
        java_options += archive.java_options()
    given = options.conf.get("spark.driver.extraJavaOptions")
    if given:
        java_options.append(given)
    memory = options.memory or options.conf.get("spark.driver.memory") or _driver_memory()
    arguments = ["--driver-memory", memory, "--driver-java-options", " ".join(java_options), "pyspark-shell"]
    wanted = {
        "JAVA_HOME": str(java.wrapped()),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join(arguments),
        # Our process is the driver of what it has just started itself, on this machine, as this user.
        "SPARK_LOCAL_IP": "127.0.0.1" if options.local else os.environ.get("SPARK_LOCAL_IP", ""),
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if value})
    try:
        yield
    finally:
        # Python workers are started later, but take their program from the session; the rest is as it was.
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _driver_memory() -> str:
    """Half of the machine, at most 4 GiB: more heap only delays the collection of garbage."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{max(512, min(4096, total // 2 // 2**20))}m"


def _logging_file() -> Path:
    path = cache_directory() / "spark-log4j2.properties"
    write_cached(path, _LOGGING)
    return path


def _java_process(spark: SparkSession) -> Any:
    try:
        return getattr(spark.sparkContext._gateway, "proc", None)
    except Exception:  # a session of Spark Connect has no context and no process of ours
        return None


def _end(process: Any) -> None:
    """Let the Java process end (it does when its input closes) and forget it, so that a new one can start."""
    if process is None:
        return
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    with contextlib.suppress(Exception):
        if gateway is not None and process.poll() is None:
            gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.wait()
