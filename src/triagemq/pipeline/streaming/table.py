"""The table that a stream writes: parts, state and position, made visible together by one manifest. No Spark here.

    OUT/manifest.json                              as that of other tables, so that `triage pipeline show OUT` reads it,
                                                   with the position of the stream in every run
    OUT/topic_rates/<run>-<commit>-<mark>-<tier>.parquet
                                                   windows, some for each commit, merged by sixteen again and again
    OUT/stream_counters/<run>-<commit>-<mark>-0.parquet
                                                   per topic: events accepted, late, duplicate
    OUT/.state/<commit>-<mark>.parquet             events and panes of windows that are not closed
    OUT/.work-<mark>-<process>/checkpoint/         Spark's record of the batches of this process

Windows, counts, state and position change together or not at all, so every event counts once, whatever is killed and
when. A stream that starts again begins where the manifest says; a second record of that, in a checkpoint that outlives
the process, could only disagree. Neither windows nor counts depend on how events are cut into batches.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from triagemq.errors import OutputError, PipelineError
from triagemq.pipeline.published import MANIFEST_NAME, PublishedRun, TableFile, TablesManifest, read_manifest
from triagemq.pipeline.reading import Tables
from triagemq.pipeline.streaming.reduction import REDUCED
from triagemq.pipeline.streaming.windows import StreamSettings, WindowRows
from triagemq.trace.manifest import flush_directory, write_durably

__all__ = ["COUNTERS", "TOPIC_RATES", "RunFacts", "StreamTable", "read_stream_table"]

# One row per topic and closed window in which it had events.
TOPIC_RATES = pa.schema(
    [
        ("run_id", pa.string()),
        ("topic_id", pa.int32()),
        ("topic", pa.string()),  # null where the run came without a scenario
        ("window_seconds", pa.float64()),
        ("window_start_ns", pa.int64()),
        ("publications", pa.int64()),
        ("rate_per_second", pa.float64()),
        ("bytes", pa.int64()),
        ("bytes_per_second", pa.float64()),
        ("index_of_dispersion", pa.float64()),  # 10 s only
        ("ca2", pa.float64()),  # 10 s only; null below 3 events
    ]
)
# One row per topic: what became of all its events so far.
COUNTERS = pa.schema(
    [
        ("run_id", pa.string()),
        ("topic_id", pa.int32()),
        ("topic", pa.string()),
        ("events", pa.int64()),  # counted in windows
        ("late", pa.int64()),
        ("duplicates", pa.int64()),
    ]
)
_SCHEMAS = {"topic_rates": TOPIC_RATES, "stream_counters": COUNTERS}
_KEYS = ("run_id", "window_seconds", "window_start_ns", "topic_id")

_MERGED_AT_ONCE = 16
_LARGE_ROWS = 4_000_000
"""A part of this many rows is not merged any more."""

_STATE_DIRECTORY = ".state"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known about a run besides its events."""

    run_id: str
    source: str
    topics: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class StreamManifest(TablesManifest):
    """The manifest of tables, with what a stream needs to go on."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    offset: Mapping[str, Any] = field(default_factory=dict)
    run_ids: Mapping[str, str] = field(default_factory=dict)
    state: str | None = None


class StreamTable:
    """The table in a directory that nobody else writes to. Commits are whole or have not happened."""

    def __init__(self, directory: Path, settings: StreamSettings) -> None:
        self._directory = directory
        self._manifest = _stream_manifest(directory, settings)
        self._counters: dict[str, dict[int, list[int]]] = {
            run_id: _read_counters(directory, run) for run_id, run in self._manifest.runs.items()
        }
        self.state = (
            REDUCED.empty_table()
            if self._manifest.state is None
            else pq.read_table(directory / self._manifest.state, schema=REDUCED)
        )
        (directory / _STATE_DIRECTORY).mkdir(exist_ok=True)
        for left in (directory / _STATE_DIRECTORY).glob(f"*-{self._manifest.mark}.parquet"):
            if f"{_STATE_DIRECTORY}/{left.name}" != self._manifest.state:
                left.unlink()
        if self._manifest.version == 0:
            # From now on a reader finds an empty table, and another stream finds whose directory this is.
            self._publish(replace(self._manifest, version=1))

    @property
    def version(self) -> int:
        """Counts the commits."""
        return self._manifest.version

    @property
    def offset(self) -> dict[str, Any]:
        """How far every run is in the table."""
        return dict(self._manifest.offset)

    @property
    def runs(self) -> Mapping[str, PublishedRun]:
        """Counts and files of every run, by its id."""
        return self._manifest.runs

    def commit(
        self,
        offset: Mapping[str, Any],
        facts: Mapping[int, RunFacts],
        windows: WindowRows,
        counts: pa.Table,
        state: pa.Table,
    ) -> pa.Table:
        """Add windows and counts, and move to a new position and state; returns the new rows.

        `facts` has every run, by number, that has new rows or counts.
        """
        version = self._manifest.version + 1
        published = dict(self._manifest.runs)
        replaced: list[str] = []
        added = [TOPIC_RATES.empty_table()]
        try:
            for number, run in facts.items():
                rates = _rates(run, windows, number)
                added.append(rates)
                files = {} if run.run_id not in published else dict(published[run.run_id].tables)
                if len(rates):
                    old = files.get("topic_rates", ())
                    part = self._write("topic_rates", number, version, 0, rates)
                    files["topic_rates"] = self._merged([*old, part], number, version, replaced)
                counters = self._counted(run, counts, number)
                replaced += [file.name for file in files.get("stream_counters", ())]
                files["stream_counters"] = (self._write("stream_counters", number, version, 0, counters),)
                published[run.run_id] = _published_run(run, counters, files)
            state_name = f"{_STATE_DIRECTORY}/{version}-{self._manifest.mark}.parquet"
            _write_parquet(self._directory / state_name, state)
            if self._manifest.state is not None:
                replaced.append(self._manifest.state)
            for name in ("topic_rates", "stream_counters", _STATE_DIRECTORY):
                if (self._directory / name).is_dir():
                    flush_directory(self._directory / name)
            names = {number: name for name, stated in offset.items() for number in [stated["number"]]}
            run_ids = {
                **self._manifest.run_ids,
                **{names[number]: run.run_id for number, run in facts.items()},
            }
            self._publish(
                replace(
                    self._manifest,
                    version=version,
                    runs=published,
                    offset=dict(offset),
                    run_ids=run_ids,
                    state=state_name,
                )
            )
        except OSError as error:
            raise OutputError(
                f"{self._directory}: the table cannot be written: {error.strerror or error}; make room and run again"
            ) from error
        self.state = state
        # A reader that still follows the old manifest finds a file missing and reads again by the new one.
        for name in replaced:
            (self._directory / name).unlink(missing_ok=True)
        return pa.concat_tables(added)

    def _publish(self, manifest: StreamManifest) -> None:
        write_durably(self._directory / MANIFEST_NAME, manifest.to_json())
        self._manifest = manifest

    def _write(self, table: str, number: int, version: int, tier: int, rows: pa.Table) -> TableFile:
        name = f"{table}/{number:05d}-{version:09d}-{self._manifest.mark}-{tier}.parquet"
        (self._directory / table).mkdir(exist_ok=True)
        size_bytes = _write_parquet(self._directory / name, rows)
        return TableFile(name, len(rows), size_bytes)

    def _merged(
        self, files: list[TableFile], number: int, version: int, replaced: list[str]
    ) -> tuple[TableFile, ...]:
        """Sixteen parts of one tier become one of the next: a part for each commit would be too many."""
        tier = 0
        while True:
            same = [file for file in files if _tier(file) == tier and file.rows < _LARGE_ROWS]
            if len(same) < _MERGED_AT_ONCE:
                return tuple(files)
            rows = pa.concat_tables(pq.read_table(self._directory / file.name) for file in same)
            tier += 1
            merged = self._write("topic_rates", number, version, tier, rows)
            replaced += [file.name for file in same]
            files = [file for file in files if file not in same] + [merged]

    def _counted(self, run: RunFacts, counts: pa.Table, number: int) -> pa.Table:
        totals = self._counters.setdefault(run.run_id, {})
        chosen = counts.filter(pa.array(counts.column("run").to_numpy() == number))
        for topic, *more in zip(
            *(chosen.column(name).to_pylist() for name in ("topic_id", "events", "late", "duplicates")),
            strict=True,
        ):
            before = totals.get(topic, [0, 0, 0])
            totals[topic] = [old + new for old, new in zip(before, more, strict=True)]
        topics = sorted(totals)
        return pa.table(
            {
                "run_id": [run.run_id] * len(topics),
                "topic_id": topics,
                "topic": _names(run, topics),
                **{
                    name: [totals[topic][place] for topic in topics]
                    for place, name in enumerate(COUNTERS.names[3:])
                },
            },
            schema=COUNTERS,
        )


def read_stream_table(directory: str | Path, table: str = "topic_rates") -> pa.Table:
    """All rows that a stream has published: `topic_rates`, by run, window and topic, or `stream_counters`."""
    if table not in _SCHEMAS:
        raise PipelineError(f"a stream has no table {table!r}; it has {', '.join(_SCHEMAS)}")
    tables = Tables(directory)
    if not any(run.tables.get(table) for run in tables.manifest.runs.values()):
        return _SCHEMAS[table].empty_table()
    rows = tables.table(table)
    keys = _KEYS if table == "topic_rates" else ("run_id", "topic_id")
    return rows.sort_by([(key, "ascending") for key in keys])


def _stream_manifest(directory: Path, settings: StreamSettings) -> StreamManifest:
    wanted = asdict(settings)
    tables = read_manifest(directory)
    if tables is None:
        return StreamManifest(kind="stream", settings=wanted)
    content = json.loads((directory / MANIFEST_NAME).read_text(encoding="utf-8"))
    if tables.kind != "stream":
        raise PipelineError(
            f"{directory}: holds tables of `triage pipeline run`; give a stream its own directory"
        )
    if "offset" not in content:
        # Taken, but nothing has been written yet.
        return StreamManifest(mark=tables.mark, kind="stream", settings=wanted)
    if content["settings"] != wanted:
        different = [name for name, value in wanted.items() if content["settings"].get(name) != value]
        stated = ", ".join(f"{name} {content['settings'].get(name)}" for name in different)
        raise PipelineError(
            f"{directory}: holds the table of a stream with {stated}; go on with that, or choose another directory"
        )
    return StreamManifest(
        version=tables.version,
        runs=tables.runs,
        mark=tables.mark,
        kind="stream",
        settings=wanted,
        offset=content["offset"],
        run_ids=content["run_ids"],
        state=content["state"],
    )


def _rates(run: RunFacts, windows: WindowRows, number: int) -> pa.Table:
    chosen = windows.run == number
    seconds = windows.window_ns[chosen] / 1e9
    topics = windows.topic_id[chosen]
    return pa.table(
        {
            "run_id": pa.repeat(run.run_id, len(topics)),
            "topic_id": topics.astype(np.int32),
            "topic": _names(run, topics),
            "window_seconds": seconds,
            "window_start_ns": windows.start_ns[chosen],
            "publications": windows.publications[chosen],
            "rate_per_second": windows.publications[chosen] / seconds,
            "bytes": windows.bytes[chosen],
            "bytes_per_second": windows.bytes[chosen] / seconds,
            "index_of_dispersion": pa.array(windows.index_of_dispersion[chosen], from_pandas=True),
            "ca2": pa.array(windows.ca2[chosen], from_pandas=True),
        },
        schema=TOPIC_RATES,
    )


def _names(run: RunFacts, topics: Sequence[int] | Any) -> pa.Array:
    """Names of topics by their ids; null for ids that the scenario does not have."""
    if run.topics is None:
        return pa.nulls(len(topics), pa.string())
    known = pa.array([*run.topics, None], pa.string())
    place = np.asarray(topics, dtype=np.int64)
    return known.take(pa.array(np.where((place >= 0) & (place < len(run.topics)), place, len(run.topics))))


def _published_run(
    run: RunFacts, counters: pa.Table, files: Mapping[str, tuple[TableFile, ...]]
) -> PublishedRun:
    events, late, duplicates = (int(np.sum(counters.column(name).to_numpy())) for name in COUNTERS.names[3:])
    return PublishedRun(
        identity="stream",
        source=run.source,
        rows_read=events + late + duplicates,
        rows_in=events,
        quarantined=late + duplicates,
        reasons={"late": late, "duplicate": duplicates},
        tables=files,
    )


def _read_counters(directory: Path, run: PublishedRun) -> dict[int, list[int]]:
    found = {}
    for file in run.tables.get("stream_counters", ()):
        for row in pq.read_table(directory / file.name, schema=COUNTERS).to_pylist():
            found[row["topic_id"]] = [row["events"], row["late"], row["duplicates"]]
    return found


def _tier(file: TableFile) -> int:
    return int(Path(file.name).stem.rpartition("-")[2])


def _write_parquet(path: Path, rows: pa.Table) -> int:
    pq.write_table(rows, path, compression="zstd", compression_level=1)
    with path.open("rb") as written:
        # Listing a file before its data is on disk could publish an empty one after a power cut.
        os.fsync(written.fileno())
        return os.fstat(written.fileno()).st_size
