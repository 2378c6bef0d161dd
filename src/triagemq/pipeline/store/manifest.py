"""Which files belong to which run: one record, and the newest of its versions is what is published. No Spark here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import AliasChoices, Field, TypeAdapter, ValidationError

from triagemq.errors import PipelineError
from triagemq.pipeline.store.places import Location

LAYOUT_VERSION = 4
_READABLE = (3, LAYOUT_VERSION)
"""Folders of layout 3 are called by the bare token, which Spark takes for no partition."""
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
    """The folders of commands that may have written what is not published: token=<token>."""
    removing: tuple[str, ...] = ()
    """Files that a version before this one listed, and this one does not."""
    retained: Annotated[tuple[TableFile, ...], Field(validation_alias=AliasChoices("retained", "kept"))] = ()
    """Files that the command itself wants to have the next time; they are in no table."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What it wants to know then."""
    layout: int = LAYOUT_VERSION

    def files(self, table: str) -> list[TableFile]:
        """The files of a table, run by run."""
        return [file for run in self.runs.values() for file in run.tables.get(table, ())]

    def tables(self) -> dict[str, int]:
        """Rows of every table."""
        tables = {table for run in self.runs.values() for table in run.tables}
        return {table: sum(file.rows for file in self.files(table)) for table in sorted(tables)}

    def names(self) -> set[str]:
        """The names of all files that must be there."""
        tables = [files for run in self.runs.values() for files in run.tables.values()]
        return {file.name for files in (*tables, self.retained) for file in files}

    def to_json(self) -> bytes:
        """As text, one run after the other in the order of their ids."""
        return _FORM.dump_json(replace(self, runs=dict(sorted(self.runs.items()))), indent=1) + b"\n"


_FORM = TypeAdapter(TablesManifest)


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
        except PipelineError:
            # Gone: a newer one has taken its place.
            if (place / manifest_name(there[-1])).exists():
                raise
    if (place / "manifest.json").exists():
        raise PipelineError(
            f"{place.given}: has a manifest, but not one of tables that this program reads; was the "
            "directory of a trace given? Tables of an older version are made again, in another directory"
        )
    return None


def read_version(place: Location, version: int) -> TablesManifest:
    """One version of the manifest; an error if it is not there."""
    path = place / manifest_name(version)
    not_ours = f"{path.given}: is not a manifest of tables that this program reads"
    try:
        manifest = _FORM.validate_json(path.read())
    except ValidationError as error:
        found = error.errors()[0]
        where = ".".join(map(str, found["loc"]))
        raise PipelineError(f"{not_ours}: {where or 'text'}: {found['msg']}") from error
    if manifest.layout not in _READABLE or manifest.version != version:
        raise PipelineError(not_ours)
    return manifest
