"""Publications and subscriptions that stand in the YAML, as tables of the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ScenarioError
from triagemq.scenario.document import PublicationEntry, Sizes, SubscriptionEntry, TopicEntry, empirical_mean
from triagemq.scenario.kinds import SizeDistribution, UtilityShape
from triagemq.scenario.mistakes import listed
from triagemq.scenario.model import Publications, SizeSamples, Subscriptions
from triagemq.scenario.reader import Pair, Reader
from triagemq.scenario.sections import Sections
from triagemq.scenario.units import number_text
from triagemq.scenario.wildcards import TopicTree, filter_mistake, is_pattern, topic_mistake

__all__ = ["PublicationRows", "SampleStore", "SubscriptionRows", "read_publications", "read_subscriptions"]

MOST_ROWS = 2_000_000
"""Rows one YAML file may stand for, aliases and patterns spelled out; beyond that, tables are better."""

Report = Callable[[NDArray[np.int64], str, Callable[[int], tuple[str, str]]], None]
"""Reports one problem of several rows: the rows, the column, and what is wrong and what to write in each."""


@dataclass(frozen=True)
class PublicationRows:
    """All publications that are right. `topics` numbers every topic that anyone publishes or that is listed.

    `doubtful` are topics with a publication that is wrong, about which nothing more should be said.
    """

    table: Publications
    samples: SizeSamples
    topics: dict[str, int]
    published: dict[str, int]
    doubtful: frozenset[str]
    report: Report


@dataclass(frozen=True)
class SubscriptionRows:
    """All subscriptions that are right."""

    table: Subscriptions
    report: Report


class SampleStore:
    """Empirical size distributions, equal ones stored once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[bytes, bytes], int] = {}

    def add(self, values: list[float], weights: list[float]) -> int:
        """The row of a distribution."""
        key = np.array(values, dtype=np.float64).tobytes(), np.array(weights, dtype=np.float64).tobytes()
        return self._rows.setdefault(key, len(self._rows))

    def table(self) -> SizeSamples:
        """All distributions seen."""
        return SizeSamples(
            tuple(np.frombuffer(values) for values, _ in self._rows),
            tuple(np.frombuffer(weights) for _, weights in self._rows),
        )


class _Row(NamedTuple):
    owner: int
    topic: int
    field: str
    pair: Pair


def _reporter(reader: Reader, rows: list[_Row]) -> Report:
    def report(wrong: NDArray[np.int64], column: str, message: Callable[[int], tuple[str, str]]) -> None:
        for row in wrong.tolist():
            line, _ = reader.locate(rows[row].pair, [column] if column else [])
            field = f"{rows[row].field}.{column}" if column else rows[row].field
            reader.report(line, field, *message(row))

    return report


class _Count:
    """Rows so far; a file with too many of them is refused before it fills the memory."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._rows = 0

    def add(self, rows: int, pair: Pair, field: str) -> None:
        self._rows += rows
        if self._rows > MOST_ROWS:
            self._reader.report(
                pair.key,
                field,
                f"makes more than {MOST_ROWS} rows",
                "save it as a directory with publications.parquet and subscriptions.parquet",
            )
            raise ScenarioError(self._reader.problems)


def read_publications(reader: Reader, sections: Sections) -> PublicationRows:
    """The `publishes` of all publishers."""
    rows: list[_Row] = []
    columns: list[tuple[float, ...]] = []
    samples = SampleStore()
    topics: dict[str, int] = {}
    doubtful: set[str] = set()
    count = _Count(reader)
    for owner, (name, position) in enumerate(sections.publishers.pairs.items()):
        field = f"publishers.{name}.publishes"
        place = reader.inner(position, "publishes")
        pairs = (reader.pairs(place.value, field) or {}) if place is not None else {}
        count.add(len(pairs), position, field)
        for topic, pair in pairs.items():
            row = _Row(owner, topics.setdefault(topic, len(topics)), f"{field}.{topic}", pair)
            wrong = topic_mistake(topic)
            if wrong is not None:
                reader.report(pair.key, row.field, *wrong)
            entry = reader.entry(pair, row.field, PublicationEntry)
            numbers = None if entry is None else _publication(reader, row, entry, sections, topic, samples)
            if wrong is not None or numbers is None or name not in sections.publishers.right:
                doubtful.add(topic)
            if wrong is None and numbers is not None:
                rows.append(row)
                columns.append(numbers)
    published = dict(topics)
    table = np.array(columns, dtype=np.float64).reshape(len(columns), 10).T
    return PublicationRows(
        table=Publications(
            publisher=np.array([row.owner for row in rows], dtype=np.int32),
            topic=np.array([row.topic for row in rows], dtype=np.int32),
            rate_per_second=table[0].copy(),
            size_bytes=table[1].copy(),
            size_distribution=table[2].astype(np.int8),
            size_samples=table[3].astype(np.int32),
            arrival_process=table[4].astype(np.int8),
            pareto_shape=table[5].copy(),
            on_seconds=table[6].copy(),
            off_seconds=table[7].copy(),
            min_separation_seconds=table[8].copy(),
            max_separation_seconds=table[9].copy(),
        ),
        samples=samples.table(),
        topics=topics,
        published=published,
        doubtful=frozenset(doubtful),
        report=_reporter(reader, rows),
    )


def _publication(
    reader: Reader,
    row: _Row,
    entry: PublicationEntry,
    sections: Sections,
    topic: str,
    samples: SampleStore,
) -> tuple[float, ...] | None:
    """The numbers of one publication in the order of the model's columns, or None after reporting."""
    if topic in sections.topics and topic not in sections.topics.right:
        return None  # its default size is wrong and has been reported
    default = sections.topics.right.get(topic, TopicEntry())
    sizes = entry.sizes or default.sizes or Sizes(distribution="exponential")
    sample = -1
    mean: float | None = None
    if sizes.code == SizeDistribution.EMPIRICAL:
        values, weights = sizes.samples
        mean = empirical_mean(values, weights)
        sample = samples.add(values, weights)
    size = entry.size_bytes
    if size is None:
        size = mean if entry.sizes is not None and mean is not None else default.size_bytes or mean
    if size is None:
        reader.report(row.pair.key, f"{row.field}.size_bytes", "is missing", "add size_bytes: 60, in bytes")
        return None
    if mean is not None and not math.isclose(size, mean, rel_tol=1e-6):
        line, _ = reader.locate(row.pair, ["size_bytes"])
        what = f"is {number_text(size)}, and the mean of the sizes is {number_text(mean)}"
        reader.report(line, f"{row.field}.size_bytes", what, "leave size_bytes out beside sizes")
        return None
    return (
        entry.rate,
        size,
        sizes.code,
        sample,
        entry.arrivals.code,
        entry.arrivals.shape or 0.0,
        entry.arrivals.on_seconds or 0.0,
        entry.arrivals.off_seconds or 0.0,
        entry.min_separation_seconds or 0.0,
        math.inf if entry.max_separation_seconds is None else entry.max_separation_seconds,
    )


def read_subscriptions(reader: Reader, sections: Sections, publications: PublicationRows) -> SubscriptionRows:
    """The `subscribes` of all subscribers, patterns expanded to the topics that are published."""
    tree = TopicTree(publications.published)
    matches: dict[str, list[str]] = {}
    count = _Count(reader)
    rows: list[_Row] = []
    columns: list[tuple[float, ...]] = []
    for owner, (name, position) in enumerate(sections.subscribers.pairs.items()):
        field = f"subscribers.{name}.subscribes"
        place = reader.inner(position, "subscribes")
        pairs = (reader.pairs(place.value, field) or {}) if place is not None else {}
        expanded: dict[str, str] = {}
        for wanted, pair in pairs.items():
            inner = f"{field}.{wanted}"
            entry = reader.entry(pair, inner, SubscriptionEntry, short_form="utility")
            if is_pattern(wanted) and wanted not in matches:
                matches[wanted] = tree.matching(wanted)
            found = _topics_of(reader, pair, inner, wanted, matches, publications, sections)
            count.add(max(1, len(found)), pair, inner)
            for topic in found:
                if wanted != topic and topic in pairs:
                    continue  # its own entry says what it is worth
                if topic in expanded:
                    what = f"matches {topic}, as {expanded[topic]} does"
                    reader.report(
                        pair.key, inner, what, f"write an entry for {topic} itself, or narrow one pattern"
                    )
                    break
                expanded[topic] = wanted
                if entry is not None:
                    rows.append(_Row(owner, publications.topics[topic], inner, pair))
                    columns.append(_subscription(entry))
    return _subscription_rows(reader, rows, columns)


def _topics_of(
    reader: Reader,
    pair: Pair,
    field: str,
    wanted: str,
    matches: dict[str, list[str]],
    publications: PublicationRows,
    sections: Sections,
) -> list[str]:
    """The published topics that a topic or pattern stands for; none after reporting why."""
    wrong = filter_mistake(wanted)
    found = matches[wanted] if is_pattern(wanted) else [wanted] if wanted in publications.published else []
    if wrong is not None:
        reader.report(pair.key, field, *wrong)
        return []
    if found or not sections.publishers:
        return found
    if is_pattern(wanted):
        choice = listed(publications.published) or "none"
        reader.report(pair.key, field, "matches no topic that is published", f"published are: {choice}")
    elif wanted in sections.topics:
        reader.report(pair.key, field, "nobody publishes it", "add it to a publisher, or remove it here")
    else:
        what, fix = reader.unknown("topic", wanted, publications.published, "the publishes of a publisher")
        reader.report(pair.key, field, what, fix)
    return []


def _subscription(entry: SubscriptionEntry) -> tuple[float, ...]:
    utility = entry.utility
    longest = (
        utility.freshness_seconds if utility else None,
        entry.max_latency_seconds,
        entry.max_separation_seconds,
    )
    return (
        utility.code if utility else UtilityShape.LOG,
        utility.weight if utility else 0.0,
        (utility.threshold if utility else None) or 0.0,
        *(math.inf if seconds is None else seconds for seconds in longest),
        entry.max_latency_share or 0.0,
    )


def _subscription_rows(
    reader: Reader, rows: list[_Row], columns: list[tuple[float, ...]]
) -> SubscriptionRows:
    table = np.array(columns, dtype=np.float64).reshape(len(columns), 7).T
    return SubscriptionRows(
        Subscriptions(
            subscriber=np.array([row.owner for row in rows], dtype=np.int32),
            topic=np.array([row.topic for row in rows], dtype=np.int32),
            utility_shape=table[0].astype(np.int8),
            utility_weight=table[1].copy(),
            utility_threshold=table[2].copy(),
            freshness_seconds=table[3].copy(),
            max_latency_seconds=table[4].copy(),
            max_separation_seconds=table[5].copy(),
            max_latency_share=table[6].copy(),
        ),
        _reporter(reader, rows),
    )
