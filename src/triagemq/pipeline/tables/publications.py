"""publications: one row per event that a publisher handed in, of known topic, with plausible time and size."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from triagemq.pipeline.partitions import joined

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


def transform(valid: DataFrame, topics: pa.Table, publishers: pa.Table) -> DataFrame:
    """Valid publications with names."""
    return joined(joined(valid, topics, ("run", "topic_id")), publishers, ("run", "publisher_id"))
