"""port_summary: one row per port and stretch of its run, of which there are at most 400: the means of port_load in it.

As many as a figure can show, however long the run was.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.tables.figures import exact_mean

SCHEMA = """
    run_id           string,
    port             string  COMMENT 'its name, else its id; ports of the same name count as one',
    seconds          double  COMMENT 'mean time of the samples since the first of this port',
    samples          bigint,
    load             double,
    offered_load     double,
    backlog_packets  double
"""

MOST_STRETCHES = 400


def transform(port_load: DataFrame) -> DataFrame:
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
