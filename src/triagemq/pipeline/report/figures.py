"""Rows of tables, in which columns may be missing, and figures of them for Plotly.

Colours are variables of the style sheet (`--series-0`), filled in by the page. Titles and captions are in the
templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.report.formatting import number, percent, plot_text
from triagemq.trace.latency_bins import PARTS_PER_DOUBLING, unpacked_lists

MOST_RUNS = 8
"""Runs that are drawn; more colours look alike."""


class Row(dict[str, Any]):
    """A row of a table; what its version of the table did not have is None."""

    def __missing__(self, column: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run as the page calls it. `color` names a variable of the style sheet."""

    run_id: str
    name: str
    color: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tables of a report and the runs in them."""

    tables: Mapping[str, pa.Table]
    runs: tuple[ShownRun, ...]
    more_runs: int

    @classmethod
    def of(cls, tables: Mapping[str, pa.Table], names: Mapping[str, str], more_runs: int = 0) -> Inputs:
        """Find the runs: those that have names first, in that order, then all others."""
        present = {name: table for name, table in tables.items() if "run_id" in table.column_names}
        found = _run_ids(present)
        ordered = list(dict.fromkeys([*(each for each in names if each in found), *found]))
        called = _names(present, ordered) | dict(names)
        runs = tuple(
            ShownRun(run_id, called[run_id], f"--series-{number}")
            for number, run_id in enumerate(ordered[:MOST_RUNS])
        )
        return cls(present, runs, more_runs + len(ordered[MOST_RUNS:]))

    def rows(self, name: str) -> list[tuple[ShownRun, Row]]:
        """The rows of a table that belong to the runs of the page, run by run."""
        return [(run, row) for run in self.runs for row in self.rows_of(name, run)]

    def rows_of(self, name: str, run: ShownRun) -> list[Row]:
        """The rows of one run."""
        table = self.tables.get(name)
        if table is None:
            return []
        return [Row(row) for row in table.filter(pc.field("run_id") == run.run_id).to_pylist()]

    def subscriptions(self) -> pa.Table:
        """subscription_performance of the runs of the page, as it may be long: `worth` and `lost` are numbers in it."""
        table = self.tables.get("subscription_performance", pa.table({"run_id": pa.array([], pa.string())}))
        table = table.filter(
            pc.field("run_id").isin(pa.array([run.run_id for run in self.runs], pa.string()))
        )

        def numbers(name: str) -> Any:
            known = name in table.column_names
            return (table[name] if known else pa.nulls(len(table))).cast(pa.float64())

        worth, captured = numbers("maximum_utility"), pc.fill_null(numbers("utility"), 0.0)
        columns = {"worth": worth, "captured": captured, "lost": pc.subtract(worth, captured)}
        columns |= {"number": numbers("subscription_id"), "level": numbers("priority_class")}
        for name, values in columns.items():
            table = table.append_column(name, values)
        return table


def largest(table: pa.Table, column: str, most: int) -> list[Row]:
    """The rows in which a column is largest, those first."""
    order = pc.select_k_unstable(
        table, min(most, table.num_rows), [(column, "descending"), ("number", "ascending")]
    )
    return [Row(row) for row in table.take(order).to_pylist()]


def _run_ids(tables: Mapping[str, pa.Table]) -> Sequence[str]:
    """All runs, as run_summary lists them, and those that only other tables know."""
    order = sorted(tables, key=lambda name: (name != "run_summary", name))
    found = (run_id for name in order for run_id in tables[name]["run_id"].unique().to_pylist())
    return list(dict.fromkeys(run_id for run_id in found if run_id is not None))


def _names(tables: Mapping[str, pa.Table], run_ids: Iterable[str]) -> dict[str, str]:
    """The last part of where each run was read from; its id where that is not known or not unique."""
    summary = tables["run_summary"].to_pylist() if "run_summary" in tables else []
    sources = {row["run_id"]: PurePath(row.get("source") or "").name for row in summary}
    short = list(sources.values())
    return {
        run_id: sources[run_id] if sources.get(run_id) and short.count(sources[run_id]) == 1 else run_id
        for run_id in run_ids
    }


MOST_POINTS = 1000
LEVELS = 9
"""Colours for classes in the style sheet; classes beyond take the last."""

_SPREAD = 0.7
"""How much of the room of a class its runs may take side by side."""
_SHARES = {"tickformat": ".0%", "range": [0, 1.02]}
_PLAIN = {"showgrid": False, "zeroline": False}

Drawing = dict[str, Any]
"""`data` and `layout` of a figure; `height`, where it grows with what is shown."""
Rows = Mapping[ShownRun, Sequence[Row]]
Utilities = Mapping[ShownRun, Mapping[int, tuple[float, float]]]
"""The captured and the maximum utility, by run and class."""
Curve = tuple[list[float], list[float]]
"""Seconds, and the share of all copies delivered within them."""


def level_of(row: Row) -> int:
    """Copies that no plan covers have no class; they stand before the first."""
    return -1 if row["priority_class"] is None else int(row["priority_class"])


def delivered(rows: Rows) -> Drawing:
    """A bar for each class and run."""
    data = [
        _bars(run, _levels(own), _column(own, "success_rate"), "class %{x}: %{y:.2%} delivered")
        for run, own in rows.items()
    ]
    return _by_class(data, map(_levels, rows.values()), _axis("delivered", **_SHARES))


def latencies(rows: Rows) -> Drawing:
    """A dot, a diamond and a line for each class and run."""
    data, shown = [], []
    for place, (run, own) in enumerate(rows.items()):
        known = [row for row in own if row["p50"] is not None]
        p50, p95, p99 = (_column(known, name) for name in ("p50", "p95", "p99"))
        shown += p50 + p99
        shift = _SPREAD * ((place + 0.5) / len(rows) - 0.5)
        x = [level + shift for level in _levels(known)]
        dots = _scatter(run, "markers", x, p50, "half of them within %{y:.3s}s")
        dots["marker"] = {"color": run.color, "size": 10}
        up_to_99 = [high - low for low, high in zip(p50, p99, strict=True)]
        dots["error_y"] = {"array": up_to_99, "arrayminus": [0.0] * len(x), "color": run.color, "width": 5}
        diamonds = _scatter(run, "markers", x, p95, "95 % of them within %{y:.3s}s", showlegend=False)
        diamonds["marker"] = {"color": run.color, "size": 9, "symbol": "diamond-open", "line": {"width": 2}}
        data += [dots, diamonds]
    return _by_class(data, map(_levels, rows.values()), _axis("latency", **_time_axis(shown)))


def utility_captured(rows: Utilities) -> Drawing:
    """A bar of what each run captured, within one of all that there was to have."""
    shared = {"type": "bar", "orientation": "h", "hoverinfo": "skip"}
    whole = {"x": [1.0] * len(rows), "y": list(range(len(rows))), "marker": {"color": "--empty"}}
    data = [shared | whole]
    for place, (run, own) in enumerate(rows.items()):
        captured, most = (sum(column) for column in zip(*own.values(), strict=True))
        share = captured / most if most else 0.0
        words = {
            "text": [plot_text(f"{percent(share)} ({number(captured)} of {number(most)})")],
            "textposition": "inside" if share > 0.4 else "outside",
            "insidetextanchor": "end",
            "insidetextfont": {"color": "--on-series"},
        }
        data.append(shared | {"x": [share], "y": [place], "marker": {"color": run.color}} | words)
    shares = _axis("share of the maximum utility", tickformat=_SHARES["tickformat"], range=[0, 1.005])
    names = _names_axis(run.name for run in rows)
    drawing = _drawing(data, shares, names, legend=False, barmode="overlay", bargap=0.35)
    return drawing | {"height": 110 + 48 * len(rows)}


def utility_by_class(rows: Utilities) -> Drawing:
    """The captured utility of each class and run, and the lost one on top of it."""
    data = []
    for place, (run, own) in enumerate(rows.items()):
        captured, lost = [had for had, _ in own.values()], [most - had for had, most in own.values()]
        shares = [had / most if most else 0.0 for had, most in own.values()]
        together = {"offsetgroup": str(place), "legendgroup": run.run_id}
        hover = "class %{x}: %{y:.4g}, %{customdata:.1%} of its maximum"
        on_top = {"base": captured, "name": "lost", "showlegend": False, "marker": {"color": "--empty"}}
        data += [
            _bars(run, list(own), captured, hover, customdata=shares, **together),
            _bars(run, list(own), lost, "lost %{y:.4g}", **together) | on_top,
        ]
    return _by_class(data, rows.values(), _axis("utility", rangemode="tozero"))


def curve_of_bins(packed: Sequence[int], copies: int, longest_seconds: float | None) -> Curve:
    """Which share of the copies had come by the end of each bin; the last ends behind everything that is in it.

    >>> seconds, share = curve_of_bins([(1 << 48) + 3, (64 << 48) + 1, (65 << 48) + 2], 8, None)
    >>> [round(each * 1e9, 6) for each in seconds], share
    ([1.015625, 2.0, 2.03125], [0.375, 0.5, 0.75])
    """
    _, number, count = unpacked_lists(pa.array([packed], pa.list_(pa.int64())))
    places, at = np.unique(number, return_inverse=True)
    counts = np.bincount(at, count)
    part = np.maximum(places, 1) - 1
    ends = 2.0 ** (part // PARTS_PER_DOUBLING) * (1 + (part % PARTS_PER_DOUBLING + 1) / PARTS_PER_DOUBLING)
    seconds = np.minimum(
        np.where(places < 1, 1.0, ends) * 1e-9, np.inf if longest_seconds is None else longest_seconds
    )
    share = np.cumsum(counts) / max(copies, 1)
    chosen = np.unique(np.linspace(0, len(seconds) - 1, min(len(seconds), MOST_POINTS)).round().astype(int))
    return seconds[chosen].tolist(), share[chosen].tolist()


def distributions(curves: Mapping[ShownRun, Curve] | Mapping[int, Curve]) -> Drawing:
    """A line for each run, or for each class of one run."""
    data, shown = [], []
    for each, (seconds, share) in curves.items():
        if isinstance(each, ShownRun):
            called, color = plot_text(each.name), each.color
        else:
            called = "no class" if each < 0 else f"class {each}"
            color = f"--level-{min(max(each, 0), LEVELS - 1)}"
        line = {"color": color, "shape": "hv", "width": 2}
        data.append(
            _trace("scatter", called, seconds, share, "%{y:.1%} within %{x:.3s}s", mode="lines", line=line)
        )
        shown += seconds
    latency, share_of_copies = _axis("latency", **_time_axis(shown)), _axis("share of copies", **_SHARES)
    return _drawing(data, latency, share_of_copies, legend=len(curves) > 1)


def load(rows: Rows) -> Drawing:
    """The load and the offered load of a port over time."""
    data = []
    for run, own in rows.items():
        seconds, used, offered = (_column(own, name) for name in ("seconds", "load", "offered_load"))
        hover = "carried %{y:.1%}, %{customdata:.4~s} packets waiting"
        solid = _scatter(run, "lines", seconds, used, hover)
        solid |= {"customdata": _column(own, "backlog_packets"), "line": {"color": run.color, "width": 2}}
        dotted = _scatter(run, "lines", seconds, offered, "offered %{y:.1%}", showlegend=False)
        dotted["name"] += ", offered"
        dotted["line"] = {"color": run.color, "width": 1.5, "dash": "dot"}
        data += [solid, dotted]
    full = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    return _drawing(
        data,
        _axis("seconds since the end of warm-up", ticksuffix=" s"),
        _axis("load", tickformat=".0%", rangemode="tozero"),
        legend=len(rows) > 1,
        shapes=[full | {"line": {"color": "--quiet", "width": 1, "dash": "dash"}}],
    )


def rates(topics: Sequence[str], found: Mapping[tuple[ShownRun, str], Row]) -> Drawing:
    """A bar for each topic and run."""
    runs = list(dict.fromkeys(run for run, _ in found))
    places, nothing = list(range(len(topics))), Row()
    data = []
    for run in runs:
        own = _column([found.get((run, topic), nothing) for topic in topics], "rate_per_second")
        data.append(_bars(run, own, places, "%{x:.4g} events a second", orientation="h"))
    often = _axis("events a second", rangemode="tozero")
    drawing = _drawing(data, often, _names_axis(topics), legend=len(runs) > 1)
    return drawing | {"height": 110 + len(topics) * max(20, 9 * len(runs))}


def _trace(kind: str, name: str, x: Sequence[Any], y: Sequence[Any], hover: str, **more: Any) -> Drawing:
    return {"type": kind, "name": name, "x": x, "y": y, "hovertemplate": hover, **more}


def _bars(run: ShownRun, x: Sequence[Any], y: Sequence[Any], hover: str, **more: Any) -> Drawing:
    return _trace("bar", plot_text(run.name), x, y, hover, marker={"color": run.color}, **more)


def _scatter(
    run: ShownRun, mode: str, x: Sequence[Any], y: Sequence[Any], hover: str, **more: Any
) -> Drawing:
    name = plot_text(run.name)
    return _trace("scatter", name, x, y, hover, mode=mode, legendgroup=run.run_id, **more)


def _column(rows: Sequence[Row], name: str) -> list[Any]:
    return [row[name] for row in rows]


def _levels(rows: Sequence[Row]) -> list[int]:
    return [level_of(row) for row in rows]


def _drawing(data: list[Drawing], xaxis: Drawing, yaxis: Drawing, *, legend: bool, **layout: Any) -> Drawing:
    return {"data": data, "layout": {"showlegend": legend, "xaxis": xaxis, "yaxis": yaxis, **layout}}


def _by_class(data: list[Drawing], levels: Iterable[Iterable[int]], yaxis: Drawing) -> Drawing:
    """A figure in which runs, of which each has some levels, stand side by side in each class."""
    by_run = [list(own) for own in levels]
    places = sorted({level for own in by_run for level in own})
    names = ["none" if level < 0 else str(level) for level in places]
    room = [places[0] - 0.5, places[-1] + 0.5]
    classes = _axis("priority class", tickvals=places, ticktext=names, range=room, **_PLAIN)
    return _drawing(data, classes, yaxis, legend=len(by_run) > 1)


def _axis(title: str, **more: Any) -> Drawing:
    return {"title": {"text": title}, **more}


def _names_axis(names: Iterable[str]) -> Drawing:
    texts = [plot_text(name) for name in names]
    return {"tickvals": list(range(len(texts))), "ticktext": texts, "autorange": "reversed", **_PLAIN}


def _time_axis(seconds: Sequence[float]) -> Drawing:
    """A logarithmic axis in units that people use: a label for each power of ten, more where there are few."""
    known = [each for each in seconds if each > 0]
    ratio = max(known, default=1.0) / min(known, default=1.0)
    dtick = 1 if ratio > 30 else "D2" if ratio > 4 else "D1"
    return {"type": "log", "ticksuffix": "s", "tickformat": "~s", "dtick": dtick}
