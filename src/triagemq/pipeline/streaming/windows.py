"""From cells to windows, in one call for all cells of some topics: in a task of Spark's, or here if there are few.

Windows are cut at whole multiples on the clock of the run, as in `topic_rates` of `triage pipeline run`; the 10 s
windows have the same figures there, to the last bit. A window without events has no row, and none begins before time 0.
No Spark here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.streaming.events import Integers
from triagemq.pipeline.streaming.settings import LONG_NS, StreamSettings

KEYS = ("topic_id", "topic")
COUNTED = ("events", "late", "duplicates")
COUNTS = "topic_id int, topic string, events bigint, late bigint, duplicates bigint"
COUNTERS = f"run_id string, {COUNTS}"
CELLS = f"{COUNTS}, start_ns bigint, bytes bigint, published_ns array<bigint>"
_SHORT_NS = 200_000_000
_SHORT_IN_LONG = LONG_NS // _SHORT_NS


def counters(counts: pa.Table, run_id: str) -> pa.Table:
    """What became of all events of every topic, from earlier such rows and from new cells."""
    summed = counts.group_by(list(KEYS)).aggregate([(name, "sum") for name in COUNTED])
    summed = summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])
    return summed.append_column("run_id", pa.repeat(run_id, len(summed)))


def recent(cells: pa.Table, settings: StreamSettings, closed_ns: int) -> pa.Table:
    """What the windows after this moment need of the cells before it: times only where burstiness is open."""
    cells = cells.filter(pc.field("start_ns") >= settings.needed_ns(closed_ns))
    is_open = pc.greater_equal(cells["start_ns"], closed_ns // LONG_NS * LONG_NS)
    times = pc.if_else(is_open, cells["published_ns"], pa.scalar(None, cells["published_ns"].type))
    return cells.drop_columns(["published_ns"]).append_column("published_ns", times)


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
    long = _long(cells, topic, before_ns, closed_ns)
    for columns, seconds in ((sliding, settings.window_seconds), (long, LONG_NS / 1e9)):
        named = topics.select(KEYS).take(columns.pop("topic_row"))
        columns |= {name: named[name] for name in KEYS}
        columns |= {
            "run_id": pa.repeat(run_id, len(named)),
            "window_seconds": np.full(len(named), seconds, float),
        }
        columns["rate_per_second"] = columns["publications"] / seconds
        columns["bytes_per_second"] = columns["bytes"] / seconds
    return pa.concat_tables([pa.table(sliding), pa.table(long)], promote_options="default")


def _sliding(
    cells: pa.Table, topic: Integers, settings: StreamSettings, before_ns: int, closed_ns: int
) -> dict[str, Any]:
    """A running sum over what enters and leaves: as many steps as there are cells, however many windows hold each."""
    step, length = settings.slide_ns, settings.window_ns
    first = max(0, before_ns // step * step - length + step)
    last = closed_ns // step * step - length
    start = cells["start_ns"].to_numpy() // step * step
    changes = np.concatenate([np.maximum(start - length + step, first), start + step])
    # What leaves before the first window, and what enters or leaves after the last one, changes none.
    counts = np.tile(start >= first, 2) & (changes <= last)
    topic, changes, of = _pairs(np.tile(topic, 2)[counts], changes[counts], step)
    is_last = np.append(np.diff(topic) != 0, True)[: len(topic)]
    before = np.cumsum(is_last) - is_last
    sums = []
    for name in ("events", "bytes"):
        values = cells[name].to_numpy()
        total = np.cumsum(_sums(of, np.concatenate([values, -values])[counts], len(topic)))
        sums.append(total - np.append(0, total[is_last])[before])
    until = np.where(is_last, last + step, np.append(changes[1:], 0)[: len(topic)])
    times = np.where(sums[0] > 0, (until - changes) // step, 0)
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    repeated = [np.repeat(values, times) for values in (topic, changes, *sums)]
    columns = dict(zip(("topic_row", "window_start_ns", "publications", "bytes"), repeated, strict=True))
    return columns | {"window_start_ns": columns["window_start_ns"] + nth * step}


def _long(cells: pa.Table, topic: Integers, before_ns: int, closed_ns: int) -> dict[str, Any]:
    """10 s windows with burstiness, by the formulas of `tables.topic_rates`, in the same order."""
    start = cells["start_ns"].to_numpy() // LONG_NS * LONG_NS
    row = np.flatnonzero((start >= 0) & (start + LONG_NS > before_ns) & (start + LONG_NS <= closed_ns))
    cells = cells.take(row)
    topic, start, of = _pairs(topic[row], start[row], LONG_NS)
    count, size = (_sums(of, cells[name].to_numpy(), len(topic)) for name in ("events", "bytes"))
    lists = cells["published_ns"]
    times, window = pc.list_flatten(lists).to_numpy(), of[pc.list_parent_indices(lists)]
    order = np.lexsort((times, window))
    times, window = times[order], window[order]
    short, _, nth = _pairs(window, times, _SHORT_NS)
    squares = np.bincount(short, np.bincount(nth) ** 2, len(topic))
    begins = np.searchsorted(window, np.arange(len(topic) + 1))
    seconds = (times[begins[1:] - 1] - times[begins[:-1]]) * 1e-9
    gaps = np.diff(times, prepend=0) * 1e-9
    gaps[begins[:-1]] = 0.0
    # It adds one after the other, as a walk over the times does: the sum is the same to the last bit.
    squared_gaps = np.bincount(window, gaps * gaps, len(topic))
    mean = count / _SHORT_IN_LONG
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_gap = seconds / (count - 1)
        ca2 = squared_gaps / (count - 1) / (mean_gap * mean_gap) - 1
    return {
        "topic_row": topic,
        "window_start_ns": start,
        "publications": count,
        "bytes": size,
        "index_of_dispersion": (squares - count * mean) / (_SHORT_IN_LONG - 1) / mean,
        "ca2": pa.array(ca2, mask=(count < 3) | (seconds <= 0)),
    }


def _pairs(topic: Integers, time_ns: Integers, step_ns: int) -> tuple[Integers, Integers, Integers]:
    """Every topic with a step of time that there is, in order, and which of them each one is."""
    steps = time_ns // step_ns
    span = steps.max(initial=0) + 1
    found, of = np.unique(topic * span + steps, return_inverse=True)
    return found // span, found % span * step_ns, of


def _sums(of: Integers, values: Integers, groups: int) -> Integers:
    return np.bincount(of, values, groups).astype(np.int64)
