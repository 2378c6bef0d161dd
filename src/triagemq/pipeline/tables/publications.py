"""publications: one row per event that a publisher handed in, of known topic, with plausible time and size."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.partitions import Rows, here, joined

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


def transform(valid: DataFrame, topics: pa.Table, publishers: pa.Table, measured_from_ns: Column) -> Rows:
    """Valid publications with names. `measured_from_ns` is an expression of `run`."""
    marked = here(valid.withColumn("measured", F.col("published_ns") >= measured_from_ns))
    return joined(joined(marked, topics, ("run", "topic_id")), publishers, ("run", "publisher_id"))
