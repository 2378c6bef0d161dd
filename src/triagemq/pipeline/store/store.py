"""Publishes: takes a directory, names what it is going to write, lists what was written, clears away what is left.

Large tables are written where their rows are, by Spark's tasks. A table that one task makes is handed over and written
here: Spark would first set up its committer, make a dozen folders and files, and call `chmod` for every one of them.
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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triagemq.atomic_files import flush_directory
from triagemq.errors import OutputError, PipelineError, TriageError
from triagemq.pipeline.store.lease import LEASE_NAME, leased
from triagemq.pipeline.store.manifest import (
    LAYOUT_VERSION,
    PublishedRun,
    TableFile,
    TablesManifest,
    current_manifest,
    manifest_name,
    read_version,
    versions,
)
from triagemq.pipeline.store.places import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORK = "_work"
_LOCK_NAME = ".lock"
_LOCK = b"held while triage writes here\n"
"""What a lock says that a store has made; a foreign file of this name serves as well, and stays."""
_COMMANDS = {
    "run": "triage pipeline run",
    "archive": "triage pipeline archive",
    "stream": "triage pipeline stream",
    "sweep": "triage sweep",
    "reproduction": "triage reproduce",
}
_PART = r"part-(?:\d{5,}-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}[\w.-]*|\d{9})\.parquet"
"""What Spark, with the number of a task and the id of a job, and this package call the files that they write."""
_NUMBERED = re.compile(r"(?:run|day)=-?\d+")
_TOKEN = re.compile(r"(?:token=t)?[0-9a-f]{16}")
"""A folder of one command, in which readers see a partition: its value is text, whatever the digits, for the letter."""
_LISTED = re.compile(rf"\w+/{_TOKEN.pattern}/{_NUMBERED.pattern}/{_PART}")
_MADE = re.compile(rf"\.?{_PART}(?:\.crc)?|\.?_SUCCESS(?:\.crc)?")
_HIDDEN = re.compile(r"\.manifest-[0-9a-f]{16}")

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
        self.token = ""
        self._numbers = itertools.count()
        self._left = set(manifest.removing)

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, out: str | Path, inputs: Iterable[str | Path] = (), *, kind: str, mode: int = 0o777
    ) -> Iterator[TableStore]:
        """Take the directory, remove what a killed command left in it, and give it back at the end.

        It must be empty or hold results of this kind, and neither be, hold nor lie in one of the `inputs`. On this
        machine's disks one that is not there is made, with this mode.
        """
        place = Location(out, published=True)
        _refuse_overlap(place, inputs)
        _own_manifest(place, kind)
        held = leased(place) if place.local is None else _locked(place, place.local, mode)
        with held as confirm:
            manifest = _own_manifest(place, kind)
            store = cls(place, manifest or TablesManifest(secrets.token_hex(8), kind), confirm)
            if manifest is None:
                # From now on a reader finds empty tables, and another command finds whose directory this is.
                store._publish(store.manifest)
            store._clear()
            try:
                yield store
            finally:
                store._clear()

    def begin(self) -> None:
        """From now on files are written, in folders with a token of their own."""
        self.token = f"token=t{secrets.token_hex(8)}"
        self._publish(replace(self.manifest, making=(*self.manifest.making, self.token)))

    def folder(self, table: str) -> Location:
        """Where a table is written, in folders called run=<n> or day=<n>. Nothing is there yet."""
        return self.place / table / self.token

    def work(self, name: str) -> Location:
        """Where something is written that is needed only until tables are published."""
        return self.place / WORK / self.token / name

    def written(self, table: str) -> Written:
        """What Spark's tasks have written of a table, by the number of the run or day."""
        folder = self.folder(table)
        found = {}
        for name in folder.directories() if folder.exists() else ():
            if _NUMBERED.fullmatch(name):
                place = folder / name
                found[int(name[4:])] = tuple(
                    TableFile(
                        f"{table}/{self.token}/{name}/{entry.name}",
                        (place / entry.name).footer().num_rows,
                        entry.size_bytes,
                    )
                    for entry in place.entries()
                    if re.fullmatch(_PART, entry.name)
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
        """What is in some files, each a table."""
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
        same = crowded(files)
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
        manifest = replace(self.manifest, runs=added, retained=retained, extra=extra or {})
        self._settle(manifest.names() - before)
        self._publish(replace(manifest, removing=tuple(sorted(self._left | before - manifest.names()))))
        # A reader that still follows the old manifest finds a file missing, never half of a table, and reads again.
        self._remove_listed()

    def forget(self) -> None:
        """Nothing of it is needed any more: take away what this store made, and the directory if it is empty then."""
        names = sorted(self.manifest.names())
        self._publish(replace(self.manifest, runs={}, retained=(), removing=tuple(names)))
        self._clear()
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

    def _clear(self) -> None:
        """Remove what is written and not published, and say so in the manifest.

        No other command is at work: the one that named the tokens has left the directory, or its lease has expired.
        """
        if not (self.manifest.making or self.manifest.removing):
            return
        # Java may be gone, or a disk full: then the next command clears this away.
        with contextlib.suppress(OSError, TriageError):
            self._remove_listed()
            listed = self.manifest.names()
            for table in self.place.directories():
                for token in self.manifest.making:
                    if _TOKEN.fullmatch(token) and (self.place / table / token).exists():
                        _remove_made(self.place / table / token, f"{table}/{token}", listed)
            (self.place / WORK).remove_empty()
            for version in versions(self.place):
                if version < self.manifest.version and self._is_own(version):
                    (self.place / manifest_name(version)).remove()
            self._publish(replace(self.manifest, making=(), removing=tuple(sorted(self._left))))

    def _is_own(self, version: int) -> bool:
        with contextlib.suppress(Exception):
            return read_version(self.place, version).mark == self.manifest.mark
        return False

    def _remove_listed(self) -> None:
        """Remove what this manifest lists no more; what cannot be removed now is tried again the next time."""
        self._left = {name for name in self.manifest.removing if _LISTED.fullmatch(name)}
        with contextlib.suppress(OSError):
            for name in sorted(self._left):
                self.remove(name)
                folder = name.rpartition("/")[0]
                (self.place / folder).remove_empty()
                (self.place / folder.rpartition("/")[0]).remove_empty()
                self._left.discard(name)

    def remove(self, name: str) -> None:
        """Remove one file of a table, which no manifest lists."""
        folder, _, file = name.rpartition("/")
        (self.place / name).remove()
        # Hadoop's checksum of it, where executors write to a disk.
        (self.place / folder / f".{file}.crc").remove()

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


def crowded(files: Iterable[TableFile]) -> list[TableFile]:
    """Sixteen or more files of about the same size, which are to become one, or there would be too many; else none."""
    by_size: dict[int, list[TableFile]] = {}
    for file in files:
        if file.size_bytes < _LARGE_BYTES:
            by_size.setdefault(int(math.log(file.size_bytes, MERGED_AT_ONCE)), []).append(file)
    return next((by_size[size] for size in sorted(by_size) if len(by_size[size]) >= MERGED_AT_ONCE), [])


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
    own = re.compile(rf"{re.escape(_LOCK_NAME)}|{_HIDDEN.pattern}|{LEASE_NAME.pattern}")
    names = [name for name in names if not own.fullmatch(name)]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise OutputError(
            f"{place.given}: holds other files ({names[0]}{more}); tables need an empty directory, or one of their own"
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
def _locked(place: Location, folder: Path, mode: int) -> Iterator[Callable[[], None]]:
    """Keep other commands out of a folder of this machine; the lock holds until it is given back."""
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
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
    """Write rows with a `run` that counts up to `runs`, each run in a folder; one without rows may have no files."""
    several, columns = runs > 1, rows.drop("run")
    if tasks > 1:
        return write_parts(rows if several else columns, store, table, by="run" if several else None)
    found = rows.toArrow()
    by_run = found["run"]
    found = found.drop_columns(["run"]).replace_schema_metadata({SPARK_SCHEMA: columns.schema.json()})
    parts = {run: found.filter(pc.equal(by_run, run)) for run in range(runs)} if several else {0: found}
    return {
        run: (store.write(table, part, run=run),)
        for run, part in parts.items()
        if part.num_rows or not several
    }


def write_parts(rows: DataFrame, store: TableStore, table: str, *, by: str | None) -> Written:
    """Have Spark's tasks write rows, for each value of the whole number `by` into a folder of its own."""
    folder = store.folder(table)
    made = _write(rows, folder, by=[by]) if by is not None else _write(rows, folder / "run=0")
    written = store.written(table)
    _compare(table, made, sum(file.rows for files in written.values() for file in files), folder)
    return written


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
