"""class_performance: one row per run and priority class: what became of its copies, and how late they came."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.tables.figures import add_up, figures

SCHEMA = """
    run_id                         string,
    priority_class                 int     COMMENT 'that triage gives, if the run says so; null if no plan covers it',
    subscriptions                  bigint  COMMENT 'that had copies in this class',
    count                          bigint  COMMENT 'copies of events published after warm-up',
    delivered                      bigint,
    dropped_by_policy              bigint,
    dropped_by_buffer              bigint,
    limited                        bigint,
    lost_on_link                   bigint,
    subscriber_gone                bigint,
    in_flight                      bigint,
    unacknowledged                 bigint,
    late                           bigint  COMMENT 'delivered after the time that is judged: no success',
    success_rate                   double  COMMENT '(delivered - late) / count',
    mean_latency_seconds           double  COMMENT 'of the delivered; from whole nanoseconds, exact',
    p50                            double  COMMENT 'latency in seconds, within 0.8 %, equal to the simulator',
    p95                            double  COMMENT 'latency in seconds',
    p99                            double  COMMENT 'latency in seconds',
    max                            double  COMMENT 'latency in seconds, exact',
    forecast_success_rate          double  COMMENT 'of the plan that the run came with; null without one',
    forecast_mean_latency_seconds  double,
    forecast_p95                   double  COMMENT 'latency in seconds',
    forecast_p99                   double  COMMENT 'latency in seconds',
    forecast_sampled               int     COMMENT 'how many of its subscriptions were sampled, not computed',
    forecast_flag                  string  COMMENT 'what makes it approximate; null where it claims to be right',
    forecast_latency_error         double  COMMENT 'the relative error to expect; 0 where it claims to be right',
    forecast_success_error         double  COMMENT 'the same of the success rate',
    bins                           array<bigint> COMMENT 'latencies in ns: bin << 48 | count, see latency_bins'
"""


def transform(latency_histogram: DataFrame, forecasts: DataFrame) -> DataFrame:
    """Add the histograms of all subscriptions up by class, beside the `forecasts` by class (see dimensions.py)."""
    subscriptions = F.count("*").alias("subscriptions")
    counted = figures(add_up(latency_histogram, "run", "priority_class", also=(subscriptions,)))
    return counted.join(F.broadcast(forecasts), ["run", "priority_class"], "left")
