"""The rows that all other tables are made from, and those that were set aside."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from triagemq.trace import TABLES


def _recorded(table: str) -> str:
    """The columns of a table of the trace, as Spark's SQL writes them."""
    columns = from_arrow_schema(TABLES[table]).fields
    return ", ".join(f"{column.name} {column.dataType.simpleString()}" for column in columns)


_MEASURED = "measured boolean COMMENT 'published after warm-up: only such rows count in figures'"

PUBLICATIONS = f"""
    run_id string, {_recorded("publications")}, publisher string,
    topic string COMMENT 'null where the run came without a scenario', {_MEASURED}
"""
"""publications: one row per event that a publisher handed in, of known topic, with plausible time and size."""

DELIVERIES = f"run_id string, {_recorded('deliveries')}, {_MEASURED}"
"""deliveries: one row per copy of an event for one subscription, and what became of it."""

QUARANTINE = """
    run_id  string,
    table   string  COMMENT 'the table the row would have gone to',
    reason  string,
    source  string  COMMENT 'file the row came from',
    line    bigint  COMMENT 'line of a text file, row of a Parquet file; both count from 1',
    raw     string  COMMENT 'the row as it was; bytes that are not UTF-8 are replaced'
"""
"""quarantine: one row per input row that was set aside, why, and where it came from."""

QUARANTINE_SUMMARY = """
    run_id  string,
    table   string  COMMENT 'the table the rows would have gone to',
    reason  string,
    rows    bigint,
    source  string  COMMENT 'file that the first of them came from',
    line    bigint,
    raw     string
"""
"""quarantine_summary: one row per reason for which rows of an input table were set aside, with the first of them."""


def quarantine_summary(quarantine: DataFrame) -> DataFrame:
    """Count the rows of each reason."""
    first = F.min(F.struct("source", "line", "raw")).alias("first")
    counted = quarantine.groupBy("run", "table", "reason").agg(F.count("*").alias("rows"), first)
    return counted.select("run", "table", "reason", "rows", "first.*")
