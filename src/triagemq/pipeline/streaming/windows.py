"""From cells to windows, in one call for all cells of some topics: in a task of Spark's, or here if there are few.

Windows are cut at whole multiples on the clock of the run, as in `topic_rates` of `triage pipeline run`; the 10 s
windows have the same figures there, to the last bit. A window without events has no row, and none begins before time 0.
No Spark here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.streaming.events import Integers
from triagemq.pipeline.streaming.settings import LONG_NS, StreamSettings

KEYS = ("topic_id", "topic")
COUNTED = ("events", "late", "duplicates")
_TOPIC = [("topic_id", pa.int32()), ("topic", pa.string())]
_COUNTS = [(name, pa.int64()) for name in COUNTED]
COUNTS = pa.schema([*_TOPIC, *_COUNTS])
COUNTERS = pa.schema([("run_id", pa.string()), *COUNTS])
"""Of `stream_counters`."""
CELLS = pa.schema(
    [
        *_TOPIC,
        ("start_ns", pa.int64()),
        *_COUNTS,
        ("bytes", pa.int64()),
        ("published_ns", pa.list_(pa.int64())),  # of its events; null where nobody will need them
    ]
)
RATES = pa.schema(
    [
        ("run_id", pa.string()),
        *_TOPIC,
        ("window_seconds", pa.float64()),
        ("window_start_ns", pa.int64()),
        ("publications", pa.int64()),
        ("rate_per_second", pa.float64()),
        ("bytes", pa.int64()),
        ("bytes_per_second", pa.float64()),
        ("index_of_dispersion", pa.float64()),
        ("ca2", pa.float64()),
    ]
)
"""Of `topic_rates`."""
_SHORT_NS = 200_000_000
_SHORT_IN_LONG = LONG_NS // _SHORT_NS


def by_task(
    make: Callable[[pa.Table], pa.Table],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What one of Spark's tasks does with the rows of its topics."""

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if rows := list(batches):
            yield from make(pa.Table.from_batches(rows)).to_batches()

    return made


def counters(counts: pa.Table, run_id: str) -> pa.Table:
    """What became of all events of every topic, from earlier such rows and from new cells."""
    summed = counts.group_by(list(KEYS)).aggregate([(name, "sum") for name in COUNTED])
    columns = [summed[name] for name in (*KEYS, *(f"{name}_sum" for name in COUNTED))]
    return pa.table([pa.repeat(run_id, len(summed)), *columns], schema=COUNTERS)


def recent(cells: pa.Table, settings: StreamSettings, closed_ns: int) -> pa.Table:
    """What the windows after this moment need of the cells before it: times only where burstiness is open."""
    cells = cells.filter(pc.field("start_ns") >= settings.needed_ns(closed_ns))
    is_open = pc.greater_equal(cells["start_ns"], closed_ns // LONG_NS * LONG_NS)
    times = pc.if_else(is_open, cells["published_ns"], pa.scalar(None, CELLS.field("published_ns").type))
    return cells.set_column(CELLS.get_field_index("published_ns"), "published_ns", times)


def rates(cells: pa.Table, run_id: str, settings: StreamSettings, before_ns: int, closed_ns: int) -> pa.Table:
    """The windows that end after one moment and not after another."""
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
    both = (sliding, settings.window_seconds), (_long(cells, topic, before_ns, closed_ns), LONG_NS / 1e9)
    made = []
    for columns, seconds in both:
        count, size = columns["publications"], columns["bytes"]
        named = topics.take(columns.pop("topic_row"))
        columns |= {"rate_per_second": count / seconds, "bytes_per_second": size / seconds}
        columns |= {"run_id": pa.repeat(run_id, len(count)), "window_seconds": np.full(len(count), seconds)}
        columns |= {name: named[name] for name in KEYS}
        nothing = pa.nulls(len(count), pa.float64())
        made.append(pa.table([columns.get(name, nothing) for name in RATES.names], schema=RATES))
    return pa.concat_tables(made)


def _sliding(
    cells: pa.Table, topic: Integers, settings: StreamSettings, before_ns: int, closed_ns: int
) -> dict[str, Any]:
    """A running sum over what enters and leaves: as many steps as there are cells, however many windows hold each."""
    step, length = settings.slide_ns, settings.window_ns
    first = max(0, before_ns // step * step - length + step)
    last = closed_ns // step * step - length
    start = cells["start_ns"].to_numpy() // step * step
    changes = np.concatenate([np.maximum(start - (length - step), first), start + step])
    # What has left before the first window, and what enters after the last one, is in none.
    row = np.flatnonzero(np.tile(start >= first, 2) & (changes <= last))
    topic, changes = np.tile(topic, 2)[row], changes[row]
    order, begins = _grouped(topic, changes)
    topic, changes = topic[order][begins], changes[order][begins]
    is_first = np.append(True, np.diff(topic) != 0)[: len(topic)]
    following = np.append(changes[1:], 0)[: len(topic)]
    following[np.append(is_first[1:], True)[: len(topic)]] = last + step
    sums = {}
    for name, of in (("publications", "events"), ("bytes", "bytes")):
        values = cells[of].to_numpy()
        total = np.cumsum(_summed(np.concatenate([values, -values])[row[order]], begins))
        earlier = np.append(0, total)[:-1][is_first]
        sums[name] = total - np.repeat(earlier, np.diff(np.append(np.flatnonzero(is_first), len(topic))))
    times = np.where(sums["publications"] > 0, (following - changes) // step, 0)
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    columns = {"topic_row": topic, "window_start_ns": changes, **sums}
    columns = {name: np.repeat(values, times) for name, values in columns.items()}
    columns["window_start_ns"] += nth * step
    return columns


def _long(cells: pa.Table, topic: Integers, before_ns: int, closed_ns: int) -> dict[str, Any]:
    """10 s windows with burstiness, in the same steps as `tables.topic_rates` takes for every one of them."""
    start = cells["start_ns"].to_numpy() // LONG_NS * LONG_NS
    row = np.flatnonzero((start >= 0) & (start + LONG_NS > before_ns) & (start + LONG_NS <= closed_ns))
    cells, topic, start = cells.take(row), topic[row], start[row]
    order, begins = _grouped(topic, start)
    window = np.empty(len(order), dtype=np.int64)
    window[order] = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(order))))
    count, size = (_summed(cells[name].to_numpy()[order], begins) for name in ("events", "bytes"))
    times, of = (pc.list_flatten(cells["published_ns"]), pc.list_parent_indices(cells["published_ns"]))
    times, of = times.to_numpy(), window[of.to_numpy()]
    by_time = np.lexsort((times, of))
    times, of = times[by_time], of[by_time]
    _, shorts = _grouped(of, times // _SHORT_NS)
    in_short = np.diff(np.append(shorts, len(times)))
    squares = np.bincount(of[shorts], in_short * in_short, len(begins))
    events = np.searchsorted(of, np.arange(len(begins) + 1))
    seconds = (times[events[1:] - 1] - times[events[:-1]]) * 1e-9
    gaps = np.diff(times, prepend=times[:1]) * 1e-9
    gaps[events[:-1]] = 0.0
    # It adds one after the other, as a walk over the times does: the sum is the same to the last bit.
    squared_gaps = np.bincount(of, gaps * gaps, len(begins))
    mean = count / _SHORT_IN_LONG
    known = (count >= 3) & (seconds > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_gap = seconds / (count - 1)
        ca2 = squared_gaps / (count - 1) / (mean_gap * mean_gap) - 1
    return {
        "topic_row": topic[order][begins],
        "window_start_ns": start[order][begins],
        "publications": count,
        "bytes": size,
        "index_of_dispersion": (squares - count * mean) / (_SHORT_IN_LONG - 1) / mean,
        "ca2": pa.array(ca2, mask=~known),
    }


def _grouped(*keys: Integers) -> tuple[Integers, Integers]:
    """The order by these keys, and where in it each group begins that has them all the same."""
    order = np.lexsort(keys[::-1])
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = np.logical_or.reduce([np.diff(key[order]) != 0 for key in keys])
    return order, np.flatnonzero(is_first)


def _summed(values: Integers, begins: Integers) -> Integers:
    return np.add.reduceat(values, begins) if len(begins) else values[:0]
