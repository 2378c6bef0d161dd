"""quarantine_summary: one row per reason for which rows of an input table were set aside, with the first of them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

SCHEMA = """
    run_id  string,
    table   string  COMMENT 'the table the rows would have gone to',
    reason  string,
    rows    bigint,
    source  string  COMMENT 'file that the first of them came from',
    line    bigint,
    raw     string
"""


def transform(quarantine: DataFrame) -> DataFrame:
    """Count the rows of each reason."""
    first = F.min(F.struct("source", "line", "raw")).alias("first")
    counted = quarantine.groupBy("run", "table", "reason").agg(F.count("*").alias("rows"), first)
    return counted.select("run", "table", "reason", "rows", "first.*")
