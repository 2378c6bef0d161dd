"""publication_profile: one row per publisher and topic: how often, how regularly and how large its events are.

`triage pipeline scenario` is computed from this table. What a source does is told from the time in which it was there:
an outage is a gap sixteen times as long as nine of ten of its gaps. A source with several such gaps, more than one in
500, or with others half as long, has no outages but bursts, unless it is clockwork otherwise: 95 of 100 other gaps
within a quarter of the median. Before its first event, or after its last, a source was absent if that time is sixteen
times as long as the longest of its other gaps.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from triagemq.pipeline.latency_bins import bin_middle, bin_of, packed_bin, percentile_bin
from triagemq.trace.latency_bins import PARTS_PER_DOUBLING

SCHEMA = """
    run_id            string,
    publisher_id      int     COMMENT 'null where it is not known who published',
    publisher         string,
    topic_id          int,
    topic             string,
    publications      bigint,
    first_ns          bigint,
    last_ns           bigint,
    observed_seconds  double  COMMENT 'of the run after warm-up, without the outages of this row',
    rate_per_second   double  COMMENT 'events in observed_seconds, without those that end an outage or begin the time',
    ca2               double  COMMENT 'squared coefficient of variation of gaps without outages; null below 3 events',
    regular_share     double  COMMENT 'of the gaps without outages, those within a quarter of their median',
    outages           bigint  COMMENT 'also the times before and after it that it was not there',
    outage_seconds    double,
    longest_outages   array<struct<from_ns: bigint, until_ns: bigint>> COMMENT 'at most 100, in order of time',
    mean_size_bytes   double,
    size_scv          double  COMMENT 'squared coefficient of variation of the sizes',
    sizes             array<struct<size_bytes: double, count: bigint>>
                              COMMENT 'mean size and count of each bin of sizes that are within 1.6 % of each other'
"""

_KEYS = ("run", "publisher_key", "topic_id")
_TIMES_LONGER = 16
_BINS_LONGER = 4 * PARTS_PER_DOUBLING
_NEAR_MEDIAN = 0.25
_CLOCKWORK_SHARE = 0.95
_RARE = 500
_LEAST_GAPS_OF_ABSENT = 4
"""Of a Poisson source with so few gaps one in 70,000 is silent for so long by chance."""
_MOST_OUTAGES = 100


def transform(
    publications: DataFrame, topics: DataFrame, publishers: DataFrame, measured_from_ns: Column
) -> DataFrame:
    """Rates, gaps and sizes of measured publications. `measured_from_ns` is an expression of `run`."""
    # A join finds no partner for null: a publisher that is not known is -1 until the end.
    measured = publications.where("measured").select(
        "run",
        F.coalesce("publisher_id", F.lit(-1)).alias("publisher_key"),
        "topic_id",
        "published_ns",
        "size_bytes",
    )
    gaps = _gaps(measured)
    regularity = _regularity(gaps)
    profile = (
        regularity.join(_outages(gaps, regularity), list(_KEYS), "left")
        .join(_sizes(measured), list(_KEYS))
        .join(F.broadcast(run_times(measured, "published_ns", "published_ns", measured_from_ns)), "run")
        .withColumn("publisher_id", F.when(F.col("publisher_key") >= 0, F.col("publisher_key")))
    )
    return (
        _with_span(profile)
        .join(F.broadcast(topics), ["run", "topic_id"], "left")
        .join(F.broadcast(publishers), ["run", "publisher_id"], "left")
    )


def _gaps(measured: DataFrame) -> DataFrame:
    """Every event with the gap before it; null before the first."""
    before = F.lag("published_ns").over(Window.partitionBy(*_KEYS).orderBy("published_ns"))
    return measured.select(*_KEYS, "published_ns", (F.col("published_ns") - before).alias("gap_ns"))


def _regularity(gaps: DataFrame) -> DataFrame:
    """From a histogram of the gaps: which of them are outages, and how the others vary."""
    gap = F.col("gap_ns") * 1e-9
    number = F.when(F.col("gap_ns").isNotNull(), bin_of(F.col("gap_ns")))
    binned = gaps.groupBy(*_KEYS, number.alias("bin")).agg(
        F.count("*").alias("events"),
        F.count("gap_ns").alias("count"),
        F.sum(gap).alias("seconds"),
        F.sum(gap * gap).alias("squares"),
        F.max("gap_ns").alias("longest"),
        F.min("published_ns").alias("first"),
        F.max("published_ns").alias("last"),
    )
    bins = F.struct("bin", "count", "seconds", "squares", "longest")
    known = F.col("bin").isNotNull()
    totals = binned.groupBy(*_KEYS).agg(
        F.sum("events").alias("publications"),
        F.sum("count").alias("gaps"),
        F.min("first").alias("first_ns"),
        F.max("last").alias("last_ns"),
        # Floats are added in this order, the same however the rows are spread.
        F.sort_array(F.collect_list(F.when(known, bins))).alias("bins"),
        F.sort_array(F.collect_list(F.when(known, packed_bin(F.col("bin"), F.col("count"))))).alias("packed"),
    )
    count = F.col("gaps")
    found = totals.withColumns(
        {
            "median": bin_middle(percentile_bin(F.col("packed"), count, 0.5)),
            "typical": percentile_bin(F.col("packed"), count, 0.9),
        }
    )
    # Where nine of ten gaps are 0, the clock is too coarse to tell.
    above = F.when(F.col("typical") > 0, F.col("typical") + _BINS_LONGER)
    long = _total("bins", "count", lambda each: each["bin"] > above)
    half = _total("bins", "count", lambda each: each["bin"].between(above - PARTS_PER_DOUBLING, above))
    near = _total("bins", "count", _near_median)
    found = found.withColumns({"long": long, "half": half, "near": near})
    few = F.greatest(F.lit(1), F.floor(count / _RARE))
    others = count - F.col("long")
    clockwork = (F.col("median") > 0) & (F.col("near") >= others * _CLOCKWORK_SHARE)
    rare = (F.col("long") <= few) & (F.col("half") == 0)
    found = found.withColumn("above", F.when((F.col("long") > 0) & (clockwork | rare), above)).withColumn(
        "usual", F.filter("bins", lambda each: F.coalesce(each["bin"] <= F.col("above"), F.lit(True)))
    )
    counted = found.withColumns(
        {name: _total("usual", name) for name in ("count", "seconds", "squares")}
        | {"longest": F.array_max(F.transform("usual", lambda each: each["longest"]))}
    )
    mean = F.col("seconds") / F.col("count")
    # Rounding may leave a hair below 0 where all gaps are equal.
    ca2 = F.greatest(F.col("squares") / F.col("count") / (mean * mean) - 1, F.lit(0.0))
    return counted.select(
        *_KEYS,
        "publications",
        "first_ns",
        "last_ns",
        "above",
        "count",
        "longest",
        F.when((F.col("count") >= 2) & (F.col("seconds") > 0), ca2).alias("ca2"),
        F.when(F.col("median") > 0, F.try_divide(F.col("near"), F.col("count"))).alias("regular_share"),
    )


def _near_median(each: Column) -> Column:
    return F.abs(bin_middle(each["bin"]) - F.col("median")) <= F.col("median") * _NEAR_MEDIAN


def _total(bins: str, field: str, which: Callable[[Column], Column] | None = None) -> Column:
    """The sum of a field over an array of bins, or over some of them."""
    chosen = F.col(bins) if which is None else F.filter(bins, which)
    zero = F.lit(0.0) if field != "count" else F.lit(0).cast("bigint")
    return F.aggregate(F.transform(chosen, lambda each: each[field]), zero, lambda total, one: total + one)


def _outages(gaps: DataFrame, regularity: DataFrame) -> DataFrame:
    """Where the outages are: the rows are looked at again, of those sources only that have any."""
    having = regularity.where("above is not null").select(*_KEYS, "above")
    gap, until = F.col("gap_ns"), F.col("published_ns")
    return (
        gaps.join(F.broadcast(having), list(_KEYS))
        .where(bin_of(gap) > F.col("above"))
        .groupBy(*_KEYS)
        .agg(F.collect_list(_span(until - gap, until)).alias("inside"))
    )


def _span(begin: Column, end: Column) -> Column:
    return F.struct(begin.alias("from_ns"), end.alias("until_ns"))


def run_times(measured: DataFrame, first: str, last: str, measured_from_ns: Column) -> DataFrame:
    """From the end of warm-up, or the first event of a clock that does not start at 0, to the last event."""
    ends = measured.groupBy("run").agg(F.min(first).alias("begins"), F.max(last).alias("ends"))
    begins = F.when(measured_from_ns > 0, measured_from_ns).otherwise(F.col("begins"))
    return ends.select("run", begins.alias("begins"), "ends")


def _with_span(profile: DataFrame) -> DataFrame:
    """The time in which each source was there, and its rate in it."""
    longest = F.col("longest") * _TIMES_LONGER
    told = F.col("count") >= _LEAST_GAPS_OF_ABSENT
    first, last = F.col("first_ns"), F.col("last_ns")
    before = F.coalesce(told & (first - F.col("begins") > longest), F.lit(False))
    after = F.coalesce(told & (F.col("ends") - last > longest), F.lit(False))
    spans = profile.withColumns({"before": before, "after": after})

    def edge(absent: str, begins: str, ends: str) -> Column:
        return F.when(F.col(absent), F.array(_span(F.col(begins), F.col(ends)))).otherwise(F.array())

    def length(span: Column) -> Column:
        return span["until_ns"] - span["from_ns"]

    inside = F.coalesce("inside", F.array())
    # In order of time, so that of two that are as long always the same one comes first.
    every = F.concat(
        edge("before", "begins", "first_ns"), F.sort_array(inside), edge("after", "last_ns", "ends")
    )
    away_ns = F.aggregate("every", F.lit(0).cast("bigint"), lambda total, span: total + length(span))
    longest_first = F.array_sort(
        "every", lambda one, other: F.signum(length(other) - length(one)).cast("int")
    )
    in_order = F.sort_array(F.slice(longest_first, 1, _MOST_OUTAGES))
    # An event that ends an outage, or with which the time that is observed begins or ends, says nothing of how often
    # events come.
    at_an_end = F.col("before") | F.col("after") | ((first == F.col("begins")) & (last > first))
    counted = F.col("publications") - F.size(inside) - at_an_end.cast("int")
    return (
        spans.withColumn("every", every)
        .withColumn("outages", F.size("every").cast("bigint"))
        .withColumn("outage_seconds", away_ns * 1e-9)
        .withColumn("longest_outages", in_order)
        .withColumn("observed_seconds", (F.col("ends") - F.col("begins")) * 1e-9 - F.col("outage_seconds"))
        .withColumn("rate_per_second", F.try_divide(counted, F.col("observed_seconds")))
    )


def _sizes(measured: DataFrame) -> DataFrame:
    size = F.col("size_bytes").cast("bigint")
    binned = measured.groupBy(*_KEYS, bin_of(size).alias("bin")).agg(
        F.count("*").alias("count"),
        F.sum(size).alias("sum"),
        F.sum(size.cast("double") * size).alias("squares"),
    )
    totals = binned.groupBy(*_KEYS).agg(
        (F.sum("sum") / F.sum("count")).alias("mean_size_bytes"),
        (F.sum("squares") / F.sum("count")).alias("mean_square"),
        F.sort_array(
            F.collect_list(F.struct((F.col("sum") / F.col("count")).alias("size_bytes"), F.col("count")))
        ).alias("sizes"),
    )
    square = F.pow("mean_size_bytes", F.lit(2.0))
    # Rounding may leave a hair below 0 where all sizes are equal.
    scv = F.greatest(F.col("mean_square") / square - 1, F.lit(0.0))
    return totals.withColumn("size_scv", F.when(F.col("mean_size_bytes") > 0, scv))
