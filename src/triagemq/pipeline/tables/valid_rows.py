"""The rows that all other tables are made from, and those that were set aside."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.partitions import joined

PUBLICATIONS = """
    run_id          string,
    publication_id  bigint,
    topic_id        int,
    topic           string  COMMENT 'null where the run came without a scenario',
    publisher_id    int     COMMENT 'null where it is not known who published',
    publisher       string,
    published_ns    bigint,
    size_bytes      int,
    measured        boolean COMMENT 'published after warm-up: only such events count in figures'
"""
"""publications: one row per event that a publisher handed in, of known topic, with plausible time and size."""

DELIVERIES = """
    run_id           string,
    publication_id   bigint,
    subscription_id  int,
    subscriber_id    int,
    topic_id         int,
    flow_id          int     COMMENT 'null where the plan has no flow for it',
    priority_class   int,
    published_ns     bigint,
    enqueued_ns      bigint  COMMENT 'at the first managed port; null if it did not get there',
    dequeued_ns      bigint  COMMENT 'from the last managed port; null if it did not leave it',
    delivered_ns     bigint  COMMENT 'null if it was not delivered',
    size_bytes       int,
    outcome          string,
    measured         boolean COMMENT 'published after warm-up: only such copies count in figures'
"""
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


def publications(valid: DataFrame, topics: pa.Table, publishers: pa.Table) -> DataFrame:
    """Valid publications with names."""
    return joined(joined(valid, topics, ("run", "topic_id")), publishers, ("run", "publisher_id"))


def quarantine_summary(quarantine: DataFrame) -> DataFrame:
    """Count the rows of each reason."""
    first = F.min(F.struct("source", "line", "raw")).alias("first")
    counted = quarantine.groupBy("run", "table", "reason").agg(F.count("*").alias("rows"), first)
    return counted.select("run", "table", "reason", "rows", "first.*")
