"""Publications and subscriptions that stand in the YAML: entries as columns, and patterns as the topics they match."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from triagemq.errors import ScenarioError
from triagemq.mqttsn.filters import TopicTree, has_wildcard
from triagemq.scenario.files.document import (
    FileEntry,
    PublicationEntry,
    SizesEntry,
    SubscriptionEntry,
    TopicEntry,
    empirical_mean,
)
from triagemq.scenario.files.explain import explain, filter_error, topic_error
from triagemq.scenario.files.reading import Document, LinedFile, LinedMapping
from triagemq.scenario.files.rules import (
    PUBLICATION_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    Column,
    Message,
    PublicationRows,
    Rows,
    SampleStore,
    SubscriptionRows,
    checked_publications,
    checked_subscriptions,
)
from triagemq.scenario.kinds import SizeDistribution, UtilityShape

MOST_ROWS = 2_000_000
"""Rows one YAML file may stand for, aliases and patterns spelled out; beyond that, tables are better."""

SomeEntry = TypeVar("SomeEntry", bound=FileEntry)
Place = tuple[str, ...]
"""The path of a row in the file."""

PUBLICATIONS = dict[str, PublicationEntry]
SUBSCRIPTIONS = dict[str, SubscriptionEntry]
EXPONENTIAL = SizesEntry(distribution="exponential")
NO_DEFAULT = TopicEntry()


class FileRows:
    """Rows of a file that become columns: codes and numbers, in the order of the columns that an entry may state."""

    def __init__(self, file: LinedFile, columns: Mapping[str, Column], *more: str) -> None:
        self._file = file
        self._columns = columns
        self._names = [name for name, column in columns.items() if column.path and column.kind != "list"]
        self._names.extend(more)
        self._places: list[Place] = []
        self._rows: list[tuple[float | None, ...]] = []
        self._keys: list[tuple[int, int, bool]] = []
        self._count = 0

    def count(self, rows: int, place: Place) -> None:
        """Count rows before they are read: a file with too many is refused before it fills the memory."""
        self._count += rows
        if self._count > MOST_ROWS:
            fix = "save it as a directory with publications.parquet and subscriptions.parquet"
            self._file.report_at(place, f"makes more than {MOST_ROWS} rows", fix)
            raise ScenarioError(self._file.problems)

    def add(
        self, place: Place, owner: int, topic: int, invalid: bool, values: tuple[float | None, ...]
    ) -> None:
        """Add a row; None where nothing is given."""
        self._places.append(place)
        self._keys.append((owner, topic, invalid))
        self._rows.append(values)

    def __len__(self) -> int:
        return len(self._rows)

    def columns(self) -> Rows:
        """All rows."""
        owner, topic, invalid = np.array(self._keys, dtype=np.int32).reshape(len(self), 3).T.copy()
        table = np.array(self._rows, dtype=np.float64).reshape(len(self), len(self._names)).T
        values = dict(zip(self._names, table, strict=True))
        words = [name for name, column in self._columns.items() if column.kinds is not None]
        codes = {name: values.pop(name).astype(np.int8) for name in words}
        given = {name: ~np.isnan(column) for name, column in values.items()}
        return Rows(False, owner, topic, invalid.astype(np.bool_), values, given, codes, self._report)

    def _report(self, at: NDArray[np.int64], rows: NDArray[np.int64], column: str, message: Message) -> None:
        path = self._columns[column].path if column else ()
        for place, row in zip(at.tolist(), rows.tolist(), strict=True):
            self._file.report_at((*self._places[place], *path), *message(row))


def _entries(
    file: LinedFile, place: Place, rows: LinedMapping, adapter: TypeAdapter[dict[str, SomeEntry]], kind: Any
) -> tuple[dict[str, SomeEntry], set[str]]:
    """The rows of one owner as entries, and which of them are flawed: reported, and without their invalid parts."""
    left: dict[str, Any] = rows
    flawed: set[str] = set()
    while True:
        try:
            return adapter.validate_python(left), flawed
        except ValidationError as error:
            errors = error.errors(include_url=False)
        for each in explain(errors, kind):
            # What a row lacks without its invalid parts has been reported already.
            if each.path[0] not in flawed:
                file.report_at((*place, *each.path), each.what, each.fix)
        left = dict(left)
        for details in errors:
            topic, *inner = map(str, details["loc"])
            row = left.get(topic)
            if isinstance(row, dict) and inner and topic not in flawed:
                left[topic] = {key: value for key, value in row.items() if key != inner[0]}
            else:
                left.pop(topic, None)
        flawed.update(str(details["loc"][0]) for details in errors)


def read_publications(document: Document) -> PublicationRows:
    """The `publishes` of all publishers."""
    file, valid = document.file, document.valid
    rows, store = FileRows(file, PUBLICATION_COLUMNS, "sample", "mean"), SampleStore()
    adapter = TypeAdapter(PUBLICATIONS)
    topics: dict[str, int] = {}
    doubtful: set[str] = set()
    for owner, (name, published) in enumerate(document.rows("publishers", "publishes").items()):
        place = ("publishers", name, "publishes")
        rows.count(len(published), place)
        entries, flawed = _entries(file, place, published, adapter, PUBLICATIONS)
        for topic in published:
            number = topics.setdefault(topic, len(topics))
            error = topic_error(topic)
            if error is not None:
                file.report_at((*place, topic), *error)
            if topic not in entries or name not in valid.publishers:
                doubtful.add(topic)
            if topic in entries:
                # An invalid default size has been reported.
                lost = topic in document.names["topics"] and topic not in valid.topics
                values = _publication(entries[topic], valid.topics.get(topic, NO_DEFAULT), store)
                invalid = lost or error is not None or topic in flawed
                rows.add((*place, topic), owner, number, invalid, values)
    columns = rows.columns()
    sample = columns.values.pop("sample").astype(np.int32)
    return checked_publications(columns, store.table(), sample, topics, doubtful)


def _publication(
    entry: PublicationEntry, default: TopicEntry, store: SampleStore
) -> tuple[float | None, ...]:
    sizes = entry.sizes or default.sizes or EXPONENTIAL
    sample, mean, size_bytes = -1, None, entry.size_bytes
    if sizes.code is SizeDistribution.EMPIRICAL:
        values, weights = sizes.samples
        sample, mean = store.add(values, weights), empirical_mean(values, weights)
    if size_bytes is None and (sample < 0 or entry.sizes is None):
        size_bytes = default.size_bytes
    arrivals = entry.arrivals
    return (
        entry.rate_per_second,
        size_bytes,
        sizes.code,
        arrivals.code,
        arrivals.shape,
        arrivals.on_seconds,
        arrivals.off_seconds,
        entry.min_separation_seconds,
        entry.max_separation_seconds,
        entry.max_size_bytes,
        sample,
        mean,
    )


def read_subscriptions(document: Document, publications: PublicationRows) -> SubscriptionRows:
    """The `subscribes` of all subscribers, patterns expanded to the topics that are published."""
    file = document.file
    rows = FileRows(file, SUBSCRIPTION_COLUMNS)
    adapter = TypeAdapter(SUBSCRIPTIONS)
    tree = TopicTree(publications.published)
    matches: dict[str, list[str]] = {}
    topic_of_row: list[int] = []
    entry_of_row: list[int] = []
    for owner, (name, wanted) in enumerate(document.rows("subscribers", "subscribes").items()):
        owned = ("subscribers", name, "subscribes")
        entries, flawed = _entries(file, owned, wanted, adapter, SUBSCRIPTIONS)
        expanded: dict[str, str] = {}
        for pattern in wanted:
            place = (*owned, pattern)
            if has_wildcard(pattern) and pattern not in matches:
                matches[pattern] = tree.names_matching(pattern)
            found = _topics_of(document, place, pattern, matches, publications)
            rows.count(max(1, len(found)), place)
            if pattern in entries:
                rows.add(place, owner, 0, pattern in flawed, _subscription(entries[pattern]))
            for topic in found:
                if pattern != topic and topic in wanted:
                    continue  # its own entry says what it is worth
                if topic in expanded:
                    what = f"matches {topic}, as {expanded[topic]} does"
                    file.report_at(place, what, f"write an entry for {topic} itself, or narrow one pattern")
                    break
                expanded[topic] = pattern
                if pattern in entries:
                    topic_of_row.append(publications.topics[topic])
                    entry_of_row.append(len(rows) - 1)
    topics, entries_of_rows = np.array(topic_of_row, dtype=np.int32), np.array(entry_of_row, dtype=np.int64)
    return checked_subscriptions(rows.columns(), topics, entries_of_rows)


def _topics_of(
    document: Document,
    place: Place,
    pattern: str,
    matches: Mapping[str, list[str]],
    publications: PublicationRows,
) -> list[str]:
    """The published topics that a topic or pattern stands for; none after reporting why."""
    file, published = document.file, publications.published
    if pattern not in matches and pattern in published:
        return [pattern]  # its errors have been reported where it is published
    found, error = matches.get(pattern, []), filter_error(pattern)
    if error is not None:
        file.report_at(place, *error)
        return []
    if found or not document.names["publishers"]:
        return found
    if pattern in document.names["topics"]:
        file.report_at(place, "no publisher has it", "add it to a publisher, or remove it here")
    else:
        file.report_at(place, *document.unmatched(pattern, published))
    return []


def _subscription(entry: SubscriptionEntry) -> tuple[float | None, ...]:
    utility = entry.utility
    worth: tuple[float | None, ...] = (UtilityShape.LOG, 0.0, None, None)
    if utility is not None:
        worth = (utility.code, utility.weight, utility.threshold, utility.freshness_seconds)
    limits = (entry.max_latency_seconds, entry.max_latency_share, entry.max_separation_seconds)
    return (*worth, *limits, entry.guaranteed or None)
