"""The cause of a failure of Spark, in one line instead of pages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from triagemq.errors import PipelineError

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
