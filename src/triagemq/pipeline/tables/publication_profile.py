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

from triagemq.pipeline.partitions import ends_by_run, in_order, joined
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


def transform(publications: DataFrame, topics: pa.Table, publishers: pa.Table, times: RunTimes) -> DataFrame:
    """Rates, gaps and sizes of measured publications. `times` are those of `run_times`.

    Spark sorts the events of each source by time; NumPy walks over them, and keeps of a source what does not grow with
    its events: histograms, and its longest gaps.
    """

    def profiles(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        return _profiles(pieces, times)

    events = publications.select([*_KEYS, "published_ns", "size_bytes", "measured"])
    found = in_order(events, _KEYS, ("published_ns", "size_bytes"), profiles, _FOUND)
    return joined(joined(found, topics, ("run", "topic_id")), publishers, ("run", "publisher_id"))


def run_times(publications: DataFrame, measured_from_ns: Mapping[int, int]) -> RunTimes:
    """For each run the end of warm-up, or the first event of a clock that does not start at 0, and the last event."""
    ends = ends_by_run(publications.where("measured"), "published_ns")
    return {run: (measured_from_ns[run] or first, last) for run, (first, last) in ends.items()}


def _profiles(pieces: Iterator[pa.Table], times: RunTimes) -> Iterator[pa.Table]:
    """A row for each source, of events in order of source and time, whatever pieces they come in."""
    unfinished = _Sources.none()
    for rows in filter(len, (piece.filter(piece["measured"]) for piece in pieces)):
        keys = np.array([rows[name].fill_null(_UNKNOWN).to_numpy() for name in _KEYS], np.int64)
        # The last source may go on in the next piece.
        last = keys[:, -1:]
        begin = int(np.argmax((keys == last).all(axis=0)))
        known = unfinished.followed_by(keys[:, :begin], rows.slice(0, begin))
        if (known.keys[:, -1:] != last).any():
            yield known.profile(times)
            known = _Sources.none()
        unfinished = known.followed_by(keys[:, begin:], rows.slice(begin))
    yield unfinished.profile(times)


class _Bins(NamedTuple):
    """Values of sources in bins: how many, their sum, the sum of their squares and the largest of each bin."""

    source: Any
    number: Any
    count: Any
    total: Any
    squares: Any
    largest: Any

    def with_values(self, source: Any, value: Any) -> _Bins:
        """Also these. Squares are added one by one in their order, so that it does not matter in which pieces."""
        of_one = (
            source,
            bins_of(value),
            np.ones_like(value),
            value,
            np.square(value.astype(np.float64)),
            value,
        )
        both = _Bins(*(np.concatenate(columns) for columns in zip(self, of_one, strict=True)))
        codes, place = np.unique(both.source * BINS + both.number, return_inverse=True)
        count, total, largest = np.zeros((3, len(codes)), np.int64)
        np.add.at(count, place, both.count)
        np.add.at(total, place, both.total)
        np.maximum.at(largest, place, both.largest)
        squares = np.bincount(place, both.squares, len(codes))
        return _Bins(codes // BINS, codes % BINS, count, total, squares, largest)

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


class _Sources(NamedTuple):
    """What is known of sources that follow each other, from their events so far."""

    keys: Any
    first: Any
    last: Any
    publications: Any
    gaps: _Bins
    sizes: _Bins
    longest: Any
    """The longest gaps of each in order of time: the source, and from when to when, in three rows."""

    @classmethod
    def none(cls) -> _Sources:
        whole, empty = np.zeros((3, 0), np.int64), np.zeros(0, np.int64)
        bins = _Bins(empty, empty, empty, empty, np.zeros(0), empty)
        return cls(whole, empty, empty, empty, bins, bins, whole)

    def followed_by(self, given: Any, rows: pa.Table) -> _Sources:
        """With the next events, of the sources `given`. Of what came before, only the last source can go on."""
        before = len(self.first)
        keys = np.concatenate([self.keys, given], axis=1)
        time = np.concatenate([self.last, rows["published_ns"].to_numpy()])
        changes = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(time)]
        source, begins = np.cumsum(changes) - 1, np.flatnonzero(changes)
        follows = np.flatnonzero(~changes)
        until, since = time[follows], time[follows - 1]
        first, publications = time[begins], np.bincount(source, minlength=len(begins))
        first[:before] = self.first
        publications[:before] += self.publications - 1
        gaps = np.array([source[follows], since, until])
        return _Sources(
            keys[:, begins],
            first,
            time[np.append(begins[1:], len(time)) - 1] if len(time) else time,
            publications,
            self.gaps.with_values(source[follows], until - since),
            self.sizes.with_values(source[before:], rows["size_bytes"].to_numpy().astype(np.int64)),
            _longest(np.concatenate([self.longest, gaps], axis=1)),
        )

    def profile(self, times: RunTimes) -> pa.Table:
        """The rows of the table, without names."""
        count, (run, publisher, topic) = len(self.first), self.keys
        above, median, near = self._regularity()
        outages = self.gaps.number > above[self.gaps.source]
        usual, inside = self.gaps.where(~outages), self.gaps.where(outages)
        gaps = usual.counts(count)
        longest = np.zeros(count)
        np.maximum.at(longest, usual.source, usual.largest)
        begins, ends = np.array([times[each] for each in run.tolist()], np.int64).reshape(-1, 2).T
        has_enough_gaps = gaps >= _LEAST_GAPS_OF_ABSENT
        before = has_enough_gaps & ((self.first - begins) / _TIMES_LONGER > longest)
        after = has_enough_gaps & ((ends - self.last) / _TIMES_LONGER > longest)
        source, since, until = self.longest
        chosen = bins_of(until - since) > above[source]
        here = np.arange(count)
        edges = (
            np.array([here, begins, self.first])[:, before],
            np.array([here, self.last, ends])[:, after],
        )
        spans = _longest(np.concatenate([edges[0], self.longest[:, chosen], edges[1]], axis=1))
        away_ns = _sums(inside.source, inside.total, count)
        away_ns += np.where(before, self.first - begins, 0) + np.where(after, ends - self.last, 0)
        # An event that ends an outage, or with which the time that is observed begins or ends, says nothing of how
        # often events come.
        at_an_end = before | after | ((self.first == begins) & (self.last > self.first))
        observed = (ends - begins) * 1e-9 - away_ns * 1e-9
        ca2 = usual.mean_and_scv(count)[1]
        mean_size, size_scv = self.sizes.mean_and_scv(count)
        missed = inside.counts(count)
        columns = {
            "run": run,
            "publisher_id": pa.array(publisher, mask=publisher == _UNKNOWN),
            "topic_id": topic,
            "publications": self.publications,
            "first_ns": self.first,
            "last_ns": self.last,
            "observed_seconds": observed,
            "rate_per_second": _known(_ratio(self.publications - missed - at_an_end, observed)),
            "ca2": _known(np.where(gaps >= 2, ca2, np.nan)),
            "regular_share": _known(_ratio(np.where(median > 0, near, np.nan), gaps)),
            "outages": missed + before + after,
            "outage_seconds": away_ns * 1e-9,
            "longest_outages": _lists(spans[0], {"from_ns": spans[1], "until_ns": spans[2]}, count),
            "mean_size_bytes": mean_size,
            "size_scv": _known(size_scv),
            "sizes": _lists(
                self.sizes.source,
                {"size_bytes": self.sizes.total / self.sizes.count, "count": self.sizes.count},
                count,
            ),
        }
        return pa.table(columns)

    def _regularity(self) -> tuple[Any, Any, Any]:
        """The bin above which a gap is an outage (infinity for none), the median gap, and how many gaps are near it."""
        count = len(self.first)
        source, number, counted = self.gaps[:3]
        middles = bin_middles()
        middle, typical = (
            each.to_numpy(zero_copy_only=False).astype(np.float64)
            for each in percentile_bins(packed_lists(source, number, counted, count), [0.5, 0.9])
        )
        median = np.where(np.isnan(middle), np.nan, middles[np.nan_to_num(middle).astype(np.int64)])
        # Where nine of ten gaps are 0, the clock is too coarse to tell.
        above = np.where(typical > 0, typical + _BINS_LONGER, np.inf)

        def those(chosen: Any) -> Any:
            return _sums(source, np.where(chosen, counted, 0), count)

        limit = above[source]
        long = those(number > limit)
        half = those((number >= limit - PARTS_PER_DOUBLING) & (number <= limit))
        near = those(np.abs(middles[number] - median[source]) <= median[source] * _NEAR_MEDIAN)
        gaps = self.gaps.counts(count)
        clockwork = (median > 0) & (near >= (gaps - long) * _CLOCKWORK_SHARE)
        rare = (long <= np.maximum(1, gaps // _RARE)) & (half == 0)
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
