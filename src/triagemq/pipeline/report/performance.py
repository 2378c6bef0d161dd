"""Section: what became of the copies of each priority class, and how late the delivered ones came."""

from __future__ import annotations

from typing import Any

from triagemq.pipeline.report.inputs import Inputs, Run
from triagemq.pipeline.report.latency import time_axis
from triagemq.pipeline.report.page import Figure, Section, table_html
from triagemq.pipeline.report.summary import named, nothing
from triagemq.pipeline.report.words import cell, count, duration, percent, plot_text

__all__ = ["section"]

_COLUMNS = (
    "priority_class",
    "count",
    "delivered",
    "dropped_by_policy",
    "dropped_by_buffer",
    "late",
    "success_rate",
    "mean_latency_seconds",
    "p50",
    "p95",
    "p99",
    "max",
)
_LATENCIES = ("mean_latency_seconds", "p50", "p95", "p99", "max")
_SPREAD = 0.7
"""How much of the room of a class its runs may take side by side."""

Rows = dict[str, list[dict[str, Any]]]


def section(inputs: Inputs) -> Section:
    """Success, latency, and a table with all numbers."""
    title = "Success and latency by class"
    rows = {
        run_id: sorted(rows, key=lambda row: _place(row["priority_class"]))
        for run_id, rows in inputs.rows("class_performance", _COLUMNS).items()
    }
    runs = [run for run in inputs.runs if run.run_id in rows]
    if not runs:
        return Section(
            "classes", title, [nothing("Nothing was delivered or lost: there are no classes to show.")]
        )
    words = (
        "<p>Class 0 is served first. In an overloaded network the lower classes (higher numbers) wait longer and lose "
        "more: that is the price for what the first classes get.</p>"
    )
    return Section("classes", title, [words, _success(runs, rows), _latency(runs, rows), _table(runs, rows)])


def _success(runs: list[Run], rows: Rows) -> Figure:
    data = [
        {
            "type": "bar",
            "name": plot_text(run.name),
            "x": [_place(row["priority_class"]) for row in rows[run.run_id]],
            "y": [row["success_rate"] for row in rows[run.run_id]],
            "marker": {"color": run.color},
            "hovertemplate": "class %{x}: %{y:.2%} delivered",
        }
        for run in runs
    ]
    return Figure(
        "Delivered copies",
        "Share of the copies of each class that reached their subscriber. The rest was dropped on purpose, found a "
        "full buffer, was lost on a link, or came late: after the last publication, when queues ran empty.",
        data,
        {
            "barmode": "group",
            "bargap": 0.25,
            "showlegend": len(runs) > 1,
            "xaxis": _class_axis(rows),
            "yaxis": {"title": {"text": "delivered"}, "tickformat": ".0%", "range": [0, 1.02]},
        },
    )


def _latency(runs: list[Run], rows: Rows) -> Figure:
    data: list[dict[str, Any]] = []
    for number, run in enumerate(runs):
        shift = _SPREAD * ((number + 0.5) / len(runs) - 0.5)
        known = [row for row in rows[run.run_id] if row["p50"] is not None]
        places = [_place(row["priority_class"]) + shift for row in known]
        shared = {"type": "scatter", "x": places, "legendgroup": run.run_id, "name": plot_text(run.name)}
        data.append(
            shared
            | {
                "mode": "markers",
                "y": [row["p50"] for row in known],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [row["p99"] - row["p50"] for row in known],
                    "arrayminus": [0.0] * len(known),
                    "color": run.color,
                    "thickness": 2,
                    "width": 5,
                },
                "marker": {"color": run.color, "size": 10},
                "hovertemplate": "half of them within %{y:.3s}s",
            }
        )
        data.append(
            shared
            | {
                "mode": "markers",
                "showlegend": False,
                "y": [row["p95"] for row in known],
                "marker": {"color": run.color, "size": 9, "symbol": "diamond-open", "line": {"width": 2}},
                "hovertemplate": "95 % of them within %{y:.3s}s",
            }
        )
    shown = [
        row[name]
        for run in runs
        for row in rows[run.run_id]
        for name in ("p50", "p99")
        if row[name] is not None
    ]
    return Figure(
        "Latency of delivered copies",
        "From publication to delivery, on a logarithmic scale. Dot: half of the copies came within this time. Open "
        "diamond: 95 %. End of the line: 99 %.",
        data,
        {
            "showlegend": len(runs) > 1,
            "xaxis": _class_axis(rows),
            "yaxis": {"title": {"text": "latency"}, **time_axis(shown)},
        },
        height=380,
    )


def _class_axis(rows: Rows) -> dict[str, Any]:
    classes = sorted({_place(row["priority_class"]) for each in rows.values() for row in each})
    return {
        "title": {"text": "priority class"},
        "tickvals": classes,
        "ticktext": ["none" if place < 0 else str(place) for place in classes],
        "range": [classes[0] - 0.5, classes[-1] + 0.5],
        "showgrid": False,
        "zeroline": False,
    }


def _place(priority_class: int | None) -> int:
    """Copies that no plan covers have no class; they stand before the first."""
    return -1 if priority_class is None else priority_class


def _table(runs: list[Run], rows: Rows) -> str:
    head = (
        "run",
        "class",
        "copies",
        "delivered",
        "late",
        "success",
        "dropped on purpose",
        "buffer full",
        "mean",
    )
    lines = []
    for run in runs:
        for row in rows[run.run_id]:
            place = _place(row["priority_class"])
            texts = (
                "none" if place < 0 else str(place),
                count(row["count"]),
                count(row["delivered"]),
                count(row["late"]),
                percent(row["success_rate"]),
                _share(row["dropped_by_policy"], row["count"]),
                _share(row["dropped_by_buffer"], row["count"]),
                *(duration(row[name]) for name in _LATENCIES),
            )
            lines.append(cell(named(run), is_number=False) + "".join(map(cell, texts)))
    folded = f"All numbers by class ({len(lines)} rows)" if len(lines) > 12 else ""
    return table_html([*head, "50 %", "95 %", "99 %", "longest"], lines, folded=folded)


def _share(part: int | None, whole: int | None) -> str:
    return percent(part / whole if part is not None and whole else None)
