"""Tables to their last bit."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa

from triagemq.pipeline import Tables
from triagemq.trace import Trace

__all__ = ["exact_rows", "exact_tables", "frame_of"]


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


def frame_of(trace: Path, table: str) -> pd.DataFrame:
    """A table of a trace for pandas, in which nullable integers stay integers: a float loses nanoseconds."""
    kinds = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
    return Trace.open(trace).table(table).to_pandas(types_mapper=kinds.get)
