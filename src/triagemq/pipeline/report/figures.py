"""What is drawn, for Plotly. Colours are variables of the style sheet (`--series-0`), filled in by the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
_SPREAD = 0.7
"""How much of the room of a class its runs may take side by side."""

Trace = dict[str, Any]
Rows = Mapping[Run, Sequence[Row]]
Utilities = Mapping[Run, Mapping[int, tuple[float, float]]]
"""What was captured and the most there was, by run and class."""
Curve = tuple[list[float], list[float]]
"""Seconds, and the share of all copies delivered within them."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing with its title; `name` is the part of it that comes from a table."""

    title: str
    caption: str
    data: list[Trace]
    layout: dict[str, Any]
    height: int = 340
    name: str = ""


def level_of(row: Row) -> int:
    """Copies that no plan covers have no class; they stand before the first."""
    return -1 if row["priority_class"] is None else int(row["priority_class"])


def delivered(rows: Rows) -> Plot:
    """A bar for each class and run."""
    data = [
        _bars(run, [level_of(row) for row in own], [row["success_rate"] for row in own])
        | {"hovertemplate": "class %{x}: %{y:.2%} delivered"}
        for run, own in rows.items()
    ]
    return Plot(
        "Delivered copies",
        "Share of the copies of each class that reached their subscriber. The rest was dropped on purpose, found a "
        "full buffer, was lost on a link, or came late: after the last publication, when queues ran empty.",
        data,
        _side_by_side(rows, "priority class")
        | {"yaxis": {"title": {"text": "delivered"}, "tickformat": ".0%", "range": [0, 1.02]}},
    )


def latencies(rows: Rows) -> Plot:
    """A dot, a diamond and a line for each class and run."""
    data: list[Trace] = []
    shown: list[float] = []
    for place, (run, own) in enumerate(rows.items()):
        shift = _SPREAD * ((place + 0.5) / len(rows) - 0.5)
        known = [row for row in own if row["p50"] is not None]
        shown += [row[name] for row in known for name in ("p50", "p99")]
        shared = {
            "type": "scatter",
            "mode": "markers",
            "x": [level_of(row) + shift for row in known],
            "legendgroup": run.run_id,
            "name": plot_text(run.name),
        }
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
    return Plot(
        "Latency of delivered copies",
        "From publication to delivery, on a logarithmic scale. Dot: half of the copies came within this time. Open "
        "diamond: 95 %. End of the line: 99 %.",
        data,
        _side_by_side(rows, "priority class")
        | {"yaxis": {"title": {"text": "latency"}, **_time_axis(shown)}},
        height=380,
    )


def utility_captured(rows: Utilities) -> Plot:
    """A bar of what each run captured, within one of all that there was to have."""
    places = list(range(len(rows)))
    shared = {"type": "bar", "orientation": "h", "hoverinfo": "skip"}
    data: list[Trace] = [
        shared | {"x": [1.0] * len(rows), "y": places, "marker": {"color": "--empty"}},
    ]
    for place, (run, own) in enumerate(rows.items()):
        captured, most = (sum(column) for column in zip(*own.values(), strict=True))
        share = _ratio(captured, most)
        label = f"{percent(share)} ({number(captured)} of {number(most)})"
        data.append(
            shared
            | {
                "x": [share],
                "y": [place],
                "marker": {"color": run.color},
                "text": [plot_text(label)],
                "textposition": "inside" if share > 0.4 else "outside",
                "insidetextanchor": "end",
                "insidetextfont": {"color": "--on-series"},
            }
        )
    layout = {
        "barmode": "overlay",
        "bargap": 0.35,
        "showlegend": False,
        "xaxis": {
            "tickformat": ".0%",
            "range": [0, 1.005],
            "title": {"text": "share of the maximum utility"},
        },
        "yaxis": _names_axis(run.name for run in rows),
    }
    caption = "The full width is the utility of a network in which everything arrives at once."
    return Plot("Captured against the maximum", caption, data, layout, height=110 + 48 * len(rows))


def utility_by_class(rows: Utilities) -> Plot:
    """What was captured of each class and run, and on top of it what was lost."""
    data: list[Trace] = []
    for place, (run, own) in enumerate(rows.items()):
        captured, lost = [had for had, _ in own.values()], [most - had for had, most in own.values()]
        shared = {"offsetgroup": str(place), "legendgroup": run.run_id}
        data += [
            _bars(run, list(own), captured)
            | shared
            | {
                "customdata": [_ratio(*pair) for pair in own.values()],
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
    caption = (
        "Coloured: captured. Grey: lost. A plan is good when the grey parts are where little is at stake."
    )
    levels = sorted({level for own in rows.values() for level in own})
    layout = {
        "barmode": "group",
        "bargap": 0.25,
        "showlegend": len(rows) > 1,
        "xaxis": _class_axis("priority class of the subscription", levels),
        "yaxis": {"title": {"text": "utility"}, "rangemode": "tozero"},
    }
    return Plot("By class", caption, data, layout)


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


def curve_of_percentiles(row: Row) -> Curve | None:
    """Where there are no bins: the four points that every class has."""
    known = {row[name]: share for name, share in _PERCENTILES.items() if row[name] is not None}
    if not known or row["success_rate"] is None:
        return None
    return list(known), [share * row["success_rate"] for share in known.values()]


def distributions(curves: Mapping[Run | int, Curve], name: str = "") -> Plot:
    """A line for each run, or for each class of the run of this name."""
    few = all(len(seconds) <= len(_PERCENTILES) for seconds, _ in curves.values()) and bool(name)
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
                "mode": "lines+markers" if few else "lines",
                "name": called,
                "x": seconds,
                "y": share,
                "line": {"color": color, "shape": "linear" if few else "hv", "width": 2},
                "hovertemplate": "%{y:.1%} within %{x:.3s}s",
            }
        )
    layout = {
        "showlegend": bool(name) or len(curves) > 1,
        "xaxis": {
            "title": {"text": "latency"},
            **_time_axis([each for seconds, _ in curves.values() for each in seconds]),
        },
        "yaxis": {"title": {"text": "share of copies"}, "tickformat": ".0%", "range": [0, 1.02]},
    }
    if not name:
        return Plot("All copies", "All classes together.", data, layout, height=360)
    source = "From four percentiles each." if few else "Classes are served in the order of their numbers."
    return Plot("By class: ", source, data, layout, height=360, name=name)


def load(port: str, rows: Rows) -> Plot:
    """What a port carried and what was offered to it, over time."""
    data: list[Trace] = []
    for run, own in rows.items():
        seconds = [row["seconds"] for row in own]
        shared = {"type": "scatter", "mode": "lines", "x": seconds, "legendgroup": run.run_id}
        data += [
            shared
            | {
                "name": plot_text(run.name),
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
        "xaxis": {"title": {"text": "seconds since the end of warm-up"}, "ticksuffix": " s"},
        "yaxis": {"title": {"text": "load"}, "tickformat": ".0%", "rangemode": "tozero"},
        "shapes": [full | {"line": {"color": "--quiet", "width": 1, "dash": "dash"}}],
    }
    return Plot("", "", data, layout, height=280, name=port)


def rates(topics: Sequence[str], found: Mapping[tuple[Run, str], Row]) -> Plot:
    """A bar for each topic and run."""
    runs = list(dict.fromkeys(run for run, _ in found))
    nothing = Row()
    data = [
        _bars(
            run,
            [found.get((run, topic), nothing)["rate_per_second"] for topic in topics],
            list(range(len(topics))),
        )
        | {"orientation": "h", "hovertemplate": "%{x:.4g} events a second"}
        for run in runs
    ]
    layout = {
        "barmode": "group",
        "bargap": 0.3,
        "showlegend": len(runs) > 1,
        "xaxis": {"title": {"text": "events a second"}, "rangemode": "tozero"},
        "yaxis": _names_axis(topics),
    }
    height = 110 + len(topics) * max(20, 9 * len(runs))
    return Plot("Mean rate", "Mean over the whole time that was observed.", data, layout, height=height)


def _bars(run: Run, x: Sequence[Any], y: Sequence[Any]) -> Trace:
    return {"type": "bar", "name": plot_text(run.name), "x": x, "y": y, "marker": {"color": run.color}}


def _side_by_side(rows: Rows, title: str) -> dict[str, Any]:
    levels = sorted({level_of(row) for own in rows.values() for row in own})
    axis = _class_axis(title, levels) | {"range": [levels[0] - 0.5, levels[-1] + 0.5]}
    return {"barmode": "group", "bargap": 0.25, "showlegend": len(rows) > 1, "xaxis": axis}


def _class_axis(title: str, levels: Sequence[int]) -> dict[str, Any]:
    names = ["none" if level < 0 else str(level) for level in levels]
    plain = {"showgrid": False, "zeroline": False}
    return {"title": {"text": title}, "tickvals": levels, "ticktext": names, **plain}


def _names_axis(names: Iterable[str]) -> dict[str, Any]:
    texts = [plot_text(name) for name in names]
    plain = {"autorange": "reversed", "showgrid": False, "zeroline": False}
    return {"tickvals": list(range(len(texts))), "ticktext": texts, **plain}


def _time_axis(seconds: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis in units that people use: a label for each power of ten, more where there are few."""
    known = [each for each in seconds if each > 0]
    ratio = max(known, default=1.0) / min(known, default=1.0)
    dtick = 1 if ratio > 30 else "D2" if ratio > 4 else "D1"
    return {"type": "log", "ticksuffix": "s", "tickformat": "~s", "dtick": dtick}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
