"""quarantine: one row per input row that was set aside, why, and where it came from."""

from __future__ import annotations

SCHEMA = """
    run_id  string,
    table   string  COMMENT 'the table the row would have gone to',
    reason  string,
    source  string  COMMENT 'file the row came from',
    line    bigint  COMMENT 'line of a text file, row of a Parquet file; both count from 1',
    raw     string  COMMENT 'the row as it was; bytes that are not UTF-8 are replaced'
"""
