"""A process of ours, seen from inside: a JSON file tells it what to do, one line of JSON says that it is ready, and a
signal ends it. What goes wrong is one line on standard error and an exit code.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from triagemq.errors import ParameterError, TriageError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["load_config", "read_json", "run_child", "say_ready"]

_Config = TypeVar("_Config", bound="DataclassInstance")


def run_child(
    module: str,
    kind: type[_Config],
    work: Callable[[_Config, asyncio.Event], Awaitable[None]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Work with the configuration that the command line names, until the event is set; the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if len(given) != 1:
            raise ParameterError("usage", f"python -m {module} CONFIG.json")
        asyncio.run(_until_told(load_config(kind, given[0]), work))
    except TriageError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


async def _until_told(config: _Config, work: Callable[[_Config, asyncio.Event], Awaitable[None]]) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await work(config, ended)


def say_ready(**facts: Any) -> None:
    """The parent waits for this line."""
    print(json.dumps({"ready": True, **facts}), flush=True)


def load_config(kind: type[_Config], path: Path | str) -> _Config:
    """Read a dataclass, and let it check itself; ParameterError names the file, the field and what is wrong.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Config:
    ...     listen: str
    >>> load_config(Config, "no-such-file.json")
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: no-such-file.json: No such file or directory
    """
    document = read_json(path)
    if not isinstance(document, dict):
        raise ParameterError(str(path), "must be a JSON object")
    known = {each.name: each for each in fields(kind)}
    for name in document:
        if name not in known:
            raise ParameterError(f"{path}: {name}", f"there is no such field; there are {', '.join(known)}")
    for name, each in known.items():
        if each.default is MISSING and each.default_factory is MISSING and name not in document:
            raise ParameterError(f"{path}: {name}", "is missing")
    try:
        return kind(**document)
    except ParameterError as error:
        raise ParameterError(f"{path}: {error.parameter}", error.problem) from None


def read_json(path: Path | str) -> Any:
    """What a file of JSON holds; ParameterError if it holds none."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ParameterError(str(path), error.strerror or str(error)) from None
    except ValueError as error:
        raise ParameterError(str(path), f"is not JSON: {error}") from None
