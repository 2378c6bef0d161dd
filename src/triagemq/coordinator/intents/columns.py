"""What publishers and subscribers have announced, as columns, and all of it together as tables of a Scenario.

A topic's rate is the measured one where that contradicts what was announced (`Rates`), else the sum of what its
publishers announced. Publishers of one topic share its rate in proportion to what they announced. Topics that no client
announced belong to a publisher of their own."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.coordinator.decide.network import USUAL_SIZE_BYTES, Network
from triagemq.coordinator.rates import SILENT_EVENTS, DeclaredRate, Rates
from triagemq.intents import PublisherIntent, SubscriberIntent, Wanted
from triagemq.mqttsn.filters import TopicTree, has_wildcard
from triagemq.scenario import (
    ArrivalProcess,
    Floats,
    Integers,
    Publications,
    Publishers,
    SizeDistribution,
    Subscribers,
    Subscriptions,
    UtilityShape,
)
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
"""The publisher of topics that are measured and that no client has announced."""

LEAST_SIZE_BYTES = 1.0

_HEAVY_DISPERSION = 100.0

PUBLISHED_TERMS = ("min_separation_seconds", "max_separation_seconds", "max_size_bytes")
"""What promises are made of. What a publisher says of them counts before what the scenario says."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DeclaredColumns:
    """What one publisher says of its topics. NaN is what it leaves to be measured."""

    topics: tuple[str, ...]
    rate_per_second: Floats
    size_bytes: Floats
    terms: Floats
    """The rows of PUBLISHED_TERMS."""


def declared_columns(intent: PublisherIntent) -> DeclaredColumns:
    """The intent of a publisher."""
    return DeclaredColumns(
        topics=tuple(each.topic for each in intent.publications),
        # None becomes NaN.
        rate_per_second=np.array([each.rate_per_second for each in intent.publications], dtype=np.float64),
        size_bytes=np.array([each.size_bytes for each in intent.publications], dtype=np.float64),
        terms=np.array(
            [[getattr(each, term) for each in intent.publications] for term in PUBLISHED_TERMS],
            dtype=np.float64,
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
    terms = np.concatenate([np.empty((len(PUBLISHED_TERMS), 0)), *(piece.terms for piece in pieces)], axis=1)
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
        terms = np.append(terms, np.tile(unsaid, (len(PUBLISHED_TERMS), 1)), axis=1)
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
    said = dict(zip(PUBLISHED_TERMS, terms, strict=True))
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


SUBSCRIBED_TERMS = (
    "utility_shape",
    "utility_weight",
    "utility_threshold",
    "freshness_seconds",
    "max_latency_seconds",
    "max_separation_seconds",
    "max_latency_share",
    "guaranteed",
)
"""The scenario's columns about what is wanted: one row each in a subscriber's block."""

_SHAPES = {shape.name.lower(): shape for shape in UtilityShape}


@dataclass(slots=True, eq=False)
class WantedColumns:
    """One subscriber's subscriptions: `terms` has one column per filter, `columns` the topics they stand for.

    `columns` is None while it has to be worked out: before the first scenario, and when a topic appears that one of the
    patterns matches. An exact name says more than a pattern; of several patterns the first holds.
    """

    name: str
    exact: tuple[str, ...]
    patterns: tuple[str, ...]
    terms: Floats
    columns: tuple[NDArray[np.int64], Floats] | None = None
    exact_numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def expand(self, topics: TopicTree, number: Mapping[str, int]) -> None:
        """Work out `columns`, sorted by the topics' names."""
        self.exact_numbers = np.array([number[topic] for topic in self.exact], dtype=np.int64)
        term_of = {topic: term for term, topic in enumerate(self.exact)}
        for term, pattern in enumerate(self.patterns, start=len(self.exact)):
            for topic in topics.names_matching(pattern):
                term_of.setdefault(topic, term)
        chosen = sorted(term_of)
        self.columns = (
            np.array([number[topic] for topic in chosen], dtype=np.int64),
            self.terms[:, np.array([term_of[topic] for topic in chosen], dtype=np.int64)],
        )

    def unseen(self, rank: Integers) -> dict[str, float]:
        """What topics without a rank are worth to it if all of them arrives, by filter."""
        shape, weight = self.terms[:2]
        worth = np.where(shape == UtilityShape.LOG, np.log(2.0), 1.0) * weight
        places = np.flatnonzero(rank[self.exact_numbers] < 0).tolist()
        found = {self.exact[place]: float(worth[place]) for place in places}
        return found | dict(zip(self.patterns, worth[len(self.exact) :].tolist(), strict=True))


def columns_of(intent: SubscriberIntent, most_worth: float = math.inf) -> WantedColumns:
    """The intent of a subscriber, exact names first; a topic is worth `most_worth` at most."""
    wanted = sorted(intent.subscriptions, key=lambda each: has_wildcard(each.topic))
    exact = tuple(each.topic for each in wanted if not has_wildcard(each.topic))
    patterns = tuple(each.topic for each in wanted[len(exact) :])
    terms = terms_of(wanted)
    weight = terms[SUBSCRIBED_TERMS.index("utility_weight")]
    np.minimum(weight, most_worth, out=weight)
    return WantedColumns(intent.name, exact, patterns, terms)


def terms_of(wanted: Sequence[Wanted]) -> Floats:
    """One column each: what it is worth, and how late or rarely it may come, as the scenario's tables have it."""
    terms = np.array([_terms(each) for each in wanted], dtype=np.float64)
    return np.ascontiguousarray(terms.reshape(-1, len(SUBSCRIBED_TERMS)).T)


def _terms(wanted: Wanted) -> tuple[float, ...]:
    utility = wanted.utility
    return (
        _SHAPES[utility.shape],
        utility.weight,
        utility.threshold or 0.0,
        *(
            math.inf if seconds is None else seconds
            for seconds in (
                utility.freshness_seconds,
                wanted.max_latency_seconds,
                wanted.max_separation_seconds,
            )
        ),
        wanted.max_latency_share or 0.0,
        wanted.guaranteed,
    )


def wanted_tables(
    names: Sequence[str],
    wanted: Sequence[WantedColumns],
    intents: Mapping[str, SubscriberIntent],
    network: Network,
    rank: Integers,
) -> tuple[Subscribers, Subscriptions]:
    """Subscribers in the given order, and their subscriptions of topics that have a rank: the topic's row."""
    pieces = [each.columns for each in wanted if each.columns is not None]
    numbers = np.concatenate([np.empty(0, dtype=np.int64), *(topics for topics, _ in pieces)])
    block = np.concatenate([np.empty((len(SUBSCRIBED_TERMS), 0)), *(terms for _, terms in pieces)], axis=1)
    owner = np.repeat(np.arange(len(pieces), dtype=np.int32), [len(topics) for topics, _ in pieces])
    topic = rank[numbers]
    if (topic < 0).any():
        ranked = topic >= 0
        topic, owner, block = topic[ranked], owner[ranked], block[:, ranked]
    rows = np.array([network.subscriber_row.get(name, -1) for name in names], dtype=np.int64)
    ports = np.array([network.port_of(intents[name]) for name in names], dtype=np.int32)
    people = with_columns(network.scenario.subscribers, rows, name=tuple(names), port=ports)
    return (
        replace(people, error_rate=network.error_rates(ports, people.error_rate)),
        Subscriptions(subscriber=owner, topic=topic, **named_terms(block)),
    )


def named_terms(block: Floats) -> dict[str, Any]:
    """The rows of a block as the columns of a scenario's subscriptions."""
    columns: dict[str, Any] = dict(zip(SUBSCRIBED_TERMS, block, strict=True))
    return columns | {name: columns[name].astype(np.int8) for name in ("utility_shape", "guaranteed")}
