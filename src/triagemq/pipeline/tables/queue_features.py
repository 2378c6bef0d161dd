"""queue_features: one row per queue and sample: what can be known at that moment, and the delay that came next.

This is what delay estimators learn from. All features are causal: they use this sample and earlier ones only.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.delay.learning.features import track_periods
from triagemq.pipeline.partitions import by_group, joined
from triagemq.pipeline.tables.port_load import COUNTERS, IN_ORDER, increments

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


def transform(queue_samples: DataFrame, packets: DataFrame, ports: pa.Table, phase_ns: Column) -> DataFrame:
    """Features from the samples, targets from `packets`, see queueing_delays.

    `phase_ns`, an expression of `run`, is where in 200 ms its samples lie.
    """
    features = []
    for name in LAGGED:
        column = name if name == "backlog_bytes" else f"{name}_gained"
        features += [f"lag({column}, {lag}) {IN_ORDER} AS {name}_lag_{lag}" for lag in LAGS]
        for span in ROLLING:
            recent = IN_ORDER.replace(")", f" ROWS BETWEEN {span - 1} PRECEDING AND CURRENT ROW)")
            features.append(f"avg({column}) {recent} AS {name}_mean_{span}")
            if name == "packets_in":
                features.append(f"stddev_pop({column}) {recent} AS {name}_deviation_{span}")
    sampled = (
        increments(queue_samples)
        .selectExpr("*", *features)
        # The slot that begins with a sample; a live sampler is some milliseconds off, hence the half.
        .withColumn("slot", _slot(F.col("sampled_ns") + INTERVAL_NS // 2, phase_ns))
        .join(queueing_delays(packets, phase_ns), ["run", "port_id", "queue", "slot"], "left")
    )
    return joined(_add_periods(sampled), ports.select(["run", "port_id", "port"]), ("run", "port_id"))


def queueing_delays(packets: DataFrame, phase_ns: Column) -> DataFrame:
    """Mean time in the queue of what was queued in each slot of 200 ms between two samples, by port and queue.

    `packets` has (run, port_id, queue, enqueued_ns, dequeued_ns).
    """
    waited = packets.where("enqueued_ns is not null and dequeued_ns is not null")
    slot = _slot(F.col("enqueued_ns"), phase_ns).alias("slot")
    return waited.groupBy("run", "port_id", "queue", slot).agg(
        F.expr("count(*) AS next_packets"),
        F.expr("avg(dequeued_ns - enqueued_ns) * 1e-9 AS next_queueing_delay_seconds"),
    )


def _slot(time_ns: Column, phase_ns: Column) -> Column:
    return F.call_function("div", time_ns - phase_ns, F.lit(INTERVAL_NS))


def _add_periods(samples: DataFrame) -> DataFrame:
    """Samples that are `measured`, with period_seconds, phase and period_strength, from `packets_in_gained` of all.

    Sensors that report every so many seconds make queues long at the same moments; the next peak can be foreseen.
    """
    fields = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in samples.schema)
    schema = f"{fields}, period_seconds double, phase double, period_strength double"
    return by_group(samples, ("run", "port_id", "queue"), _with_periods, schema)


def _with_periods(table: pa.Table) -> pa.Table:
    ordered = table.sort_by("sampled_ns")
    counts = ordered.column("packets_in_gained").to_numpy().astype(np.float64)
    seconds = ordered.column("seconds").to_numpy()
    interval = float(np.median(seconds)) if len(seconds) else 0.2
    for name, values in zip(
        ("period_seconds", "phase", "period_strength"), track_periods(counts), strict=True
    ):
        scaled = values * interval if name == "period_seconds" else values
        ordered = ordered.append_column(name, pa.array(scaled, pa.float64(), from_pandas=True))
    return ordered.filter(ordered["measured"])
