"""write_report(): every section from the tables, one page, in place as a whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from triagemq import __version__
from triagemq.errors import OutputError
from triagemq.pipeline.reading import Tables
from triagemq.pipeline.report.figures import MOST_RUNS, Drawing, Inputs
from triagemq.pipeline.report.formatting import FILTERS
from triagemq.pipeline.report.sections import SECTIONS
from triagemq.scenario.files.saving import write_all

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
