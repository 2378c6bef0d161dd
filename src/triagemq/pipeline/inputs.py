"""The inputs of a command: runs with a Trace, and foreign logs with a mapping. Found without Spark."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from collections.abc import Mapping as Dictionary
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from triagemq.errors import MappingError, PipelineError, PlanError, ScenarioError, TraceError, TriageError
from triagemq.forecast import StoredForecast
from triagemq.pipeline.mapping import Mapping
from triagemq.pipeline.store import InputFile, Location, PublishedRun, TableFile
from triagemq.scenario import Scenario, loads
from triagemq.trace import Manifest
from triagemq.trace.manifest import (
    CLASSES,
    CUT_OFF,
    FORECAST_NAME,
    INCOMPLETE_NAME,
    MANIFEST_NAME,
    OLD_CUT_OFF,
    SCENARIO_NAME,
    parse_manifest,
    parse_progress,
)
from triagemq.trace.parts import PartFile

COMPUTED_BY = 12
"""Raised whenever the tables come out differently for the same input: everything is then computed again."""

UNREADABLE = "unreadable file"
"""The reason that stands for a whole file of a log."""

_ENDINGS = {
    "csv": (".csv", ".txt", ".tsv"),
    "jsonl": (".jsonl", ".json", ".ndjson"),
    "parquet": (".parquet",),
}
_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_HEADER_BYTES = 1 << 20
_COMPRESSED_HEADER_BYTES = 1 << 16
"""The first part of a compressed file has at least as many."""
_BYTES_PER_ROW = 20


@dataclass(frozen=True, slots=True)
class TraceInput:
    """A whole run with its scenario and the forecast of its plan, if it has them and they can be read."""

    run_id: str
    source: str
    identity: str
    manifest: Manifest
    scenario_text: str
    scenario: Scenario | None
    files: Dictionary[str, tuple[InputFile, ...]]
    forecast: StoredForecast | None = None
    notes: tuple[str, ...] = ()

    def names(self, kind: str) -> list[Any]:
        """The names of topics, publishers, subscribers or subscriptions in a live run, by id; None: forgotten."""
        found = self.manifest.extra.get(kind)
        return found if isinstance(found, list) else []

    def known(self, kind: str) -> int | None:
        """How many ids of a kind mean something: rows of the scenario, and names behind them. None: any may."""
        in_scenario = 0 if self.scenario is None else len(getattr(self.scenario, kind))
        return max(in_scenario, len(self.names(kind))) or None

    @property
    def classes(self) -> list[int]:
        """By which class the copies of each subscription are counted; none: by the one that each was sent in."""
        return [int(each) for each in self.names(CLASSES)]

    @property
    def cut_off_ns(self) -> int | None:
        """After which time what is delivered is no success; None: all counts."""
        found = self.manifest.extra.get(CUT_OFF, self.manifest.extra.get(OLD_CUT_OFF))
        return None if found is None else int(found)

    @property
    def described(self) -> dict[str, Any]:
        """The columns of run_summary that the input itself has."""
        own = ("producer", "started", "finished", "measured_from_ns")
        described = {name: getattr(self.manifest, name) for name in own}
        return described | {"scenario": self.scenario.name if self.scenario else None}

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(self.manifest.rows(table) for table in self.manifest.tables)


@dataclass(frozen=True, slots=True)
class LineFiles:
    """Files of a log of lines that are read alike: what lines end with, and what a CSV's columns are called."""

    line_end: str
    columns: tuple[str, ...] | None
    files: tuple[InputFile, ...]


@dataclass(frozen=True, slots=True)
class LogInput:
    """Files of a foreign log that belong together."""

    run_id: str
    source: str
    identity: str
    mapping: Mapping
    format: str
    files: tuple[InputFile, ...]
    lines: tuple[LineFiles, ...]
    """The files of a log of lines, by how they are read."""
    notes: tuple[str, ...] = ()

    @property
    def described(self) -> dict[str, Any]:
        """The columns of run_summary that the input itself has; a log has no warm-up."""
        return {"producer": "log", "measured_from_ns": 0}

    @property
    def rows(self) -> int:
        """A guess from the size of the files."""
        return sum(file.size_bytes for file in self.files) // _BYTES_PER_ROW


@dataclass(frozen=True, slots=True)
class Skipped:
    """A run that is not whole, a file that is no part of a log, or one of both that is damaged."""

    source: str
    reason: str
    is_damaged: bool = False


Input = TraceInput | LogInput


def published(
    each: Input, counts: Dictionary[str | None, int], tables: Dictionary[str, tuple[TableFile, ...]]
) -> PublishedRun:
    """The entry of an input in the manifest; `counts` are its rows by the reason to set them aside, None for good."""
    reasons = {reason: counts[reason] for reason in sorted(filter(None, counts))}
    rows_in, aside = counts.get(None, 0), sum(reasons.values())
    return PublishedRun(
        each.identity, each.source, rows_in + aside, rows_in, aside, reasons, tables, each.notes
    )


def find_inputs(given: Sequence[str | Path], mapping: Mapping | None) -> tuple[list[Input], list[Skipped]]:
    """Every run and log that the arguments name; what is not whole, or damaged, is listed apart. One must be usable.

    With a mapping, an argument that is no trace is a log: a file, or a directory of files, also of those in the folders
    below if the mapping says so.
    """
    found: list[Input] = []
    skipped: list[Skipped] = []
    failures: list[TriageError] = []

    def add(place: Location, find: Callable[[], Input]) -> None:
        try:
            found.append(find())
        except MappingError:
            raise
        except (PipelineError, TraceError) as error:
            failures.append(error)
            skipped.append(Skipped(place.given, str(error), is_damaged=True))

    for argument in given:
        place = Location(argument)
        if not place.is_directory():
            add(place, partial(_log, place, [place.file()], mapping, skipped))
        elif (place / MANIFEST_NAME).exists():
            add(place, partial(_trace, place))
        elif (place / INCOMPLETE_NAME).exists():
            raise TraceError(_incomplete(place))
        else:
            runs = [place / name for name in place.directories()]
            whole = [run for run in runs if (run / MANIFEST_NAME).exists()]
            skipped += [
                Skipped(run.given, _incomplete(run))
                for run in runs
                if run not in whole and (run / INCOMPLETE_NAME).exists()
            ]
            for run in whole:
                add(run, partial(_trace, run))
            logs = _log_files(place, mapping, [run.url for run in whole])
            if logs and mapping is not None:
                add(place, partial(_log, place, logs, mapping, skipped))
            elif not whole:
                known = ", ".join(ending for endings in _ENDINGS.values() for ending in endings)
                raise PipelineError(
                    f"{argument}: holds neither a trace nor runs with one, nor a log: that needs --mapping FILE, and "
                    f"files that end in {known}, or else format: in it, and recursive: true for folders"
                )
    if failures and not found:
        raise failures[0]
    return _distinct(found), skipped


def _distinct(found: Sequence[Input]) -> list[Input]:
    by_id: dict[str, Input] = {}
    for each in found:
        other = by_id.setdefault(each.run_id, each)
        if other.identity != each.identity:
            raise PipelineError(
                f"{other.source} and {each.source} are different runs with the same id {each.run_id!r}; "
                "give one of them"
            )
    return list(by_id.values())


def _log_files(place: Location, mapping: Mapping | None, runs: Sequence[str]) -> list[InputFile]:
    """The files of a directory that could be a log: of a known ending, or all if the mapping has a format."""
    deep = mapping is not None and mapping.looks_into_folders
    return [
        file
        for file in place.files(recursive=deep)
        if ((mapping is not None and mapping.format) or _format_of(file.name))
        and not any(file.url.startswith(f"{run}/") for run in runs)
    ]


def _incomplete(place: Location) -> str:
    state = parse_progress((place / INCOMPLETE_NAME).read())
    return f"{place.given}: {state}; its figures would be wrong: run it again"


def read_scenario(run: Location) -> tuple[str, Scenario | None, list[str]]:
    """Text and scenario of a run, and notes: an unreadable scenario costs names and utilities, and no figures."""
    text = (run / SCENARIO_NAME).read().decode("utf-8", errors="replace")
    try:
        return text, loads(text, file=f"{run.given}/{SCENARIO_NAME}") if text.strip() else None, []
    except ScenarioError as error:
        why = str(error).splitlines()[0]
        return text, None, [f"its scenario cannot be read, so names and utilities are missing: {why}"]


def _trace(place: Location) -> TraceInput:
    content = (place / MANIFEST_NAME).read()
    manifest = parse_manifest(content, f"{place.given}/{MANIFEST_NAME}")
    text, scenario, notes = read_scenario(place)
    files = {table: tuple(_part(place, part) for part in parts) for table, parts in manifest.tables.items()}
    stored = place / FORECAST_NAME
    expected = stored.read() if scenario is not None and stored.exists() else b""
    forecast: StoredForecast | None = None
    try:
        if expected and scenario is not None:
            forecast = StoredForecast.parse(expected, len(scenario.subscriptions), stored.given)
    except PlanError as error:
        notes.append(f"its forecast cannot be used, so there is none next to its figures: {error}")
    identity = _digest(str(COMPUTED_BY).encode(), content, text.encode(), expected)
    return TraceInput(
        manifest.run_id, place.given, identity, manifest, text, scenario, files, forecast, tuple(notes)
    )


def _part(place: Location, part: PartFile) -> InputFile:
    file = (place / part.name).file()
    if file.size_bytes != part.size_bytes:
        raise TraceError(
            f"{place.given}/{part.name}: has {file.size_bytes} bytes instead of {part.size_bytes}; "
            "restore it or run again"
        )
    return file


def _log(
    place: Location, files: list[InputFile], mapping: Mapping | None, skipped: list[Skipped]
) -> LogInput:
    if mapping is None:
        raise PipelineError(
            f"{place.given}: is no trace; if it is a log, describe its columns with --mapping FILE"
        )
    files = _fitting(place, files, mapping, skipped)
    kind, *others = {mapping.format or _format_of(file.name) for file in files}
    if others or kind is None:
        raise PipelineError(
            f"{place.given}: it is not clear whether it is CSV, JSON lines or Parquet; add format: to the mapping"
        )
    lines: dict[tuple[str, tuple[str, ...] | None], list[InputFile]] = {}
    for file in files if kind != "parquet" else []:
        try:
            begins = _beginning(file)
            columns = _csv_columns(file.url, begins, mapping) if kind == "csv" else None
        except PipelineError as error:
            if len(files) == 1:
                raise
            skipped.append(Skipped(file.url, str(error), is_damaged=True))
            continue
        line_end = "\r" if "\r" in begins and "\n" not in begins else "\n"
        lines.setdefault((line_end, columns), []).append(file)
    if kind != "parquet":
        if not lines:
            raise PipelineError(f"{place.given}: no file of it can be read; {skipped[-1].reason}")
        readable = {file for group in lines.values() for file in group}
        files = [file for file in files if file in readable]
    seen = json.dumps([[file.url, file.size_bytes, file.modified_ns] for file in files])
    identity = _digest(str(COMPUTED_BY).encode(), mapping.fingerprint.encode(), seen.encode())
    # By its place, so that a log that has grown replaces itself.
    run_id = f"{Path(place.name).stem}-{hashlib.blake2b(place.url.encode(), digest_size=4).hexdigest()}"
    groups = tuple(LineFiles(*how, tuple(group)) for how, group in lines.items())
    return LogInput(run_id, place.given, identity, mapping, kind, tuple(files), groups)


def _fitting(
    place: Location, files: list[InputFile], mapping: Mapping, skipped: list[Skipped]
) -> list[InputFile]:
    """The files that are not empty and have a path that fits the mapping."""
    fitting = []
    for file in files:
        # In a directory, folders above it are none of the log's.
        path = file.url.removeprefix(f"{place.url}/")
        if mapping.path is not None and not re.search(mapping.path_pattern, path):
            skipped.append(Skipped(file.url, f"{file.url}: its path does not end like {mapping.path}"))
        elif not file.size_bytes:
            skipped.append(Skipped(file.url, f"{file.url}: is empty"))
        else:
            fitting.append(file)
    if not fitting:
        raise PipelineError(f"{place.given}: nothing to read; {skipped[-1].reason}")
    return fitting


def _beginning(file: InputFile) -> str:
    # The URL of a file of this machine is its path as it is, spaces and all.
    content = Location(file.url.removeprefix("file://")).read(_HEADER_BYTES)
    codec = _COMPRESSIONS.get(Path(file.name).suffix)
    if codec is not None:
        try:
            content = pa.CompressedInputStream(pa.BufferReader(content), codec).read(_COMPRESSED_HEADER_BYTES)
        except OSError as error:
            raise PipelineError(f"{file.url}: is not compressed with {codec}, as its name says") from error
    return content.decode("utf-8-sig", errors="replace")


def require_columns(source: str, columns: Sequence[str], mapping: Mapping) -> None:
    """An error if a log does not have, once, what the mapping names."""
    needed = mapping.needed_columns()
    absent = [name for name in needed if name not in columns]
    if absent:
        raise PipelineError(
            f"{source}: has no column {', '.join(absent)}, which the mapping names; "
            f"it has {', '.join(columns)}"
        )
    twice = [name for name in needed if columns.count(name) > 1]
    if twice:
        raise PipelineError(
            f"{source}: has more than one column {', '.join(twice)}, which the mapping names; "
            "give all columns names of their own with columns: [...]"
        )


def _csv_columns(url: str, begins: str, mapping: Mapping) -> tuple[str, ...]:
    """Names of a file's columns: as the mapping lists them, else from the header."""
    names = list(mapping.columns or ())
    if not names:
        rows = list(csv.reader(re.split("\r\n|\n|\r", begins, maxsplit=2)[:2], delimiter=mapping.delimiter))
        if not any(rows):
            raise PipelineError(f"{url}: is empty; a CSV file needs a header")
        names = [name.strip() for name in rows[0]]
        # R and pandas leave out the name of the first column, the row number.
        if len(rows) > 1 and len(rows[1]) == len(names) + 1:
            names = ["row", *names]
    require_columns(url, names, mapping)
    return tuple(names)


def _format_of(name: str) -> str | None:
    path = Path(name)
    plain = path.stem if path.suffix in _COMPRESSIONS else path.name
    return next((kind for kind, endings in _ENDINGS.items() if plain.lower().endswith(endings)), None)


def _digest(*parts: bytes) -> str:
    separated = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hashlib.blake2b(separated, digest_size=16).hexdigest()
