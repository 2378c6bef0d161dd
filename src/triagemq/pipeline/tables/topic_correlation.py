"""topic_correlation: one row per pair of topics whose rates move together, or against each other.

Brokers and ports that carry such a pair see their peaks at the same time; placement keeps them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from triagemq.pipeline.partitions import in_pieces, partition_by
from triagemq.pipeline.rate_windows import SHORT_NS

SCHEMA = """
    run_id          string,
    topic_id        int     COMMENT 'the smaller id of the pair',
    topic           string,
    other_topic_id  int,
    other_topic     string,
    correlation     double  COMMENT 'Pearson, of the events in each window; windows without events count as 0',
    windows         int,
    window_seconds  double  COMMENT 'a multiple of 0.2, so that a run has at most 1024 windows'
"""

# The number of pairs grows with the square of the topics, so there are limits: the busiest topics, a resolution that
# a matrix of some megabytes holds, the strongest pairs, and none weaker than chance makes among so many.
MOST_TOPICS = 1024
MOST_WINDOWS = 1024
MOST_PAIRS = 5000
LEAST_CORRELATION = 0.1
_DEVIATIONS = 4.0

_COUNTED = "run int, topic_id int, window int, events bigint"
_FOUND = "run int, topic_id int, other_topic_id int, correlation double, windows int, window_seconds double"
_ROWS_AT_ONCE = 1 << 20


class _Windows(NamedTuple):
    """Of a run: its busiest topics, and so many windows of so many times 200 ms, from the first of those on."""

    topics: Any
    first: int
    merged: int
    windows: int


def transform(publications: DataFrame, publication_profile: DataFrame) -> DataFrame:
    """The strongest correlations of measured publications in each run; the profile has times and busiest topics."""
    columns = ("run", "topic_id", "publications", "first_ns", "last_ns")
    profile = publication_profile.select(*columns).toArrow()
    windows = {run: _windows(profile.filter(pc.equal(profile["run"], run))) for run in _runs(profile)}

    def count(rows: pa.Table) -> pa.Table:
        return _count(rows, windows)

    def strongest_pairs(rows: pa.Table) -> pa.Table:
        return _strongest_pairs(rows, windows)

    events = publications.select(["run", "topic_id", "published_ns", "measured"])
    counted = in_pieces(events, count, _COUNTED, _ROWS_AT_ONCE)
    return in_pieces(partition_by(counted, "run"), strongest_pairs, _FOUND)


def _runs(rows: pa.Table) -> list[int]:
    return rows["run"].unique().to_pylist()  # type: ignore[no-any-return]


def _windows(profile: pa.Table) -> _Windows:
    """Windows so long that there are at most MOST_WINDOWS of them."""
    topics, at = np.unique(profile["topic_id"].to_numpy(), return_inverse=True)
    events = np.bincount(at, profile["publications"].to_numpy())
    busiest = topics[np.lexsort((topics, -events))[:MOST_TOPICS]]
    first = int(profile["first_ns"].to_numpy().min()) // SHORT_NS
    length = int(profile["last_ns"].to_numpy().max()) // SHORT_NS - first + 1
    merged = -(-length // MOST_WINDOWS)
    # The last window may be cut short; it would look like a fall of every rate.
    return _Windows(np.sort(busiest), first, merged, length // merged)


def _count(rows: pa.Table, windows: Mapping[int, _Windows]) -> pa.Table:
    """Events of the busiest topics in each window."""
    measured, counted = rows.filter(rows["measured"]), []
    for run in _runs(measured):
        own, (topics, first, merged, count) = measured.filter(pc.equal(measured["run"], run)), windows[run]
        topic = own["topic_id"].to_numpy()
        place = np.minimum(np.searchsorted(topics, topic), len(topics) - 1)
        window = (own["published_ns"].to_numpy() // SHORT_NS - first) // merged
        chosen = (topics[place] == topic) & (window < count)
        codes, events = np.unique(place[chosen] * count + window[chosen], return_counts=True)
        columns = {"topic_id": topics[codes // count], "window": codes % count, "events": events}
        counted.append(pa.table({"run": np.full(len(codes), run), **columns}))
    return pa.concat_tables(counted) if counted else pa.table({})


def _strongest_pairs(rows: pa.Table, of_runs: Mapping[int, _Windows]) -> pa.Table:
    found = [_pairs_of(run, rows.filter(pc.equal(rows["run"], run)), of_runs[run]) for run in _runs(rows)]
    return pa.concat_tables(found) if found else pa.table({})


def _pairs_of(run: int, table: pa.Table, of_run: _Windows) -> pa.Table:
    """Pearson's correlation of all pairs of one run, of which the strongest are returned."""
    _, _, merged, windows = of_run
    topic_ids, row = np.unique(table["topic_id"].to_numpy(), return_inverse=True)
    counts = np.zeros((len(topic_ids), windows))
    np.add.at(counts, (row, table["window"].to_numpy()), table["events"].to_numpy())
    centred = counts - counts.mean(axis=1, keepdims=True)
    norm = np.sqrt((centred**2).sum(axis=1))
    varying = norm > 0
    centred[varying] /= norm[varying, None]
    correlation = np.clip(centred @ centred.T, -1.0, 1.0)
    first, second = np.triu_indices(len(topic_ids), k=1)
    strength = np.abs(correlation[first, second])
    least = max(LEAST_CORRELATION, _DEVIATIONS / np.sqrt(windows))
    strongest = np.flatnonzero((strength >= least) & varying[first] & varying[second])
    strongest = strongest[np.argsort(-strength[strongest], kind="stable")[:MOST_PAIRS]]
    first, second = first[strongest], second[strongest]
    return pa.table(
        {
            "run": np.full(len(strongest), run),
            "topic_id": topic_ids[first],
            "other_topic_id": topic_ids[second],
            "correlation": correlation[first, second],
            "windows": np.full(len(strongest), windows),
            "window_seconds": np.full(len(strongest), 0.2 * merged),
        }
    )
