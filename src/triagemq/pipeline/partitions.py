"""How rows are spread over tasks: few rows stay in one piece, and no table made from them needs an exchange."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from triagemq.pipeline import latency_bins
from triagemq.trace import latency_bins as bins


def partitions_of(spark: SparkSession) -> int:
    """Partitions of an exchange in this session; 1 says that all its tables are small (see session.py)."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def in_one_piece(rows: DataFrame, partitions: int) -> DataFrame:
    """The rows as one partition where a session has no more; Spark then knows that equal keys are together."""
    return rows.coalesce(1) if partitions == 1 else rows


def spread(rows: DataFrame, partitions: int, key: str) -> DataFrame:
    """Rows with equal keys in the same of so many partitions."""
    return rows.coalesce(1) if partitions == 1 else rows.repartition(partitions, key)


def by_group(
    rows: DataFrame, keys: Sequence[str], function: Callable[[pa.Table], pa.Table], schema: str
) -> DataFrame:
    """What a function makes of each group of rows with equal keys, which are whole numbers.

    Python workers do it where the rows are; the few rows of a small session are done with here before they are ready.
    """
    if partitions_of(rows.sparkSession) > 1:
        _send_code_of(function)
        return rows.groupBy(*keys).applyInArrow(function, schema)
    made = [function(group) for group in _groups(rows.toArrow(), keys)]
    return few_rows(rows.sparkSession, made, schema)


def in_pieces(
    rows: DataFrame,
    function: Callable[[pa.Table], pa.Table],
    schema: str | StructType,
    rows_at_once: int = sys.maxsize,
) -> DataFrame:
    """What a function makes of every so many rows of a partition; where that is done, see `by_group`."""
    if partitions_of(rows.sparkSession) == 1:
        return few_rows(rows.sparkSession, [function(rows.toArrow())], schema)
    _send_code_of(function)
    _send_code_of(in_pieces)
    wanted = _struct(schema)
    names = wanted.names

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        piece: list[pa.RecordBatch] = []
        for batch in batches:
            if piece and sum(map(len, piece)) + len(batch) > rows_at_once:
                yield from function(pa.Table.from_batches(piece)).select(names).to_batches()
                piece = []
            piece.append(batch)
        if piece:
            yield from function(pa.Table.from_batches(piece)).select(names).to_batches()

    return rows.mapInArrow(made, wanted)


def _send_code_of(function: Callable[..., object]) -> None:
    """Workers get the functions of a module instead of importing it, and half of this package with it."""
    for name in (function.__module__, latency_bins.__name__, bins.__name__):
        register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]


def few_rows(spark: SparkSession, tables: Sequence[pa.Table], schema: str | StructType) -> DataFrame:
    """Rows that are in this process, or none at all, as one partition; null in columns that a table does not have.

    Lists would need Python workers for it.
    """
    wanted = _struct(schema)
    arrow = to_arrow_schema(wanted)
    ordered = [table.select([name for name in arrow.names if name in table.column_names]) for table in tables]
    together = pa.concat_tables([arrow.empty_table(), *ordered], promote_options="permissive")
    # Spark takes an empty chunk for the end of those that follow.
    return spark.createDataFrame(together.combine_chunks(), wanted).coalesce(1)


def _struct(schema: str | StructType) -> StructType:
    found = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    assert isinstance(found, StructType)
    return found


def _groups(table: pa.Table, keys: Sequence[str]) -> Iterator[pa.Table]:
    ordered = table.sort_by([(key, "ascending") for key in keys])
    columns = np.array([ordered[key].to_numpy() for key in keys])
    changes = np.flatnonzero((columns[:, 1:] != columns[:, :-1]).any(axis=0)) + 1
    edges = [0, *changes.tolist(), ordered.num_rows]
    for begin, end in pairwise(edges):
        if end > begin:
            yield ordered.slice(begin, end - begin)
