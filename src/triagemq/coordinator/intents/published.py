"""What is published, by whom and how often: announced and measured rates put together as tables of a Scenario.

A topic's rate is the measured one where that contradicts what was announced (`Rates`), else the sum of what its
publishers announced. Publishers of one topic share its rate in proportion to what they announced. Topics that nobody
announced belong to a publisher of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.decide.network import Network
from triagemq.coordinator.decide.unseen import USUAL_SIZE_BYTES
from triagemq.coordinator.rates import SILENT_EVENTS, DeclaredRate, Rates
from triagemq.intents import PublisherIntent
from triagemq.scenario import ArrivalProcess, Floats, Integers, Publications, Publishers, SizeDistribution
from triagemq.scenario.model import with_columns

__all__ = [
    "UNANNOUNCED",
    "DeclaredColumns",
    "DeclaredRate",
    "Published",
    "declared_columns",
    "declared_rates",
    "published",
]

UNANNOUNCED = "(unannounced)"
"""The publisher of topics that are measured and that nobody has announced."""

LEAST_SIZE_BYTES = 1.0

_HEAVY_DISPERSION = 100.0

TERMS = ("min_separation_seconds", "max_separation_seconds", "max_size_bytes")
"""What promises are made of. What a publisher says of them counts before what the scenario says."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DeclaredColumns:
    """What one publisher says of its topics. NaN is what it leaves to be measured."""

    topics: tuple[str, ...]
    rate_per_second: Floats
    size_bytes: Floats
    terms: Floats
    """The rows of TERMS."""


def declared_columns(intent: PublisherIntent) -> DeclaredColumns:
    """The intent of a publisher."""
    return DeclaredColumns(
        topics=tuple(each.topic for each in intent.publications),
        # None becomes NaN.
        rate_per_second=np.array([each.rate_per_second for each in intent.publications], dtype=np.float64),
        size_bytes=np.array([each.size_bytes for each in intent.publications], dtype=np.float64),
        terms=np.array(
            [[getattr(each, term) for each in intent.publications] for term in TERMS], dtype=np.float64
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Published:
    """Publishers, and publications by the book's numbers of topics; `live` are the topics with a rate above 0."""

    live: Rows
    publishers: Publishers
    _topic: Rows
    _table: Publications

    def publications(self, rank: Integers) -> Publications:
        """The table with topics by their rank among those that are live."""
        return replace(self._table, topic=rank[self._topic])


def declared_rates(announced: Mapping[str, DeclaredColumns], network: Network) -> dict[str, DeclaredRate]:
    """Per announced topic the sum of the rates and the mean size, None where a publisher leaves one to be measured."""
    parts: dict[str, list[tuple[float, float, tuple[float, float]]]] = {}
    for name in sorted(announced):
        pieces = announced[name]
        rates, sizes = pieces.rate_per_second.tolist(), pieces.size_bytes.tolist()
        for topic, rate, size in zip(pieces.topics, rates, sizes, strict=True):
            row = network.publication_row.get((name, topic))
            parts.setdefault(topic, []).append((rate, size, _burstiness(network, row, rate)))
    return {topic: _declared(rows) for topic, rows in parts.items()}


def _declared(rows: list[tuple[float, float, tuple[float, float]]]) -> DeclaredRate:
    rate, size = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    total = float(rate.sum())
    weight = rate if total > 0 else np.ones_like(rate)
    mean_size = float((size * weight).sum() / weight.sum())
    return DeclaredRate(
        rate_per_second=None if np.isnan(total) else total,
        size_bytes=None if np.isnan(mean_size) else mean_size,
        dispersion=max(dispersion for _, _, (dispersion, _) in rows),
        silence_seconds=min(silence for _, _, (_, silence) in rows),
    )


def _burstiness(network: Network, row: int | None, rate: float) -> tuple[float, float]:
    """The index of dispersion of a publication's events over a long time, and the longest silence that is usual."""
    if row is None or not rate > 0:
        return 1.0, 0.0
    table = network.scenario.publications
    match ArrivalProcess(int(table.arrival_process[row])):
        case ArrivalProcess.ON_OFF:
            on, off = float(table.on_seconds[row]), float(table.off_seconds[row])
            # The rate jumps between rate (on + off) / on and 0; its covariance decays with time constant tau.
            tau = on * off / (on + off)
            return 1.0 + 2.0 * rate * off / on * tau, SILENT_EVENTS * (off + on / (on + off) / rate)
        case ArrivalProcess.PARETO:
            shape = float(table.pareto_shape[row])
            # Without a variance of gaps the index grows with time.
            dispersion = max(1.0, 1 / (shape * (shape - 2))) if shape > 2 else _HEAVY_DISPERSION
            return dispersion, (shape - 1) / shape * math.exp(SILENT_EVENTS / shape) / rate
    return 1.0, 0.0


def published(
    announced: Mapping[str, DeclaredColumns], network: Network, rates: Rates, number: Mapping[str, int]
) -> Published:
    """All publications of topics with a rate; `number` has every topic that is announced or measured."""
    names = sorted(announced)
    pieces = [announced[name] for name in names]
    topic = np.array([number[each] for piece in pieces for each in piece.topics], dtype=np.int64)
    owner = np.repeat(np.arange(len(names)), [len(piece.topics) for piece in pieces])
    rate = np.concatenate([np.empty(0), *(piece.rate_per_second for piece in pieces)])
    size = np.concatenate([np.empty(0), *(piece.size_bytes for piece in pieces)])
    terms = np.concatenate([np.empty((len(TERMS), 0)), *(piece.terms for piece in pieces)], axis=1)
    # As in scenario files, who states the least separation alone publishes as often as it allows.
    rate = np.where(np.isnan(rate), 1 / terms[0], rate)
    row = np.array(
        [
            network.publication_row.get((name, each), -1)
            for name, piece in zip(names, pieces, strict=True)
            for each in piece.topics
        ],
        dtype=np.int64,
    )
    count = len(number)
    alone = _unannounced(rates, number, topic, count)
    if len(alone):
        owner = np.append(owner, np.full(len(alone), len(names)))
        names = [*names, UNANNOUNCED]
        topic, row = np.append(topic, alone), np.append(row, np.full(len(alone), -1))
        unsaid = np.full(len(alone), np.nan)
        rate, size = (np.append(column, unsaid) for column in (rate, size))
        terms = np.append(terms, np.tile(unsaid, (len(TERMS), 1)), axis=1)
    rate = _shared_rates(topic, rate, _by_topic(rates.per_second, number, count), count)
    # What is promised goes past the gateway, which counts nothing of it.
    rate = np.where((rate <= 0) & (terms[0] > 0), 1 / terms[0], rate)
    size = _sizes(topic, rate, size, _by_topic(rates.size_bytes, number, count), count)
    kept = np.flatnonzero(rate > 0)
    return Published(
        live=np.unique(topic[kept]),
        publishers=_publishers(names, network),
        _topic=topic[kept],
        _table=_table(network, owner[kept], rate[kept], size[kept], row[kept], terms[:, kept]),
    )


def _by_topic(values: Mapping[str, float], number: Mapping[str, int], count: int) -> Floats:
    column = np.full(count, np.nan)
    for topic, value in values.items():
        if topic in number:
            column[number[topic]] = value
    return column


def _unannounced(rates: Rates, number: Mapping[str, int], topic: Rows, count: int) -> Rows:
    announced = np.zeros(count, dtype=bool)
    announced[topic] = True
    positive = [each for each, rate in rates.per_second.items() if rate > 0 and each in number]
    measured = np.array([number[each] for each in positive], dtype=np.int64)
    return measured[~announced[measured]]


def _shared_rates(topic: Rows, rate: Floats, measured: Floats, count: int) -> Floats:
    """Each publication's part of its topic's rate; 0 where nothing is known of that."""
    said = np.where(np.isnan(rate), 0.0, rate)
    total = np.bincount(topic, said, minlength=count)
    sayers = np.bincount(topic, ~np.isnan(rate), minlength=count)
    # Who leaves the rate to be measured counts as the mean of those who do not.
    usual = np.divide(total, sayers, out=np.ones(count), where=total > 0)
    weight = np.where(np.isnan(rate) | (total[topic] <= 0), usual[topic], rate)
    shares = weight / np.bincount(topic, weight, minlength=count)[topic]
    return np.where(np.isnan(measured[topic]), said, measured[topic] * shares)


def _sizes(topic: Rows, rate: Floats, size: Floats, measured: Floats, count: int) -> Floats:
    """Each publication's size, scaled so that the topic's mean is the measured one where there is one."""
    known = np.where(np.isnan(size), measured[topic], size)
    # A message may be empty; its headers are not.
    known = np.maximum(np.where(np.isnan(known), USUAL_SIZE_BYTES, known), LEAST_SIZE_BYTES)
    load = np.bincount(topic, rate * known, minlength=count)
    events = np.bincount(topic, rate, minlength=count)
    mean = np.divide(load, events, out=np.ones(count), where=events > 0)
    factor = np.where(np.isnan(measured), 1.0, np.maximum(measured, LEAST_SIZE_BYTES) / mean)
    return np.asarray(known * factor[topic])


def _publishers(names: list[str], network: Network) -> Publishers:
    known = network.scenario.publishers
    rows = np.array([network.publisher_row.get(name, -1) for name in names], dtype=np.int64)
    return with_columns(known, rows, name=tuple(names))


def _table(
    network: Network, owner: Rows, rate: Floats, size: Floats, row: Rows, terms: Floats
) -> Publications:
    """The publications, with what the network's scenario says about those of the same names."""
    known = network.scenario.publications
    table = with_columns(
        known,
        row,
        publisher=owner.astype(np.int32),
        topic=np.zeros(len(owner), dtype=np.int32),
        rate_per_second=rate,
        size_bytes=size,
    )
    said = dict(zip(TERMS, terms, strict=True))
    table = replace(
        table, **{term: np.where(np.isnan(new), getattr(table, term), new) for term, new in said.items()}
    )
    # Sizes that were seen hold only as long as their mean is right.
    mean = np.append(known.size_bytes, np.nan)[row]
    off = (table.size_distribution == SizeDistribution.EMPIRICAL) & ~np.isclose(size, mean, rtol=1e-6)
    return replace(
        table,
        size_distribution=np.where(off, np.int8(SizeDistribution.EXPONENTIAL), table.size_distribution),
        size_samples=np.where(off, np.int32(-1), table.size_samples),
    )
