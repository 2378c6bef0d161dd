"""From events to cells, and from cells to windows, in one call for all cells of some topics. No Spark here.

Spark's state has a row per block, topic and cell, with arrays: it handles a row with a thousand events at the cost of a
few single ones. A cell is the longest stretch of time from which all windows can be put together.

Windows are cut at whole multiples on the clock of the run, as in `topic_rates` of `triage pipeline run`; the 10 s
windows have the same figures there, to the last bit. A window without events has no row, and none begins before time 0.
From windows, profiles of topics are made, to estimate a scenario from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.errors import ParameterError
from triagemq.pipeline.rate_windows import LONG_NS, Integers, Windows, long_windows, steps, sums, with_rates
from triagemq.trace.blocks import NEVER_NS

FOREVER_NS = 1 << 62
"""After every event: the time of a row that marks the end of a run."""

_PAST_FOREVER_NS = FOREVER_NS + (FOREVER_NS >> 1)

EVENTS = pa.schema(
    [
        ("topic_id", pa.int32()),  # null where topics have only names, and in notes
        ("topic", pa.string()),  # null where topics have only numbers, and in notes
        ("published_at", pa.timestamp("us", "UTC")),  # of its latest event: what the watermark follows
        ("published_ns", pa.list_(pa.int64())),
        ("publication_ids", pa.list_(pa.int64())),
        ("size_bytes", pa.list_(pa.int32())),
        ("bytes", pa.int64()),  # the sum of size_bytes
        ("late", pa.int64()),  # events of the topic that are not in the row because they came too late
    ]
)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The settings that the rows of a stream's table depend on, besides its events."""

    source: str
    window_seconds: float = 2.0
    slide_seconds: float = 1.0
    watermark_seconds: float = 2.0

    def __post_init__(self) -> None:
        for name in ("window_seconds", "slide_seconds", "watermark_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0 and (value > 0 or name == "watermark_seconds")):
                raise ParameterError(name, f"must be a positive number of seconds, is {value}")
            if abs(value * 1000 - round(value * 1000)) > 1e-6:
                raise ParameterError(name, f"must be whole milliseconds, is {value}")
        if self.window_ns % self.slide_ns:
            raise ParameterError("slide_seconds", "must go a whole number of times into window_seconds")

    @property
    def window_ns(self) -> int:
        """Length of the sliding windows."""
        return round(self.window_seconds * 1000) * 1_000_000

    @property
    def slide_ns(self) -> int:
        """From the beginning of one sliding window to that of the next."""
        return round(self.slide_seconds * 1000) * 1_000_000

    @property
    def delay_ns(self) -> int:
        """How far the watermark is behind the latest event."""
        return round(self.watermark_seconds * 1000) * 1_000_000

    @property
    def cell_ns(self) -> int:
        """Length of a cell.

        >>> StreamSettings("x", window_seconds=1.5, slide_seconds=0.3).cell_ns
        100000000
        """
        return math.gcd(self.slide_ns, LONG_NS)

    def needed_ns(self, closed_ns: int) -> int:
        """Cells from here on are part of windows that are not closed yet."""
        return min(closed_ns // LONG_NS * LONG_NS, closed_ns - self.window_ns)

    @property
    def open_ns(self) -> int:
        """For how long after an event windows with it may be open."""
        return max(self.window_ns, LONG_NS) + self.delay_ns + 2 * self.cell_ns


@dataclass(frozen=True, slots=True)
class Packing:
    """How long a cell is, how far an event may be behind the latest one of all blocks before its own, and names.

    Whether an event is late depends on the blocks before it and on nothing else, so that every reading of a trace has
    the same result. Spark's watermark follows the batches: it is never ahead of that, and drops no event in time.
    """

    cell_ns: int
    delay_ns: int
    topics: Sequence[str] | None = None
    has_numbers: bool = True
    """Whether the numbers of topics mean anything next to their names."""

    def packed(
        self,
        topic: Integers,
        publication_id: Integers,
        published_ns: Integers,
        size_bytes: Integers,
        *,
        earlier_ns: int = NEVER_NS,
    ) -> pa.RecordBatch:
        """The events of one block; `topic` is a number of the scenario, or of `topics`.

        >>> columns = [np.array(values) for values in ([5, 2, 5], [10, 11, 12], [1, 2, 3], [64, 64, 80])]
        >>> packed = Packing(cell_ns=100, delay_ns=0).packed(*columns).to_pydict()
        >>> packed["topic_id"], packed["publication_ids"], packed["bytes"]
        ([5, 2], [[10, 12], [11]], [144, 64])
        """
        is_late = published_ns < earlier_ns - self.delay_ns
        late_topics, late = np.unique(topic[is_late], return_counts=True)
        lists = {"published_ns": published_ns, "publication_ids": publication_id, "size_bytes": size_bytes}
        rows = pa.table({"topic": topic, "cell": published_ns // self.cell_ns} | lists)
        chosen = rows.filter(pa.array(~is_late)).group_by(["topic", "cell"], use_threads=False)
        sums = [("published_ns", "max"), ("size_bytes", "sum")]
        cells = chosen.aggregate([*((name, "list") for name in lists), *sums])
        topics, nothing = np.concatenate([cells["topic"], late_topics]), np.zeros(len(late), np.int64)
        # What came too late is counted in the cell of the time at which it came.
        latest = np.concatenate([cells["published_ns_max"], nothing + earlier_ns])
        columns = {"published_at": pa.array(latest // 1000).cast(pa.timestamp("us", "UTC"))}
        for name in lists:
            found = cells[f"{name}_list"].combine_chunks()
            columns[name] = pa.concat_arrays([found, pa.array([[]] * len(late), found.type)])
        columns["bytes"] = pa.array(np.concatenate([cells["size_bytes_sum"], nothing]))
        columns["late"] = pa.array(np.concatenate([np.zeros(len(cells), np.int64), late]))
        packed = pa.record_batch([*self._named(topics), *columns.values()], ["topic_id", "topic", *columns])
        return packed.cast(EVENTS)

    def _named(self, topic: Integers) -> tuple[pa.Array, pa.Array]:
        numbers = pa.array(topic.astype(np.int32)) if self.has_numbers else pa.nulls(len(topic), pa.int32())
        if self.topics is None:
            return numbers, pa.nulls(len(topic), pa.string())
        known = np.where((topic >= 0) & (topic < len(self.topics)), topic, len(self.topics))
        return numbers, pa.array([*self.topics, None], pa.string()).take(pa.array(known))


def note(published_ns: int, *, outage: Sequence[int] = (), lost: int = 0, queued: int = 0) -> pa.RecordBatch:
    """A row without a topic, about the stream itself: it is as late as this, and what is known of it.

    `published_ns` are the two ends of an outage, `late` counts messages that were lost, `bytes` those without a time.
    """
    row = dict.fromkeys(EVENTS.names) | {
        "published_ns": list(outage),
        "publication_ids": [],
        "size_bytes": [],
    }
    row |= {"published_at": published_ns // 1000, "bytes": queued, "late": lost}
    return pa.RecordBatch.from_pylist([row], EVENTS)


def end_notes() -> list[pa.RecordBatch]:
    """No event will come any more: the watermark passes all cells, that of FOREVER_NS too."""
    return [note(FOREVER_NS), note(_PAST_FOREVER_NS)]


KEYS = ("topic_id", "topic")
_MOST_OUTAGES = 256
CELLS = (
    "topic_id int, topic string, events bigint, late bigint, duplicates bigint, "
    "start_ns bigint, bytes bigint, published_ns array<bigint>"
)


def recent(cells: pa.Table, settings: StreamSettings, closed_ns: int) -> pa.Table:
    """The cells that windows after this moment need, with times only where burstiness is open."""
    cells = cells.filter(pc.field("start_ns") >= settings.needed_ns(closed_ns))
    is_open = pc.greater_equal(cells["start_ns"], closed_ns // LONG_NS * LONG_NS)
    times = pc.if_else(is_open, cells["published_ns"], pa.scalar(None, cells["published_ns"].type))
    return cells.drop_columns(["published_ns"]).append_column("published_ns", times)


def joined_spans(spans: Iterable[list[int]]) -> list[list[int]]:
    """Spans of time in order, those that touch as one; of very many, the nearest ones too.

    >>> joined_spans([[5, 7], [1, 2], [2, 3], [6, 9]])
    [[1, 3], [5, 9]]
    """
    joined: list[list[int]] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([begin, end])
    while len(joined) > _MOST_OUTAGES:
        nearest = min(range(len(joined) - 1), key=lambda at: joined[at + 1][0] - joined[at][1])
        joined[nearest : nearest + 2] = [[joined[nearest][0], joined[nearest + 1][1]]]
    return joined


def touches(
    spans: Iterable[Sequence[int]], start_ns: Integers, length_ns: Integers | int
) -> npt.NDArray[np.bool_]:
    """Which windows have time in common with one of the spans."""
    found = np.zeros(len(start_ns), dtype=bool)
    for begin, end in spans:
        found |= (start_ns < end) & (start_ns + length_ns > begin)
    return found


def rates(
    cells: pa.Table,
    run_id: str,
    settings: StreamSettings,
    before_ns: int,
    closed_ns: int,
    outages: Sequence[Sequence[int]] = (),
) -> pa.Table:
    """The windows that end after one moment and not after another, without those in which an outage begins or ends."""
    cells = cells.filter(pc.field("events") > 0)
    topics = cells.select(KEYS).append_column("row", pa.array(np.arange(len(cells))))
    topics = topics.group_by(list(KEYS)).aggregate([("row", "list")])
    topic = np.empty(len(cells), dtype=np.int64)
    topic[pc.list_flatten(topics["row_list"])] = pc.list_parent_indices(topics["row_list"])
    sliding = _sliding(cells, topic, settings, before_ns, closed_ns)
    if settings.window_ns == LONG_NS:
        # These have a row with burstiness.
        has_no_other = sliding["window_start_ns"] % LONG_NS != 0
        sliding = {name: values[has_no_other] for name, values in sliding.items()}
    long = _long(cells, topic, before_ns, closed_ns)
    made = ((sliding, settings.window_seconds), (long, LONG_NS / 1e9))
    tables = [with_rates(windows, seconds, topics.select(KEYS)) for windows, seconds in made]
    both = pa.concat_tables(tables, promote_options="default")
    ends = [
        (end, end) for span in outages for end in span if end >= before_ns - max(settings.window_ns, LONG_NS)
    ]
    lengths = np.rint(both["window_seconds"].to_numpy() * 1e9).astype(np.int64)
    both = both.filter(pa.array(~touches(ends, both["window_start_ns"].to_numpy(), lengths)))
    return both.append_column("run_id", pa.repeat(run_id, len(both)))


def _sliding(
    cells: pa.Table, topic: Integers, settings: StreamSettings, before_ns: int, closed_ns: int
) -> Windows:
    """A running sum over what enters and leaves: as many steps as there are cells, however many windows hold each."""
    step, length = settings.slide_ns, settings.window_ns
    first = max(0, before_ns // step * step - length + step)
    last = closed_ns // step * step - length
    start = cells["start_ns"].to_numpy() // step * step
    changes = np.concatenate([np.maximum(start - length + step, first), start + step])
    # What leaves before the first window, and what enters or leaves after the last one, changes none.
    counts = np.tile(start >= first, 2) & (changes <= last)
    topic, changes, of = steps(np.tile(topic, 2)[counts], changes[counts], step)
    is_last = np.append(np.diff(topic) != 0, True)[: len(topic)]
    before = np.cumsum(is_last) - is_last
    totals = []
    for name in ("events", "bytes"):
        values = cells[name].to_numpy()
        total = np.cumsum(sums(of, np.concatenate([values, -values])[counts], len(topic)))
        totals.append(total - np.append(0, total[is_last])[before])
    until = np.where(is_last, last + step, np.append(changes[1:], 0)[: len(topic)])
    times = np.where(totals[0] > 0, (until - changes) // step, 0)
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    repeated = [np.repeat(values, times) for values in (topic, changes, *totals)]
    columns = dict(zip(("topic_row", "window_start_ns", "publications", "bytes"), repeated, strict=True))
    return columns | {"window_start_ns": columns["window_start_ns"] + nth * step}


def _long(cells: pa.Table, topic: Integers, before_ns: int, closed_ns: int) -> Windows:
    """10 s windows with burstiness."""
    start = cells["start_ns"].to_numpy() // LONG_NS * LONG_NS
    row = np.flatnonzero((start >= 0) & (start + LONG_NS > before_ns) & (start + LONG_NS <= closed_ns))
    lists = cells["published_ns"].take(row).combine_chunks()
    # The bytes of a cell stand with the first of its events.
    size_bytes = np.zeros(pc.sum(lists.value_lengths()).as_py() or 0, np.int64)
    size_bytes[lists.offsets.to_numpy()[:-1]] = cells["bytes"].to_numpy()[row]
    of = topic[row][pc.list_parent_indices(lists)]
    return long_windows(of, lists.flatten().to_numpy(), size_bytes)


def stream_profile(rows: pa.Table, extra: Mapping[str, Any], run_id: str) -> list[dict[str, Any]]:
    """The topics of a stream as rows of `publication_profile`: their publishers are unknown.

    From the run's rows of `topic_rates` and from the stream's state in the manifest.

    Counted are windows that do not overlap, without the first, in which the stream may have begun, those that touch an
    outage of the stream, and, of a run that has ended, the last; a window without a row had no events. What sources did
    in an outage is not known: it is no condition of theirs. Of sizes there is only the mean.
    """
    if not len(rows):
        return []
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
    for key, whole_sums in whole.items():
        others = tuple(each - once for each, once in zip(whole_sums, worst[key], strict=True))
        found[key] = {"ca2": _ca2(*whole_sums), "gaps": whole_sums[0], "others": (_ca2(*others), others[0])}
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
