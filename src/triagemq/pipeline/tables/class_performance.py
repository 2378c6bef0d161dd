"""class_performance: one row per run and priority class: what became of its copies, and how late they came."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.latency_bins import packed_lists, unpacked_lists
from triagemq.pipeline.partitions import in_pieces, partitions_of
from triagemq.pipeline.tables.figures import FIGURES, FORECAST, add_up, figures

SCHEMA = f"""
    run_id          string,
    priority_class  int     COMMENT 'that triage gives, if the run says so; null if no plan covers it',
    subscriptions   bigint  COMMENT 'that had copies in this class',
    {FIGURES},
    {FORECAST},
    bins            array<bigint> COMMENT 'latencies in ns: bin << 48 | count, see latency_bins'
"""
_KEYS = ("run", "priority_class")
_NO_CLASS = -1
_BINS = "run int, priority_class int, bins array<bigint>"
_ROWS_AT_ONCE = 100_000


def transform(latency_histogram: DataFrame, forecasts: DataFrame) -> DataFrame:
    """Add the histograms of all subscriptions up by class, beside the `forecasts` by class (see dimensions.py)."""
    histogram = latency_histogram.fillna(_NO_CLASS, "priority_class")
    bins = in_pieces(histogram.select(*_KEYS, "bins"), _add_bins_up, _BINS, _ROWS_AT_ONCE)
    if partitions_of(histogram.sparkSession) > 1:
        bins = in_pieces(bins.repartition(1), _add_bins_up, _BINS)
    added = add_up(histogram, *_KEYS, also=(F.count("*").alias("subscriptions"),))
    copied = F.col("bins").alias("copied")
    counted = figures(added.join(F.broadcast(bins.select("*", copied)), list(_KEYS)))
    counted = counted.withColumnRenamed("copied", "bins")
    known = F.nullif(F.col("priority_class"), F.lit(_NO_CLASS))
    return counted.withColumn("priority_class", known).join(F.broadcast(forecasts), list(_KEYS), "left")


def _add_bins_up(rows: pa.Table) -> pa.Table:
    """One row for each run and class: the counts of equal bins as one."""
    given = np.array([rows[name].to_numpy() for name in _KEYS])
    keys, at = np.unique(given, axis=1, return_inverse=True)
    row, number, count = unpacked_lists(rows["bins"].combine_chunks())
    bins = packed_lists(at[row], number, count, keys.shape[1])
    return pa.table([pa.array(keys[0]), pa.array(keys[1]), bins], [*_KEYS, "bins"])
