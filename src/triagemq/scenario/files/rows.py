"""Publications and subscriptions: one table of columns and rules for YAML and for Parquet, and those of a YAML file.

Rows come from a file or from a table (`parquet.py`) as columns, and are checked all at once. A row with a number out of
bounds is not looked at by the rules between its columns. Patterns stand for the topics that they match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from operator import attrgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from triagemq.mqttsn.filters import TopicTree, has_wildcard
from triagemq.scenario.files.document import (
    EXPONENTIAL,
    PublicationEntry,
    SubscriptionEntry,
    TopicEntry,
    empirical_mean,
)
from triagemq.scenario.files.explain import (
    described,
    filter_error,
    number_text,
    topic_error,
)
from triagemq.scenario.files.reading import Document, LinedFile, refuse_rows
from triagemq.scenario.kinds import WORDS, ArrivalProcess, UtilityShape, codes_of, word_of
from triagemq.scenario.model import (
    DEFAULTS,
    Floats,
    Integers,
    Publications,
    SizeSamples,
    Subscriptions,
    take,
)

Flags = NDArray[np.bool_]
RowNumbers = NDArray[np.int64]
Message = tuple[str, str]
"""What is wrong, and what to write."""
Report = Callable[[RowNumbers, str, Iterable[Message]], None]
"""Reports one problem of several rows: the rows, the column or none, and what to say of each."""


@dataclass(frozen=True)
class Column:
    """What a column holds, where that stands in an entry of a file, and what its numbers or words may be."""

    kind: Literal["text", "number", "truth", "list"]
    path: tuple[str, ...] = ()
    required: bool = False
    above: float = -np.inf
    least: float = -np.inf
    most: float = np.inf

    def within(self, values: Floats) -> Flags:
        """Which numbers are within the bounds; NaN and infinity never are."""
        return np.isfinite(values) & (values > self.above) & (values >= self.least) & (values <= self.most)

    def fix(self, name: str) -> str:
        """What to write for a number that is out of bounds."""
        bound = f"above {number_text(self.above)}" if np.isfinite(self.above) else "of at least 0"
        most = f", at most {number_text(self.most)}" if np.isfinite(self.most) else ""
        limit = ", or null for no limit" if DEFAULTS.get(name) == np.inf else ""
        return f"write a number {bound}{most}{limit}"


PUBLICATION_COLUMNS = {
    "publisher": Column("text", required=True),
    "topic": Column("text", required=True),
    "rate_per_second": Column("number", ("rate_per_second",), required=True, above=0),
    "min_separation_seconds": Column("number", ("min_separation_seconds",), above=0),
    "max_separation_seconds": Column("number", ("max_separation_seconds",), above=0),
    "size_bytes": Column("number", ("size_bytes",), required=True, above=0),
    "size_distribution": Column("text", ("sizes", "distribution")),
    "size_values": Column("list", ("sizes", "values")),
    "size_weights": Column("list", ("sizes", "weights")),
    "max_size_bytes": Column("number", ("max_size_bytes",), above=0),
    "arrival_process": Column("text", ("arrivals", "process")),
    "pareto_shape": Column("number", ("arrivals", "shape"), above=1),
    "on_seconds": Column("number", ("arrivals", "on_seconds"), above=0),
    "off_seconds": Column("number", ("arrivals", "off_seconds"), above=0),
}
SUBSCRIPTION_COLUMNS = {
    "subscriber": Column("text", required=True),
    "topic": Column("text", required=True),
    "utility_shape": Column("text", ("utility", "shape"), required=True),
    "utility_weight": Column("number", ("utility", "weight"), required=True, least=0),
    "utility_threshold": Column("number", ("utility", "threshold"), above=0, most=1),
    "freshness_seconds": Column("number", ("utility", "freshness_seconds"), above=0),
    "max_latency_seconds": Column("number", ("max_latency_seconds",), above=0),
    "max_latency_share": Column("number", ("max_latency_share",), above=0, most=1),
    "max_separation_seconds": Column("number", ("max_separation_seconds",), above=0),
    "guaranteed": Column("truth", ("guaranteed",), least=0, most=1),
    "min_share": Column("number", ("min_share",), least=0, most=1),
    "max_rate_per_second": Column("number", ("max_rate_per_second",), above=0),
    "newest_only": Column("truth", ("newest_only",), least=0, most=1),
    "expires_seconds": Column("number", ("expires_seconds",), above=0),
    "role_rank": Column("number", ("role_rank",), least=0),
}


@dataclass
class Rows:
    """Publications or subscriptions of a file or of a table, as columns.

    `owner` and `topic` are numbers, -1 where they are not known; codes are -1 where a word is not known, and that has
    been reported. `given` says where a number is not the default. `mean` is the mean of empirical sizes.
    """

    owner: Integers
    topic: Integers
    values: dict[str, Any]
    given: dict[str, Flags]
    codes: dict[str, Any]
    report: Report

    def check_bounds(self, columns: Mapping[str, Column]) -> None:
        """Report every number out of bounds; what is not given has its default from now on."""
        self._invalid = np.logical_or.reduce([codes < 0 for codes in self.codes.values()])
        for name, values in self.values.items():
            self.values[name] = np.where(self.given[name], values, DEFAULTS.get(name, np.nan))
            if name in columns:
                column = columns[name]
                invalid = np.flatnonzero(self.given[name] & ~column.within(values))
                fix = column.fix(name)
                self.report(
                    invalid, name, ((f"is {described(each)}", fix) for each in values[invalid].tolist())
                )
                self._invalid[invalid] = True

    def refuse(self, column: str, broken: Flags, what: str, fix: str) -> None:
        """Report rows, but for those that are invalid already. In the place of {COLUMN} stands what a row has there."""
        invalid = np.flatnonzero(broken & ~self._invalid)
        self.report(
            invalid, column, ((self._text(what, row), self._text(fix, row)) for row in invalid.tolist())
        )
        self._invalid[invalid] = True

    def _text(self, text: str, row: int) -> str:
        def shown(found: re.Match[str]) -> str:
            name = found[1]
            return (
                word_of(name, self.codes[name][row]) if name in WORDS else number_text(self.values[name][row])
            )

        return re.sub(r"\{(\w+)\}", shown, text)

    def refuse_others(self, column: str, words: str, kind: IntEnum, example: str) -> None:
        """Report rows of one kind that lack a number, and rows of other kinds that have it."""
        name, is_kind = kind.name.lower(), self.codes[words] == kind
        noun = "arrivals" if words == "arrival_process" else "shapes"
        missing = f"is missing, and {name} {noun} need it"
        self.refuse(column, self.lacks(column) & is_kind, missing, f"write {example}")
        surplus = f"is {{{column}}}, which means nothing for {{{words}}} {noun}"
        fix = f"remove it: other {noun} than {name} have none"
        self.refuse(column, self.given[column] & ~is_kind, surplus, fix)

    def lacks(self, *columns: str) -> Flags:
        """Rows where none of the columns is given."""
        given: Flags = np.logical_or.reduce([self.given[name] for name in columns])
        return ~given


@dataclass(frozen=True)
class PublicationRows:
    """All publications. `topics` numbers the topics that are published."""

    table: Publications
    samples: SizeSamples
    topics: dict[str, int]
    report: Report


@dataclass(frozen=True)
class SubscriptionRows:
    """All subscriptions."""

    table: Subscriptions
    report: Report


ON_OFF = "seconds above 0, as in arrivals: {process: on_off, on_seconds: 2, off_seconds: 8}"


def checked_publications(
    rows: Rows, sample: Integers, samples: SizeSamples, topics: dict[str, int]
) -> PublicationRows:
    """The publications, whose errors are reported; `sample` is the row of `samples` of an empirical distribution."""
    rows.check_bounds(PUBLICATION_COLUMNS)
    values, given = rows.values, rows.given
    rate, size, mean = values["rate_per_second"], values["size_bytes"], values["mean"]
    shortest = values["min_separation_seconds"]
    with np.errstate(divide="ignore", over="ignore"):
        values["most"] = 1 / shortest
    rows.refuse(
        "rate_per_second",
        rows.lacks("rate_per_second", "min_separation_seconds"),
        "is missing",
        "add rate_per_second, a number above 0, or min_separation_seconds",
    )
    too_small = given["min_separation_seconds"] & ~np.isfinite(values["most"])
    rows.refuse("min_separation_seconds", too_small, "is too small", "write at least 1e-9")
    rows.refuse(
        "rate_per_second",
        given["rate_per_second"] & (rate > (1 + 1e-9) * values["most"]),
        "is {rate_per_second}, more than events {min_separation_seconds} seconds apart can be",
        "write at most {most}, or a smaller min_separation_seconds",
    )
    rows.refuse(
        "max_separation_seconds",
        values["max_separation_seconds"] < shortest,
        "is {max_separation_seconds}, less than min_separation_seconds",
        "write at least {min_separation_seconds}",
    )
    pareto = "a number above 1, as in arrivals: {process: pareto, shape: 2.5}"
    rows.refuse_others("pareto_shape", "arrival_process", ArrivalProcess.PARETO, pareto)
    for column in ("on_seconds", "off_seconds"):
        rows.refuse_others(column, "arrival_process", ArrivalProcess.ON_OFF, ON_OFF)
    rows.refuse("size_bytes", rows.lacks("size_bytes", "mean"), "is missing", "add size_bytes: 60, in bytes")
    rows.refuse(
        "size_bytes",
        given["size_bytes"] & given["mean"] & ~np.isclose(size, mean, rtol=1e-6, atol=0),
        "is {size_bytes}, and the mean of the sizes is {mean}",
        "remove size_bytes, or sizes",
    )
    values["rate_per_second"] = np.where(given["rate_per_second"], rate, values.pop("most"))
    values["size_bytes"] = np.where(given["size_bytes"], size, values.pop("mean"))
    table = Publications(publisher=rows.owner, topic=rows.topic, size_samples=sample, **rows.codes, **values)
    return PublicationRows(table, samples, topics, rows.report)


def checked_subscriptions(rows: Rows) -> SubscriptionRows:
    """The subscriptions, whose errors are reported."""
    rows.check_bounds(SUBSCRIPTION_COLUMNS)
    values, weight = rows.values, "write a number of at least 0"
    rows.refuse("utility_weight", rows.lacks("utility_weight"), "is missing", weight)
    threshold = "a share above 0, at most 1, as in step:3@0.8"
    rows.refuse_others("utility_threshold", "utility_shape", UtilityShape.STEP, threshold)
    for column, wanted, what, fix in (
        ("max_latency_share", rows.given["max_latency_share"], "is a share within no time", "0.2"),
        ("max_latency_seconds", values["guaranteed"] > 0, "is missing, and a guarantee needs it", "0.008"),
    ):
        without = wanted & rows.lacks("max_latency_seconds")
        rows.refuse(column, without, what, f"add max_latency_seconds: {fix}")
    for name in ("guaranteed", "newest_only"):
        values[name] = values[name].astype(np.int8)
    table = Subscriptions(subscriber=rows.owner, topic=rows.topic, **rows.codes, **values)
    return SubscriptionRows(table, rows.report)


Place = tuple[str, ...]
"""The path of a row in the file."""

NO_DEFAULT = TopicEntry()


class FileRows:
    """Rows of a file that become columns."""

    def __init__(self, file: LinedFile, columns: Mapping[str, Column]) -> None:
        self._file = file
        self._columns = columns
        self._names = [name for name, column in columns.items() if column.path and column.kind != "list"]
        self._stated = attrgetter(*(".".join(columns[name].path) for name in self._names))
        self.places: list[Place] = []
        self._keys: list[tuple[int, int]] = []
        self._rows: list[tuple[Any, ...]] = []

    def add(
        self, place: Place, owner: int, topic: int, entry: PublicationEntry | SubscriptionEntry, *more: Any
    ) -> None:
        """Add a row: what an entry states, None where that is nothing, and more."""
        self.places.append(place)
        self._keys.append((owner, topic))
        self._rows.append((*self._stated(entry), *more))

    def columns(self, *more: str) -> Rows:
        """All rows; `more` are the names of what was added to the entries."""
        owner, topic = np.array(self._keys, dtype=np.int32).reshape(len(self._keys), 2).T.copy()
        names = (*self._names, *more)
        values: dict[str, Any] = dict(zip(names, zip(*self._rows, strict=True), strict=False))
        codes: dict[str, Any] = {}
        for name in names:
            if name not in WORDS:
                values[name] = np.array(values.get(name, ()), dtype=np.float64)
            else:
                known = codes_of(name)
                codes[name] = np.array([known[word] for word in values.pop(name, ())], dtype=np.int8)
        given = {name: ~np.isnan(column) for name, column in values.items()}
        return Rows(owner, topic, values, given, codes, self._report)

    def _report(self, rows: RowNumbers, column: str, messages: Iterable[Message]) -> None:
        path = self._columns[column].path if column else ()
        for row, message in zip(rows.tolist(), messages, strict=True):
            self._file.report_at((*self.places[row], *path), *message)


def read_publications(document: Document) -> PublicationRows:
    """The `publishes` of all publishers."""
    file, valid = document.file, document.valid
    rows = FileRows(file, PUBLICATION_COLUMNS)
    topics: dict[str, int] = {}
    samples: list[tuple[list[float], list[float]]] = []
    for owner, (name, publisher) in enumerate(valid.publishers.items()):
        for topic, entry in publisher.publishes.items():
            place = ("publishers", name, "publishes", topic)
            error = topic_error(topic)
            if error is not None:
                file.report_at(place, *error)
            default = valid.topics.get(topic, NO_DEFAULT)
            changed: dict[str, Any] = {}
            if entry.sizes is EXPONENTIAL and default.sizes is not None:
                changed["sizes"] = default.sizes
            if entry.size_bytes is None and entry.sizes.values is None:
                changed["size_bytes"] = default.size_bytes
            if changed:
                entry = entry.model_copy(update=changed)
            sample, mean = -1, None
            if entry.sizes.values is not None:
                sample, mean = len(samples), empirical_mean(*entry.sizes.samples)
                samples.append(entry.sizes.samples)
            rows.add(place, owner, topics.setdefault(topic, len(topics)), entry, sample, mean)
    columns = rows.columns("sample", "mean")
    sample = columns.values.pop("sample").astype(np.int32)
    return checked_publications(columns, sample, _sample_table(samples), topics)


def _sample_table(samples: Iterable[tuple[list[float], list[float]]]) -> SizeSamples:
    lists = [[np.array(each, dtype=np.float64) for each in both] for both in samples]
    return SizeSamples(tuple(values for values, _ in lists), tuple(weights for _, weights in lists))


def read_subscriptions(document: Document, publications: PublicationRows) -> SubscriptionRows:
    """The `subscribes` of all subscribers, patterns expanded to the topics that are published."""
    file = document.file
    rows = FileRows(file, SUBSCRIPTION_COLUMNS)
    matches = _Matches(document, publications.topics)
    topic_of_row: list[int] = []
    entry_of_row: list[int] = []
    for owner, (name, subscriber) in enumerate(document.valid.subscribers.items()):
        expanded: dict[str, str] = {}
        for number, (pattern, entry) in enumerate(subscriber.subscribes.items(), len(rows.places)):
            place = ("subscribers", name, "subscribes", pattern)
            rows.add(place, owner, 0, entry)
            found = matches.of(pattern, place)
            refuse_rows(file, len(topic_of_row) + len(found), place)
            for topic in found:
                if pattern != topic and topic in subscriber.subscribes:
                    continue  # its own entry says what it is worth
                if topic in expanded:
                    what = f"matches {topic}, as {expanded[topic]} does"
                    file.report_at(place, what, f"write an entry for {topic} itself, or narrow one pattern")
                    break
                expanded[topic] = pattern
                topic_of_row.append(publications.topics[topic])
                entry_of_row.append(number)
    checked = checked_subscriptions(rows.columns())
    topics, entries = np.array(topic_of_row, dtype=np.int32), np.array(entry_of_row, dtype=np.int64)

    def report(invalid: RowNumbers, column: str, messages: Iterable[Message]) -> None:
        checked.report(entries[invalid], column, messages)

    return SubscriptionRows(replace(take(checked.table, entries), topic=topics), report)


class _Matches:
    """The published topics of each topic or pattern, searched for once."""

    def __init__(self, document: Document, published: Mapping[str, int]) -> None:
        self._document = document
        self._published = published
        self._tree = TopicTree(published)
        self._found: dict[str, list[str]] = {}

    def of(self, pattern: str, place: Place) -> list[str]:
        """The published topics that a topic or pattern stands for; none after reporting why."""
        document, published = self._document, self._published
        if not has_wildcard(pattern) and pattern in published:
            return [pattern]
        error = filter_error(pattern)
        if error is None:
            if pattern not in self._found:
                self._found[pattern] = self._tree.names_matching(pattern)
            if found := self._found[pattern]:
                return found
            error = document.unmatched(pattern, published)
            if pattern in document.valid.topics:
                error = "no publisher has it", "add it to a publisher, or remove it here"
        document.file.report_at(place, *error)
        return []
