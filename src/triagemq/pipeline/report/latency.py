"""Section: how latencies are distributed, losses included: which share of all copies came within which time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from triagemq.pipeline.report.inputs import Inputs, Run
from triagemq.pipeline.report.page import Figure, Section
from triagemq.pipeline.report.summary import nothing
from triagemq.pipeline.report.words import plot_text, safe

__all__ = ["MOST_POINTS", "bin_ends_seconds", "section", "time_axis"]

MOST_POINTS = 1000
MOST_RUNS_BY_CLASS = 4
LEVELS = 9
"""Colours for classes in the style sheet; classes beyond take the last."""

# How `latency_bins` packs a bin and its count into one number.
_COUNT_BITS = 48
_PARTS_PER_DOUBLING = 64
_OUTCOMES = (
    "delivered",
    "dropped_by_policy",
    "dropped_by_buffer",
    "limited",
    "lost_on_link",
    "subscriber_gone",
    "in_flight",
    "unacknowledged",
)
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}

Curve = tuple[list[float], list[float]]
"""Seconds, and the share of all copies delivered within them."""


def section(inputs: Inputs) -> Section:
    """One curve per run, then for each run one per class."""
    title = "Latency distributions"
    whole = _curves_of_histogram(inputs, by_class=False)
    classes = _curves_of_histogram(inputs, by_class=True) or _curves_of_percentiles(inputs)
    if not whole and not classes:
        return Section("latency", title, [nothing("There are no measured latencies in these tables.")])
    words = (
        "<p>Each curve shows which share of all copies had arrived after a given time. It ends at the share that "
        "arrived at all, late or not; the gap to 100 % was lost. Higher and further left is better.</p>"
    )
    parts: list[str | Figure] = [words]
    if whole:
        parts.append(_of_runs([run for run in inputs.runs if (run.run_id, None) in whole], whole))
    # A single class is the curve of the whole run.
    least = 2 if whole else 1
    drawn = [run for run in inputs.runs if sum(run_id == run.run_id for run_id, _ in classes) >= least]
    parts += [_of_classes(run, classes) for run in drawn[:MOST_RUNS_BY_CLASS]]
    return Section("latency", title, parts)


def _of_runs(runs: list[Run], curves: dict[tuple[str, int | None], Curve]) -> Figure:
    data = [_line(plot_text(run.name), run.color, curves[run.run_id, None], "hv", "lines") for run in runs]
    return Figure("All copies", "All classes together.", data, _layout(data, len(runs) > 1), height=360)


def _of_classes(run: Run, curves: dict[tuple[str, int | None], Curve]) -> Figure:
    own = {level: curve for (run_id, level), curve in curves.items() if run_id == run.run_id}
    few = max((len(curve[0]) for curve in own.values()), default=0) <= len(_PERCENTILES)
    data = []
    for level in sorted(own, key=lambda level: -1 if level is None else level):
        name = "no class" if level is None else f"class {level}"
        color = f"--level-{min(level or 0, LEVELS - 1)}"
        data.append(
            _line(name, color, own[level], "linear" if few else "hv", "lines+markers" if few else "lines")
        )
    source = "From four percentiles each." if few else "Classes are served in the order of their numbers."
    return Figure(f"By class: <bdi>{safe(run.name)}</bdi>", source, data, _layout(data, True), height=360)


def _line(name: str, color: str, curve: Curve, shape: str, mode: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": curve[0],
        "y": curve[1],
        "line": {"color": color, "shape": shape, "width": 2},
        "hovertemplate": "%{y:.1%} within %{x:.3s}s",
    }


def _layout(data: list[dict[str, Any]], with_legend: bool) -> dict[str, Any]:
    return {
        "showlegend": with_legend,
        "xaxis": {
            "title": {"text": "latency"},
            **time_axis([seconds for line in data for seconds in line["x"]]),
        },
        "yaxis": {"title": {"text": "share of copies"}, "tickformat": ".0%", "range": [0, 1.02]},
    }


def time_axis(seconds: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis in units that people use: a label for each power of ten, more where there are few.

    >>> time_axis([0.001, 0.5])["dtick"], time_axis([1.0, 3.0])["dtick"]
    (1, 'D1')
    """
    known = [each for each in seconds if each > 0]
    ratio = max(known, default=1.0) / min(known, default=1.0)
    dtick = 1 if ratio > 30 else "D2" if ratio > 4 else "D1"
    return {"type": "log", "ticksuffix": "s", "tickformat": "~s", "dtick": dtick}


def _curves_of_histogram(inputs: Inputs, *, by_class: bool) -> dict[tuple[str, int | None], Curve]:
    """From the bins of all subscriptions, added up."""
    table = inputs.table("latency_histogram", ("priority_class", *_OUTCOMES, "latency_max_ns", "bins"))
    if table is None or pa.types.is_null(table["bins"].type):
        return {}
    keys = ["run_id", "priority_class"] if by_class else ["run_id"]
    totals = table.group_by(keys).aggregate(
        [*((name, "sum") for name in _OUTCOMES), ("latency_max_ns", "max")]
    )
    copies, longest = {}, {}
    for row in totals.to_pylist():
        key = (row["run_id"], row.get("priority_class"))
        copies[key] = sum(row[f"{name}_sum"] or 0 for name in _OUTCOMES)
        longest[key] = row["latency_max_ns_max"]
    bins = table["bins"].combine_chunks()
    entries = pc.list_flatten(bins)
    parents = pc.list_parent_indices(bins)
    exploded = pa.table(
        {name: table[name].take(parents) for name in keys}
        | {
            "bin": pc.shift_right(entries, _COUNT_BITS),
            "count": pc.bit_wise_and(entries, (1 << _COUNT_BITS) - 1),
        }
    )
    counted = exploded.group_by([*keys, "bin"]).aggregate([("count", "sum")]).sort_by("bin")
    found: dict[tuple[str, int | None], tuple[list[int], list[int]]] = {}
    for row in counted.to_pylist():
        places, counts = found.setdefault((row["run_id"], row.get("priority_class")), ([], []))
        places.append(row["bin"])
        counts.append(row["count_sum"])
    return {key: _curve(*found[key], copies[key], longest[key]) for key in found}


def _curve(places: list[int], counts: list[int], copies: int, longest_ns: int | None) -> Curve:
    seconds = bin_ends_seconds(np.array(places))
    if longest_ns is not None:
        # The last bin ends behind everything that is in it.
        seconds = np.minimum(seconds, longest_ns * 1e-9)
    share = np.cumsum(counts) / max(copies, 1)
    if len(seconds) > MOST_POINTS:
        chosen = np.unique(np.linspace(0, len(seconds) - 1, MOST_POINTS).round().astype(np.int64))
        seconds, share = seconds[chosen], share[chosen]
    return seconds.tolist(), share.tolist()


def bin_ends_seconds(places: NDArray[np.int64]) -> NDArray[np.float64]:
    """Where the bins of `latency_bins` end: 64 of equal width to each doubling, from 1 ns on.

    >>> bin_ends_seconds(np.array([0, 1, 64, 65])) * 1e9
    array([1.      , 1.015625, 2.      , 2.03125 ])
    """
    part = np.maximum(places, 1) - 1
    octave = 2.0 ** (part // _PARTS_PER_DOUBLING)
    ends = octave * (1 + (part % _PARTS_PER_DOUBLING + 1) / _PARTS_PER_DOUBLING)
    return np.where(places < 1, 1.0, ends) * 1e-9


def _curves_of_percentiles(inputs: Inputs) -> dict[tuple[str, int | None], Curve]:
    """Where there is no histogram: the four points that every class has."""
    columns = ("priority_class", "success_rate", *_PERCENTILES)
    curves: dict[tuple[str, int | None], Curve] = {}
    for run_id, rows in inputs.rows("class_performance", columns).items():
        for row in rows:
            known = [(row[name], share) for name, share in _PERCENTILES.items() if row[name] is not None]
            if known and row["success_rate"] is not None:
                curves[run_id, row["priority_class"]] = (
                    [seconds for seconds, _ in known],
                    [share * row["success_rate"] for _, share in known],
                )
    return curves
