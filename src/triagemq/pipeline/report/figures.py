"""What is drawn, for Plotly. Colours are variables of the style sheet (`--series-0`), filled in by the page.

Titles and captions are in the templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from triagemq.pipeline.report.inputs import Row, Run
from triagemq.pipeline.report.words import number, percent, plot_text
from triagemq.trace.latency_bins import PARTS_PER_DOUBLING

MOST_POINTS = 1000
LEVELS = 9
"""Colours for classes in the style sheet; classes beyond take the last."""

_COUNT_BITS = 48
"""How `latency_bins` packs a bin and its count into one number."""
_SPREAD = 0.7
"""How much of the room of a class its runs may take side by side."""
_SHARES = {"tickformat": ".0%", "range": [0, 1.02]}
_PLAIN = {"showgrid": False, "zeroline": False}

Drawing = dict[str, Any]
"""`data` and `layout` of a figure; `height`, where it grows with what is shown."""
Rows = Mapping[Run, Sequence[Row]]
Utilities = Mapping[Run, Mapping[int, tuple[float, float]]]
"""What was captured and the most there was, by run and class."""
Curve = tuple[list[float], list[float]]
"""Seconds, and the share of all copies delivered within them."""


def level_of(row: Row) -> int:
    """Copies that no plan covers have no class; they stand before the first."""
    return -1 if row["priority_class"] is None else int(row["priority_class"])


def delivered(rows: Rows) -> Drawing:
    """A bar for each class and run."""
    data = [
        _bars(run, [level_of(row) for row in own], [row["success_rate"] for row in own])
        | {"hovertemplate": "class %{x}: %{y:.2%} delivered"}
        for run, own in rows.items()
    ]
    return {"data": data, "layout": _by_class(_levels(rows), len(rows), "delivered", _SHARES)}


def latencies(rows: Rows) -> Drawing:
    """A dot, a diamond and a line for each class and run."""
    data, shown = [], []
    for place, (run, own) in enumerate(rows.items()):
        shift = _SPREAD * ((place + 0.5) / len(rows) - 0.5)
        known = [row for row in own if row["p50"] is not None]
        shown += [row[name] for row in known for name in ("p50", "p99")]
        shared = _scatter(run, [level_of(row) + shift for row in known], "markers")
        up_to_99 = {
            "type": "data",
            "symmetric": False,
            "array": [row["p99"] - row["p50"] for row in known],
            "arrayminus": [0.0] * len(known),
            "color": run.color,
            "thickness": 2,
            "width": 5,
        }
        data += [
            shared
            | {
                "y": [row["p50"] for row in known],
                "error_y": up_to_99,
                "marker": {"color": run.color, "size": 10},
                "hovertemplate": "half of them within %{y:.3s}s",
            },
            shared
            | {
                "showlegend": False,
                "y": [row["p95"] for row in known],
                "marker": {"color": run.color, "size": 9, "symbol": "diamond-open", "line": {"width": 2}},
                "hovertemplate": "95 % of them within %{y:.3s}s",
            },
        ]
    return {"data": data, "layout": _by_class(_levels(rows), len(rows), "latency", _time_axis(shown))}


def utility_captured(rows: Utilities) -> Drawing:
    """A bar of what each run captured, within one of all that there was to have."""
    shared = {"type": "bar", "orientation": "h", "hoverinfo": "skip"}
    data = [
        shared | {"x": [1.0] * len(rows), "y": list(range(len(rows))), "marker": {"color": "--empty"}},
    ]
    for place, (run, own) in enumerate(rows.items()):
        captured, most = (sum(column) for column in zip(*own.values(), strict=True))
        share = captured / most if most else 0.0
        data.append(
            shared
            | {
                "x": [share],
                "y": [place],
                "marker": {"color": run.color},
                "text": [plot_text(f"{percent(share)} ({number(captured)} of {number(most)})")],
                "textposition": "inside" if share > 0.4 else "outside",
                "insidetextanchor": "end",
                "insidetextfont": {"color": "--on-series"},
            }
        )
    layout = {
        "barmode": "overlay",
        "bargap": 0.35,
        "showlegend": False,
        "xaxis": _titled("share of the maximum utility") | _SHARES | {"range": [0, 1.005]},
        "yaxis": _names_axis(run.name for run in rows),
    }
    return {"data": data, "layout": layout, "height": 110 + 48 * len(rows)}


def utility_by_class(rows: Utilities) -> Drawing:
    """What was captured of each class and run, and on top of it what was lost."""
    data = []
    for place, (run, own) in enumerate(rows.items()):
        captured, lost = [had for had, _ in own.values()], [most - had for had, most in own.values()]
        shared = {"offsetgroup": str(place), "legendgroup": run.run_id}
        data += [
            _bars(run, list(own), captured)
            | shared
            | {
                "customdata": [had / most if most else 0.0 for had, most in own.values()],
                "hovertemplate": "class %{x}: %{y:.4g}, %{customdata:.1%} of its maximum",
            },
            _bars(run, list(own), lost)
            | shared
            | {
                "base": captured,
                "name": "lost",
                "showlegend": False,
                "marker": {"color": "--empty"},
                "hovertemplate": "lost %{y:.4g}",
            },
        ]
    levels = {level for own in rows.values() for level in own}
    return {"data": data, "layout": _by_class(levels, len(rows), "utility", {"rangemode": "tozero"})}


def curve_of_bins(packed: Sequence[int], copies: int, longest_seconds: float | None) -> Curve:
    """Which share of the copies had come by the end of each bin; the last ends behind everything that is in it.

    >>> seconds, share = curve_of_bins([(1 << 48) + 3, (64 << 48) + 1, (65 << 48) + 2], 8, None)
    >>> [round(each * 1e9, 6) for each in seconds], share
    ([1.015625, 2.0, 2.03125], [0.375, 0.5, 0.75])
    """
    numbers = np.sort(np.array(packed, dtype=np.int64))
    places, first = np.unique(numbers >> _COUNT_BITS, return_index=True)
    counts = np.add.reduceat(numbers & ((1 << _COUNT_BITS) - 1), first)
    part = np.maximum(places, 1) - 1
    ends = 2.0 ** (part // PARTS_PER_DOUBLING) * (1 + (part % PARTS_PER_DOUBLING + 1) / PARTS_PER_DOUBLING)
    seconds = np.minimum(
        np.where(places < 1, 1.0, ends) * 1e-9, np.inf if longest_seconds is None else longest_seconds
    )
    share = np.cumsum(counts) / max(copies, 1)
    chosen = np.unique(np.linspace(0, len(seconds) - 1, min(len(seconds), MOST_POINTS)).round().astype(int))
    return seconds[chosen].tolist(), share[chosen].tolist()


def distributions(curves: Mapping[Run, Curve] | Mapping[int, Curve]) -> Drawing:
    """A line for each run, or for each class of one run."""
    data = []
    for each, (seconds, share) in curves.items():
        if isinstance(each, Run):
            called, color = plot_text(each.name), each.color
        else:
            called = "no class" if each < 0 else f"class {each}"
            color = f"--level-{min(max(each, 0), LEVELS - 1)}"
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": called,
                "x": seconds,
                "y": share,
                "line": {"color": color, "shape": "hv", "width": 2},
                "hovertemplate": "%{y:.1%} within %{x:.3s}s",
            }
        )
    layout = {
        "showlegend": len(curves) > 1,
        "xaxis": _titled("latency")
        | _time_axis([each for seconds, _ in curves.values() for each in seconds]),
        "yaxis": _titled("share of copies") | _SHARES,
    }
    return {"data": data, "layout": layout}


def load(rows: Rows) -> Drawing:
    """What a port carried and what was offered to it, over time."""
    data = []
    for run, own in rows.items():
        shared = _scatter(run, [row["seconds"] for row in own], "lines")
        data += [
            shared
            | {
                "y": [row["load"] for row in own],
                "line": {"color": run.color, "width": 2},
                "customdata": [row["backlog_packets"] for row in own],
                "hovertemplate": "carried %{y:.1%}, %{customdata:.4~s} packets waiting",
            },
            shared
            | {
                "name": f"{plot_text(run.name)}, offered",
                "showlegend": False,
                "y": [row["offered_load"] for row in own],
                "line": {"color": run.color, "width": 1.5, "dash": "dot"},
                "hovertemplate": "offered %{y:.1%}",
            },
        ]
    full = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1}
    layout = {
        "showlegend": len(rows) > 1,
        "xaxis": _titled("seconds since the end of warm-up") | {"ticksuffix": " s"},
        "yaxis": _titled("load") | {"tickformat": ".0%", "rangemode": "tozero"},
        "shapes": [full | {"line": {"color": "--quiet", "width": 1, "dash": "dash"}}],
    }
    return {"data": data, "layout": layout}


def rates(topics: Sequence[str], found: Mapping[tuple[Run, str], Row]) -> Drawing:
    """A bar for each topic and run."""
    runs = list(dict.fromkeys(run for run, _ in found))
    places, nothing = list(range(len(topics))), Row()
    data = [
        _bars(run, [found.get((run, topic), nothing)["rate_per_second"] for topic in topics], places)
        | {"orientation": "h", "hovertemplate": "%{x:.4g} events a second"}
        for run in runs
    ]
    layout = {
        "showlegend": len(runs) > 1,
        "xaxis": _titled("events a second") | {"rangemode": "tozero"},
        "yaxis": _names_axis(topics),
    }
    return {"data": data, "layout": layout, "height": 110 + len(topics) * max(20, 9 * len(runs))}


def _bars(run: Run, x: Sequence[Any], y: Sequence[Any]) -> Drawing:
    return {"type": "bar", "name": plot_text(run.name), "x": x, "y": y, "marker": {"color": run.color}}


def _scatter(run: Run, x: Sequence[Any], mode: str) -> Drawing:
    return {"type": "scatter", "name": plot_text(run.name), "x": x, "mode": mode, "legendgroup": run.run_id}


def _levels(rows: Rows) -> set[int]:
    return {level_of(row) for own in rows.values() for row in own}


def _by_class(levels: Iterable[int], runs: int, title: str, axis: Drawing) -> Drawing:
    """The layout of figures in which runs stand side by side in each class."""
    places = sorted(levels)
    names = ["none" if level < 0 else str(level) for level in places]
    classes = {"tickvals": places, "ticktext": names, "range": [places[0] - 0.5, places[-1] + 0.5], **_PLAIN}
    return {
        "showlegend": runs > 1,
        "xaxis": _titled("priority class") | classes,
        "yaxis": _titled(title) | axis,
    }


def _titled(text: str) -> Drawing:
    return {"title": {"text": text}}


def _names_axis(names: Iterable[str]) -> Drawing:
    texts = [plot_text(name) for name in names]
    return {"tickvals": list(range(len(texts))), "ticktext": texts, "autorange": "reversed", **_PLAIN}


def _time_axis(seconds: Sequence[float]) -> Drawing:
    """A logarithmic axis in units that people use: a label for each power of ten, more where there are few."""
    known = [each for each in seconds if each > 0]
    ratio = max(known, default=1.0) / min(known, default=1.0)
    dtick = 1 if ratio > 30 else "D2" if ratio > 4 else "D1"
    return {"type": "log", "ticksuffix": "s", "tickformat": "~s", "dtick": dtick}
