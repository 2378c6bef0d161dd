"""The state of a run in its directory: `manifest.json` when it is complete, `INCOMPLETE` until then."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from triagemq.errors import TraceError
from triagemq.trace.parts import PartFile
from triagemq.trace.schema import SCHEMA_VERSION

MANIFEST_NAME = "manifest.json"
INCOMPLETE_NAME = "INCOMPLETE"
SCENARIO_NAME = "scenario.yaml"
PLAN_NAME = "plan.json"
FORECAST_NAME = "forecast.json"
"""Next to the plan, if its producer forecast it: what the plan was expected to do. The manifest does not list it."""

CLASSES = "subscription_classes"
"""Key of `extra`: by which class the copies of each subscription are counted, where it is not the one each was sent in.

So runs with and without triage are compared group by group.
"""

CUT_OFF = "cut_off_ns"
"""Key of `extra`: deliveries after this time are late, and no success.

Present if the queues of an overloaded run were left to run empty after the last publication; else all deliveries count.
"""
OLD_CUT_OFF = "judged_until_ns"


@dataclass(frozen=True, slots=True)
class Manifest:
    """Written last: everything it lists is there."""

    run_id: str
    producer: str
    started: str
    finished: str
    measured_from_ns: int
    scenario_fingerprint: str | None
    has_plan: bool
    tables: Mapping[str, tuple[PartFile, ...]]
    versions: Mapping[str, str]
    extra: Mapping[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def rows(self, table: str) -> int:
        """Number of rows of a table; 0 for a table this run does not have."""
        return sum(part.rows for part in self.tables.get(table, ()))

    def to_json(self) -> str:
        """JSON, with the row count of every table for people who read the file."""
        content = asdict(self)
        content["rows"] = {table: self.rows(table) for table in self.tables}
        try:
            return json.dumps(content, indent=2, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise TraceError(f"the manifest takes only what JSON can hold: {error}") from error


@dataclass(frozen=True, slots=True)
class Progress:
    """The content of `INCOMPLETE`: the process that writes this run, and, if it was given up, when and why."""

    run_id: str
    producer: str
    started: str
    process_id: int | None
    ended: str | None = None
    reason: str | None = None

    def to_json(self) -> str:
        """JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    def is_running(self) -> bool:
        """Whether the process that writes the run lives."""
        if self.ended is not None or self.process_id is None:
            return False
        try:
            os.kill(self.process_id, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def __str__(self) -> str:
        if self.ended is not None:
            return f"this run was interrupted at {self.ended}: {self.reason}"
        return (
            f"this run was interrupted (killed, or still running as process {self.process_id}): "
            f"it began at {self.started} and has not finished"
        )


def read_manifest(run: Path) -> Manifest | None:
    """The manifest of a run; None if there is none."""
    path = run / MANIFEST_NAME
    text = _read(path)
    return None if text is None else parse_manifest(text, str(path))


def parse_manifest(text: str | bytes, path: str) -> Manifest:
    """The manifest with this text; the path is for errors."""
    content = _parse_json(text, path)
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise TraceError(
            f"{path}: this trace has schema version {version!r}, this program reads {SCHEMA_VERSION}; "
            "read it with the version of triagemq that wrote it, or run again"
        )
    content.pop("rows", None)
    try:
        content["tables"] = {
            table: tuple(PartFile(**part) for part in parts) for table, parts in content["tables"].items()
        }
        return Manifest(**content)
    except (KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{path}: not a manifest of a trace: {error}") from error


def read_progress(run: Path) -> Progress | None:
    """The content of `INCOMPLETE`; None if the run has no such file."""
    text = _read(run / INCOMPLETE_NAME)
    return None if text is None else parse_progress(text)


def parse_progress(text: bytes) -> Progress:
    """The state of a run that has not finished."""
    try:
        return Progress(**_parse_json(text, INCOMPLETE_NAME))
    except (TraceError, TypeError):
        # The writer was killed, or is, between making the file and filling it.
        return Progress(run_id="unknown", producer="unknown", started="an unknown time", process_id=None)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from error


def _parse_json(text: str | bytes, path: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise TraceError(f"{path}: damaged, not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TraceError(f"{path}: damaged, not a JSON object")
    return content
