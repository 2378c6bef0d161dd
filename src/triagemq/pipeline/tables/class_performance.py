"""class_performance: one row per run and priority class: what became of its copies, and how late they came."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.tables.figures import FIGURES, FORECAST, add_bins_up, add_up, figures

SCHEMA = f"""
    run_id          string,
    priority_class  int     COMMENT 'that triage gives, if the run says so; null if no plan covers it',
    subscriptions   bigint  COMMENT 'that had copies in this class',
    {FIGURES},
    {FORECAST},
    bins            array<bigint> COMMENT 'latencies in ns: bin << 48 | count, see latency_bins'
"""
_KEYS = ("run", "priority_class")


def transform(latency_histogram: DataFrame, forecasts: DataFrame) -> DataFrame:
    """Add the histograms of all subscriptions up by class, beside the `forecasts` by class (see dimensions.py)."""
    added = add_up(latency_histogram, *_KEYS, also=(F.count("*").alias("subscriptions"),))
    counted = figures(added.join(add_bins_up(latency_histogram, *_KEYS), list(_KEYS), "left"))
    return counted.join(F.broadcast(forecasts), list(_KEYS), "left")
