"""write_report(): every section from the tables, one page, in place as a whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq import __version__
from triagemq.errors import OutputError
from triagemq.pipeline.reading import Tables
from triagemq.pipeline.report import figures
from triagemq.pipeline.report.figures import MOST_RUNS, Drawing, Inputs, Row, ShownRun, largest
from triagemq.pipeline.report.formatting import FILTERS
from triagemq.scenario.files.saving import write_all

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


TABLES = (
    "run_summary",
    "class_performance",
    "subscription_performance",
    "topic_summary",
    "port_summary",
    "quarantine_summary",
)
"""The tables of the sections: none is longer for a longer run."""

GENERATOR = "TriageMQ"
"""Marks a page as a report, which may be replaced; any other file may not."""

_BEGINNING_BYTES = 1000


def report_tables(
    directory: str | Path,
    path: str | Path,
    *,
    title: str,
    notes: Sequence[str] = (),
    run_names: Mapping[str, str] | None = None,
) -> Path:
    """Write the report of the tables that `triage pipeline run` has published in a directory."""
    published, names = Tables(directory), run_names or {}
    shown = sorted(published.manifest.runs, key=lambda run_id: (run_id not in names, run_id))[:MOST_RUNS]
    tables = {
        name: pa.concat_tables(
            [published.table(name, run_id=run_id) for run_id in shown], promote_options="permissive"
        )
        for name in TABLES
        if name in published.rows
    }
    more_runs = len(published.manifest.runs) - len(shown)
    return write_report(tables, path, title=title, notes=notes, run_names=names, more_runs=more_runs)


def write_report(
    tables: Mapping[str, pa.Table],
    path: str | Path,
    *,
    title: str,
    notes: Sequence[str] = (),
    run_names: Mapping[str, str] | None = None,
    more_runs: int = 0,
) -> Path:
    """Write the report of these tables (by their names, as `triage pipeline run` makes them) and return its path.

    A table that is missing or empty leaves a sentence in its section. `notes` stand below the title, a paragraph
    each. `run_names` are names of runs for people ("with triage"), in their order on the page; otherwise a run has the
    name of its directory. `more_runs` is the number of further runs. Raises OutputError.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = write_report({}, f"{folder}/report.html", title="Nothing yet")
    ...     "Nothing yet</h1>" in place.read_text(encoding="utf-8")
    True
    """
    path = Path(path)
    _refuse_foreign(path)
    text = _page(title, notes, Inputs.of(tables, run_names or {}, more_runs))
    # A name may hold half of a character pair, which no encoding can write.
    content = text.encode("utf-8", errors="backslashreplace")
    write_all({path: lambda place: place.write_bytes(content)})
    return path


def _page(title: str, notes: Sequence[str], inputs: Inputs) -> str:
    """The whole document; Plotly's program is in it once, and only if something is drawn."""
    from jinja2 import Environment, PackageLoader

    # Names may hold anything: they are escaped wherever a template puts them.
    templates = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True)
    templates.filters |= FILTERS
    templates.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    drawn: list[Drawing] = []

    def place(figure: Drawing) -> int:
        """The number of a figure that the page draws."""
        written = json.dumps({name: figure[name] for name in ("data", "layout")})
        drawn.append(json.loads(written, parse_float=_short, parse_constant=lambda _: None))
        return len(drawn) - 1

    return templates.get_template("page.html").render(
        title=title,
        notes=notes,
        sections={name: {"title": heading, **find(inputs)} for name, (heading, find) in SECTIONS.items()},
        place=place,
        drawn=drawn,
        plotly=_plotly,
        generator=GENERATOR,
        version=__version__,
    )


def _short(number: str) -> float:
    """Five digits are more than a figure can show, and halve the size of the page."""
    return float(f"{float(number):.5g}")


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _refuse_foreign(path: Path) -> None:
    """Refuse to replace a file that is no report of this package."""
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
    except OSError:
        return
    if f'<meta name="generator" content="{GENERATOR}">'.encode() not in beginning:
        raise OutputError(
            f"{path}: is no report of TriageMQ and is not replaced; move it, or choose another place"
        )
