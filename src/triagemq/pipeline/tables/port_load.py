"""port_load: one row per output port and sampling interval: what came in, what went out, and how full the port was.

port_summary: one row per port and stretch of its run, of which there are at most 400: the means of port_load in it, as
many as a figure can show, however long the run was.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.partitions import exact_mean

COUNTERS = ("bytes_in", "packets_in", "bytes_out", "packets_out", "drops")
"""In port_load, what each gained in the interval."""

SCHEMA = f"""
    run_id           string,
    port_id          int,
    port             string  COMMENT 'null where the run came without a scenario',
    sampled_ns       bigint  COMMENT 'end of the interval',
    seconds          double  COMMENT 'length of the interval',
    {"".join(f"{counter} bigint, " for counter in COUNTERS)}
    backlog_bytes    bigint  COMMENT 'at the end of the interval',
    backlog_packets  bigint,
    bandwidth_bps    double  COMMENT 'of the scenario, else the widest of the queues',
    load             double  COMMENT 'share of the bandwidth used',
    offered_load     double  COMMENT 'share of the bandwidth requested'
"""

SUMMARY = """
    run_id           string,
    port             string  COMMENT 'its name, else its id; ports of the same name count as one',
    seconds          double  COMMENT 'mean time of the samples since the first of this port',
    samples          bigint,
    load             double,
    offered_load     double,
    backlog_packets  double
"""

MOST_STRETCHES = 400

_IN_ORDER = "OVER (PARTITION BY run, port_id, queue ORDER BY sampled_ns)"
"""Of the samples of one queue."""


def increments(queue_samples: DataFrame) -> DataFrame:
    """Samples with what each counter gained since the one before (`<counter>_gained`), and the seconds between."""
    # A counter that fell has been started anew: what it shows is what it has gained.
    gained = (
        f"{counter} - if({counter} < lag({counter}) {_IN_ORDER}, 0, lag({counter}) {_IN_ORDER}) AS {counter}_gained"
        for counter in COUNTERS
    )
    seconds = f"(sampled_ns - lag(sampled_ns) {_IN_ORDER}) * 1e-9 AS seconds"
    return queue_samples.selectExpr("*", *gained, seconds).where("seconds > 0")


def transform(queue_samples: DataFrame, ports: DataFrame) -> DataFrame:
    """Add the queues of every port up. `ports` has (run, port_id, port, bandwidth_bps)."""
    sums = {counter: f"{counter}_gained" for counter in COUNTERS}
    sums |= {name: name for name in ("backlog_bytes", "backlog_packets")}
    totals = (
        increments(queue_samples)
        .where("measured")
        .groupBy("run", "port_id", "sampled_ns")
        .agg(
            F.expr("max(seconds) AS seconds"),
            F.expr("double(max(width_bps)) AS widest"),
            *(F.expr(f"sum({of}) AS {name}") for name, of in sums.items()),
        )
    )
    capacity = "(bandwidth_bps * seconds / 8)"
    return (
        totals.join(F.broadcast(ports), ["run", "port_id"], "left")
        .withColumn("bandwidth_bps", F.coalesce("bandwidth_bps", "widest"))
        .selectExpr(
            "*",
            f"try_divide(bytes_out, {capacity}) AS load",
            f"try_divide(bytes_in, {capacity}) AS offered_load",
        )
    )


def summarize(port_load: DataFrame) -> DataFrame:
    """Means of equal stretches of time."""
    name = F.expr("coalesce(port, concat('port ', port_id))")
    named = port_load.where("load is not null").withColumn("port", name)
    spans = named.groupBy("run", "port").agg(
        F.expr("min(sampled_ns) AS first_ns"),
        F.expr("max(sampled_ns) AS last_ns"),
        F.expr(f"least(count(DISTINCT sampled_ns), {MOST_STRETCHES}) AS stretches"),
    )
    place = "least(floor(try_divide(sampled_ns - first_ns, last_ns - first_ns) * stretches), stretches - 1) AS place"
    return (
        named.join(F.broadcast(spans), ["run", "port"])
        .groupBy("run", "port", F.expr(place))
        .agg(
            F.expr("sum(sampled_ns - first_ns) / count(*) * 1e-9 AS seconds"),
            F.expr("count(*) AS samples"),
            *(exact_mean(figure) for figure in ("load", "offered_load", "backlog_packets")),
        )
    )
