"""subscription_performance: one row per subscription: what arrived, how late, and what it was worth.

A run with a scenario has a row for every subscription of it, also for those of which nothing was published.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.tables.figures import figures
from triagemq.pipeline.tables.latency_histogram import OUTCOMES
from triagemq.scenario import UtilityShape

SCHEMA = """
    run_id                             string,
    subscription_id                    int,
    subscriber_id                      int,
    subscriber                         string  COMMENT 'null where the run came without a scenario',
    topic_id                           int,
    topic                              string,
    priority_class                     int     COMMENT 'the one most of its copies had',
    count                              bigint  COMMENT 'copies of events published after warm-up',
    delivered                          bigint,
    dropped_by_policy                  bigint,
    dropped_by_buffer                  bigint,
    limited                            bigint,
    lost_on_link                       bigint,
    subscriber_gone                    bigint,
    in_flight                          bigint,
    unacknowledged                     bigint,
    late                               bigint  COMMENT 'delivered after the time that is judged: no success',
    success_rate                       double  COMMENT '(delivered - late) / count; null if nothing was published',
    mean_latency_seconds               double  COMMENT 'of the delivered; from whole nanoseconds, exact',
    p50                                double  COMMENT 'latency in seconds, within 0.8 %',
    p95                                double  COMMENT 'latency in seconds',
    p99                                double  COMMENT 'latency in seconds',
    max                                double  COMMENT 'latency in seconds, exact',
    max_latency_seconds                double  COMMENT 'the latency that was asked for; null for none',
    max_latency_share                  double  COMMENT 'the share that is to come within it; null for none',
    share_within_max_latency           double  COMMENT 'of the delivered; null where no latency was asked for',
    utility                            double  COMMENT 'what the measured success, latency and share are worth',
    maximum_utility                    double  COMMENT 'what it is worth if everything arrives at once',
    forecast_share_within_max_latency  double,
    forecast_success_rate              double  COMMENT 'of the plan that the run came with; null without one',
    forecast_mean_latency_seconds      double,
    forecast_p95                       double  COMMENT 'latency in seconds',
    forecast_p99                       double  COMMENT 'latency in seconds',
    forecast_sampled                   int     COMMENT '1 where a sample of events was followed, 0 for a formula',
    forecast_flag                      string  COMMENT 'what makes it approximate; null where it claims to be right',
    forecast_latency_error             double  COMMENT 'the relative error to expect; 0 where it claims to be right',
    forecast_success_error             double  COMMENT 'the same of the success rate'
"""


def transform(latency_histogram: DataFrame, subscriptions: DataFrame) -> DataFrame:
    """Figures of every subscription. `subscriptions` says what each is and wants (see dimensions.py)."""
    copies = sum((F.col(outcome) for outcome in OUTCOMES), F.lit(0))
    ranked = latency_histogram.withColumn("copies", copies)
    usual_class = F.max_by("priority_class", F.struct("copies", -F.col("priority_class"))).alias(
        "priority_class"
    )
    measured = figures(
        ranked.groupBy("run", "subscription_id").agg(
            usual_class,
            *(F.min(name).alias(f"seen_{name}") for name in ("subscriber_id", "topic_id")),
            *(F.sum(counted).alias(counted) for counted in (*OUTCOMES, "late", "in_time")),
            F.sum("latency_sum_ns").cast("decimal(38,0)").alias("latency_sum_ns"),
            F.max("latency_max_ns").alias("latency_max_ns"),
            # A subscription that changed its class has a bin twice, which percentiles do not mind.
            F.flatten(F.collect_list("bins")).alias("bins"),
        )
    )
    return (
        subscriptions.join(measured, ["run", "subscription_id"], "full")
        .withColumns({name: F.coalesce(name, f"seen_{name}") for name in ("subscriber_id", "topic_id")})
        .fillna(0, ["count", *OUTCOMES, "late"])
        .withColumn(
            "share_within_max_latency",
            F.when(F.col("max_latency_seconds").isNotNull(), F.try_divide("in_time", "delivered")),
        )
        .withColumn(
            "utility", _utility(F.coalesce("success_rate", F.lit(0.0)), F.col("mean_latency_seconds"))
        )
        .withColumn("maximum_utility", _worth(F.lit(1.0)))
        # Before the first delivery of a fresh topic there is nothing to enjoy.
        .withColumn("utility", F.when(F.col("utility_shape").isNotNull(), F.coalesce("utility", F.lit(0.0))))
    )


def _worth(success: Column) -> Column:
    """PrioDeX eq. 19 and its siblings, as in triagemq.scenario.utility."""
    shape, weight = F.col("utility_shape"), F.col("utility_weight")
    reached = (success >= F.col("utility_threshold") * (1 - 1e-12)).cast("double")
    share = (
        F.when(shape == int(UtilityShape.LOG), F.log1p(success))
        .when(shape == int(UtilityShape.LINEAR), success)
        .otherwise(reached)
    )
    return weight * share


def _utility(success: Column, latency_seconds: Column) -> Column:
    freshness, asked = F.col("freshness_seconds"), F.col("max_latency_share")
    fresh = F.when(freshness.isNull(), 1.0).otherwise(F.exp(-latency_seconds / freshness))
    in_time = F.coalesce("share_within_max_latency", F.lit(0.0)) / asked
    return _worth(success) * fresh * F.when(asked.isNull(), 1.0).otherwise(F.least(in_time, F.lit(1.0)))
