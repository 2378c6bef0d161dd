"""Which files belong to which run: one record, and the newest of its versions is what is published. No Spark here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from triagemq.errors import PipelineError
from triagemq.pipeline.store.places import Location

__all__ = ["PublishedRun", "TableFile", "TablesManifest", "current_manifest", "manifest_name", "versions"]

LAYOUT_VERSION = 3
_NAME = re.compile(r"manifest-(\d{9})\.json")
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class TableFile:
    """One Parquet file of one run in one table; `name` is relative to the directory of the tables."""

    name: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A run as its tables hold it. `identity` changes when the input or the way it is computed does."""

    identity: str
    source: str
    rows_read: int
    rows_in: int
    quarantined: int
    reasons: Mapping[str, int]
    tables: Mapping[str, tuple[TableFile, ...]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TablesManifest:
    """All runs by their id. `version` counts the changes, `mark` tells this directory from all others."""

    mark: str
    kind: str
    """The command that writes here: run, stream, sweep or reproduction."""
    version: int = 0
    runs: Mapping[str, PublishedRun] = field(default_factory=dict)
    making: tuple[str, ...] = ()
    """The tokens of commands that may have written what is not published."""
    removing: tuple[str, ...] = ()
    """Files that a version before this one listed, and this one does not."""
    kept: tuple[TableFile, ...] = ()
    """Files that the command itself wants to have the next time; they are in no table."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What it wants to know then."""
    layout: int = LAYOUT_VERSION

    def files(self, table: str) -> list[TableFile]:
        """The files of a table, run by run."""
        return [file for run in self.runs.values() for file in run.tables.get(table, ())]

    def tables(self) -> dict[str, int]:
        """Rows of every table."""
        rows: dict[str, int] = {}
        for run in self.runs.values():
            for table, files in run.tables.items():
                rows[table] = rows.get(table, 0) + sum(file.rows for file in files)
        return dict(sorted(rows.items()))

    def names(self) -> set[str]:
        """The names of all files that must be there."""
        tables = [files for run in self.runs.values() for files in run.tables.values()]
        return {file.name for files in (*tables, self.kept) for file in files}

    def to_json(self) -> bytes:
        """As text, one run after the other in the order of their ids."""
        content = asdict(self)
        content["runs"] = dict(sorted(content["runs"].items()))
        return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def manifest_name(version: int) -> str:
    """The name of a version of the manifest."""
    return f"manifest-{version:09d}.json"


def versions(place: Location) -> list[int]:
    """Which versions of a manifest there are; none if the directory is not there."""
    try:
        found = (_NAME.fullmatch(entry.name) for entry in place.entries() if not entry.is_directory)
        return sorted(int(match[1]) for match in found if match is not None)
    except (FileNotFoundError, NotADirectoryError):
        return []


def current_manifest(place: Location) -> TablesManifest | None:
    """The newest manifest of a directory of tables; None if there is none."""
    for _ in range(_ATTEMPTS):
        there = versions(place)
        if not there:
            break
        try:
            return read_version(place, there[-1])
        except FileNotFoundError:
            # A newer one has taken its place.
            continue
    if (place / "manifest.json").exists():
        raise PipelineError(
            f"{place.given}: has a manifest, but not one of tables that this program reads; "
            "was the directory of a trace given instead of the one of the tables?"
        )
    return None


def read_version(place: Location, version: int) -> TablesManifest:
    """One version of the manifest; FileNotFoundError if it is gone."""
    path = place / manifest_name(version)
    try:
        content: dict[str, Any] = json.loads(path.read())
    except PipelineError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise error.__cause__ from None
        raise
    except ValueError as error:
        raise PipelineError(
            f"{path.given}: damaged, not JSON: {error}; make the tables again elsewhere"
        ) from error
    stated = content if isinstance(content, dict) else {}
    if (stated.get("layout"), stated.get("version")) != (LAYOUT_VERSION, version):
        raise PipelineError(f"{path.given}: is not a manifest of tables that this program reads")
    try:
        runs = {run_id: _run(stated) for run_id, stated in content["runs"].items()}
        lists = {name: tuple(map(str, content[name])) for name in ("making", "removing")}
        kept = tuple(TableFile(**file) for file in content["kept"])
        return TablesManifest(**{**content, "runs": runs, "kept": kept, **lists})
    except (KeyError, TypeError, AttributeError) as error:
        raise PipelineError(f"{path.given}: damaged: {error}; make the tables again elsewhere") from error


def _run(stated: dict[str, Any]) -> PublishedRun:
    tables = {
        name: tuple(TableFile(**file) for file in files) for name, files in stated.pop("tables").items()
    }
    return PublishedRun(**(stated | {"tables": tables, "notes": tuple(stated["notes"])}))
