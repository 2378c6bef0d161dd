"""What sections read: the tables, with columns that may be missing, and the runs with their names and colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import pyarrow as pa

__all__ = ["MOST_RUNS", "Inputs", "Run"]

MOST_RUNS = 8
"""Runs that are drawn; more colours than this nobody can tell apart."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as the page calls it. `color` names a variable of the style sheet."""

    run_id: str
    name: str
    color: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tables of a report and the runs in them."""

    tables: Mapping[str, pa.Table]
    runs: tuple[Run, ...]
    runs_left_out: int

    @classmethod
    def of(cls, tables: Mapping[str, pa.Table], names: Mapping[str, str]) -> Inputs:
        """Find the runs: those that have names first, in that order, then all others."""
        found = _run_ids(tables)
        ordered = [run_id for run_id in names if run_id in found]
        ordered += [run_id for run_id in found if run_id not in names]
        called = _names(tables, ordered) | dict(names)
        runs = tuple(
            Run(run_id, called[run_id], f"--series-{number}")
            for number, run_id in enumerate(ordered[:MOST_RUNS])
        )
        return cls(tables, runs, max(0, len(ordered) - MOST_RUNS))

    def table(self, name: str, columns: Sequence[str]) -> pa.Table | None:
        """These columns of a table, null where the table lacks one; None if it is missing or empty."""
        table = self.tables.get(name)
        if table is None or table.num_rows == 0 or "run_id" not in table.column_names:
            return None
        nothing = pa.nulls(table.num_rows)
        chosen = {name: table[name] if name in table.column_names else nothing for name in columns}
        return pa.table({"run_id": table["run_id"]} | chosen)

    def rows(self, name: str, columns: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """The rows of a small table by run; empty if the table is missing or empty."""
        table = self.table(name, columns)
        rows: dict[str, list[dict[str, Any]]] = {}
        for row in [] if table is None else table.to_pylist():
            rows.setdefault(row["run_id"], []).append(row)
        return rows


def _run_ids(tables: Mapping[str, pa.Table]) -> list[str]:
    """All runs, as run_summary lists them, and those that only other tables know."""
    order = ["run_summary", *sorted(name for name in tables if name != "run_summary")]
    found: dict[str, None] = {}
    for name in order:
        table = tables.get(name)
        if table is not None and "run_id" in table.column_names:
            found |= dict.fromkeys(
                run_id for run_id in table["run_id"].unique().to_pylist() if run_id is not None
            )
    return list(found)


def _names(tables: Mapping[str, pa.Table], run_ids: Iterable[str]) -> dict[str, str]:
    """The last part of where each run was read from; its id where that is not known or not unique."""
    summary = tables.get("run_summary")
    sources: dict[str, str] = {}
    if summary is not None and {"run_id", "source"} <= set(summary.column_names):
        for row in summary.select(["run_id", "source"]).to_pylist():
            sources[row["run_id"]] = PurePath(row["source"] or "").name
    short = list(sources.values())
    return {
        run_id: sources[run_id] if sources.get(run_id) and short.count(sources[run_id]) == 1 else run_id
        for run_id in run_ids
    }
