"""What a command is to process: runs with a Trace, and foreign logs with a mapping. Found without Spark."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Mapping as Dictionary
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triagemq.errors import PipelineError, PlanError, ScenarioError, TraceError
from triagemq.pipeline.mapping import Mapping
from triagemq.pipeline.store import InputFile, Location
from triagemq.plan import Plan
from triagemq.plan.files import parse_plan
from triagemq.scenario import Scenario, loads_with_conditions
from triagemq.scenario.conditions import Conditions
from triagemq.trace import Manifest, Trace
from triagemq.trace.manifest import (
    CLASSES,
    INCOMPLETE_NAME,
    JUDGED_UNTIL,
    MANIFEST_NAME,
    PLAN_NAME,
    SCENARIO_NAME,
    parse_manifest,
)

COMPUTED_BY = 7
"""Raised whenever the tables come out differently for the same input: everything is then computed again."""

_FORMATS = {
    ".csv": "csv",
    ".txt": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
_FOLLOW_CONDITIONS = ("simulate", "emulate")
"""Producers of runs that have a plan for each of a scenario's conditions, and so no one forecast."""

_COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_HEADER_BYTES = 1 << 20
_COMPRESSED_HEADER_BYTES = 1 << 16
"""What is in the first part of a compressed file in any case."""
_BYTES_PER_ROW = 20


@dataclass(frozen=True, slots=True)
class TraceInput:
    """A whole run with its scenario and the one plan that it followed, if it has them and they can be read."""

    run_id: str
    source: str
    identity: str
    manifest: Manifest
    scenario_text: str
    scenario: Scenario | None
    files: Dictionary[str, tuple[InputFile, ...]]
    plan: Plan | None = None
    notes: tuple[str, ...] = ()

    def names(self, kind: str) -> list[Any]:
        """What a live run says of its topics, publishers, subscribers or subscriptions, by id; None: forgotten."""
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
    def judged_until_ns(self) -> int | None:
        """After which time what is delivered is no success; None: all counts."""
        found = self.manifest.extra.get(JUDGED_UNTIL)
        return None if found is None else int(found)

    @property
    def rows(self) -> int:
        """Rows of all tables."""
        return sum(self.manifest.rows(table) for table in self.manifest.tables)


@dataclass(frozen=True, slots=True)
class LogInput:
    """Files of a foreign log that belong together. `columns` is what a CSV's columns are called."""

    run_id: str
    source: str
    identity: str
    mapping: Mapping
    format: str
    files: tuple[InputFile, ...]
    columns: tuple[str, ...] | None
    ended_by_returns: frozenset[str] = frozenset()
    """URLs of the text files whose lines end with a carriage return alone."""
    notes: tuple[str, ...] = ()

    @property
    def files_by_line_end(self) -> dict[str, list[InputFile]]:
        """The files of a log of lines, by what their lines end with."""
        found: dict[str, list[InputFile]] = {}
        for file in self.files:
            found.setdefault("\r" if file.url in self.ended_by_returns else "\n", []).append(file)
        return found

    @property
    def rows(self) -> int:
        """A guess from the size of the files."""
        return sum(file.size_bytes for file in self.files) // _BYTES_PER_ROW


@dataclass(frozen=True, slots=True)
class Skipped:
    """A run that is not whole, or a file that is no part of a log, found beside others."""

    source: str
    reason: str


def find_inputs(
    given: Sequence[str | Path], mapping: Mapping | None
) -> tuple[list[TraceInput | LogInput], list[Skipped]]:
    """Every run and log that the arguments name; runs that are not whole are listed apart.

    With a mapping, an argument that is no trace is a log: a file, or a directory of files, also of those in the folders
    below if the mapping says so.
    """
    found: list[TraceInput | LogInput] = []
    skipped: list[Skipped] = []
    for argument in given:
        place = Location(argument)
        if not place.is_directory():
            found.append(_log(place, [place.file()], mapping, skipped))
        elif (place / MANIFEST_NAME).exists():
            found.append(_trace(place))
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
            found += [_trace(run) for run in whole]
            logs = _log_files(place, mapping, [run.url for run in whole])
            if logs and mapping is not None:
                found.append(_log(place, logs, mapping, skipped))
            elif not whole:
                raise PipelineError(f"{argument}: {_advice(logs, mapping)}")
    return _distinct(found), skipped


def _distinct(found: Sequence[TraceInput | LogInput]) -> list[TraceInput | LogInput]:
    by_id: dict[str, TraceInput | LogInput] = {}
    for each in found:
        other = by_id.setdefault(each.run_id, each)
        if other.identity != each.identity:
            raise PipelineError(
                f"{other.source} and {each.source} are different runs with the same id {each.run_id!r}; "
                "give one of them"
            )
    return list(by_id.values())


def _log_files(place: Location, mapping: Mapping | None, runs: Sequence[str]) -> list[InputFile]:
    """The files of a directory that could be a log: of a known ending, or all if the mapping says what they are."""
    deep = mapping is not None and mapping.looks_into_folders
    return [
        file
        for file in place.files(recursive=deep)
        if ((mapping is not None and mapping.format) or _format_of(file.name))
        and not any(file.url.startswith(f"{run}/") for run in runs)
    ]


def _advice(logs: Sequence[InputFile], mapping: Mapping | None) -> str:
    nothing = "holds neither a trace nor runs with one"
    if mapping is None:
        could_be = "; its files could be a log: say what its columns mean with --mapping FILE"
        return nothing + (could_be if logs else "")
    return (
        f"{nothing}, and no file that ends in {', '.join(_FORMATS)}; if its files are called otherwise, add format: to "
        "the mapping, and if they lie in folders, recursive: true"
    )


def _incomplete(place: Location) -> str:
    if place.local is None:
        return f"{place.given}: this run has not finished; its figures would be wrong"
    try:
        Trace.open(place.local)
    except TraceError as error:
        return str(error)
    return f"{place.given}: this run has only just finished; run again"


def _trace(place: Location) -> TraceInput:
    stated = (place / MANIFEST_NAME).read()
    text = (place / SCENARIO_NAME).read().decode("utf-8", errors="replace")
    manifest = parse_manifest(stated, f"{place.given}/{MANIFEST_NAME}")
    files = {}
    for table, parts in manifest.tables.items():
        listed = []
        for part in parts:
            file = (place / part.name).file()
            if file.size_bytes != part.size_bytes:
                raise TraceError(
                    f"{place.given}/{part.name}: has {file.size_bytes} bytes instead of {part.size_bytes}; "
                    "restore it or run again"
                )
            listed.append(file)
        files[table] = tuple(listed)
    planned = (place / PLAN_NAME).read() if manifest.has_plan else b""
    scenario, conditions, notes = _scenario(place, text)
    if manifest.producer in _FOLLOW_CONDITIONS and conditions.timeline:
        planned = b""
    plan, more = _plan(place, planned, scenario)
    identity = _digest(str(COMPUTED_BY).encode(), stated, text.encode(), planned)
    return TraceInput(
        manifest.run_id, place.given, identity, manifest, text, scenario, files, plan, (*notes, *more)
    )


def _scenario(place: Location, text: str) -> tuple[Scenario | None, Conditions, tuple[str, ...]]:
    """The scenario of a run, with its conditions. One that cannot be read costs the names and utilities, no figures."""
    if not text.strip():
        return None, Conditions(), ()
    try:
        return *loads_with_conditions(text, file=f"{place.given}/{SCENARIO_NAME}"), ()
    except ScenarioError as error:
        first = str(error).splitlines()[0]
        what = f"its scenario cannot be read, so names and utilities are missing: {first}"
        return None, Conditions(), (what,)


def _plan(place: Location, planned: bytes, scenario: Scenario | None) -> tuple[Plan | None, tuple[str, ...]]:
    """The plan of a run. One that cannot be used costs the forecast beside the figures, not the figures."""
    if not planned or scenario is None:
        return None, ()
    try:
        plan = parse_plan(planned.decode("utf-8", errors="replace"), f"{place.given}/{PLAN_NAME}")
        plan.require(scenario)
    except PlanError as error:
        return None, (f"its plan cannot be used, so there is no forecast beside its figures: {error}",)
    return plan, ()


def _log(
    place: Location, files: list[InputFile], mapping: Mapping | None, skipped: list[Skipped]
) -> LogInput:
    if mapping is None:
        raise PipelineError(
            f"{place.given}: is no trace; if it is a log, say what its columns mean with --mapping FILE"
        )
    files = _fitting(place, files, mapping, skipped)
    formats = {mapping.format or _format_of(file.name) for file in files}
    if len(formats) != 1 or None in formats:
        raise PipelineError(
            f"{place.given}: cannot tell whether it is CSV, JSON lines or Parquet; add format: to the mapping"
        )
    kind = formats.pop()
    assert kind is not None
    beginnings = {} if kind == "parquet" else {file.url: _beginning(file) for file in files}
    columns = _csv_columns(beginnings, mapping) if kind == "csv" else None
    if columns is not None:
        _require_columns(place, columns, mapping)
    seen = json.dumps([[file.url, file.size_bytes, file.modified_ns] for file in files])
    identity = _digest(str(COMPUTED_BY).encode(), mapping.fingerprint.encode(), seen.encode())
    # By its place, so that a log that has grown replaces itself.
    run_id = f"{Path(place.name).stem}-{hashlib.blake2b(place.url.encode(), digest_size=4).hexdigest()}"
    returns = frozenset(url for url, text in beginnings.items() if "\r" in text and "\n" not in text)
    return LogInput(run_id, place.given, identity, mapping, kind, tuple(files), columns, returns)


def _fitting(
    place: Location, files: list[InputFile], mapping: Mapping, skipped: list[Skipped]
) -> list[InputFile]:
    """The files that have something in them, and a path as the mapping says."""
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
        import pyarrow as pa

        try:
            content = pa.CompressedInputStream(pa.BufferReader(content), codec).read(_COMPRESSED_HEADER_BYTES)
        except OSError as error:
            raise PipelineError(f"{file.url}: is not compressed with {codec}, as its name says") from error
    return content.decode("utf-8-sig", errors="replace")


def _require_columns(place: Location, columns: Sequence[str], mapping: Mapping) -> None:
    needed = mapping.needed_columns()
    absent = [name for name in needed if name not in columns]
    if absent:
        raise PipelineError(
            f"{place.given}: has no column {', '.join(absent)}, which the mapping names; "
            f"it has {', '.join(columns)}"
        )
    twice = [name for name in needed if columns.count(name) > 1]
    if twice:
        raise PipelineError(
            f"{place.given}: has more than one column {', '.join(twice)}, which the mapping names; "
            "give all columns names of their own with columns: [...]"
        )


def _csv_columns(beginnings: Dictionary[str, str], mapping: Mapping) -> tuple[str, ...]:
    """Names of the columns: as the mapping lists them, else from the header, which must be the same in all files."""
    if mapping.columns is not None:
        return tuple(mapping.columns)
    headers = {}
    for url, text in beginnings.items():
        rows = list(csv.reader(re.split("\r\n|\n|\r", text, maxsplit=2)[:2], delimiter=mapping.delimiter))
        if not any(rows):
            raise PipelineError(f"{url}: is empty; a CSV file needs a header")
        names = [name.strip() for name in rows[0]]
        # R and pandas leave out the name of the first column, the row number.
        if len(rows) > 1 and len(rows[1]) == len(names) + 1:
            names = ["row", *names]
        headers[url] = tuple(names)
    if len(set(headers.values())) > 1:
        first = next(iter(headers))
        other = next(url for url in headers if headers[url] != headers[first])
        raise PipelineError(f"{first} and {other} have different columns; ingest them one by one")
    return next(iter(headers.values()))


def _format_of(name: str) -> str | None:
    path = Path(name)
    plain = path.stem if path.suffix in _COMPRESSIONS else path.name
    return _FORMATS.get(Path(plain).suffix.lower())


def _digest(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()
