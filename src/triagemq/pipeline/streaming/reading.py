"""Profiles of topics from the tables of a stream, to estimate a scenario from. Arrow only, no Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.reading import Tables
from triagemq.pipeline.streaming.events import FOREVER_NS
from triagemq.pipeline.streaming.settings import StreamSettings
from triagemq.pipeline.streaming.windows import touches


def stream_profile(tables: Tables, run_id: str) -> list[dict[str, Any]]:
    """What a stream knows of each topic, as rows of `publication_profile`: its publishers are unknown.

    Counted are windows that do not overlap, without the first, in which the stream may have begun, those that touch an
    outage of the stream, and, of a run that has ended, the last; a window without a row had no events. What sources did
    in an outage is not known: it is no condition of theirs. Of sizes there is only the mean.
    """
    rows = tables.table("topic_rates", run_id=run_id) if "topic_rates" in tables.rows else pa.table({})
    if not len(rows):
        return []
    extra = tables.manifest.extra
    length, state = StreamSettings(**extra["settings"]).window_ns, extra["runs"][run_id]
    starts = rows["window_start_ns"].to_numpy()
    lengths = np.rint(rows["window_seconds"].to_numpy() * 1e9).astype(np.int64)
    tiles = (lengths == length) & (starts % length == 0)
    if not tiles.any():
        return []
    first, last = int(starts[tiles].min()), int(starts[tiles].max())
    if last - first >= 2 * length:
        first, last = first + length, last - length * (state["closed_ns"] == FOREVER_NS)
    outages = [span for span in state.get("outages", []) if span[1] > first and span[0] < last + length]
    whole = ~touches(outages, starts, lengths)
    tiles &= whole & (starts >= first) & (starts <= last)
    observed = np.arange(first, last + length, length)
    observed_seconds = int((~touches(outages, observed, length)).sum()) * length * 1e-9
    variability = _variability(rows.filter(pa.array(whole & pc.is_valid(rows["ca2"]).to_numpy())))
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
            **variability.get(key, {"ca2": None, "gaps": 0}),
            "regular_share": None,
            "outages": len(outages),
            "outage_seconds": sum(end - begin for begin, end in outages) * 1e-9,
            "longest_outages": [],
            "mean_size_bytes": size / count,
            "size_scv": None,
            "sizes": [],
        }
        for key, (count, size) in _by_topic(rows.filter(pa.array(tiles)), "publications", "bytes").items()
    ]


def _variability(long: pa.Table) -> dict[tuple[Any, Any], dict[str, Any]]:
    """Of the gaps in 10 s windows, as if all were of one: few gaps of a Poisson source vary by less than 1.

    And of those in all but the most variable window: what happened once, such as a machine that stood still, makes no
    bursty source.
    """
    count = long["publications"].to_numpy()
    columns = {"gaps": count - 1, "expected": count - 2, "measured": count * long["ca2"].to_numpy()}
    columns["excess"] = columns["measured"] - columns["expected"]
    windows = pa.table({name: long[name] for name in ("topic_id", "topic")} | columns)
    windows = windows.sort_by([("excess", "descending")])
    whole = _by_topic(windows, *columns)
    worst = _by_topic(windows, *columns, how="first")
    found = {}
    for key, sums in whole.items():
        others = tuple(each - once for each, once in zip(sums, worst[key], strict=True))
        found[key] = {"ca2": _ca2(*sums), "gaps": sums[0], "others": (_ca2(*others), others[0])}
    return found


def _ca2(gaps: int, expected: float, measured: float, _: float) -> float:
    return measured / expected * (gaps - 1) / (gaps + 1) if gaps else 1.0


def _by_topic(rows: pa.Table, *names: str, how: str = "sum") -> dict[tuple[Any, Any], tuple[Any, ...]]:
    """Sums, or first values, by number and name of the topic."""
    grouped = rows.group_by(["topic_id", "topic"], use_threads=False).aggregate(
        [(name, how) for name in names]
    )
    return {
        (row["topic_id"], row["topic"]): tuple(row[f"{name}_{how}"] for name in names)
        for row in grouped.to_pylist()
    }
