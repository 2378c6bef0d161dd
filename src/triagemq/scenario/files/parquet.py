"""publications.parquet and subscriptions.parquet: read as columns that `rows.py` checks, and written.

One row is one publication or subscription; a null is "none". A problem names the row, counted from 1, where a problem
of a text file names the line. Columns, never a loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from triagemq.mqttsn.filters import has_wildcard
from triagemq.scenario.files.document import empirical_mean, sample_error
from triagemq.scenario.files.explain import Problems, nearest, topic_error, unknown_key
from triagemq.scenario.files.rows import (
    PUBLICATION_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    Column,
    Flags,
    Message,
    PublicationRows,
    RowNumbers,
    Rows,
    SubscriptionRows,
    checked_publications,
    checked_subscriptions,
)
from triagemq.scenario.kinds import WORDS, SizeDistribution, codes_of
from triagemq.scenario.model import (
    DEFAULTS,
    Floats,
    Integers,
    Publications,
    Scenario,
    SizeSamples,
    Subscriptions,
)

MOST_OF_A_KIND = 20
"""Rows named for one kind of problem; the rest are counted."""

KIND_WORDS = {"text": "text", "number": "numbers", "truth": "true and false", "list": "lists of numbers"}


def read_publication_table(
    path: Path, problems: Problems, publishers: Collection[str]
) -> PublicationRows | None:
    """All publications of a table; None, after reporting, where it cannot be read at all."""
    table = TableColumns.read(path, problems, PUBLICATION_COLUMNS)
    if table is None:
        return None
    topics = [name for name in table.names("topic") if name and topic_error(name) is None]

    def unfit(name: str) -> Message:
        what, fix = topic_error(name) or ("", "")
        return f"{name!r} {what}", fix

    topic = table.numbered("topic", topics, unfit)
    rows = table.rows("publisher", publishers, "publishers of scenario.yaml", topic)
    samples, sample, rows.values["mean"] = table.samples(
        rows.codes["size_distribution"] == SizeDistribution.EMPIRICAL
    )
    rows.given["mean"] = sample >= 0
    return checked_publications(rows, sample, samples, {name: row for row, name in enumerate(topics)})


def read_subscription_table(
    path: Path,
    problems: Problems,
    subscribers: Collection[str],
    publications: PublicationRows,
    listed_topics: Collection[str] = (),
) -> SubscriptionRows | None:
    """All subscriptions of a table; None, after reporting, where it cannot be read at all."""
    table = TableColumns.read(path, problems, SUBSCRIPTION_COLUMNS)
    if table is None:
        return None

    def not_a_topic(name: str) -> Message:
        if has_wildcard(name):
            return f"{name!r} is a pattern", "write one row per topic"
        if name in listed_topics:
            return f"no publisher has {name}", "add a row to the publications, or remove this one"
        return problems.unknown("topic", name, publications.topics, "the publications")

    topic = table.numbered("topic", publications.topics, not_a_topic)
    return checked_subscriptions(table.rows("subscriber", subscribers, "subscribers of scenario.yaml", topic))


class TableColumns:
    """A table whose columns have the right names and types; what is in them is checked column by column."""

    def __init__(self, table: Any, problems: Problems, columns: Mapping[str, Column]) -> None:
        self._table = table
        self._problems = problems
        self._columns = columns

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @classmethod
    def read(cls, path: Path, problems: Problems, columns: Mapping[str, Column]) -> TableColumns | None:
        """Open a table; None, after reporting, if it is none or its columns are not the expected ones."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(path, partitioning=None)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            problems.report(
                None, "table", f"is not a Parquet table: {reason}", "write it with triagemq.scenario.save"
            )
            return None
        before = len(problems.problems)
        _check_columns(table.schema, problems, columns)
        return cls(table, problems, columns) if len(problems.problems) == before else None

    def rows(self, owner: str, owners: Collection[str], section: str, topic: Integers) -> Rows:
        """All columns of numbers, truths and words, and who owns each row; what is not known is reported."""
        owned = self.numbered(
            owner, owners, lambda name: self._problems.unknown(owner, name, owners, section)
        )
        self._check_repeated(owner, owned, topic)
        found = Rows(owned, topic, {}, {}, {}, self.report)
        for name, column in self._columns.items():
            if name in WORDS:
                words, default = codes_of(name), -1 if column.required else int(DEFAULTS[name])
                found.codes[name] = self.numbered(name, words, _unknown_word(words), default).astype(np.int8)
            elif column.kind in ("number", "truth"):
                found.values[name], found.given[name] = self._numbers(name)
        return found

    def report(self, rows: RowNumbers, column: str, messages: Iterable[Message]) -> None:
        """Report the same kind of problem of many rows: the first of them, and how many more there are."""
        lines = (1 + rows[: MOST_OF_A_KIND + 1]).tolist()
        for line, message in zip(lines[:MOST_OF_A_KIND], messages, strict=False):
            self._problems.report(line, column or "row", *message)
        more = len(rows) - MOST_OF_A_KIND
        if more > 0:
            self._problems.report(lines[-1], column or "row", f"and {more} more", "correct them likewise")

    def _numbers(self, column: str) -> tuple[Floats, Flags]:
        """A column of numbers or truths, and where there is one that is not the model's none."""
        if column not in self._table.column_names:
            return np.zeros(len(self)), np.zeros(len(self), dtype=np.bool_)
        numbers = self._table[column].cast("float64", safe=False)
        given = numbers.is_valid().to_numpy()
        values = numbers.fill_null(0.0).to_numpy() + 0.0  # -0.0 is 0.0
        return values, given & (values != DEFAULTS.get(column))

    def names(self, column: str) -> list[str | None]:
        """The distinct texts of a column."""
        names: list[str | None] = self._table[column].cast("string").unique().to_pylist()
        return names

    def numbered(
        self, column: str, known: Collection[str], unknown: Callable[[str], Message], default: int = -1
    ) -> Integers:
        """A column of texts as their places in `known`, null as the default; what is below 0 is reported."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if column not in self._table.column_names:
            return np.full(len(self), default, dtype=np.int32)
        texts = self._table[column].cast("string")
        places = pc.index_in(texts, value_set=pa.array(list(known), "string")).fill_null(-1).to_numpy()
        numbers = np.where(texts.is_null().to_numpy(), default, places).astype(np.int32)
        invalid = np.flatnonzero(numbers < 0)
        empty = "is empty", f"write {next(iter(known)) if column in WORDS else f'the name of a {column}'}"
        names = texts.take(invalid).to_pylist()
        self.report(invalid, column, (unknown(name) if name else empty for name in names))
        return numbers

    def _check_repeated(self, column: str, owner: Integers, topic: Integers) -> None:
        """Report rows that repeat the owner and topic of a row before."""
        known = np.flatnonzero((owner >= 0) & (topic >= 0))
        pair = owner[known].astype(np.int64) << 32 | topic[known]
        order = np.argsort(pair, kind="stable")
        again = pair[order][1:] == pair[order][:-1]
        rows = known[order][1:][again]
        first = dict(zip(rows.tolist(), known[order][:-1][again].tolist(), strict=True))
        rows = np.sort(rows)
        fix = "remove one of the two rows"
        what = (f"repeats row {first[row] + 1}: the same {column} and topic" for row in rows.tolist())
        self.report(rows, "topic", ((each, fix) for each in what))

    def samples(self, empirical: Flags) -> tuple[SizeSamples, Integers, Floats]:
        """Empirical distributions, per row the one it uses or -1, and per row the mean of it.

        The loop is over rows with an empirical distribution only, and equal lists are looked at once.
        """
        sample, mean = np.full(len(self), -1, dtype=np.int32), np.zeros(len(self))
        rows = np.flatnonzero(empirical)
        seen: dict[tuple[tuple[float, ...], ...], tuple[int, float]] = {}
        invalid: dict[int, Message] = {}
        lists = zip(self._lists("size_values", rows), self._lists("size_weights", rows), strict=True)
        for row, (values, weights) in zip(rows.tolist(), lists, strict=True):
            key = values, weights or (1.0,) * len(values)
            if key not in seen and (error := sample_error(*key)) is not None:
                path, what, fix = error
                where = "size_weights: " if path[:1] == ("weights",) else ""
                number = f"number {int(path[1]) + 1} " if len(path) > 1 else ""
                invalid[row] = f"{where}{number}{what}", fix
                continue
            sample[row], mean[row] = seen.setdefault(key, (len(seen), empirical_mean(*key)))
        self.report(np.array(list(invalid), dtype=np.int64), "size_values", invalid.values())
        values_of, weights_of = ([np.array(key[part]) for key in seen] for part in (0, 1))
        return SizeSamples(tuple(values_of), tuple(weights_of)), sample, mean

    def _lists(self, column: str, rows: RowNumbers) -> list[tuple[float, ...]]:
        """Lists of numbers of some rows; an empty one where there is none, NaN for a null in a list."""
        if column not in self._table.column_names:
            return [()] * len(rows)
        lists = self._table[column].take(rows).to_pylist()
        return [tuple(np.nan if one is None else float(one) for one in each or ()) for each in lists]


def _unknown_word(known: Mapping[str, int]) -> Callable[[str], Message]:
    def message(word: str) -> Message:
        close = nearest(word, known)
        fix = f"did you mean {close}?" if close else f"write {next(iter(known))}"
        return f"{word!r} is not one of {', '.join(known)}", fix

    return message


def _check_columns(schema: Any, problems: Problems, columns: Mapping[str, Column]) -> None:
    for name in schema.names:
        if schema.names.count(name) > 1:
            problems.report(None, name, "stands in the table twice", "remove one of the two columns")
            return
        if name not in columns:
            problems.report(None, name, "is not a known column", unknown_key(name, columns)[2])
        elif not _has_kind(schema.field(name).type, columns[name].kind):
            what = f"is a column of {schema.field(name).type}"
            problems.report(None, name, what, f"write {KIND_WORDS[columns[name].kind]}")
    for name, column in columns.items():
        if column.required and name not in schema.names:
            problems.report(None, name, "is missing", f"add a column of {KIND_WORDS[column.kind]}")


def _has_kind(kind: Any, wanted: str) -> bool:
    from pyarrow import types

    if wanted == "list":
        is_list = types.is_list(kind) or types.is_large_list(kind)
        return bool(is_list) and _has_kind(kind.value_type, "number")
    if wanted == "truth":
        return bool(types.is_boolean(kind) or types.is_null(kind))
    if wanted == "number":
        return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_null(kind))
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))


def write_publication_table(scenario: Scenario, path: Path) -> None:
    """One row per publication."""
    table, samples = scenario.publications, scenario.size_samples
    columns = {
        "publisher": _name_column(table.publisher, scenario.publishers.name),
        "topic": _name_column(table.topic, scenario.topics.name),
        **_stated_columns(table, PUBLICATION_COLUMNS),
    }
    if len(samples):
        columns["size_values"] = _list_column(table.size_samples, samples.size_bytes)
        columns["size_weights"] = _list_column(table.size_samples, samples.weight)
    _write(columns, path)


def write_subscription_table(scenario: Scenario, path: Path) -> None:
    """One row per subscription."""
    table = scenario.subscriptions
    columns = {
        "subscriber": _name_column(table.subscriber, scenario.subscribers.name),
        "topic": _name_column(table.topic, scenario.topics.name),
        **_stated_columns(table, SUBSCRIPTION_COLUMNS),
    }
    _write(columns, path)


def _name_column(rows: Integers, names: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(names, pa.string()))


def _stated_columns(table: Publications | Subscriptions, known: Mapping[str, Column]) -> dict[str, Any]:
    """Words, numbers and truths; a column that is at its default everywhere is left out, unless it is required."""
    import pyarrow as pa

    columns = {}
    for name, column in known.items():
        if not column.path or column.kind == "list":
            continue
        values = getattr(table, name)
        default = values == DEFAULTS.get(name)
        if not column.required and default.all():
            continue
        if name in WORDS:
            columns[name] = _name_column(values.astype(np.int32), tuple(codes_of(name)))
        elif column.kind == "truth":
            columns[name] = pa.array(values == 1)
        else:
            columns[name] = pa.array(values, pa.float64(), mask=None if column.required else default)
    return columns


def _list_column(rows: Integers, lists: tuple[Floats, ...]) -> Any:
    import pyarrow as pa

    ends = np.concatenate([[0], np.cumsum([len(values) for values in lists])])
    table = pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), pa.array(np.concatenate(lists), pa.float64())
    )
    return table.take(pa.array(rows, pa.int32(), mask=rows < 0))


def _write(columns: dict[str, Any], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path, compression="zstd")
