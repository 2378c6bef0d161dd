"""From whole panes to windows: rates in sliding windows, burstiness in 10 s ones. No Spark here.

Windows are cut at whole multiples on the clock of the run, as in `topic_rates` of `triage pipeline run`; the 10 s
windows have the same figures there. A window without events has no row, and none begins before time 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triagemq.errors import ParameterError
from triagemq.pipeline.streaming.events import NEVER_NS, Integers

__all__ = [
    "FOREVER_NS",
    "LONG_NS",
    "SHORT_NS",
    "StreamSettings",
    "WindowRows",
    "closed_windows",
    "open_panes",
]

FOREVER_NS = 1 << 62
"""After every event: how far a finished run is closed."""

LONG_NS = 10_000_000_000
SHORT_NS = 200_000_000
_SHORT_IN_LONG = LONG_NS // SHORT_NS

Values = npt.NDArray[Any]
Panes = Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What the rows of a stream's table depend on, besides its events."""

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
    def pane_ns(self) -> int:
        """What all windows can be put together from.

        >>> StreamSettings("x", window_seconds=1.5, slide_seconds=0.5).pane_ns
        100000000
        """
        return math.gcd(self.slide_ns, SHORT_NS)

    def closed_ns(self, latest_ns: int, finished: bool) -> int:
        """The whole panes that the watermark has passed, when the latest event of all read so far is this one."""
        if finished:
            return FOREVER_NS
        return (
            NEVER_NS if latest_ns == NEVER_NS else (latest_ns - self.delay_ns) // self.pane_ns * self.pane_ns
        )


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Rows of the table, as columns; NaN where burstiness is not known."""

    run: Integers
    topic_id: Integers
    window_ns: Integers
    start_ns: Integers
    publications: Integers
    bytes: Integers
    index_of_dispersion: npt.NDArray[np.float64]
    ca2: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.run)


def closed_windows(panes: Panes, settings: StreamSettings, before: Integers, now: Integers) -> WindowRows:
    """The windows that end after `before[run]` and not after `now[run]`. `panes` holds all that are in them."""
    run, topic, time_ns = (panes[name].astype(np.int64) for name in ("run", "topic_id", "time_ns"))
    order = np.lexsort((time_ns, topic, run))
    sorted_panes = {name: values[order] for name, values in panes.items()}
    found = [
        _sliding(sorted_panes, settings, before, now),
        _long(sorted_panes, before, now),
    ]
    columns = [
        np.concatenate([getattr(each, name) for each in found]) for name in WindowRows.__dataclass_fields__
    ]
    rows = WindowRows(*columns)
    order = np.lexsort((rows.topic_id, rows.start_ns, rows.window_ns, rows.run))
    return WindowRows(*(values[order] for values in columns))


def open_panes(
    run: Integers, time_ns: Integers, settings: StreamSettings, now: Integers
) -> npt.NDArray[np.bool_]:
    """Which panes are in windows that are not closed yet."""
    closed = now[run]
    return np.asarray(
        (closed < FOREVER_NS)
        & (time_ns >= np.minimum(closed // LONG_NS * LONG_NS, closed - settings.window_ns))
    )


def _sliding(panes: Panes, settings: StreamSettings, before: Integers, now: Integers) -> WindowRows:
    # First what lies between two beginnings, then each of these in all the windows that it is part of.
    cell_ns = panes["time_ns"] // settings.slide_ns * settings.slide_ns
    starts = _group_starts(panes["run"], panes["topic_id"], cell_ns)
    cells = [panes["run"][starts], panes["topic_id"][starts], cell_ns[starts]]
    cells += [_sums(panes[name], starts) for name in ("events", "bytes")]
    times = settings.window_ns // settings.slide_ns
    run, topic, start_ns, events, size = (np.tile(values, times) for values in cells)
    start_ns = start_ns - np.repeat(np.arange(times) * settings.slide_ns, len(starts))
    chosen = _closing(run, start_ns, settings.window_ns, before, now)
    if settings.window_ns == LONG_NS:
        chosen &= start_ns % LONG_NS != 0  # these have a row with burstiness
    run, topic, start_ns, events, size = (values[chosen] for values in (run, topic, start_ns, events, size))
    order = np.lexsort((start_ns, topic, run))
    run, topic, start_ns, events, size = (values[order] for values in (run, topic, start_ns, events, size))
    starts = _group_starts(run, topic, start_ns)
    unknown = np.full(len(starts), np.nan)
    return WindowRows(
        run[starts],
        topic[starts],
        np.full(len(starts), settings.window_ns),
        start_ns[starts],
        _sums(events, starts),
        _sums(size, starts),
        unknown,
        unknown,
    )


def _long(panes: Panes, before: Integers, now: Integers) -> WindowRows:
    """10 s windows. Index of dispersion: variance / mean of the counts of its 200 ms; ca2: that of the gaps."""
    chosen = _closing(panes["run"], panes["time_ns"] // LONG_NS * LONG_NS, LONG_NS, before, now)
    run, topic, time_ns, events, size, first_ns, last_ns, gap_squares = (
        panes[name][chosen]
        for name in ("run", "topic_id", "time_ns", "events", "bytes", "first_ns", "last_ns", "gap_squares")
    )
    start_ns = time_ns // LONG_NS * LONG_NS
    starts = _group_starts(run, topic, start_ns)
    ends = np.append(starts[1:], len(run))[: len(starts)] - 1
    count = _sums(events, starts)
    short = _group_starts(run, topic, time_ns // SHORT_NS)
    squares = _sums(_sums(events, short).astype(np.float64) ** 2, np.searchsorted(short, starts))
    between = np.zeros(len(run))
    between[1:] = (first_ns[1:] - last_ns[:-1]) * 1e-9
    between[starts] = 0.0
    gaps = _sums(gap_squares + between * between, starts)
    mean = count / _SHORT_IN_LONG
    span = (last_ns[ends] - first_ns[starts]) * 1e-9
    known = (count >= 3) & (span > 0)
    mean_gap = np.where(known, span, 1.0) / np.maximum(count - 1, 1)
    return WindowRows(
        run[starts],
        topic[starts],
        np.full(len(starts), LONG_NS),
        start_ns[starts],
        count,
        _sums(size, starts),
        (squares - count * mean) / (_SHORT_IN_LONG - 1) / mean,
        np.where(known, gaps / np.maximum(count - 1, 1) / (mean_gap * mean_gap) - 1, np.nan),
    )


def _closing(
    run: Integers, start_ns: Integers, length_ns: int, before: Integers, now: Integers
) -> npt.NDArray[np.bool_]:
    end_ns = start_ns + length_ns
    return np.asarray((start_ns >= 0) & (end_ns > before[run]) & (end_ns <= now[run]))


def _group_starts(*keys: Values) -> npt.NDArray[np.intp]:
    """Where in sorted columns a new group begins."""
    first = np.ones(len(keys[0]), dtype=bool)
    first[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return np.flatnonzero(first)


def _sums(values: Values, starts: npt.NDArray[np.intp]) -> Values:
    # reduceat cannot be asked for no sums at all.
    return np.add.reduceat(values, starts) if len(starts) else values[:0]
