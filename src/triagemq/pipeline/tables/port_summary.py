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
    name = F.coalesce("port", F.concat(F.lit("port "), F.col("port_id").cast("string")))
    named = port_load.where("load is not null").withColumn("port", name)
    spans = named.groupBy("run", "port").agg(
        F.min("sampled_ns").alias("first"),
        F.max("sampled_ns").alias("last"),
        F.least(F.count_distinct("sampled_ns"), F.lit(MOST_STRETCHES)).alias("stretches"),
    )
    passed = F.col("sampled_ns") - F.col("first")
    place = F.floor(F.try_divide(passed, F.col("last") - F.col("first")) * F.col("stretches"))
    return (
        named.join(F.broadcast(spans), ["run", "port"])
        .groupBy("run", "port", F.least(place, F.col("stretches") - 1).alias("place"))
        .agg(
            (F.sum(passed) / F.count("*") * 1e-9).alias("seconds"),
            F.count("*").alias("samples"),
            *(exact_mean(figure) for figure in ("load", "offered_load", "backlog_packets")),
        )
    )
