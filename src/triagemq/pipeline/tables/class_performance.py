"""class_performance: one row per run and priority class: what became of its copies, and how late they came."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.tables.figures import add_up, figures

__all__ = ["SCHEMA", "transform"]

SCHEMA = """
    run_id                string,
    priority_class        int     COMMENT 'that triage gives, where the run says so; null where no plan covers it',
    subscriptions         bigint  COMMENT 'that had copies in this class',
    count                 bigint  COMMENT 'copies of events published after warm-up',
    delivered             bigint,
    dropped_by_policy     bigint,
    dropped_by_buffer     bigint,
    limited               bigint,
    lost_on_link          bigint,
    subscriber_gone       bigint,
    in_flight             bigint,
    unacknowledged        bigint,
    success_rate          double  COMMENT 'delivered / count',
    mean_latency_seconds  double  COMMENT 'of the delivered; from whole nanoseconds, exact',
    p50                   double  COMMENT 'latency in seconds, within 0.8 %, equal to the simulator',
    p95                   double  COMMENT 'latency in seconds',
    p99                   double  COMMENT 'latency in seconds',
    max                   double  COMMENT 'latency in seconds, exact'
"""


def transform(latency_histogram: DataFrame) -> DataFrame:
    """Add the histograms of all subscriptions up by class."""
    subscriptions = F.count("*").alias("subscriptions")
    return figures(add_up(latency_histogram, "run", "priority_class", also=(subscriptions,)))
