"""A process of ours, seen from inside: a JSON file is its configuration, one line of JSON says that it is ready, and a
signal ends it. What goes wrong is one line on standard error and an exit code.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from triagemq.errors import ParameterError, TriageError

Config = TypeVar("Config")


def run_child(
    module: str,
    kind: type[Config],
    work: Callable[[Config, asyncio.Event], Awaitable[object]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Work with the configuration that the command line names, until the event is set; the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if len(given) != 1:
            raise ParameterError("usage", f"python -m {module} CONFIG.json")
        asyncio.run(_until_ended(load_config(kind, given[0]), work))
    except TriageError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


async def _until_ended(config: Config, work: Callable[[Config, asyncio.Event], Awaitable[object]]) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await work(config, ended)


def say_ready(**facts: Any) -> None:
    """The parent waits for this line."""
    print(json.dumps({"ready": True, **facts}), flush=True)


class LogLimit(logging.Filter):
    """A few lines a minute of each kind, by logger, place in the code and first words; the rest is counted.

    >>> limit, line = LogLimit(), logging.makeLogRecord({"msg": "no descriptors left"})
    >>> sum(limit.filter(line) for _ in range(1_000))
    10
    """

    _LINES, _SECONDS, _KINDS, _WORDS = 10, 60.0, 1_000, 60

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.name, record.lineno, str(record.msg)[: self._WORDS]
        now = time.monotonic()
        since, count = self._seen.get(kind, (now, 0))
        if now - since > self._SECONDS:
            if (more := count - self._LINES) > 0:
                record.msg = f"{record.msg} (and {more} more in the last minute)"
            since, count = now, 0
        if len(self._seen) > self._KINDS:
            self._seen.clear()
        self._seen[kind] = since, count + 1
        return count < self._LINES


def load_config(kind: type[Config], path: Path | str) -> Config:
    """Read and check a dataclass by its annotations; ParameterError names the file, the field and what is wrong.

    It is checked as a whole before anything is opened. What was read is not repeated: it may be a secret.

    >>> load_config(object, "no-such-file.json")
    Traceback (most recent call last):
    ...
    triagemq.errors.ParameterError: no-such-file.json: No such file or directory
    """
    adapter = TypeAdapter(kind)
    try:
        return adapter.validate_json(Path(path).read_bytes(), strict=True, extra="forbid")
    except OSError as error:
        raise ParameterError(str(path), error.strerror or str(error)) from None
    except ValidationError as error:
        place, problem = _in_words(adapter, error.errors(include_input=False, include_url=False)[0])
        raise ParameterError(f"{path}: {place}" if place else str(path), problem) from None


def _in_words(adapter: TypeAdapter[Any], mistake: Mapping[str, Any]) -> tuple[str, str]:
    place = ".".join(str(part) for part in mistake["loc"])
    match mistake["type"]:
        case "json_invalid":
            return "", f"is not JSON: {mistake['ctx']['error']}"
        case "dataclass_type" if not place:
            return "", "must be a JSON object"
        case "missing":
            return place, "is missing"
        case "unexpected_keyword_argument":
            known = (
                f"; there are {', '.join(adapter.json_schema()['properties'])}" if "." not in place else ""
            )
            return place, f"there is no such field{known}"
    cause = mistake.get("ctx", {}).get("error")
    if isinstance(cause, ParameterError):
        return ".".join(filter(None, (place, cause.parameter))), cause.problem
    return place, str(mistake["msg"])
