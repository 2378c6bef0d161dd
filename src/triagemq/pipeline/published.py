"""Published tables: which files belong to which run, in one manifest that is replaced as a whole. No Spark here.

    OUT/manifest.json                    what readers follow; a file it does not list does not exist for them
    OUT/<table>/<run>-<version>-<mark>-0.parquet
    OUT/.work-<mark>-<process>/          tables being made; removed by the next command if this one is killed
    OUT/.lock                            held while tables are made

A run is added or replaced by writing its files under new names and then the manifest, so that at any moment, also
after kill -9, the manifest and the files it lists are a whole. Nothing that does not bear the mark of the manifest is
ever removed (see claim.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from triagemq.errors import OutputError, PipelineError
from triagemq.pipeline.claim import hold, new_mark, refuse_foreign, refuse_overlap
from triagemq.trace.manifest import flush_directory, write_durably

__all__ = [
    "MANIFEST_NAME",
    "PublishedRun",
    "Publisher",
    "TableFile",
    "TablesManifest",
    "read_manifest",
]

MANIFEST_NAME = "manifest.json"
LAYOUT_VERSION = 2
_WORK_PREFIX = ".work-"
_WHAT = "tables"


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
    """All runs by their id. `version` counts the changes; `mark` is in the names of all files of this directory."""

    version: int = 0
    runs: Mapping[str, PublishedRun] = field(default_factory=dict)
    layout: int = LAYOUT_VERSION
    mark: str = field(default_factory=new_mark)
    kind: str = "run"
    """The command that writes here: run or stream."""

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

    def to_json(self) -> str:
        """As text, one run after the other in the order of their ids."""
        content = asdict(self)
        content["runs"] = dict(sorted(content["runs"].items()))
        return json.dumps(content, indent=1, allow_nan=False) + "\n"


def read_manifest(directory: Path) -> TablesManifest | None:
    """The manifest of a directory of tables; None if there is none."""
    path = directory / MANIFEST_NAME
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise PipelineError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise PipelineError(f"{path}: damaged, not JSON: {error}; make the tables again elsewhere") from error
    if not isinstance(content, dict) or content.get("layout") != LAYOUT_VERSION:
        raise PipelineError(
            f"{path}: is not a manifest of tables that this program reads (layout {LAYOUT_VERSION}); "
            "was the directory of a trace given instead of the one of the tables?"
        )
    try:
        runs = {run_id: _run(stated) for run_id, stated in content["runs"].items()}
        return TablesManifest(
            version=int(content["version"]), runs=runs, mark=str(content["mark"]), kind=str(content["kind"])
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise PipelineError(f"{path}: damaged: {error}; make the tables again elsewhere") from error


def _run(stated: dict[str, Any]) -> PublishedRun:
    tables = {
        name: tuple(TableFile(**file) for file in files) for name, files in stated.pop("tables").items()
    }
    return PublishedRun(**(stated | {"tables": tables, "notes": tuple(stated["notes"])}))


class Publisher:
    """Adds runs to a directory of tables; one at a time holds it. Use `Publisher.open`."""

    def __init__(self, directory: Path, manifest: TablesManifest) -> None:
        self._directory = directory
        self._manifest = manifest
        self._work = directory / f"{_WORK_PREFIX}{manifest.mark}-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    @classmethod
    @contextlib.contextmanager
    def open(cls, directory: Path, inputs: Iterable[Path] = (), *, kind: str = "run") -> Iterator[Publisher]:
        """Take the directory, remove what a killed command left in it, and give it back at the end.

        It must be empty or hold tables of this kind, and neither be, hold nor lie in one of the `inputs`.
        """
        refuse_overlap(directory, inputs)
        _own_manifest(directory, kind)
        with hold(directory, what=_WHAT):
            manifest = _own_manifest(directory, kind)
            if manifest is None:
                manifest = TablesManifest(kind=kind)
                _write(directory, manifest)
            publisher = cls(directory, manifest)
            publisher._remove_leftovers()
            try:
                yield publisher
            finally:
                shutil.rmtree(publisher._work, ignore_errors=True)

    @property
    def manifest(self) -> TablesManifest:
        """What is published now."""
        return self._manifest

    @property
    def work(self) -> Path:
        """An empty directory on the same file system, for tables that are being made."""
        self._work.mkdir(exist_ok=True)
        return self._work

    def publish(self, runs: Mapping[str, PublishedRun], made: Mapping[str, Mapping[str, list[Path]]]) -> None:
        """Add these runs, or put them in the place of older ones of the same id.

        `made[run_id][table]` are finished files in `work`; they are moved. `tables` of the given runs is ignored.
        """
        version = self._manifest.version + 1
        published = dict(self._manifest.runs)
        replaced: list[str] = []
        touched: set[Path] = set()
        try:
            for run_id, run in runs.items():
                tables = {
                    table: tuple(
                        self._move(run_id, version, table, number, file, touched)
                        for number, file in enumerate(files)
                    )
                    for table, files in made[run_id].items()
                }
                if run_id in published:
                    replaced += [file.name for files in published[run_id].tables.values() for file in files]
                published[run_id] = PublishedRun(**{**_fields(run), "tables": tables})
            for directory in touched:
                flush_directory(directory)
            manifest = replace(self._manifest, version=version, runs=published)
            write_durably(self._directory / MANIFEST_NAME, manifest.to_json())
        except OSError as error:
            raise OutputError(
                f"{self._directory}: tables cannot be published: {error.strerror or error}; make room and run again"
            ) from error
        self._manifest = manifest
        # A reader that still follows the old manifest finds a file missing, never half of a table, and reads again.
        for name in replaced:
            (self._directory / name).unlink(missing_ok=True)

    def _move(
        self, run_id: str, version: int, table: str, number: int, file: Path, touched: set[Path]
    ) -> TableFile:
        import pyarrow.parquet as pq

        place = self._directory / table
        place.mkdir(exist_ok=True)
        touched.add(place)
        rows = pq.read_metadata(file).num_rows
        with file.open("rb") as written:
            # Renaming before the data is on disk could publish an empty file after a power cut.
            os.fsync(written.fileno())
        name = f"{table}/{_file_stem(run_id)}-{version}-{self._manifest.mark}-{number}.parquet"
        os.replace(file, self._directory / name)
        return TableFile(name, rows, (self._directory / name).stat().st_size)

    def _remove_leftovers(self) -> None:
        """What a killed command was making: it bears the mark, and the manifest does not list it."""
        listed = {
            file.name
            for run in self._manifest.runs.values()
            for files in run.tables.values()
            for file in files
        }
        mark = re.escape(self._manifest.mark)
        for entry in self._directory.iterdir():
            if re.fullmatch(rf"{re.escape(_WORK_PREFIX)}{mark}-\d+-[0-9a-f]{{8}}", entry.name):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
                for file in entry.iterdir():
                    name = f"{entry.name}/{file.name}"
                    if name not in listed and re.fullmatch(rf".+-\d+-{mark}-\d+\.parquet", file.name):
                        file.unlink(missing_ok=True)


def _own_manifest(directory: Path, kind: str) -> TablesManifest | None:
    """The manifest of a directory that a command of this kind may write to; None if it is empty or not there."""
    manifest = read_manifest(directory)
    if manifest is None:
        refuse_foreign(directory, what=_WHAT)
    elif manifest.kind != kind:
        raise OutputError(
            f"{directory}: holds tables of `triage pipeline {manifest.kind}`; "
            f"give `triage pipeline {kind}` a directory of its own"
        )
    return manifest


def _write(directory: Path, manifest: TablesManifest) -> None:
    try:
        write_durably(directory / MANIFEST_NAME, manifest.to_json())
    except OSError as error:
        raise OutputError(
            f"{directory}: tables cannot be written there: {error.strerror or error}"
        ) from error


def _fields(run: PublishedRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in PublishedRun.__dataclass_fields__}


def _file_stem(run_id: str) -> str:
    """The run's id as it can stand in a file name; ids that differ stay different."""
    plain = re.sub(r"[^A-Za-z0-9.-]", "_", run_id)[:80].lstrip(".") or "run"
    if plain == run_id:
        return plain
    return f"{plain}-{hashlib.blake2b(run_id.encode(), digest_size=4).hexdigest()}"
