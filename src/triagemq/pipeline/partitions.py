"""How rows are partitioned, and how NumPy computes with them: by Spark's Python workers, or in this process if few.

A session whose tables are all small has one partition (see session.py): no table that is made from them needs an
exchange, and what a function makes of Arrow needs no Python workers, which would take longer to start than to work.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from triagemq.scenario import kinds, utility
from triagemq.trace import blocks, latency_bins

# Workers get the functions of these and of this package instead of importing them, and half of all packages with them.
for _module in (sys.modules[__package__], blocks, latency_bins, kinds, utility):
    register_pickle_by_value(_module)  # type: ignore[no-untyped-call]

InPieces = Callable[[Iterator[pa.Table]], Iterator[pa.Table]]


def partitions_of(spark: SparkSession) -> int:
    """Partitions of an exchange in this session; 1 if all its tables are small."""
    return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def partition_by(rows: DataFrame, *keys: str) -> DataFrame:
    """Rows with equal keys in the same partition; Spark makes fewer of them where there are few rows."""
    return rows.coalesce(1) if partitions_of(rows.sparkSession) == 1 else rows.repartition(*keys)


def ends_by_run(rows: DataFrame, column: str) -> dict[int, tuple[int, int]]:
    """The smallest and the largest value of a column in each run."""
    found = rows.groupBy("run").agg(F.min(column), F.max(column)).toArrow()
    return {run: (first, last) for run, first, last in zip(*found.to_pydict().values(), strict=True)}


def to_spark(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Rows of this process in Spark, as one partition."""
    return spark.createDataFrame(rows.combine_chunks()).coalesce(1)


def in_order(
    rows: DataFrame, keys: Sequence[str], then: Sequence[str], function: InPieces, schema: str
) -> DataFrame:
    """Apply a function to rows in order of keys and other columns; rows with equal keys are in one partition."""
    return _map_in_arrow(partition_by(rows, *keys).sortWithinPartitions(*keys, *then), function, schema)


def in_pieces(
    rows: DataFrame,
    function: Callable[[pa.Table], pa.Table],
    schema: str,
    rows_at_once: int = sys.maxsize,
) -> DataFrame:
    """Apply a function to the rows of each partition, so many at a time."""

    def made(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        gathered: list[pa.Table] = []
        for piece in pieces:
            if gathered and sum(map(len, gathered)) + len(piece) > rows_at_once:
                yield function(pa.concat_tables(gathered))
                gathered = []
            gathered.append(piece)
        if gathered:
            yield function(pa.concat_tables(gathered))

    return _map_in_arrow(rows, made, schema)


def joined(
    rows: DataFrame, others: pa.Table, keys: Sequence[str], how: Literal["left", "full"] = "left"
) -> DataFrame:
    """Rows with the columns of the one of the others, which are few, that has equal keys."""
    frame = to_spark(rows.sparkSession, others)
    return rows.join(F.broadcast(frame) if how == "left" else frame, list(keys), how)


def _map_in_arrow(rows: DataFrame, function: InPieces, schema: str) -> DataFrame:
    """Apply a function to the rows of each partition, which come in pieces."""
    if partitions_of(rows.sparkSession) == 1:
        return to_spark(rows.sparkSession, table_of(list(function(iter([rows.toArrow()]))), schema))
    arrow = to_arrow_schema(schema_of(schema))

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in function(pa.Table.from_batches([batch]) for batch in batches):
            yield from _as_table([table], arrow).to_batches()

    return rows.mapInArrow(made, schema_of(schema))


def table_of(tables: Iterable[pa.Table], schema: str) -> pa.Table:
    """Tables as one that has these columns; null in those that a table does not have."""
    return _as_table(tables, to_arrow_schema(schema_of(schema)))


def _as_table(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    ordered = [
        table.select([name for name in schema.names if name in table.column_names]) for table in tables
    ]
    together = pa.concat_tables([schema.empty_table(), *ordered], promote_options="permissive")
    # Spark takes an empty chunk for the end of those that follow.
    return together.cast(schema).combine_chunks()


@lru_cache
def schema_of(columns: str) -> StructType:
    """Columns as Spark's SQL writes them; Java has to read that, once."""
    found = StructType.fromDDL(columns)
    assert isinstance(found, StructType)
    return found


def exact_mean(column: str) -> Column:
    """The mean, the same to the last bit however the rows are spread: decimals add up exactly."""
    return F.expr(f"double(avg(try_cast({column} AS decimal(28,12)))) AS {column}")
