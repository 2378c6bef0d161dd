"""Tables to their last bit."""

from __future__ import annotations

import json

from triagemq.pipeline import Tables

__all__ = ["exact_rows", "exact_tables"]


def exact_rows(tables: Tables, name: str) -> list[str]:
    """Every row of a table, but for where it was read from; the order of rows and in histograms is no part of it."""
    return sorted(
        json.dumps({key: _value(value) for key, value in row.items() if key != "source"})
        for row in tables.table(name).to_pylist()
    )


def exact_tables(tables: Tables) -> dict[str, list[str]]:
    """All tables."""
    return {name: exact_rows(tables, name) for name in tables.rows}


def _value(value: object) -> object:
    return sorted(map(repr, value)) if isinstance(value, list) else repr(value)
