"""Section: the topics with the most events, how much they send at most, and how bursty they are."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.report.inputs import Inputs, Run
from triagemq.pipeline.report.page import Figure, Section, table_html
from triagemq.pipeline.report.summary import named, nothing
from triagemq.pipeline.report.words import cell, count, number, plot_text, rate, safe, size

__all__ = ["SHOWN_TOPICS", "section"]

SHOWN_TOPICS = 20
_COLUMNS = (
    "topic_id",
    "topic",
    "window_seconds",
    "window_start_ns",
    "publications",
    "rate_per_second",
    "bytes",
    "index_of_dispersion",
)

Figures = dict[tuple[str, str], dict[str, Any]]
"""By run and topic."""


def section(inputs: Inputs) -> Section:
    """A bar per topic and run, and a table with more."""
    title = "Busiest topics"
    table = inputs.table("topic_rates", _COLUMNS)
    if table is None:
        return Section("topics", title, [nothing("There are no publications in these tables.")])
    name = pc.coalesce(
        table["topic"].cast(pa.string()),
        pc.binary_join_element_wise("topic", table["topic_id"].cast(pa.string()), " "),
    )
    table = table.append_column("name", name)
    found = _figures(table, _observed(inputs, table))
    most: dict[str, float] = {}
    for (_, topic), row in found.items():
        most[topic] = max(most.get(topic, 0.0), row["rate"])
    shown = sorted(most, key=lambda topic: (-most[topic], topic))[:SHOWN_TOPICS]
    runs = [run for run in inputs.runs if any(run_id == run.run_id for run_id, _ in found)]
    words = (
        "<p>Topics by the events that were published on them, whoever received them. Burstiness compares the counts in "
        "windows of 200 ms with random arrivals: 1 is as irregular as Poisson arrivals, 0 is a clock, far above 1 "
        "means events come in bursts.</p>"
    )
    if len(most) > len(shown):
        words += f"<p>The {len(shown)} busiest of {len(most):,} topics are shown.</p>"
    return Section("topics", title, [words, _bars(runs, shown, found), _table(runs, shown, found)])


def _observed(inputs: Inputs, table: pa.Table) -> dict[str, float]:
    """Seconds that each run was observed: as its summary says, else from its first window to its last."""
    spans = table.group_by("run_id").aggregate(
        [("window_start_ns", "min"), ("window_start_ns", "max"), ("window_seconds", "max")]
    )
    observed = {
        row["run_id"]: (row["window_start_ns_max"] - row["window_start_ns_min"]) * 1e-9
        + row["window_seconds_max"]
        for row in spans.to_pylist()
    }
    for run_id, rows in inputs.rows("run_summary", ("observed_seconds",)).items():
        if rows[0]["observed_seconds"]:
            observed[run_id] = rows[0]["observed_seconds"]
    return observed


def _figures(table: pa.Table, observed: dict[str, float]) -> Figures:
    # Windows of every length count the same events; one length is enough to add them up.
    short, long = pc.min(table["window_seconds"]), pc.max(table["window_seconds"])
    once = table.filter(pc.equal(table["window_seconds"], long))
    totals = once.group_by(["run_id", "name"]).aggregate(
        [("publications", "sum"), ("bytes", "sum"), ("index_of_dispersion", "mean")]
    )
    finest = table.filter(pc.equal(table["window_seconds"], short))
    peaks = {
        (row["run_id"], row["name"]): row["rate_per_second_max"]
        for row in finest.group_by(["run_id", "name"]).aggregate([("rate_per_second", "max")]).to_pylist()
    }
    return {
        (row["run_id"], row["name"]): {
            "rate": row["publications_sum"] / observed[row["run_id"]],
            "publications": row["publications_sum"],
            "bytes_per_second": (row["bytes_sum"] or 0) / observed[row["run_id"]],
            "peak": peaks.get((row["run_id"], row["name"])),
            "burstiness": row["index_of_dispersion_mean"],
        }
        for row in totals.to_pylist()
    }


def _bars(runs: list[Run], shown: list[str], found: Figures) -> Figure:
    places = list(range(len(shown)))
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plot_text(run.name),
            "y": places,
            "x": [found.get((run.run_id, topic), {}).get("rate") for topic in shown],
            "marker": {"color": run.color},
            "hovertemplate": "%{x:.4g} events a second",
        }
        for run in runs
    ]
    layout = {
        "barmode": "group",
        "bargap": 0.3,
        "showlegend": len(runs) > 1,
        "xaxis": {"title": {"text": "events a second"}, "rangemode": "tozero"},
        "yaxis": {
            "tickvals": places,
            "ticktext": [plot_text(topic) for topic in shown],
            "autorange": "reversed",
            "showgrid": False,
            "zeroline": False,
        },
    }
    height = 110 + len(shown) * max(20, 9 * len(runs))
    return Figure("Mean rate", "Mean over the whole time that was observed.", data, layout, height=height)


def _table(runs: list[Run], shown: list[str], found: Figures) -> str:
    lines = []
    for topic in shown:
        for run in runs:
            row = found.get((run.run_id, topic))
            if row is None:
                continue
            texts = (f"<bdi>{safe(topic)}</bdi>", named(run))
            numbers = (
                count(row["publications"]),
                rate(row["rate"]),
                rate(row["peak"]),
                f"{size(row['bytes_per_second'])}/s",
                number(row["burstiness"]),
            )
            lines.append("".join(cell(text, is_number=False) for text in texts) + "".join(map(cell, numbers)))
    head = ("topic", "run", "events", "mean rate", "peak in a window", "data", "burstiness")
    return table_html(head, lines, text_columns=2, folded=f"All numbers by topic ({len(lines)} rows)")
