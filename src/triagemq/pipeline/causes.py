"""What Spark says of a failure in pages, in the one line that matters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from triagemq.errors import PipelineError

__all__ = ["cause_of", "explained"]

_TRACEBACK = "Traceback (most recent call last):"
_CAUSED = "Caused by: "
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

    >>> said = "An error occurred while calling o7.parquet.\\n: java.io.IOException: disk full\\n\\tat a.b(C.java:1)"
    >>> cause_of(RuntimeError(said))
    'java.io.IOException: disk full'
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    causes = [line.strip().removeprefix(_CAUSED) for line in lines if line.strip().startswith(_CAUSED)]
    told = [line.strip().removeprefix(": ") for line in lines]
    told = [line for line in told if not line.startswith(_NOT_SAYING_WHY)]
    return (_raised(lines)[-1:] or causes[-1:] or told[:1] or [type(error).__name__])[0]


def _raised(lines: list[str]) -> list[str]:
    """The errors that tracebacks of Python end with: the first line after each that is not indented."""
    found, within = [], False
    for line in lines:
        if line.rstrip().endswith(_TRACEBACK):
            within = True
        elif within and not line.startswith((" ", "\t")):
            found.append(line.strip())
            within = False
    return found
