"""write_report(): every section from the tables, one page, in place as a whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from triagemq.errors import OutputError
from triagemq.pipeline.reading import Tables
from triagemq.pipeline.report import (
    forecast,
    latency,
    performance,
    ports,
    quarantine,
    summary,
    topics,
    utility,
)
from triagemq.pipeline.report.inputs import Inputs
from triagemq.pipeline.report.page import GENERATOR, page

__all__ = ["SECTIONS", "TABLES", "report_tables", "write_report"]

SECTIONS = (
    summary.section,
    performance.section,
    forecast.section,
    utility.section,
    latency.section,
    ports.section,
    topics.section,
    quarantine.section,
)
"""In the order of the page. Each takes the inputs and returns what it has to say, even if that is "nothing"."""

TABLES = (
    "run_summary",
    "class_performance",
    "subscription_performance",
    "latency_histogram",
    "topic_rates",
    "port_load",
    "quarantine",
)
"""What the sections read."""


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
    published = Tables(directory)
    tables = {name: published.table(name) for name in TABLES if name in published.rows}
    return write_report(tables, path, title=title, notes=notes, run_names=run_names)


def write_report(
    tables: Mapping[str, pa.Table],
    path: str | Path,
    *,
    title: str,
    notes: Sequence[str] = (),
    run_names: Mapping[str, str] | None = None,
) -> Path:
    """Write the report of these tables (by their names, as `triage pipeline run` makes them) and return its path.

    A table that is missing or empty leaves a sentence in its section. `notes` stand below the title, a paragraph
    each. `run_names` says what people call the runs ("with triage"), and in which order they come; otherwise a run has
    the name of the directory that it was read from. Raises OutputError.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     place = write_report({}, f"{folder}/report.html", title="Nothing yet")
    ...     "Nothing yet</h1>" in place.read_text(encoding="utf-8")
    True
    """
    path = Path(path)
    _refuse_foreign(path)
    inputs = Inputs.of(tables, run_names or {})
    text = page(title, notes, [make(inputs) for make in SECTIONS])
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name may hold half of a character pair, which no encoding can write.
        unfinished.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        os.replace(unfinished, path)
    except OSError as error:
        raise OutputError(f"{path}: the report cannot be written: {error.strerror or error}") from error
    finally:
        if unfinished.parent.is_dir():
            unfinished.unlink(missing_ok=True)
    return path


def _refuse_foreign(path: Path) -> None:
    """A file of that name that is no report of ours stays as it is."""
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
    except OSError:
        return
    if GENERATOR.encode() not in beginning:
        raise OutputError(
            f"{path}: is no report of TriageMQ and is not replaced; move it, or choose another place"
        )
