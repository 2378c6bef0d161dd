"""topic_correlation: one row per pair of topics whose rates move together, or against each other.

Brokers and ports that carry such a pair see their peaks at the same time; placement keeps them apart.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.partitions import Rows, by_group, joined
from triagemq.pipeline.tables.topic_rates import SHORT_NS

SCHEMA = """
    run_id          string,
    topic_id        int     COMMENT 'the smaller id of the pair',
    topic           string,
    other_topic_id  int,
    other_topic     string,
    correlation     double  COMMENT 'Pearson, of the events in each window; windows without events count as 0',
    windows         int,
    window_seconds  double  COMMENT 'a multiple of 0.2, so that a run has at most 1024 windows'
"""

# The number of pairs grows with the square of the topics, so there are limits: the busiest topics, a resolution that
# a matrix of some megabytes holds, the strongest pairs, and none weaker than chance makes among so many.
MOST_TOPICS = 1024
MOST_WINDOWS = 1024
MOST_PAIRS = 5000
LEAST_CORRELATION = 0.1
_DEVIATIONS = 4.0

_FOUND = "run int, topic_id int, other_topic_id int, correlation double, windows int, window_seconds double"


def transform(publications: DataFrame, publication_profile: DataFrame, topics: pa.Table) -> Rows:
    """The strongest correlations of measured publications in each run; the profile says when, and who is busy."""
    counted = _counts(publications.where("measured"), publication_profile)
    found = by_group(counted, ["run"], _strongest_pairs, _FOUND)
    others = topics.rename_columns({"topic_id": "other_topic_id", "topic": "other_topic"})
    return joined(joined(found, topics, ("run", "topic_id")), others, ("run", "other_topic_id"))


def _counts(publications: DataFrame, profile: DataFrame) -> DataFrame:
    """Events of the busiest topics in windows so long that there are at most MOST_WINDOWS of them."""
    number = F.call_function("div", F.col("published_ns"), F.lit(SHORT_NS))
    first, last = (
        F.call_function("div", found, F.lit(SHORT_NS)) for found in (F.min("first_ns"), F.max("last_ns"))
    )
    spans = profile.groupBy("run").agg(first.alias("first"), (last - first + 1).alias("length"))
    busiest = Window.partitionBy("run").orderBy(F.desc("events"), "topic_id")
    busy = (
        profile.groupBy("run", "topic_id")
        .agg(F.sum("publications").alias("events"))
        .withColumn("place", F.row_number().over(busiest))
        .where(F.col("place") <= MOST_TOPICS)
        .join(F.broadcast(spans), "run")
        .withColumn("merged", F.ceil(F.col("length") / MOST_WINDOWS).cast("bigint"))
        .drop("events", "place")
    )
    return (
        publications.join(F.broadcast(busy), ["run", "topic_id"])
        .withColumn("window", F.call_function("div", number - F.col("first"), F.col("merged")))
        # The last window may be cut short; it would look like a fall of every rate.
        .where((F.col("window") + 1) * F.col("merged") <= F.col("length"))
        .groupBy("run", "topic_id", "merged", "length", "window")
        .agg(F.count("*").cast("double").alias("events"))
    )


def _strongest_pairs(table: pa.Table) -> pa.Table:
    """Pearson's correlation of all pairs of one run, of which the strongest are kept."""
    topic_ids, row = np.unique(table.column("topic_id").to_numpy(), return_inverse=True)
    merged = table.column("merged")[0].as_py()
    windows = table.column("length")[0].as_py() // merged
    counts = np.zeros((len(topic_ids), windows))
    counts[row, table.column("window").to_numpy()] = table.column("events").to_numpy()
    centred = counts - counts.mean(axis=1, keepdims=True)
    norm = np.sqrt((centred**2).sum(axis=1))
    varying = norm > 0
    centred[varying] /= norm[varying, None]
    correlation = np.clip(centred @ centred.T, -1.0, 1.0)
    first, second = np.triu_indices(len(topic_ids), k=1)
    strength = np.abs(correlation[first, second])
    least = max(LEAST_CORRELATION, _DEVIATIONS / np.sqrt(windows))
    kept = np.flatnonzero((strength >= least) & varying[first] & varying[second])
    kept = kept[np.argsort(-strength[kept], kind="stable")[:MOST_PAIRS]]
    first, second = first[kept], second[kept]
    run = table.column("run")[0].as_py()
    return pa.table(
        {
            "run": np.full(len(kept), run),
            "topic_id": topic_ids[first],
            "other_topic_id": topic_ids[second],
            "correlation": correlation[first, second],
            "windows": np.full(len(kept), windows),
            "window_seconds": np.full(len(kept), 0.2 * merged),
        }
    )
