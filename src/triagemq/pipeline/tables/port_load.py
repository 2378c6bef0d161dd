"""port_load: one row per output port and sampling interval: what came in, what went out, and how full the port was."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

SCHEMA = """
    run_id           string,
    port_id          int,
    port             string  COMMENT 'null where the run came without a scenario',
    sampled_ns       bigint  COMMENT 'end of the interval',
    seconds          double  COMMENT 'length of the interval',
    bytes_in         bigint  COMMENT 'in the interval, as all counters here',
    packets_in       bigint,
    bytes_out        bigint,
    packets_out      bigint,
    drops            bigint,
    backlog_bytes    bigint  COMMENT 'at the end of the interval',
    backlog_packets  bigint,
    bandwidth_bps    double  COMMENT 'of the scenario, else the widest of the queues',
    load             double  COMMENT 'share of the bandwidth used',
    offered_load     double  COMMENT 'share of the bandwidth asked for'
"""

COUNTERS = ("bytes_in", "packets_in", "bytes_out", "packets_out", "drops")


def increments(queue_samples: DataFrame) -> DataFrame:
    """Samples with what each counter gained since the one before (`<counter>_gained`), and the seconds between."""
    in_order = Window.partitionBy("run", "port_id", "queue").orderBy("sampled_ns")
    gained = {}
    for counter in COUNTERS:
        gain = F.col(counter) - F.lag(counter).over(in_order)
        # A counter that fell has been started anew: what it shows is what it has gained.
        gained[f"{counter}_gained"] = F.when(gain < 0, F.col(counter)).otherwise(gain)
    seconds = (F.col("sampled_ns") - F.lag("sampled_ns").over(in_order)) * 1e-9
    return queue_samples.withColumns({**gained, "seconds": seconds}).where("seconds > 0")


def transform(queue_samples: DataFrame, ports: DataFrame, measured_from_ns: Column) -> DataFrame:
    """Add the queues of every port up. `ports` has (run, port_id, port, bandwidth_bps)."""
    totals = (
        increments(queue_samples)
        .where(F.col("sampled_ns") >= measured_from_ns)
        .groupBy("run", "port_id", "sampled_ns")
        .agg(
            F.max("seconds").alias("seconds"),
            *(F.sum(f"{counter}_gained").alias(counter) for counter in COUNTERS),
            F.sum("backlog_bytes").alias("backlog_bytes"),
            F.sum("backlog_packets").alias("backlog_packets"),
            F.max("width_bps").cast("double").alias("widest"),
        )
    )
    capacity = F.col("bandwidth_bps") * F.col("seconds") / 8
    return (
        totals.join(F.broadcast(ports), ["run", "port_id"], "left")
        .withColumn("bandwidth_bps", F.coalesce("bandwidth_bps", "widest"))
        .withColumn("load", F.try_divide(F.col("bytes_out"), capacity))
        .withColumn("offered_load", F.try_divide(F.col("bytes_in"), capacity))
    )
