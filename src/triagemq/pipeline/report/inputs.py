"""What sections read: rows of the tables, in which columns may be missing, and the runs with their colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MOST_RUNS = 8
"""Runs that are drawn; more colours look alike."""


class Row(dict[str, Any]):
    """A row of a table; what its version of the table did not have is None."""

    def __missing__(self, column: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run as the page calls it. `color` names a variable of the style sheet."""

    run_id: str
    name: str
    color: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tables of a report and the runs in them."""

    tables: Mapping[str, pa.Table]
    runs: tuple[ShownRun, ...]
    runs_left_out: int

    @classmethod
    def of(cls, tables: Mapping[str, pa.Table], names: Mapping[str, str], left_out: int = 0) -> Inputs:
        """Find the runs: those that have names first, in that order, then all others."""
        present = {name: table for name, table in tables.items() if "run_id" in table.column_names}
        found = _run_ids(present)
        ordered = list(dict.fromkeys([*(each for each in names if each in found), *found]))
        called = _names(present, ordered) | dict(names)
        runs = tuple(
            ShownRun(run_id, called[run_id], f"--series-{number}")
            for number, run_id in enumerate(ordered[:MOST_RUNS])
        )
        return cls(present, runs, left_out + len(ordered[MOST_RUNS:]))

    def rows(self, name: str) -> list[tuple[ShownRun, Row]]:
        """The rows of a table that belong to the runs of the page, run by run."""
        return [(run, row) for run in self.runs for row in self.rows_of(name, run)]

    def rows_of(self, name: str, run: ShownRun) -> list[Row]:
        """The rows of one run."""
        table = self.tables.get(name)
        if table is None:
            return []
        return [Row(row) for row in table.filter(pc.field("run_id") == run.run_id).to_pylist()]

    def subscriptions(self) -> pa.Table:
        """subscription_performance of the runs of the page, as it may be long: `worth` and `lost` are numbers in it."""
        table = self.tables.get("subscription_performance", pa.table({"run_id": pa.array([], pa.string())}))
        table = table.filter(
            pc.field("run_id").isin(pa.array([run.run_id for run in self.runs], pa.string()))
        )

        def numbers(name: str) -> Any:
            known = name in table.column_names
            return (table[name] if known else pa.nulls(len(table))).cast(pa.float64())

        worth, captured = numbers("maximum_utility"), pc.fill_null(numbers("utility"), 0.0)
        columns = {"worth": worth, "captured": captured, "lost": pc.subtract(worth, captured)}
        columns |= {"number": numbers("subscription_id"), "level": numbers("priority_class")}
        for name, values in columns.items():
            table = table.append_column(name, values)
        return table


def largest(table: pa.Table, column: str, most: int) -> list[Row]:
    """The rows in which a column is largest, those first."""
    order = pc.select_k_unstable(
        table, min(most, table.num_rows), [(column, "descending"), ("number", "ascending")]
    )
    return [Row(row) for row in table.take(order).to_pylist()]


def _run_ids(tables: Mapping[str, pa.Table]) -> Sequence[str]:
    """All runs, as run_summary lists them, and those that only other tables know."""
    order = sorted(tables, key=lambda name: (name != "run_summary", name))
    found = (run_id for name in order for run_id in tables[name]["run_id"].unique().to_pylist())
    return list(dict.fromkeys(run_id for run_id in found if run_id is not None))


def _names(tables: Mapping[str, pa.Table], run_ids: Iterable[str]) -> dict[str, str]:
    """The last part of where each run was read from; its id where that is not known or not unique."""
    summary = tables["run_summary"].to_pylist() if "run_summary" in tables else []
    sources = {row["run_id"]: PurePath(row.get("source") or "").name for row in summary}
    short = list(sources.values())
    return {
        run_id: sources[run_id] if sources.get(run_id) and short.count(sources[run_id]) == 1 else run_id
        for run_id in run_ids
    }
