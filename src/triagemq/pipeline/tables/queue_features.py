"""queue_features: one row per queue and sample: what can be known at that moment, and the delay that came next.

This is what delay estimators learn from. All features are causal: they use this sample and earlier ones only.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.partitions import Rows, joined
from triagemq.pipeline.tables.periods import add_periods
from triagemq.pipeline.tables.port_load import COUNTERS, increments

LAGS = (1, 2, 3, 4, 5)
LAGGED = ("packets_in", "bytes_in", "backlog_bytes")
ROLLING = (5, 25)
"""Samples of a rolling statistic: 1 s and 5 s."""

INTERVAL_NS = 200_000_000

SCHEMA = f"""
    run_id                string,
    port_id               int,
    port                  string,
    queue                 int,
    sampled_ns            bigint,
    width_bps             bigint,
    {"".join(f"{counter} bigint, " for counter in COUNTERS)}
    {"".join(f"{counter}_gained bigint, " for counter in COUNTERS)}
    backlog_bytes         bigint,
    backlog_packets       bigint,
    {"".join(f"{name}_lag_{lag} bigint, " for lag in LAGS for name in LAGGED)}
    {"".join(f"packets_in_mean_{span} double, packets_in_deviation_{span} double, " for span in ROLLING)}
    {"".join(f"bytes_in_mean_{span} double, backlog_bytes_mean_{span} double, " for span in ROLLING)}
    period_seconds        double  COMMENT 'of the packets that came in, over the last 51 s; null if there is none',
    phase                 double  COMMENT 'place in the period, from 0 (its peak) to 1',
    period_strength       double  COMMENT 'autocorrelation at that period, from 0 to 1',
    next_packets          bigint  COMMENT 'target: packets queued in the 200 ms that follow',
    next_queueing_delay_seconds double COMMENT 'target: their mean time in the queue; null if there were none'
"""


def transform(
    queue_samples: DataFrame, packets: DataFrame, ports: pa.Table, phase_ns: Column, measured_from_ns: Column
) -> Rows:
    """Features from the samples, targets from `packets`, see queueing_delays.

    Expressions of `run` are where in 200 ms its samples lie (`phase_ns`), and from when on they count.
    """
    in_order = Window.partitionBy("run", "port_id", "queue").orderBy("sampled_ns")
    features = {}
    for name, column in (
        ("packets_in", "packets_in_gained"),
        ("bytes_in", "bytes_in_gained"),
        ("backlog_bytes", "backlog_bytes"),
    ):
        for lag in LAGS:
            features[f"{name}_lag_{lag}"] = F.lag(column, lag).over(in_order)
        for span in ROLLING:
            recent = in_order.rowsBetween(1 - span, 0)
            features[f"{name}_mean_{span}"] = F.avg(column).over(recent)
            if name == "packets_in":
                features[f"{name}_deviation_{span}"] = F.stddev_pop(column).over(recent)
    sampled = (
        increments(queue_samples)
        .withColumns(features)
        .withColumn("measured", F.col("sampled_ns") >= measured_from_ns)
        .withColumn("slot", _slot(F.col("sampled_ns"), phase_ns))
        .join(queueing_delays(packets, phase_ns), ["run", "port_id", "queue", "slot"], "left")
    )
    return joined(add_periods(sampled), ports.select(["run", "port_id", "port"]), ("run", "port_id"))


def queueing_delays(packets: DataFrame, phase_ns: Column) -> DataFrame:
    """Mean time in the queue of what was queued in each slot of 200 ms between two samples, by port and queue.

    `packets` has (run, port_id, queue, enqueued_ns, dequeued_ns).
    """
    waited = packets.where("enqueued_ns is not null and dequeued_ns is not null")
    slot = F.call_function("div", F.col("enqueued_ns") - phase_ns, F.lit(INTERVAL_NS))
    return waited.groupBy("run", "port_id", "queue", slot.alias("slot")).agg(
        F.count("*").alias("next_packets"),
        (F.avg(F.col("dequeued_ns") - F.col("enqueued_ns")) * 1e-9).alias("next_queueing_delay_seconds"),
    )


def _slot(sampled_ns: Column, phase_ns: Column) -> Column:
    """The slot that begins with a sample; a live sampler is some milliseconds off, hence the half."""
    return F.call_function("div", sampled_ns - phase_ns + INTERVAL_NS // 2, F.lit(INTERVAL_NS))
