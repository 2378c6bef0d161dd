"""publications: one row per event that a publisher handed in, of known topic, with plausible time and size."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

SCHEMA = """
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


def transform(
    valid: DataFrame, topics: DataFrame, publishers: DataFrame, measured_from_ns: Column
) -> DataFrame:
    """Valid publications with names. `measured_from_ns` is an expression of `run`."""
    return (
        valid.join(F.broadcast(topics), ["run", "topic_id"], "left")
        .join(F.broadcast(publishers), ["run", "publisher_id"], "left")
        .withColumn("measured", F.col("published_ns") >= measured_from_ns)
    )
