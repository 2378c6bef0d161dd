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

InPieces = Callable[[Iterator[pa.Table]], Iterator[pa.Table]]


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
    """What a function makes of each group of rows with equal keys, which are whole numbers."""
    _send_code_of(function)

    def made(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        return map(function, _groups(pieces, keys))

    return in_order(rows, keys, (), made, schema)


def in_order(
    rows: DataFrame, keys: Sequence[str], then: Sequence[str], function: InPieces, schema: str
) -> DataFrame:
    """The same of rows in order of keys and other columns, those with equal keys in the same partition."""
    partitions = partitions_of(rows.sparkSession)
    together = rows.coalesce(1) if partitions == 1 else rows.repartition(partitions, *keys)
    return _in_arrow(together.sortWithinPartitions(*keys, *then), function, schema)


def in_pieces(
    rows: DataFrame,
    function: Callable[[pa.Table], pa.Table],
    schema: str | StructType,
    rows_at_once: int = sys.maxsize,
) -> DataFrame:
    """What a function makes of every so many rows of a partition."""
    _send_code_of(function)

    def made(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        gathered: list[pa.Table] = []
        for piece in pieces:
            if gathered and sum(map(len, gathered)) + len(piece) > rows_at_once:
                yield function(pa.concat_tables(gathered))
                gathered = []
            gathered.append(piece)
        if gathered:
            yield function(pa.concat_tables(gathered))

    return _in_arrow(rows, made, schema)


def _in_arrow(rows: DataFrame, function: InPieces, schema: str | StructType) -> DataFrame:
    """What a function makes of the rows of each partition, which come piece by piece.

    Python workers do it where the rows are; the few rows of a small session are done with here before they are ready.
    """
    wanted = _struct(schema)
    if partitions_of(rows.sparkSession) == 1:
        return few_rows(rows.sparkSession, list(function(iter([rows.toArrow()]))), wanted)
    _send_code_of(function)
    arrow = to_arrow_schema(wanted)

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in function(pa.Table.from_batches([batch]) for batch in batches):
            yield from table.select(arrow.names).cast(arrow).to_batches()

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


def _groups(pieces: Iterator[pa.Table], keys: Sequence[str]) -> Iterator[pa.Table]:
    """Rows with equal keys together, of rows in their order."""
    unfinished: list[pa.Table] = []
    for piece in filter(len, pieces):
        columns = np.array([piece[key].to_numpy() for key in keys])
        changes = np.flatnonzero((columns[:, 1:] != columns[:, :-1]).any(axis=0)) + 1
        for begin, end in pairwise([0, *changes.tolist(), piece.num_rows]):
            group = piece.slice(begin, end - begin)
            if unfinished and any(unfinished[0][key][0] != group[key][0] for key in keys):
                yield pa.concat_tables(unfinished)
                unfinished = []
            unfinished.append(group)
    if unfinished:
        yield pa.concat_tables(unfinished)
