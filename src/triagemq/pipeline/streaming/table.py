"""The table that a stream writes: parts, state and position, made visible together by the store. No Spark here.

Windows, counts, state and position change together or not at all, so every event counts once, whatever is killed and
when. A stream that starts again begins where the manifest says; a second record of that, in a checkpoint that outlives
the process, could only disagree. Neither windows nor counts depend on how events are cut into batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from triagemq.errors import PipelineError
from triagemq.pipeline.reading import Tables
from triagemq.pipeline.store import PublishedRun, Store, TableFile
from triagemq.pipeline.streaming.reduction import REDUCED
from triagemq.pipeline.streaming.windows import StreamSettings, WindowRows

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
_STATE = "_state"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known about a run besides its events."""

    run_id: str
    source: str
    topics: tuple[str, ...] | None


class StreamTable:
    """The table in a store that is open. Commits are whole or have not happened."""

    def __init__(self, store: Store, settings: StreamSettings) -> None:
        self._store = store
        self._settings = asdict(settings)
        manifest = store.manifest
        if manifest.extra:
            _refuse_other(store, self._settings)
        self._counters: dict[str, dict[int, list[int]]] = {
            run_id: _read_counters(store, run) for run_id, run in manifest.runs.items()
        }
        (self.state,) = store.read(manifest.kept) or [REDUCED.empty_table()]
        store.begin()

    @property
    def version(self) -> int:
        """Grows with every commit."""
        return self._store.manifest.version

    @property
    def offset(self) -> dict[str, Any]:
        """How far every run is in the table."""
        return dict(self._store.manifest.extra.get("offset", {}))

    @property
    def runs(self) -> Mapping[str, PublishedRun]:
        """Counts and files of every run, by its id."""
        return self._store.manifest.runs

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
        published: dict[str, PublishedRun] = {}
        added = [TOPIC_RATES.empty_table()]
        for number, run in facts.items():
            rates = _rates(run, windows, number)
            added.append(rates)
            files = dict(self.runs[run.run_id].tables) if run.run_id in self.runs else {}
            if len(rates):
                before = files.get("topic_rates", ())
                files["topic_rates"] = self._store.appended(before, "topic_rates", rates, run=number)
            counters = self._counted(run, counts, number)
            files["stream_counters"] = (self._store.write("stream_counters", counters, run=number),)
            published[run.run_id] = _published_run(run, counters, files)
        extra = {"settings": self._settings, "offset": dict(offset)}
        self._store.publish(published, kept=(self._store.write(_STATE, state),), extra=extra)
        self.state = state
        return pa.concat_tables(added)

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


def _refuse_other(store: Store, wanted: Mapping[str, Any]) -> None:
    stated = store.manifest.extra["settings"]
    different = [f"{name} {stated.get(name)}" for name, value in wanted.items() if stated.get(name) != value]
    if different:
        raise PipelineError(
            f"{store.place.given}: holds the table of a stream with {', '.join(different)}; "
            "go on with that, or choose another directory"
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


def _read_counters(store: Store, run: PublishedRun) -> dict[int, list[int]]:
    return {
        row["topic_id"]: [row["events"], row["late"], row["duplicates"]]
        for table in store.read(run.tables.get("stream_counters", ()))
        for row in table.to_pylist()
    }
