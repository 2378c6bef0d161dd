"""How rows are spread over tasks: few rows stay in one piece, and no table made from them needs an exchange."""

from __future__ import annotations

from pyspark.sql import DataFrame

__all__ = ["in_one_piece", "spread"]


def in_one_piece(rows: DataFrame, partitions: int) -> DataFrame:
    """The rows as one partition where a session has no more; Spark then knows that equal keys are together."""
    return rows.coalesce(1) if partitions == 1 else rows


def spread(rows: DataFrame, partitions: int, key: str) -> DataFrame:
    """Rows with equal keys in the same of so many partitions."""
    return rows.coalesce(1) if partitions == 1 else rows.repartition(partitions, key)
