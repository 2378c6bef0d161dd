"""One Spark session per command: quiet, sized for its data, and quick to start the second time.

On a cluster the package travels to the executors with the session: they need Python, NumPy and pyarrow, for sweeps
numba and SciPy too, and nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from triagemq.errors import MissingDependencyError, PipelineError
from triagemq.pipeline.causes import explained
from triagemq.pipeline.java import CdsCache, find_java
from triagemq.pipeline.settings import SMALL_ROWS, SparkOptions, SparkSettings
from triagemq.pipeline.store.places import active_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SMALL_ROWS", "SparkOptions", "abandon", "import_spark", "spark_session"]

_PACKAGE = Path(__file__).parents[1]

_LEAVING_SECONDS = 0.3
"""What Java gets to remove its files when the user has ended a command and waits; it would take its time."""

_SUBMITTED_BY = "PYSPARK_GATEWAY_PORT"
"""In the environment of a program that spark-submit runs: its Java is there already."""


@contextlib.contextmanager
def spark_session(options: SparkOptions) -> Iterator[SparkSession]:
    """A session for one command; the Java process has ended when the block is left.

    Inside another such block it is that block's session, with the options of the outer one: a process has one.

    >>> from triagemq.pipeline.session import SparkOptions, spark_session
    >>> with spark_session(SparkOptions(master="local[1]")) as spark:  # doctest: +SKIP
    ...     spark.range(3).count()
    3
    """
    already = active_session()
    if already is not None:
        yield already
        return
    archive = None
    if _SUBMITTED_BY in os.environ:
        settings = _of_running_java(options)
        with _environment(settings.worker_python()):
            spark = _start(settings)
    else:
        settings = SparkSettings.before_java(options)
        java = find_java()
        # Another Spark than pyspark's own has other classes.
        if settings.local and "SPARK_HOME" not in os.environ:
            archive = CdsCache(java, options.kind)
        with _environment(settings.environment(java, archive)):
            spark = _start(settings)
    process = _java_process(spark)
    # A thread of Spark's would report at length that Java has gone.
    spark.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    worked = False
    try:
        with contextlib.nullcontext() if settings.local else _package_sent(spark):
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


def import_spark() -> type[SparkSession]:
    """Import pyspark, or say how to get it. Two threads must not do so at once: its modules import each other."""
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise MissingDependencyError(error.name or "pyspark", "pipeline") from error
    return SparkSession


def _start(settings: SparkSettings) -> SparkSession:
    builder: Any = import_spark().builder
    for name, value in settings.chosen().items():
        builder = builder.config(name, value)
    try:
        with explained("Spark does not start"), _without_signals():
            started: SparkSession = builder.getOrCreate()
            return started
    except OSError as error:
        raise PipelineError(f"Spark does not start: {error}") from error


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


def _of_running_java(options: SparkOptions) -> SparkSettings:
    """The settings of spark-submit, by its own arguments and files."""
    from pyspark import SparkConf, SparkContext

    with _without_signals():
        SparkContext._ensure_initialized()
    return SparkSettings(options, dict(SparkConf().getAll()))


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """What must be in the environment before the Java process starts, and only then."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
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
        # As addPyFile would say of the file itself.
        context._python_includes.append(path.name)
        yield


def _java_process(spark: SparkSession) -> Any:
    """What this process has started; None under spark-submit, which has started this process."""
    return getattr(spark.sparkContext._gateway, "proc", None)


def _end(process: Any) -> None:
    """Let the Java process end (it does when its input closes) and forget it, so that a new one can start."""
    if process is None:
        return
    from pyspark import SparkContext

    with contextlib.suppress(Exception):
        if SparkContext._gateway is not None and process.poll() is None:
            SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    with contextlib.suppress(OSError):
        process.stdin.close()
    process.wait()
