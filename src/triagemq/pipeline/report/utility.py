"""Section: the utility that was captured, against the most there was to have, and where it was lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.report.inputs import Inputs, Run
from triagemq.pipeline.report.page import Figure, Section, table_html
from triagemq.pipeline.report.summary import named, nothing
from triagemq.pipeline.report.words import cell, duration, number, percent, plot_text, safe

__all__ = ["section"]

SHOWN_LOSSES = 10
_COLUMNS = (
    "subscription_id",
    "subscriber",
    "topic",
    "priority_class",
    "success_rate",
    "mean_latency_seconds",
    "utility",
    "maximum_utility",
)


def section(inputs: Inputs) -> Section:
    """Totals, by class, and the subscriptions that lost most."""
    title = "Utility captured"
    table = inputs.table("subscription_performance", _COLUMNS)
    if table is not None:
        table = table.filter(pc.is_valid(table["maximum_utility"]))
    runs = [] if table is None else _runs_in(inputs, table)
    if table is None or not runs:
        return Section(
            "utility",
            title,
            [nothing("No subscription says what its events are worth, so there is no utility to show.")],
        )
    words = (
        "<p>Every subscription says what its events are worth if all of them arrive at once; the sum is the maximum. "
        "Losses and, where a subscription asks for fresh events, delays lower it.</p>"
    )
    parts: list[str | Figure] = [words, _totals(runs, table), _by_class(runs, table)]
    losses = _losses(runs, table)
    if losses:
        parts.append(losses)
    return Section("utility", title, parts)


def _runs_in(inputs: Inputs, table: pa.Table) -> list[Run]:
    present = set(table["run_id"].unique().to_pylist())
    return [run for run in inputs.runs if run.run_id in present]


def _sums(table: pa.Table, *keys: str) -> list[dict[str, Any]]:
    wanted = [("utility", "sum"), ("maximum_utility", "sum")]
    rows: list[dict[str, Any]] = table.group_by(list(keys), use_threads=False).aggregate(wanted).to_pylist()
    return rows


def _totals(runs: list[Run], table: pa.Table) -> Figure:
    totals = {
        row["run_id"]: (row["utility_sum"] or 0.0, row["maximum_utility_sum"])
        for row in _sums(table, "run_id")
    }
    shares = [_ratio(*totals[run.run_id]) for run in runs]
    places = list(range(len(runs)))
    labels = [
        f"{percent(share)} ({number(totals[run.run_id][0])} of {number(totals[run.run_id][1])})"
        for run, share in zip(runs, shares, strict=True)
    ]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [1.0] * len(runs),
            "y": places,
            "marker": {"color": "--empty"},
            "hoverinfo": "skip",
        },
        *(
            {
                "type": "bar",
                "orientation": "h",
                "x": [share],
                "y": [place],
                "marker": {"color": run.color},
                "text": [label],
                "textposition": "inside" if share > 0.4 else "outside",
                "insidetextanchor": "end",
                "insidetextfont": {"color": "--on-series"},
                "hoverinfo": "skip",
            }
            for place, run, share, label in zip(places, runs, shares, labels, strict=True)
        ),
    ]
    layout = {
        "barmode": "overlay",
        "bargap": 0.35,
        "showlegend": False,
        "xaxis": {
            "tickformat": ".0%",
            "range": [0, 1.005],
            "title": {"text": "share of the maximum utility"},
        },
        "yaxis": {
            "tickvals": places,
            "ticktext": [plot_text(run.name) for run in runs],
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
        },
    }
    caption = "The full width is the utility of a network in which everything arrives at once."
    return Figure("Captured against the maximum", caption, data, layout, height=110 + 48 * len(runs))


def _by_class(runs: list[Run], table: pa.Table) -> Figure:
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(
        _sums(table, "run_id", "priority_class"), key=lambda row: _place(row["priority_class"])
    ):
        rows.setdefault(row["run_id"], []).append(row)
    data: list[dict[str, Any]] = []
    for place, run in enumerate(runs):
        shared = {
            "type": "bar",
            "x": [_place(row["priority_class"]) for row in rows[run.run_id]],
            "offsetgroup": str(place),
            "legendgroup": run.run_id,
        }
        maximum = [row["maximum_utility_sum"] for row in rows[run.run_id]]
        captured = [row["utility_sum"] or 0.0 for row in rows[run.run_id]]
        data.append(
            shared
            | {
                "y": captured,
                "name": plot_text(run.name),
                "marker": {"color": run.color},
                "customdata": [_ratio(*pair) for pair in zip(captured, maximum, strict=True)],
                "hovertemplate": "class %{x}: %{y:.4g}, %{customdata:.1%} of its maximum",
            }
        )
        data.append(
            shared
            | {
                "y": [most - had for had, most in zip(captured, maximum, strict=True)],
                "base": captured,
                "name": "lost",
                "showlegend": False,
                "marker": {"color": "--empty"},
                "hovertemplate": "lost %{y:.4g}",
            }
        )
    classes = sorted({_place(row["priority_class"]) for each in rows.values() for row in each})
    layout = {
        "barmode": "group",
        "bargap": 0.25,
        "showlegend": len(runs) > 1,
        "xaxis": {
            "title": {"text": "priority class of the subscription"},
            "tickvals": classes,
            "ticktext": ["none" if each < 0 else str(each) for each in classes],
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": {"title": {"text": "utility"}, "rangemode": "tozero"},
    }
    caption = (
        "Coloured: captured. Grey: lost. A plan is good when the grey parts are where little is at stake."
    )
    return Figure("By class", caption, data, layout)


def _losses(runs: list[Run], table: pa.Table) -> str:
    lost = pc.subtract(table["maximum_utility"], pc.fill_null(table["utility"], 0.0))
    names = {run.run_id: run for run in runs}
    shown = table.append_column("lost", lost)
    shown = shown.filter(pc.is_in(shown["run_id"], pa.array(list(names))))
    order = pc.select_k_unstable(
        shown, SHOWN_LOSSES, [("lost", "descending"), ("subscription_id", "ascending")]
    )
    lines = []
    for row in shown.take(order).to_pylist():
        if row["lost"] <= 0:
            continue
        subscription = f"subscription {row['subscription_id']}"
        texts = (
            named(names[row["run_id"]]),
            f"<bdi>{safe(row['subscriber'] or subscription)}</bdi>",
            f"<bdi>{safe(row['topic'] or '–')}</bdi>",
        )
        numbers = (
            number(row["lost"]),
            number(row["maximum_utility"]),
            percent(row["success_rate"]),
            duration(row["mean_latency_seconds"]),
        )
        lines.append("".join(cell(text, is_number=False) for text in texts) + "".join(map(cell, numbers)))
    if not lines:
        return ""
    head = ("run", "subscriber", "topic", "utility lost", "of", "success", "mean latency")
    return table_html(head, lines, text_columns=3, folded=f"The {len(lines)} largest losses")


def _place(priority_class: int | None) -> int:
    return -1 if priority_class is None else priority_class


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
