"""Section: how much the output ports were asked for, how much they carried, and how long their queues were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.report.inputs import Inputs, Run
from triagemq.pipeline.report.page import Figure, Section
from triagemq.pipeline.report.summary import nothing
from triagemq.pipeline.report.words import plot_text, safe

__all__ = ["MOST_POINTS", "MOST_PORTS", "section"]

MOST_PORTS = 6
MOST_POINTS = 400
"""Of one line; longer runs are shown as means of equal stretches of time."""

_COLUMNS = ("port_id", "port", "sampled_ns", "load", "offered_load", "backlog_packets")
_FIGURES = ("load", "offered_load", "backlog_packets")


def section(inputs: Inputs) -> Section:
    """The busiest ports, one figure each."""
    title = "Port load over time"
    table = inputs.table("port_load", _COLUMNS)
    if table is not None:
        table = table.filter(pc.is_valid(table["load"]))
    if table is None or table.num_rows == 0:
        return Section("ports", title, [nothing("There are no samples of queues in these tables.")])
    name = pc.coalesce(
        table["port"].cast(pa.string()),
        pc.binary_join_element_wise("port", table["port_id"].cast(pa.string()), " "),
    )
    table = table.append_column("name", name)
    busiest = table.group_by("name").aggregate([("load", "mean")])
    busiest = busiest.sort_by([("load_mean", "descending"), ("name", "ascending")])
    shown = busiest["name"].to_pylist()[:MOST_PORTS]
    words = (
        "<p>A load of 100 % is all that a port can send. Solid: what it carried. Dotted: what came to it, after drops "
        "on purpose. Where the dotted line stays above 100 %, the queue grows until its buffer is full. "
        "Point at a line to read its load and how many packets were waiting.</p>"
    )
    if busiest.num_rows > MOST_PORTS:
        words += f"<p>The {MOST_PORTS} busiest of {busiest.num_rows} ports are shown.</p>"
    return Section("ports", title, [words, *(_of_port(inputs, table, port) for port in shown)])


def _of_port(inputs: Inputs, table: pa.Table, port: str) -> Figure:
    rows = table.filter(pc.equal(table["name"], port))
    present = set(rows["run_id"].unique().to_pylist())
    runs = [run for run in inputs.runs if run.run_id in present]
    data: list[dict[str, Any]] = []
    for run in runs:
        data += _lines(run, _means(rows.filter(pc.equal(rows["run_id"], run.run_id))))
    layout = {
        "showlegend": len(runs) > 1,
        "xaxis": {"title": {"text": "seconds since the end of warm-up"}, "ticksuffix": " s"},
        "yaxis": {"title": {"text": "load"}, "tickformat": ".0%", "rangemode": "tozero"},
        "shapes": [
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": 1,
                "y1": 1,
                "line": {"color": "--quiet", "width": 1, "dash": "dash"},
            }
        ],
    }
    return Figure(f"<bdi>{safe(port)}</bdi>", "", data, layout, height=280)


def _lines(run: Run, means: dict[str, list[float]]) -> list[dict[str, Any]]:
    shared = {"type": "scatter", "mode": "lines", "x": means["seconds"], "legendgroup": run.run_id}
    return [
        shared
        | {
            "name": plot_text(run.name),
            "y": means["load"],
            "line": {"color": run.color, "width": 2},
            "customdata": means["backlog_packets"],
            "hovertemplate": "carried %{y:.1%}, %{customdata:.4~s} packets waiting",
        },
        shared
        | {
            "name": f"{plot_text(run.name)}, offered",
            "showlegend": False,
            "y": means["offered_load"],
            "line": {"color": run.color, "width": 1.5, "dash": "dot"},
            "hovertemplate": "offered %{y:.1%}",
        },
    ]


def _means(rows: pa.Table) -> dict[str, list[float]]:
    """The means of at most MOST_POINTS equal stretches of time; several ports of one name count as one."""
    sampled = rows["sampled_ns"].to_numpy()
    seconds = (sampled - sampled.min()) * 1e-9
    stretch = min(MOST_POINTS, len(np.unique(sampled)))
    place = np.minimum((seconds / max(seconds.max(), 1e-9) * stretch).astype(np.int64), stretch - 1)
    counted = np.bincount(place, minlength=stretch)
    known = counted > 0

    def mean(values: Any) -> list[float]:
        numbers = np.nan_to_num(np.asarray(values, dtype=np.float64))
        return [
            float(each) for each in (np.bincount(place, numbers, minlength=stretch)[known] / counted[known])
        ]

    figures = {name: mean(rows[name].cast(pa.float64()).to_numpy()) for name in _FIGURES}
    return {"seconds": mean(seconds)} | figures
