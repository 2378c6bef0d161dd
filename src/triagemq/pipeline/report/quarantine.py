"""Section: input rows that were set aside, why, and where they stand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from triagemq.pipeline.report.inputs import Inputs
from triagemq.pipeline.report.page import Section, table_html
from triagemq.pipeline.report.summary import named, nothing
from triagemq.pipeline.report.words import cell, count, percent, safe

__all__ = ["section"]

MOST_REASONS = 40
LONGEST_ROW = 160
_COLUMNS = ("table", "reason", "source", "line", "raw")


def section(inputs: Inputs) -> Section:
    """A row for each run, table and reason, with one example."""
    title = "Set aside"
    read = {
        run_id: (rows[0]["rows_read"], rows[0]["quarantined"])
        for run_id, rows in inputs.rows("run_summary", ("rows_read", "quarantined")).items()
    }
    table = inputs.table("quarantine", _COLUMNS)
    if table is None:
        rows = sum(each[0] or 0 for each in read.values())
        words = (
            f"Nothing was set aside: all {rows:,} rows that were read are used."
            if rows
            else "Nothing was set aside."
        )
        return Section("quarantine", title, [nothing(words)])
    # In any order within a group; one thread keeps the one they stand in.
    table = table.append_column("row", pa.array(range(table.num_rows)))
    keys = ["run_id", "table", "reason"]
    grouped = table.group_by(keys, use_threads=False).aggregate([("row", "count"), ("row", "min")])
    grouped = grouped.sort_by([("row_count", "descending")])
    shown = grouped.slice(0, MOST_REASONS)
    examples = table.take(shown["row_min"]).to_pylist()
    words = (
        "<p>Rows that could not be used. They are kept in the table <code>quarantine</code> as they came, and count "
        "in no figure above.</p>"
    )
    if grouped.num_rows > MOST_REASONS:
        words += f"<p>The {MOST_REASONS} most frequent of {grouped.num_rows:,} reasons are shown.</p>"
    lines = [
        _line(inputs, row, example, read.get(row["run_id"], (None, None))[0])
        for row, example in zip(shown.to_pylist(), examples, strict=True)
    ]
    total = pc.sum(grouped["row_count"]).as_py()
    words += f"<p><strong>{count(total)}</strong> rows in all{_of_all(read, total)}.</p>"
    head = ("run", "table", "reason", "first example", "rows", "share of the run")
    return Section("quarantine", title, [words, table_html(head, lines, text_columns=4)])


def _of_all(read: dict[str, tuple[int | None, int | None]], total: int) -> str:
    rows = sum(each[0] or 0 for each in read.values())
    return f", {percent(total / rows)} of {count(rows)} that were read" if rows else ""


def _line(inputs: Inputs, row: dict[str, Any], example: dict[str, Any], rows_read: int | None) -> str:
    run = next((run for run in inputs.runs if run.run_id == row["run_id"]), None)
    place = f"{example['source'] or 'unknown source'}"
    if example["line"] is not None:
        place += f":{example['line']}"
    content = f"<br><code>{safe(example['raw'], LONGEST_ROW)}</code>" if example["raw"] else ""
    texts = (
        named(run) if run is not None else safe(row["run_id"]),
        safe(row["table"] or "–"),
        safe(row["reason"] or "–", 120),
        f"<bdi>{safe(place, 120)}</bdi>{content}",
    )
    share = row["row_count"] / rows_read if rows_read else None
    numbers = (count(row["row_count"]), percent(share))
    return "".join(cell(text, is_number=False) for text in texts) + "".join(map(cell, numbers))
