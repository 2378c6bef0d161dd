"""How often events come in windows of time, and how burstily: for tables and streams alike, to the last bit. No Spark.

Windows are cut at whole multiples of their length on the clock of the run. A window without events is none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SHORT_NS = 200_000_000
LONG_NS = 10_000_000_000
"""Windows of this length know burstiness, by the short ones in them."""
_SHORT_IN_LONG = LONG_NS // SHORT_NS

Integers = npt.NDArray[np.int64]
Windows = dict[str, Any]
"""Columns `topic_row`, `window_start_ns`, `publications` and `bytes`, and figures of them."""


def short_windows(topic: Integers, time_ns: Integers, size_bytes: Integers) -> Windows:
    """The 200 ms windows of events, whose topics are numbered from 0 on."""
    return _counted(*steps(topic, time_ns, SHORT_NS), size_bytes)


def long_windows(topic: Integers, time_ns: Integers, size_bytes: Integers) -> Windows:
    """The 10 s windows of events, with `index_of_dispersion` and `ca2`; both count all 200 ms windows in them."""
    order = np.lexsort((time_ns, topic))
    topic, time_ns = topic[order], time_ns[order]
    topic, start, window = steps(topic, time_ns, LONG_NS)
    windows = _counted(topic, start, window, size_bytes[order])
    count = windows["publications"]
    short, _, nth = steps(window, time_ns, SHORT_NS)
    squares = np.bincount(short, np.bincount(nth) ** 2, len(topic))
    begins = np.searchsorted(window, np.arange(len(topic) + 1))
    seconds = (time_ns[begins[1:] - 1] - time_ns[begins[:-1]]) * 1e-9
    gaps = np.diff(time_ns, prepend=0) * 1e-9
    gaps[begins[:-1]] = 0.0
    # One is added after the other, in order of time: the sum is the same however the events were spread.
    squared_gaps = np.bincount(window, gaps * gaps, len(topic))
    mean = count / _SHORT_IN_LONG
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_gap = seconds / (count - 1)
        ca2 = squared_gaps / (count - 1) / (mean_gap * mean_gap) - 1
    windows["index_of_dispersion"] = (squares - count * mean) / (_SHORT_IN_LONG - 1) / mean
    return windows | {"ca2": pa.array(ca2, mask=(count < 3) | (seconds <= 0))}


def with_rates(windows: Windows, seconds: float, keys: pa.Table) -> pa.Table:
    """Windows of a length with the row of their topic, and what comes in a second."""
    named = keys.take(windows.pop("topic_row"))
    rates = {"rate": windows["publications"], "bytes": windows["bytes"]}
    windows |= {f"{name}_per_second": values / seconds for name, values in rates.items()}
    windows["window_seconds"] = np.full(len(named), seconds, float)
    return pa.table({name: named[name] for name in named.column_names} | windows)


def steps(topic: Integers, time_ns: Integers, step_ns: int) -> tuple[Integers, Integers, Integers]:
    """Every topic with a step of time that there is, in order, and which of them each one is."""
    number = time_ns // step_ns
    span = number.max(initial=0) + 1
    found, of = np.unique(topic * span + number, return_inverse=True)
    return found // span, found % span * step_ns, of


def sums(of: Integers, values: Integers, groups: int) -> Integers:
    """Whole numbers of each group added up."""
    return np.bincount(of, values, groups).astype(np.int64)


def _counted(topic: Integers, start: Integers, window: Integers, size_bytes: Integers) -> Windows:
    count = np.bincount(window, minlength=len(topic))
    added = sums(window, size_bytes, len(topic))
    return {"topic_row": topic, "window_start_ns": start, "publications": count, "bytes": added}
