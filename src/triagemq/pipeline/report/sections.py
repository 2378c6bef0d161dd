"""The content of each section of the page: rows and figures, or nothing. The template of its name has the words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from triagemq.pipeline.report import figures
from triagemq.pipeline.report.figures import MOST_RUNS, Inputs, Row, ShownRun, largest

SHOWN_SUBSCRIPTIONS = 400
"""Rows of all runs together; the tables hold the others."""
SHOWN_TOPICS = 20
SHOWN_LOSSES = 10
MOST_PORTS = 6
MOST_REASONS = 40
MOST_RUNS_BY_CLASS = 4

Content = Mapping[str, Any]


def summary(inputs: Inputs) -> Content:
    """The runs in short, how much each delivered and what that was worth."""
    return {"rows": inputs.rows("run_summary"), "more_runs": inputs.more_runs, "most": MOST_RUNS}


def classes(inputs: Inputs) -> Content:
    """The outcomes of the copies of each priority class, and the latencies of the delivered ones."""
    rows = _classes(inputs)
    if not rows:
        return {}
    return {
        "rows": _flat(rows),
        "delivered": figures.delivered(rows),
        "latencies": figures.latencies(rows),
    }


def forecast(inputs: Inputs) -> Content:
    """The forecast of each run's plan with its figures: success, mean, p95, p99, and the expected error."""
    rows, table = _classes(inputs), inputs.subscriptions()
    subscriptions: list[tuple[ShownRun, Row]] = []
    for run in rows:
        own = table.filter(pc.field("run_id") == run.run_id)
        subscriptions += [(run, row) for row in largest(own, "worth", SHOWN_SUBSCRIPTIONS // len(rows))]
    return {
        "rows": _flat(rows),
        "subscriptions": subscriptions,
        "total": table.num_rows,
        "has_shares": any(row["max_latency_share"] is not None for _, row in subscriptions),
    }


def utility(inputs: Inputs) -> Content:
    """The utility that was captured, against the most there was to have, and where it was lost."""
    runs = {run.run_id: run for run in inputs.runs}
    table = inputs.subscriptions().filter(pc.field("worth").is_valid())
    added = table.group_by(["run_id", "level"], use_threads=False).aggregate(
        [("captured", "sum"), ("worth", "sum")]
    )
    by_class: dict[ShownRun, dict[int, tuple[float, float]]] = {}
    for row in added.to_pylist():
        level = -1 if row["level"] is None else int(row["level"])
        by_class.setdefault(runs[row["run_id"]], {})[level] = (row["captured_sum"], row["worth_sum"])
    in_order = {run: dict(sorted(by_class[run].items())) for run in inputs.runs if run in by_class}
    if not in_order:
        return {}
    return {
        "captured": figures.utility_captured(in_order),
        "by_class": figures.utility_by_class(in_order),
        "losses": [
            (runs[row["run_id"]], row) for row in largest(table, "lost", SHOWN_LOSSES) if row["lost"] > 0
        ],
    }


def latency(inputs: Inputs) -> Content:
    """How latencies are distributed, losses included: which share of all copies came within which time."""
    whole: dict[ShownRun, figures.Curve] = {}
    by_class = []
    for run, own in _classes(inputs).items():
        curves = {figures.level_of(row): _curve([row]) for row in own if row["bins"]}
        if curves:
            whole[run] = _curve(own)
        # A single class is the curve of the whole run.
        if len(curves) > 1:
            by_class.append((run, figures.distributions(curves)))
    together = figures.distributions(whole) if whole else None
    return {"together": together, "by_class": by_class[:MOST_RUNS_BY_CLASS]}


def _curve(rows: Sequence[Row]) -> figures.Curve:
    """Of all copies in these rows of class_performance."""
    longest = [row["max"] for row in rows if row["max"] is not None]
    bins = [each for row in rows for each in row["bins"] or ()]
    return figures.curve_of_bins(bins, sum(row["count"] or 0 for row in rows), max(longest, default=None))


def ports(inputs: Inputs) -> Content:
    """How much was offered to the output ports, how much they sent, and how long their queues were."""
    of_port: dict[str, dict[ShownRun, list[Row]]] = {}
    for run, row in inputs.rows("port_summary"):
        if row["load"] is not None:
            of_port.setdefault(row["port"] or "–", {}).setdefault(run, []).append(row)

    def mean_load(port: str) -> float:
        rows = [row for own in of_port[port].values() for row in own]
        return float(np.average([row["load"] for row in rows], weights=[row["samples"] or 1 for row in rows]))

    busiest = sorted(of_port, key=lambda port: (-mean_load(port), port))[:MOST_PORTS]
    for own in (own for port in busiest for own in of_port[port].values()):
        own.sort(key=lambda row: row["seconds"] or 0.0)
    return {"loads": {port: figures.load(of_port[port]) for port in busiest}, "total": len(of_port)}


def topics(inputs: Inputs) -> Content:
    """The topics with the most events, how much they send at most, and how bursty they are."""
    found: dict[tuple[ShownRun, str], Row] = {}
    most: dict[str, float] = {}
    for run, row in inputs.rows("topic_summary"):
        name = row["topic"] or f"topic {row['topic_id']}"
        found[run, name] = row
        most[name] = max(most.get(name, 0.0), row["rate_per_second"] or 0.0)
    shown = sorted(most, key=lambda topic: (-most[topic], topic))[:SHOWN_TOPICS]
    return {
        "rows": [
            (run, topic, found[run, topic]) for topic in shown for run in inputs.runs if (run, topic) in found
        ],
        "shown": len(shown),
        "total": len(most),
        "rates": figures.rates(shown, found),
    }


def quarantine(inputs: Inputs) -> Content:
    """Input rows that were set aside, why, and where they stand."""
    read = {run: row["rows_read"] or 0 for run, row in inputs.rows("run_summary")}
    rows = sorted(inputs.rows("quarantine_summary"), key=lambda each: -(each[1]["rows"] or 0))
    return {
        "rows": [
            (run, row, row["rows"] / read[run] if read.get(run) else None) for run, row in rows[:MOST_REASONS]
        ],
        "reasons": len(rows),
        "set_aside": sum(row["rows"] or 0 for _, row in rows),
        "read": sum(read.values()),
    }


def _classes(inputs: Inputs) -> dict[ShownRun, list[Row]]:
    """class_performance by run, classes in their order."""
    rows = {run: inputs.rows_of("class_performance", run) for run in inputs.runs}
    return {run: sorted(own, key=figures.level_of) for run, own in rows.items() if own}


def _flat(rows: Mapping[ShownRun, list[Row]]) -> list[tuple[ShownRun, Row]]:
    return [(run, row) for run, own in rows.items() for row in own]


SECTIONS: Mapping[str, tuple[str, Callable[[Inputs], Content]]] = {
    "summary": ("Summary", summary),
    "classes": ("Success and latency by class", classes),
    "forecast": ("Beside the forecast", forecast),
    "utility": ("Utility captured", utility),
    "latency": ("Latency distributions", latency),
    "ports": ("Port load over time", ports),
    "topics": ("Busiest topics", topics),
    "quarantine": ("Set aside", quarantine),
}
"""In the order of the page: the heading, and what finds what is below it."""
