"""subscription_performance: one row per subscription: what arrived, how late, and what it was worth.

A run with a scenario has a row for every subscription of it, also for those of which nothing was published.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.tables.figures import FIGURES, FORECAST, add_up, figures
from triagemq.pipeline.tables.latency_histogram import OUTCOMES
from triagemq.scenario import UtilityShape

SCHEMA = f"""
    run_id                             string,
    subscription_id                    int,
    subscriber_id                      int,
    subscriber                         string  COMMENT 'null where the run came without a scenario',
    topic_id                           int,
    topic                              string,
    priority_class                     int     COMMENT 'the one most of its copies had',
    {FIGURES},
    max_latency_seconds                double  COMMENT 'the latency that was asked for; null for none',
    max_latency_share                  double  COMMENT 'the share that is to come within it; null for none',
    share_within_max_latency           double  COMMENT 'of the delivered; null where no latency was asked for',
    utility                            double  COMMENT 'what the measured success, latency and share are worth',
    maximum_utility                    double  COMMENT 'what it is worth if everything arrives at once',
    forecast_share_within_max_latency  double,
    {FORECAST}
"""


def transform(latency_histogram: DataFrame, subscriptions: DataFrame) -> DataFrame:
    """Figures of every subscription. `subscriptions` says what each is and wants (see dimensions.py)."""
    copies = sum((F.col(outcome) for outcome in OUTCOMES), F.lit(0))
    usual_class = F.max_by("priority_class", F.struct(copies, -F.col("priority_class")))
    measured = figures(
        add_up(
            latency_histogram,
            "run",
            "subscription_id",
            also=(
                usual_class.alias("priority_class"),
                *(F.min(name).alias(f"seen_{name}") for name in ("subscriber_id", "topic_id")),
                # A subscription that changed its class has a bin twice, which percentiles do not mind.
                F.flatten(F.collect_list("bins")).alias("bins"),
            ),
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
