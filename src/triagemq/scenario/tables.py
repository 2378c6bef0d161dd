"""publications.parquet and subscriptions.parquet as tables of the model. Columns, never a loop over rows.

One row is one publication or subscription; a null is "none". A problem names the row, counted from 1, where a
problem of a text file names the line.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario.document import empirical_mean
from triagemq.scenario.kinds import ArrivalProcess, SizeDistribution, UtilityShape
from triagemq.scenario.model import Floats, Integers, Publications, SizeSamples, Subscriptions
from triagemq.scenario.reader import Reader
from triagemq.scenario.rows import PublicationRows, SampleStore, SubscriptionRows
from triagemq.scenario.table_columns import Column, TableColumns
from triagemq.scenario.wildcards import is_pattern, topic_mistake

__all__ = ["PUBLICATION_COLUMNS", "SUBSCRIPTION_COLUMNS", "read_publication_table", "read_subscription_table"]

PUBLICATION_COLUMNS = {
    "publisher": Column("text", required=True),
    "topic": Column("text", required=True),
    "rate_per_second": Column("number", required=True),
    "size_bytes": Column("number", required=True),
    "size_distribution": Column("text"),
    "arrival_process": Column("text"),
    "pareto_shape": Column("number"),
    "on_seconds": Column("number"),
    "off_seconds": Column("number"),
    "min_separation_seconds": Column("number"),
    "max_separation_seconds": Column("number"),
    "size_values": Column("list"),
    "size_weights": Column("list"),
}
SUBSCRIPTION_COLUMNS = {
    "subscriber": Column("text", required=True),
    "topic": Column("text", required=True),
    "utility_shape": Column("text", required=True),
    "utility_weight": Column("number", required=True),
    "utility_threshold": Column("number"),
    "freshness_seconds": Column("number"),
    "max_latency_seconds": Column("number"),
    "max_latency_share": Column("number"),
    "max_separation_seconds": Column("number"),
}


def read_publication_table(
    path: Path, reader: Reader, publishers: Mapping[str, int]
) -> PublicationRows | None:
    """All publications of a table; None, after reporting, where it cannot be read at all."""
    columns = TableColumns.read(path, reader, PUBLICATION_COLUMNS)
    if columns is None:
        return None
    publisher = columns.references("publisher", publishers, "publisher", "publishers of scenario.yaml")
    topic, topics = columns.names("topic")
    wrong_topics = np.array([topic_mistake(name) is not None for name in topics] + [False])
    columns.report_rows(
        np.flatnonzero(wrong_topics[topic]), "topic", lambda row: _topic_mistake(list(topics)[topic[row]])
    )
    distribution = columns.kinds("size_distribution", SizeDistribution, SizeDistribution.EXPONENTIAL)
    process = columns.kinds("arrival_process", ArrivalProcess, ArrivalProcess.POISSON)
    shortest = columns.numbers("min_separation_seconds", default=0.0)
    longest = columns.numbers("max_separation_seconds", default=np.inf)
    rate = columns.numbers("rate_per_second", default=-1.0)
    with np.errstate(over="ignore"):  # an infinite rate is reported below
        most_often = 1 / np.where(shortest > 0, shortest, 1e-9)
    rate = np.where((rate == -1.0) & (shortest > 0), most_often, rate)
    samples, sample, mean = _size_samples(columns, distribution)
    size = columns.numbers("size_bytes", default=-1.0)
    size = np.where((size == -1.0) & (sample >= 0), mean, size)
    columns.check("rate_per_second", rate, (rate > 0) & np.isfinite(rate), "write a number above 0")
    columns.check("size_bytes", size, (size > 0) & np.isfinite(size), "write a number of bytes above 0")
    disagrees = (sample >= 0) & (size > 0) & ~np.isclose(size, mean, rtol=1e-6, atol=0)
    columns.check("size_bytes", size, ~disagrees, "write the weighted mean of size_values, or null")
    columns.check(
        "min_separation_seconds", shortest, (shortest >= 0) & np.isfinite(shortest), "write seconds, or null"
    )
    columns.check(
        "max_separation_seconds",
        longest,
        (longest > 0) & (longest >= shortest),
        "write more seconds, or null",
    )
    # A row that is wrong already must not be reported again for its rate.
    too_often = (shortest > 0) & np.isfinite(rate) & (rate > (1 + 1e-9) * most_often)
    columns.check("rate_per_second", rate, ~too_often, "write at most 1 / min_separation_seconds")
    details = _arrival_details(columns, process)
    columns.check_pairs("publisher", publisher, topic)
    return PublicationRows(
        table=Publications(
            publisher,
            topic,
            rate,
            size,
            distribution,
            sample,
            process,
            *details,
            shortest,
            longest,
        ),
        samples=samples,
        topics=dict(topics),
        published=dict(topics),
        doubtful=frozenset(topics) if reader.problems else frozenset(),
        report=columns.report_rows,
    )


def _topic_mistake(name: str) -> tuple[str, str]:
    what, fix = topic_mistake(name) or ("", "")
    return f"{name!r} {what}", fix


def _arrival_details(columns: TableColumns, process: NDArray[np.int8]) -> tuple[Floats, Floats, Floats]:
    shape = columns.numbers("pareto_shape", default=0.0)
    on = columns.numbers("on_seconds", default=0.0)
    off = columns.numbers("off_seconds", default=0.0)
    pareto, on_off = process == ArrivalProcess.PARETO, process == ArrivalProcess.ON_OFF
    columns.check(
        "pareto_shape", shape, ~pareto | ((shape > 1) & np.isfinite(shape)), "write a number above 1"
    )
    columns.check("pareto_shape", shape, pareto | (shape == 0), "write null for other arrivals than pareto")
    for name, seconds in (("on_seconds", on), ("off_seconds", off)):
        columns.check(
            name, seconds, ~on_off | ((seconds > 0) & np.isfinite(seconds)), "write seconds above 0"
        )
        columns.check(name, seconds, on_off | (seconds == 0), "write null for other arrivals than on_off")
    return shape, on, off


def _size_samples(
    columns: TableColumns, distribution: NDArray[np.int8]
) -> tuple[SizeSamples, Integers, Floats]:
    """Empirical distributions, per row the one it uses or -1, and per row the mean of it.

    The loop is over rows with an empirical distribution only, and equal lists are looked at once.
    """
    store = SampleStore()
    sample = np.full(len(columns), -1, dtype=np.int32)
    mean = np.zeros(len(columns))
    values, weights = columns.lists("size_values"), columns.lists("size_weights")
    seen: dict[tuple[bytes, bytes], tuple[int, float] | None] = {}
    wrong = []
    for row in np.flatnonzero(distribution == SizeDistribution.EMPIRICAL).tolist():
        sizes = values[row]
        shares = weights[row] if len(weights[row]) else np.ones(len(sizes))
        key = sizes.tobytes(), shares.tobytes()
        if key not in seen:
            seen[key] = _sample(store, sizes, shares)
        found = seen[key]
        if found is None:
            wrong.append(row)
        else:
            sample[row], mean[row] = found
    columns.report_rows(
        np.array(wrong, dtype=np.int64),
        "size_values",
        lambda row: (
            "is not a list of sizes with a weight each",
            "write sizes above 0, and as many weights of at least 0, not all 0",
        ),
    )
    return store.table(), sample, mean


def _sample(store: SampleStore, sizes: Floats, weights: Floats) -> tuple[int, float] | None:
    fits = len(sizes) > 0 and len(sizes) == len(weights)
    if not fits or not (sizes > 0).all() or not (weights >= 0).all():
        return None
    size_list, weight_list = sizes.tolist(), weights.tolist()
    mean = empirical_mean(size_list, weight_list)
    return (store.add(size_list, weight_list), mean) if 0 < mean < np.inf else None


def read_subscription_table(
    path: Path,
    reader: Reader,
    subscribers: Mapping[str, int],
    publications: PublicationRows,
    listed_topics: Container[str] = (),
) -> SubscriptionRows | None:
    """All subscriptions of a table; None, after reporting, where it cannot be read at all."""
    columns = TableColumns.read(path, reader, SUBSCRIPTION_COLUMNS)
    if columns is None:
        return None
    subscriber = columns.references("subscriber", subscribers, "subscriber", "subscribers of scenario.yaml")

    def not_a_topic(name: str) -> tuple[str, str] | None:
        if is_pattern(name):
            return f"{name!r} is a pattern", "write one row per topic"
        if name in listed_topics:
            return f"nobody publishes {name}", "add a row to the publications, or remove this one"
        return None

    topic = columns.references("topic", publications.published, "topic", "the publications", not_a_topic)
    shape = columns.kinds("utility_shape", UtilityShape)
    weight = columns.numbers("utility_weight", default=-1.0)
    threshold = columns.numbers("utility_threshold", default=0.0)
    columns.check(
        "utility_weight", weight, (weight >= 0) & np.isfinite(weight), "write a number of at least 0"
    )
    step = shape == UtilityShape.STEP
    columns.check(
        "utility_threshold",
        threshold,
        ~step | ((threshold > 0) & (threshold <= 1)),
        "write a share above 0, at most 1",
    )
    columns.check(
        "utility_threshold", threshold, step | (threshold == 0), "write null for other shapes than step"
    )
    limits = {}
    for name in ("freshness_seconds", "max_latency_seconds", "max_separation_seconds"):
        limits[name] = columns.numbers(name, default=np.inf)
        columns.check(name, limits[name], limits[name] > 0, "write seconds above 0, or null for no limit")
    share = columns.numbers("max_latency_share", default=0.0)
    timed = np.isfinite(limits["max_latency_seconds"]) & (share > 0) & (share <= 1)
    columns.check(
        "max_latency_share",
        share,
        timed | (share == 0),
        "write a share above 0, at most 1, with max_latency_seconds, or null",
    )
    columns.check_pairs("subscriber", subscriber, topic)
    return SubscriptionRows(
        Subscriptions(subscriber, topic, shape, weight, threshold, **limits, max_latency_share=share),
        columns.report_rows,
    )
