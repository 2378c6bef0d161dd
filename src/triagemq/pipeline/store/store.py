"""Publishes: takes a directory, names what it is going to write, lists what was written, clears away what is left.

The newest manifest says which files belong to which run. Large tables are written where their rows are, by Spark's
tasks. A table that one task makes is handed over and written here: Spark would first set up its committer, make a dozen
folders and files, and call `chmod` for every one of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import math
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import AliasChoices, Field, TypeAdapter, ValidationError

from triagemq.errors import OutputError, PipelineError, TriageError
from triagemq.files import flush_directory
from triagemq.pipeline.store.lease import LEASE_NAME, leased
from triagemq.pipeline.store.places import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    """A run as its tables hold it. `identity` changes with the input and the computation."""

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
    """All runs by their id. `version` counts the changes, `mark` distinguishes this directory from all others."""

    mark: str
    kind: str
    """The command that writes here: run, archive, stream, sweep or reproduction."""
    version: int = 0
    runs: Mapping[str, PublishedRun] = field(default_factory=dict)
    making: tuple[str, ...] = ()
    """Folders of killed commands, where an earlier version of this program named them here."""
    retained: Annotated[tuple[TableFile, ...], Field(validation_alias=AliasChoices("retained", "kept"))] = ()
    """Files that the command itself needs the next time; they are in no table."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """State of the command for the next time."""
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
        """JSON, one run after the other in the order of their ids."""
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


WORK = "_work"
_LOCK_NAME = ".lock"
_LOCK = b"held while triage writes here\n"
"""The content of a lock that a store has made; a foreign file of this name serves as well, and stays."""
_COMMANDS = {
    "run": "triage pipeline run",
    "archive": "triage pipeline archive",
    "stream": "triage pipeline stream",
    "sweep": "triage sweep",
    "reproduction": "triage reproduce",
}
_PART = r"part-(?:\d{5,}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}[\w.-]*|\d{9})\.parquet"
"""The names of files that Spark (with the number of a task and the id of a job) and this package write."""
_TOKEN = re.compile(r"(?:token=t)?[0-9a-f]{16}|token=t[0-9a-f]{32}")
"""A folder of one command, in which readers see a partition: its value is text, whatever the digits, for the letter."""
_LISTED = re.compile(rf"\w+/(?:{_TOKEN.pattern})/run=\d+/{_PART}")
_MADE = re.compile(rf"\.?{_PART}(?:\.crc)?|\.?_SUCCESS(?:\.crc)?")
_OWN = re.compile(rf"{re.escape(_LOCK_NAME)}|\.manifest-[0-9a-f]{{16}}|{LEASE_NAME.pattern}")

SPARK_SCHEMA = "org.apache.spark.sql.parquet.row.metadata"
"""Where Spark looks for its own schema, with what each column means, in a Parquet file."""

Written = dict[int, tuple[TableFile, ...]]

MERGED_AT_ONCE = 16
_LARGE_BYTES = 16_000_000
"""A file of this size is not merged any more."""


class TableStore:
    """The results in a directory; one command at a time writes to it. Use `TableStore.open`."""

    def __init__(self, place: Location, manifest: TablesManifest, confirm: Callable[[], None]) -> None:
        self.place = place
        self.manifest = manifest
        self._confirm = confirm
        """An error if the directory is not held any more."""
        self._numbers = itertools.count()
        self._tokens: list[str] = []
        self.begin()

    @classmethod
    @contextlib.contextmanager
    def open(cls, out: str | Path, inputs: Iterable[str | Path] = (), *, kind: str) -> Iterator[TableStore]:
        """Take the directory, remove what a killed command left in it, and give it back at the end.

        It must be empty or hold results of this kind, and neither be, hold nor lie in one of the `inputs`. On this
        machine's disks one that is not there is made.
        """
        place = Location(out)
        _refuse_overlap(place, inputs)
        _own_manifest(place, kind)
        held = leased(place) if place.local is None else _locked(place, place.local)
        with held as confirm:
            manifest = _own_manifest(place, kind)
            store = cls(place, manifest or TablesManifest(secrets.token_hex(8), kind), confirm)
            if manifest is None:
                # From now on a reader finds empty tables, and another command finds whose directory this is.
                store._publish(store.manifest)
            # No other command is at work: it has left the directory, or its lease has expired.
            own = f"token=t{store.manifest.mark}"
            store._clear(lambda token: token.startswith(own) or token in store.manifest.making)
            with contextlib.suppress(OSError):
                for version in versions(place):
                    if version < store.manifest.version and store._is_own(version):
                        (place / manifest_name(version)).remove()
            try:
                yield store
            finally:
                store._clear(store._tokens.__contains__)

    def begin(self) -> None:
        """Write into folders with a new token, in which the mark of this directory is."""
        self.token = f"token=t{self.manifest.mark}{secrets.token_hex(8)}"
        self._tokens.append(self.token)

    def folder(self, table: str) -> Location:
        """Where a table is written, in folders called run=<n>. Nothing is there yet."""
        return self.place / table / self.token

    def work(self, name: str) -> Location:
        """Where rows are written that are needed only until tables are published."""
        return self.place / WORK / self.token / name

    def written(self, table: str) -> Written:
        """The files that Spark's tasks have written of a table, by the number of the run."""
        folder, found = self.folder(table), {}
        names = folder.directories() if folder.exists() else []
        for name in (name for name in names if name.startswith("run=")):
            entries = [entry for entry in (folder / name).entries() if re.fullmatch(_PART, entry.name)]
            rows = [(folder / name / entry.name).footer().num_rows for entry in entries]
            found[int(name.removeprefix("run="))] = tuple(
                TableFile(f"{table}/{self.token}/{name}/{entry.name}", count, entry.size_bytes)
                for entry, count in zip(entries, rows, strict=True)
            )
        return found

    def write(
        self, table: str, rows: pa.Table, *, run: int = 0, after: Iterable[TableFile] = ()
    ) -> TableFile:
        """Write rows that are in this process, behind those of some files."""
        content, count = io.BytesIO(), 0
        with pq.ParquetWriter(content, rows.schema, compression="zstd", compression_level=1) as writer:
            for part in itertools.chain(self.read(after), [rows]):
                writer.write_table(part)
                count += len(part)
        name = f"{table}/{self.token}/run={run}/part-{next(self._numbers):09d}.parquet"
        with self._explained():
            (self.place / name).write(content.getvalue())
        return TableFile(name, count, len(content.getvalue()))

    def read(self, files: Iterable[TableFile]) -> Iterator[pa.Table]:
        """The content of some files, each a table."""
        for place in (self.place / file.name for file in files):
            try:
                # Not read_table with a path, which would make columns of folder names.
                yield pq.ParquetFile(io.BytesIO(place.read())).read()
            except pa.ArrowException as error:
                raise PipelineError(f"{place.given}: damaged: {error}; make it again elsewhere") from error

    def appended(
        self, files: Sequence[TableFile], table: str, rows: pa.Table, *, run: int = 0
    ) -> tuple[TableFile, ...]:
        """These files, or the one that is made of too many of them, and more rows."""
        by_size: dict[int, list[TableFile]] = {}
        for file in files:
            if file.size_bytes < _LARGE_BYTES:
                by_size.setdefault(int(math.log(file.size_bytes, MERGED_AT_ONCE)), []).append(file)
        # Sixteen files of about the same size become one, or there would be too many.
        same = next((by_size[size] for size in sorted(by_size) if len(by_size[size]) >= MERGED_AT_ONCE), [])
        added = self.write(table, rows, run=run, after=same)
        return (*(file for file in files if file not in same), added)

    def publish(
        self,
        runs: Mapping[str, PublishedRun],
        *,
        retained: tuple[TableFile, ...] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Add these runs, or put them in the place of older ones of the same id; the files are written."""
        before = self.manifest.names()
        added = {**self.manifest.runs, **runs}
        manifest = replace(self.manifest, runs=added, retained=retained, extra=extra or {}, making=())
        self._settle(manifest.names() - before)
        self._publish(manifest)
        # A reader that still follows the old manifest finds a file missing, never half of a table, and reads again.
        self._remove(before - manifest.names())

    def forget(self) -> None:
        """Nothing of it is needed any more: take away what this store made, and the directory if it is empty then."""
        names = self.manifest.names()
        self._publish(replace(self.manifest, runs={}, retained=()))
        self._remove(names)
        for table in {name.partition("/")[0] for name in names}:
            (self.place / table).remove_empty()
        (self.place / manifest_name(self.manifest.version)).remove()
        lock = self.place / _LOCK_NAME
        if lock.exists() and lock.read() == _LOCK:
            lock.remove()
        self.place.remove_empty()

    def _publish(self, manifest: TablesManifest) -> None:
        version = self.manifest.version + 1
        changed = replace(manifest, version=version, layout=LAYOUT_VERSION)
        path = self.place / manifest_name(version)
        with self._explained():
            self._confirm()
            try:
                path.create(changed.to_json(), hidden=f".manifest-{changed.mark}")
            except FileExistsError as error:
                raise OutputError(
                    f"{self.place.given}: another command has written there meanwhile; nothing is published, run again"
                ) from error
        before, self.manifest = self.manifest.version, changed
        if before:
            with contextlib.suppress(OSError):
                (self.place / manifest_name(before)).remove()

    def _clear(self, is_left: Callable[[str], bool]) -> None:
        """Remove what is written and not published in folders with these tokens."""
        # Java may be gone, or a disk full: then the next command clears this away.
        with contextlib.suppress(OSError, TriageError):
            listed = self.manifest.names()
            for table in self.place.directories():
                for token in filter(is_left, (self.place / table).directories()):
                    if _TOKEN.fullmatch(token):
                        _remove_made(self.place / table / token, f"{table}/{token}", listed)
            (self.place / WORK).remove_empty()

    def _is_own(self, version: int) -> bool:
        with contextlib.suppress(Exception):
            return read_version(self.place, version).mark == self.manifest.mark
        return False

    def _remove(self, names: Iterable[str]) -> None:
        """Remove files that are listed no more; what cannot be removed now, the next command clears away."""
        with contextlib.suppress(OSError):
            for name in filter(_LISTED.fullmatch, names):
                place, _, file = name.rpartition("/")
                (self.place / name).remove()
                # Hadoop's checksum of it, where executors write to a disk.
                (self.place / place / f".{file}.crc").remove()
                (self.place / place).remove_empty()
                (self.place / place.rpartition("/")[0]).remove_empty()

    def _settle(self, names: Iterable[str]) -> None:
        """Have the names of new files survive a power cut, as the manifest that lists them does."""
        if self.place.local is not None:
            with self._explained():
                folders = {folder for name in names for folder in Path(name).parents}
                for folder in sorted(folders, reverse=True):
                    flush_directory(self.place.local / folder)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self.place.given}: cannot be written: {error.strerror or error}; make room and run again"
            ) from error


def _remove_made(folder: Location, name: str, listed: set[str]) -> None:
    """Remove what Spark or a store wrote here and no manifest lists, and the folders that are empty then."""
    for entry in folder.entries():
        # A checksum belongs to the file that a manifest lists.
        file = f"{name}/{entry.name.removeprefix('.').removesuffix('.crc')}"
        if entry.is_directory:
            _remove_made(folder / entry.name, f"{name}/{entry.name}", listed)
        elif _MADE.fullmatch(entry.name) and file not in listed:
            (folder / entry.name).remove()
    folder.remove_empty()


def _own_manifest(place: Location, kind: str) -> TablesManifest | None:
    """The manifest of a directory that a command of this kind may write to; None if it is empty or not there."""
    if not versions(place):
        _refuse_foreign(place)
        return None
    manifest = current_manifest(place)
    if manifest is not None and manifest.kind != kind:
        raise OutputError(
            f"{place.given}: holds tables of `{_COMMANDS.get(manifest.kind, manifest.kind)}`; "
            f"give `{_COMMANDS[kind]}` a directory of its own"
        )
    return manifest


def _refuse_foreign(place: Location) -> None:
    """An error if a directory without our manifest holds anything at all."""
    try:
        names = [entry.name for entry in place.entries()]
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise OutputError(f"{place.given}: is a file; tables need a directory") from None
    foreign = [name for name in names if not _OWN.fullmatch(name)]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise OutputError(
            f"{place.given}: holds other files ({foreign[0]}{more}); tables need an empty directory of their own"
        )


def _refuse_overlap(place: Location, inputs: Iterable[str | Path]) -> None:
    """An error if the output is an input, holds one or lies in one."""
    out = _resolved(place)
    for given in map(Location, inputs):
        read = _resolved(given)
        if out.startswith(read) or read.startswith(out):
            how = "holds the input" if len(out) < len(read) else "lies in the input"
            what = f"{how} {given.given}" if out != read else "is what is read"
            raise OutputError(f"{place.given}: {what}; give the output a directory of its own")


def _resolved(place: Location) -> str:
    """Where it is, links followed, such that what lies within begins with it."""
    return str(place.local.resolve() if place.local is not None else place.url).rstrip("/") + "/"


@contextlib.contextmanager
def _locked(place: Location, folder: Path) -> Iterator[Callable[[], None]]:
    """Keep other commands out of a folder of this machine; the lock holds until it is given back."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), (folder / _LOCK_NAME).open("xb") as made:
            made.write(_LOCK)
        lock = (folder / _LOCK_NAME).open("ab")
    except OSError as error:
        raise OutputError(f"{place.given}: tables cannot be written there: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise OutputError(
                f"{place.given}: another command is writing tables there; wait for it, or choose another directory"
            ) from error
        yield lambda: None


def write_table(rows: DataFrame, store: TableStore, table: str, runs: int, tasks: int) -> Written:
    """Write rows with a `run` that counts up to `runs`, each run in a folder; one without rows may have no files.

    With several `tasks` a `run` may be any number.
    """
    several, columns = runs > 1, rows.drop("run")
    if tasks > 1:
        folder = store.folder(table)
        made = _write(rows, folder, by=["run"]) if several else _write(columns, folder / "run=0")
        written = store.written(table)
        _compare(table, made, sum(file.rows for files in written.values() for file in files), folder)
        return written
    found = rows.toArrow()
    by_run = found["run"]
    found = found.drop_columns(["run"]).replace_schema_metadata({SPARK_SCHEMA: columns.schema.json()})
    parts = {run: found.filter(pc.equal(by_run, run)) for run in range(runs)} if several else {0: found}
    return {
        run: (store.write(table, part, run=run),)
        for run, part in parts.items()
        if part.num_rows or not several
    }


def write_work(rows: DataFrame, place: Location, *, what: str) -> DataFrame:
    """Write rows that are needed again while tables are made, and read them from there."""
    made = _write(rows, place)
    parts = [place / entry.name for entry in place.entries() if entry.name.startswith("part-")]
    _compare(what, made, sum(part.footer().num_rows for part in parts), place)
    return rows.sparkSession.read.schema(rows.schema).parquet(place.spark_path)


def _write(rows: DataFrame, place: Location, *, by: Sequence[str] = ()) -> int:
    """Have Spark's tasks write rows; how many they counted."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    counted = Observation()
    rows = rows.observe(counted, F.count(F.lit(1)).alias("rows"))
    rows.write.mode("append").partitionBy(*by).parquet(place.url)
    return int(counted.get["rows"])


def _compare(what: str, made: int, found: int, place: Location) -> None:
    """Executors that have another disk than this machine write their rows where this process cannot find them."""
    if found != made:
        raise PipelineError(
            f"{what}: {made:,} rows were made and {found:,} are in {place.url}; nothing is published. Do all "
            "executors share this disk? Give a directory that they do, or run with --master 'local[*]'"
        )
