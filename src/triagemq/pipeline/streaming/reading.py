"""What the tables of a stream say of its topics, for whoever makes a scenario of them: Arrow only, no Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.reading import Tables
from triagemq.pipeline.streaming.events import FOREVER_NS
from triagemq.pipeline.streaming.settings import StreamSettings


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
