"""The tables of a stream for whoever wants to look at them: Arrow only, no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.errors import PipelineError
from triagemq.pipeline.reading import Tables
from triagemq.pipeline.streaming.events import FOREVER_NS
from triagemq.pipeline.streaming.settings import StreamSettings

# One row per topic and closed window in which it had events.
_TOPIC_RATES = pa.schema(
    [
        ("run_id", pa.string()),
        ("topic_id", pa.int32()),  # null where topics have only names
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
# One row per topic: what became of its events up to the last window.
_COUNTERS = pa.schema(
    [
        ("run_id", pa.string()),
        ("topic_id", pa.int32()),
        ("topic", pa.string()),
        ("events", pa.int64()),  # counted in windows
        ("late", pa.int64()),
        ("duplicates", pa.int64()),
    ]
)
_TABLES = {
    "topic_rates": (_TOPIC_RATES, ("run_id", "window_seconds", "window_start_ns", "topic_id", "topic")),
    "stream_counters": (_COUNTERS, ("run_id", "topic_id", "topic")),
}


def read_stream_table(directory: str | Path, table: str = "topic_rates") -> pa.Table:
    """All rows that a stream has published: `topic_rates`, by run, window and topic, or `stream_counters`."""
    if table not in _TABLES:
        raise PipelineError(f"a stream has no table {table!r}; it has {', '.join(_TABLES)}")
    schema, keys = _TABLES[table]
    tables = Tables(directory)
    if not any(run.tables.get(table) for run in tables.manifest.runs.values()):
        return schema.empty_table()
    return tables.table(table).cast(schema).sort_by([(key, "ascending") for key in keys])


def stream_profile(tables: Tables, run_id: str) -> list[dict[str, Any]]:
    """What a stream knows of each topic, as rows of `publication_profile`: nobody says who published.

    Counted are windows that do not overlap, without the first, in which the stream may have begun, and, of a run that
    has ended, the last; a window without a row had no events. Of sizes there is only the mean.
    """
    rows = tables.table("topic_rates", run_id=run_id) if "topic_rates" in tables.rows else pa.table({})
    if not len(rows):
        return []
    extra = tables.manifest.extra
    length = StreamSettings(**extra["settings"]).window_ns
    starts = rows["window_start_ns"].to_numpy()
    lengths = np.rint(rows["window_seconds"].to_numpy() * 1e9).astype(np.int64)
    tiles = (lengths == length) & (starts % length == 0)
    first, last = int(starts[tiles].min()), int(starts[tiles].max())
    if last - first >= 2 * length:
        has_ended = extra["runs"][run_id]["closed_ns"] == FOREVER_NS
        first, last = first + length, last - length * has_ended
    tiles &= (starts >= first) & (starts <= last)
    observed_seconds = (last - first + length) * 1e-9
    weighted = rows.append_column("weighted", pc.multiply(rows["ca2"], rows["publications"]))
    variable = _by_topic(weighted.filter(pc.is_valid(weighted["ca2"])), "weighted", "publications")
    return [
        {
            "publisher_id": None,
            "publisher": None,
            "topic_id": key[0],
            "topic": key[1],
            "publications": count,
            "first_ns": first,
            "last_ns": last + length,
            "observed_seconds": observed_seconds,
            "rate_per_second": count / observed_seconds,
            "ca2": variable[key][0] / variable[key][1] if key in variable else None,
            "regular_share": None,
            "outages": 0,
            "longest_outages": [],
            "mean_size_bytes": size / count,
            "size_scv": None,
            "sizes": [],
        }
        for key, (count, size) in _by_topic(rows.filter(pa.array(tiles)), "publications", "bytes").items()
    ]


def _by_topic(rows: pa.Table, *names: str) -> dict[tuple[Any, Any], tuple[Any, ...]]:
    """Sums by number and name of the topic."""
    summed = rows.group_by(["topic_id", "topic"]).aggregate([(name, "sum") for name in names])
    return {
        (row["topic_id"], row["topic"]): tuple(row[f"{name}_sum"] for name in names)
        for row in summed.to_pylist()
    }
