"""queue_features: one row per queue and sample: its counters, what they gained, and the delay that came next.

Delay estimators learn from it: the features are `triagemq.delay.learning.features` of the counters.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.tables.port_load import COUNTERS, increments

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
    next_packets          bigint  COMMENT 'target: packets queued in the 200 ms that follow',
    next_queueing_delay_seconds double COMMENT 'target: their mean time in the queue; null if there were none'
"""


def transform(queue_samples: DataFrame, packets: DataFrame, phase_ns: Column) -> DataFrame:
    """Measured samples with their increments, and targets from `packets`, see queueing_delays.

    `phase_ns`, an expression of `run`, is where in 200 ms its samples lie.
    """
    # The slot that begins with a sample; a live sampler is some milliseconds off, hence the half.
    slot = _slot(F.col("sampled_ns") + INTERVAL_NS // 2, phase_ns)
    sampled = increments(queue_samples).where("measured").withColumn("slot", slot)
    delays = queueing_delays(packets, phase_ns)
    return sampled.join(delays, ["run", "port_id", "queue", "slot"], "left")


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
