"""Section: the runs in short, what each carried and what that was worth."""

from __future__ import annotations

from typing import Any

from triagemq.pipeline.report.inputs import MOST_RUNS, Inputs, Run
from triagemq.pipeline.report.page import Section, table_html
from triagemq.pipeline.report.words import cell, count, duration, number, percent, safe, size

__all__ = ["named", "nothing", "section"]

_COLUMNS = (
    "producer",
    "scenario",
    "source",
    "started",
    "observed_seconds",
    "publications",
    "published_bytes",
    "topics",
    "count",
    "delivered",
    "late",
    "success_rate",
    "mean_latency_seconds",
    "max",
    "utility",
    "maximum_utility",
    "utility_rate",
    "quarantined",
)


def section(inputs: Inputs) -> Section:
    """One card and one row of a table for each run."""
    rows = {run_id: rows[0] for run_id, rows in inputs.rows("run_summary", _COLUMNS).items()}
    known = [(run, rows[run.run_id]) for run in inputs.runs if run.run_id in rows]
    if not known:
        return Section("summary", "Summary", [nothing("There is no summary of runs in these tables.")])
    cards = "".join(_card(run, row) for run, row in known)
    words = (
        "<p>One event that is published becomes a copy for every subscription that matches it. Only events published "
        "after warm-up count. Utility is what the subscribers say that their events are worth, given how many of "
        "them arrive and how late.</p>"
    )
    if inputs.runs_left_out:
        words += (
            f"<p>These tables hold {inputs.runs_left_out} more runs, which are not shown: a report shows at most "
            f"{MOST_RUNS}.</p>"
        )
    return Section("summary", "Summary", [words, f'<div class="cards">{cards}</div>', _table(known)])


def nothing(words: str) -> str:
    """What a section says when it has nothing to show; the words are HTML."""
    return f'<p class="nothing">{words}</p>'


def named(run: Run) -> str:
    """The run's name with its colour, for tables."""
    swatch = f'<span class="swatch" style="--color:var({run.color})"></span>'
    return f'<span class="name">{swatch}<bdi>{safe(run.name, 30)}</bdi></span>'


def _card(run: Run, row: dict[str, Any]) -> str:
    if row["utility_rate"] is not None:
        figure, unit = percent(row["utility_rate"]), "of the maximum utility"
    elif row["success_rate"] is not None:
        figure, unit = percent(row["success_rate"]), "of all copies delivered"
    else:
        figure, unit = count(row["publications"]), "publications"
    facts = {
        "copies delivered": percent(row["success_rate"]),
        "mean latency": duration(row["mean_latency_seconds"]),
        "longest latency": duration(row["max"]),
        "publications": count(row["publications"]),
    }
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    return (
        f'<div class="card" style="--color:var({run.color})"><h3><bdi>{safe(run.name)}</bdi></h3>'
        f'<span class="figure">{figure}</span> <span class="unit">{unit}</span><dl>{listed}</dl></div>'
    )


def _table(known: list[tuple[Run, dict[str, Any]]]) -> str:
    head = (
        "run",
        "made by",
        "scenario",
        "started",
        "observed",
        "topics",
        "published",
        "copies",
        "delivered",
        "late",
    )
    rows = []
    for run, row in known:
        texts = (
            named(run),
            safe(row["producer"] or "–"),
            safe(row["scenario"] or "–"),
            # To the second; the zone is always UTC.
            safe((row["started"] or "–")[:19].replace("T", " ")),
        )
        numbers = (
            duration(row["observed_seconds"]),
            count(row["topics"]),
            size(row["published_bytes"]),
            count(row["count"]),
            count(row["delivered"]),
            count(row["late"]),
            f"{number(row['utility'])} of {number(row['maximum_utility'])}",
            count(row["quarantined"]),
        )
        rows.append("".join(cell(text, is_number=False) for text in texts) + "".join(map(cell, numbers)))
    return table_html([*head, "utility", "rows set aside"], rows, text_columns=4)
