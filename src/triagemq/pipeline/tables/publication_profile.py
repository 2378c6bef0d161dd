"""publication_profile: one row per publisher and topic: how often, how regularly and how large its events are.

`triage pipeline scenario` is computed from this table. The figures of a source cover the time in which it was there:
an outage is a gap sixteen times as long as nine of ten of its gaps. A source with several such gaps, more than one in
500, or with others half as long, has no outages but bursts, unless it is clockwork otherwise: 95 of 100 other gaps
within a quarter of the median. Before its first event, or after its last, a source was absent if that time is sixteen
times as long as the longest of its other gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from triagemq.pipeline.partitions import ends_by_run, in_order
from triagemq.trace.latency_bins import (
    BINS,
    PARTS_PER_DOUBLING,
    bin_middles,
    bins_of,
    packed_lists,
    percentile_bins,
)

_FIGURES = """
    publications      bigint,
    first_ns          bigint,
    last_ns           bigint,
    observed_seconds  double  COMMENT 'of the run after warm-up, without the outages of this row',
    rate_per_second   double
        COMMENT 'without events that end an outage or begin the time; topic_summary.rate_per_second counts outages',
    ca2               double  COMMENT 'squared coefficient of variation of gaps without outages; null below 3 events',
    regular_share     double  COMMENT 'of the gaps without outages, those within a quarter of their median',
    outages           bigint  COMMENT 'also the times before and after it that it was not there',
    outage_seconds    double,
    longest_outages   array<struct<from_ns: bigint, until_ns: bigint>> COMMENT 'at most 100, in order of time',
    mean_size_bytes   double,
    size_scv          double  COMMENT 'squared coefficient of variation of the sizes',
    sizes             array<struct<size_bytes: double, count: bigint>>
                              COMMENT 'mean size and count of each bin of sizes that are within 1.6 % of each other'
"""
SCHEMA = f"""
    run_id            string,
    publisher_id      int     COMMENT 'null where it is not known who published',
    publisher         string,
    topic_id          int,
    topic             string,
    {_FIGURES}
"""

_KEYS = ("run", "publisher_id", "topic_id")
_FOUND = f"run int, publisher_id int, topic_id int, {_FIGURES}"
_UNKNOWN = -1
_TIMES_LONGER = 16
_BINS_LONGER = 4 * PARTS_PER_DOUBLING
_NEAR_MEDIAN = 0.25
_CLOCKWORK_SHARE = 0.95
_RARE = 500
_LEAST_GAPS_OF_ABSENT = 4
"""Of a Poisson source with so few gaps one in 70,000 is silent for so long by chance."""
_MOST_OUTAGES = 100

RunTimes = Mapping[int, tuple[int, int]]


def transform(publications: DataFrame, times: RunTimes) -> DataFrame:
    """Rates, gaps and sizes of measured publications. `times` are those of `run_times`.

    Spark sorts the events of each source by time; NumPy counts those of some sources at a time.
    """

    def profiles(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        return _profiles(pieces, times)

    events = publications.select([*_KEYS, "published_ns", "size_bytes", "measured"])
    return in_order(events, _KEYS, ("published_ns", "size_bytes"), profiles, _FOUND)


def run_times(publications: DataFrame, measured_from_ns: Mapping[int, int]) -> RunTimes:
    """For each run the end of warm-up, or the first event of a clock that does not start at 0, and the last event."""
    ends = ends_by_run(publications.where("measured"), "published_ns")
    return {run: (measured_from_ns[run] or first, last) for run, (first, last) in ends.items()}


def _profiles(pieces: Iterator[pa.Table], times: RunTimes) -> Iterator[pa.Table]:
    """A row for each source, of events in order of source and time, whatever pieces they come in."""
    waiting: list[pa.Table] = []
    last = None
    for rows in filter(len, (piece.filter(piece["measured"]) for piece in pieces)):
        keys = _keys(rows)
        # The last source may go on in the next piece.
        begin = int(np.argmax((keys == keys[:, -1:]).all(axis=0)))
        if waiting and (begin or (keys[:, -1] != last).any()):
            yield _profile(pa.concat_tables([*waiting, rows.slice(0, begin)]), times)
            waiting, rows = [], rows.slice(begin)
        waiting.append(rows)
        last = keys[:, -1]
    if waiting:
        yield _profile(pa.concat_tables(waiting), times)


def _keys(rows: pa.Table) -> Any:
    return np.array([rows[name].fill_null(_UNKNOWN).to_numpy() for name in _KEYS], np.int64)


class _Bins(NamedTuple):
    """Values of sources in bins: how many, their sum, the sum of their squares and the largest of each bin."""

    source: Any
    number: Any
    count: Any
    total: Any
    squares: Any
    largest: Any

    @classmethod
    def of(cls, source: Any, value: Any) -> _Bins:
        codes, place = np.unique(source * BINS + bins_of(value), return_inverse=True)
        largest = np.zeros(len(codes), np.int64)
        np.maximum.at(largest, place, value)
        count, total = np.bincount(place, minlength=len(codes)), _sums(place, value, len(codes))
        # Squares are added one by one in their order: the sum is the same however the events were spread.
        squares = np.bincount(place, np.square(value.astype(np.float64)), len(codes))
        return cls(codes // BINS, codes % BINS, count, total, squares, largest)

    def where(self, chosen: Any) -> _Bins:
        return _Bins(*(column[chosen] for column in self))

    def counts(self, sources: int) -> Any:
        """How many values each source has."""
        return _sums(self.source, self.count, sources)

    def mean_and_scv(self, sources: int) -> tuple[Any, Any]:
        """Of the values of each source, the squared coefficient of variation as the second; NaN where it is unknown."""
        count = self.counts(sources)
        mean = _ratio(_sums(self.source, self.total, sources), count)
        square = _ratio(np.bincount(self.source, self.squares, sources), count)
        # Rounding may leave a hair below 0 where all are equal.
        return mean, np.maximum(_ratio(square, mean * mean) - 1, 0.0)


def _profile(rows: pa.Table, times: RunTimes) -> pa.Table:
    """The rows of the table, without names."""
    keys, time = _keys(rows), rows["published_ns"].to_numpy()
    changes = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))
    source, begins, follows = np.cumsum(changes) - 1, np.flatnonzero(changes), np.flatnonzero(~changes)
    count, (run, publisher, topic) = len(begins), keys[:, begins]
    first, last = time[begins], time[np.append(begins[1:], len(time)) - 1]
    publications = np.bincount(source, minlength=count)
    gap_source, since, until = source[follows], time[follows - 1], time[follows]
    gaps = _Bins.of(gap_source, until - since)
    sizes = _Bins.of(source, rows["size_bytes"].to_numpy().astype(np.int64))
    above, median, near = _regularity(gaps, count)
    is_outage = gaps.number > above[gaps.source]
    usual, inside = gaps.where(~is_outage), gaps.where(is_outage)
    usual_gaps = usual.counts(count)
    longest = np.zeros(count)
    np.maximum.at(longest, usual.source, usual.largest)
    run_begins, run_ends = np.array([times[each] for each in run.tolist()], np.int64).reshape(-1, 2).T
    has_enough_gaps = usual_gaps >= _LEAST_GAPS_OF_ABSENT
    before = has_enough_gaps & ((first - run_begins) / _TIMES_LONGER > longest)
    after = has_enough_gaps & ((run_ends - last) / _TIMES_LONGER > longest)
    is_long = bins_of(until - since) > above[gap_source]
    numbers = np.arange(count)
    spans = (
        np.array([numbers, run_begins, first])[:, before],
        np.array([gap_source, since, until])[:, is_long],
        np.array([numbers, last, run_ends])[:, after],
    )
    outage_source, from_ns, until_ns = _longest(np.concatenate(spans, axis=1))
    away_ns = _sums(inside.source, inside.total, count)
    away_ns += np.where(before, first - run_begins, 0) + np.where(after, run_ends - last, 0)
    # An event that ends an outage, or at which the observed time begins or ends, is no sample of the rate.
    at_an_end = before | after | ((first == run_begins) & (last > first))
    observed = (run_ends - run_begins) * 1e-9 - away_ns * 1e-9
    ca2 = usual.mean_and_scv(count)[1]
    mean_size, size_scv = sizes.mean_and_scv(count)
    missed = inside.counts(count)
    columns = {
        "run": run,
        "publisher_id": pa.array(publisher, mask=publisher == _UNKNOWN),
        "topic_id": topic,
        "publications": publications,
        "first_ns": first,
        "last_ns": last,
        "observed_seconds": observed,
        "rate_per_second": _known(_ratio(publications - missed - at_an_end, observed)),
        "ca2": _known(np.where(usual_gaps >= 2, ca2, np.nan)),
        "regular_share": _known(_ratio(np.where(median > 0, near, np.nan), usual_gaps)),
        "outages": missed + before + after,
        "outage_seconds": away_ns * 1e-9,
        "longest_outages": _lists(outage_source, {"from_ns": from_ns, "until_ns": until_ns}, count),
        "mean_size_bytes": mean_size,
        "size_scv": _known(size_scv),
        "sizes": _lists(sizes.source, {"size_bytes": sizes.total / sizes.count, "count": sizes.count}, count),
    }
    return pa.table(columns)


def _regularity(gaps: _Bins, sources: int) -> tuple[Any, Any, Any]:
    """The bin above which a gap is an outage (infinity for none), the median gap, and how many gaps are near it."""
    source, number, counted = gaps[:3]
    middles = bin_middles()
    middle, typical = (
        each.to_numpy(zero_copy_only=False).astype(np.float64)
        for each in percentile_bins(packed_lists(source, number, counted, sources), [0.5, 0.9])
    )
    median = np.where(np.isnan(middle), np.nan, middles[np.nan_to_num(middle).astype(np.int64)])
    # Where nine of ten gaps are 0, the clock is too coarse for a limit.
    above = np.where(typical > 0, typical + _BINS_LONGER, np.inf)

    def count(chosen: Any) -> Any:
        return _sums(source, np.where(chosen, counted, 0), sources)

    limit = above[source]
    long = count(number > limit)
    half = count((number >= limit - PARTS_PER_DOUBLING) & (number <= limit))
    near = count(np.abs(middles[number] - median[source]) <= median[source] * _NEAR_MEDIAN)
    total = gaps.counts(sources)
    clockwork = (median > 0) & (near >= (total - long) * _CLOCKWORK_SHARE)
    rare = (long <= np.maximum(1, total // _RARE)) & (half == 0)
    return np.where((long > 0) & (clockwork | rare), above, np.inf), median, near


def _longest(spans: Any) -> Any:
    """Of spans the longest of each source, of two that are as long the first; in order of source and time."""
    source, since, until = spans
    order = np.lexsort((since, since - until, source))
    place = np.arange(len(order)) - np.searchsorted(source[order], source[order])
    longest = spans[:, order[place < _MOST_OUTAGES]]
    return longest[:, np.lexsort(longest[::-1])]


def _sums(source: Any, values: Any, sources: int) -> Any:
    """Whole numbers of each source added up, which as floating-point numbers might not be exact."""
    total = np.zeros(sources, np.int64)
    np.add.at(total, source, values)
    return total


def _ratio(above: Any, below: Any) -> Any:
    return np.divide(above, below, out=np.full(len(below), np.nan), where=below != 0)


def _known(values: Any) -> pa.Array:
    return pa.array(values, mask=np.isnan(values))


def _lists(source: Any, columns: Mapping[str, Any], sources: int) -> pa.ListArray:
    """For each source its rows of these columns, which are in order of sources."""
    offsets = np.searchsorted(source, np.arange(sources + 1)).astype(np.int32)
    entries = pa.StructArray.from_arrays([pa.array(each) for each in columns.values()], list(columns))
    return pa.ListArray.from_arrays(pa.array(offsets), entries)
