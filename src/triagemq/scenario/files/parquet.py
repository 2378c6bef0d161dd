"""publications.parquet and subscriptions.parquet: read as columns that `rules.py` checks, and written.

One row is one publication or subscription; a null is "none". A problem names the row, counted from 1, where a problem
of a text file names the line. Columns, never a loop over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from triagemq.mqttsn.filters import has_wildcard
from triagemq.scenario.files.document import empirical_mean, sample_error
from triagemq.scenario.files.explain import Problems, nearest, topic_error, unknown_key
from triagemq.scenario.files.rules import (
    PUBLICATION_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    Column,
    Flags,
    Message,
    PublicationRows,
    Rows,
    SampleStore,
    SubscriptionRows,
    checked_publications,
    checked_subscriptions,
)
from triagemq.scenario.kinds import SizeDistribution
from triagemq.scenario.model import (
    DEFAULTS,
    Codes,
    Floats,
    Integers,
    Publications,
    Scenario,
    SizeSamples,
    Subscriptions,
)

MOST_OF_A_KIND = 20
"""Rows named for one kind of problem; the rest are counted."""


def read_publication_table(
    path: Path, problems: Problems, publishers: Collection[str]
) -> PublicationRows | None:
    """All publications of a table; None, after reporting, where it cannot be read at all."""
    table = TableColumns.read(path, problems, PUBLICATION_COLUMNS)
    if table is None:
        return None
    owner = table.references("publisher", publishers, "publishers of scenario.yaml")
    topic, topics = table.names("topic")
    errors = [topic_error(name) for name in topics]
    invalid = np.array([error is not None for error in errors] + [False])[topic]

    def message(row: int) -> tuple[str, str]:
        what, fix = errors[topic[row]] or ("", "")
        return f"{list(topics)[topic[row]]!r} {what}", fix

    table.report_rows(np.flatnonzero(invalid), "topic", message)
    rows = table.rows(owner, topic, invalid | table.repeated("publisher", owner, topic))
    empirical = rows.codes["size_distribution"] == SizeDistribution.EMPIRICAL
    samples, sample, rows.values["mean"] = table.samples(empirical)
    rows.given["mean"] = sample >= 0
    return checked_publications(rows, samples, sample, topics)


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

    def not_a_topic(name: str) -> tuple[str, str] | None:
        if has_wildcard(name):
            return f"{name!r} is a pattern", "write one row per topic"
        if name in listed_topics:
            return f"no publisher has {name}", "add a row to the publications, or remove this one"
        return None

    owner = table.references("subscriber", subscribers, "subscribers of scenario.yaml")
    topic = table.references("topic", publications.published, "the publications", not_a_topic)
    return checked_subscriptions(table.rows(owner, topic, table.repeated("subscriber", owner, topic)))


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

        texts = [name for name, column in columns.items() if column.kind == "text"]
        try:
            table = pq.read_table(path, read_dictionary=texts, partitioning=None)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            problems.report(
                None, "table", f"is not a Parquet table: {reason}", "write it with triagemq.scenario.save"
            )
            return None
        if not _valid_columns(table.schema, problems, columns):
            return None
        return cls(table, problems, columns)

    def rows(self, owner: Integers, topic: Integers, invalid: Flags) -> Rows:
        """All columns of numbers, truths and words; words that are not known are reported."""
        values: dict[str, Floats] = {}
        given: dict[str, Flags] = {}
        codes: dict[str, Codes] = {}
        for name, column in self._columns.items():
            if column.kinds is not None:
                codes[name] = self._words(name, column.kinds, None if column.required else DEFAULTS[name])
            elif column.kind in ("number", "truth"):
                values[name], given[name] = self._numbers(name)
        return Rows(True, owner, topic, invalid, values, given, codes, self._report)

    def report_rows(self, rows: NDArray[np.int64], column: str, message: Message) -> None:
        self._report(rows, rows, column, message)

    def _report(self, at: NDArray[np.int64], rows: NDArray[np.int64], column: str, message: Message) -> None:
        """Report the same kind of problem of many rows: the first of them, and how many more there are."""
        lines = (1 + at[: MOST_OF_A_KIND + 1]).tolist()
        for row, line in zip(rows[:MOST_OF_A_KIND].tolist(), lines, strict=False):
            self._problems.report(line, column or "row", *message(row))
        more = len(rows) - MOST_OF_A_KIND
        if more > 0:
            self._problems.report(lines[-1], column or "row", f"and {more} more", "correct them likewise")

    def _numbers(self, column: str) -> tuple[Floats, Flags]:
        """A column of numbers or truths, and where there is one that is not the model's none."""
        if column not in self._table.column_names:
            return np.zeros(len(self)), np.zeros(len(self), dtype=np.bool_)
        numbers = _whole(self._table[column].cast("float64", safe=False))
        given = numbers.is_valid().to_numpy(zero_copy_only=False)
        values = numbers.fill_null(0.0).to_numpy(zero_copy_only=False)
        values = np.array(values, dtype=np.float64) + 0.0  # -0.0 is 0.0
        return values, given & (values != DEFAULTS.get(column))

    def names(self, column: str) -> tuple[Integers, dict[str, int]]:
        """A column of names as numbers, and the number of each name; an empty name is reported and -1."""
        codes, values = self._encoded(column)
        numbers: dict[str, int] = {}
        for value in values:
            if value:
                numbers.setdefault(value, len(numbers))
        index = np.array([numbers.get(value or "", -1) for value in values] + [-1], dtype=np.int32)[codes]
        self.report_rows(np.flatnonzero(index < 0), column, lambda row: ("is empty", f"write a {column}"))
        return index, numbers

    def references(
        self,
        column: str,
        known: Collection[str],
        section: str,
        describe: Callable[[str], tuple[str, str] | None] = lambda name: None,
    ) -> Integers:
        """A column of names of other things as their numbers; unknown ones are reported and -1."""
        codes, values = self._encoded(column)
        numbers = {name: number for number, name in enumerate(known)}
        index = np.array([numbers.get(value or "", -1) for value in values] + [-1], dtype=np.int32)[codes]

        def message(row: int) -> tuple[str, str]:
            name = values[codes[row]] if codes[row] >= 0 else None
            if not name:
                return "is empty", f"write the name of a {column}"
            return describe(name) or self._problems.unknown(column, name, known, section)

        self.report_rows(np.flatnonzero(index < 0), column, message)
        return index

    def _words(self, column: str, kinds: type[IntEnum], default: IntEnum | None) -> Codes:
        """A column of words of a closed vocabulary as their codes; without a default, a null is reported."""
        empty = -1 if default is None else int(default)
        if column not in self._table.column_names:
            return np.full(len(self), empty, dtype=np.int8)
        codes, values = self._encoded(column)
        known = {kind.name.lower(): int(kind) for kind in kinds}
        index = np.array([known.get(value or "", -1) for value in values] + [empty], dtype=np.int8)[codes]

        def message(row: int) -> tuple[str, str]:
            word = (values[codes[row]] if codes[row] >= 0 else None) or ""
            close = nearest(word, known)
            what = f"{word!r} is not one of {', '.join(known)}" if word else "is empty"
            return what, f"did you mean {close}?" if close else f"write {next(iter(known))}"

        self.report_rows(np.flatnonzero(index < 0), column, message)
        return index

    def repeated(self, column: str, owner: Integers, topic: Integers) -> Flags:
        """Rows that repeat the owner and topic of a row before; they are reported."""
        known = np.flatnonzero((owner >= 0) & (topic >= 0))
        pair = owner[known].astype(np.int64) << 32 | topic[known]
        order = np.argsort(pair, kind="stable")
        again = pair[order][1:] == pair[order][:-1]
        rows = known[order][1:][again]
        first = dict(zip(rows.tolist(), known[order][:-1][again].tolist(), strict=True))
        self.report_rows(
            np.sort(rows),
            "topic",
            lambda row: (
                f"repeats row {first[row] + 1}: the same {column} and topic",
                "remove one of the two rows",
            ),
        )
        repeated = np.zeros(len(self), dtype=np.bool_)
        repeated[rows] = True
        return repeated

    def samples(self, empirical: Flags) -> tuple[SizeSamples, Integers, Floats]:
        """Empirical distributions, per row the one it uses or -1, and per row the mean of it.

        The loop is over rows with an empirical distribution only, and equal lists are looked at once.
        """
        store = SampleStore()
        sample = np.full(len(self), -1, dtype=np.int32)
        mean = np.zeros(len(self))
        rows = np.flatnonzero(empirical)
        seen: dict[tuple[tuple[float, ...], ...], tuple[int, float]] = {}
        invalid: dict[int, tuple[str, str]] = {}
        lists = zip(self._lists("size_values", rows), self._lists("size_weights", rows), strict=True)
        for row, (values, weights) in zip(rows.tolist(), lists, strict=True):
            key = values, weights or (1.0,) * len(values)
            error = None if key in seen else sample_error(*key)
            if error is not None:
                path, what, fix = error
                where = "size_weights: " if path[:1] == ("weights",) else ""
                number = f"number {int(path[1]) + 1} " if len(path) > 1 else ""
                invalid[row] = f"{where}{number}{what}", fix
                continue
            if key not in seen:
                seen[key] = store.add(*key), empirical_mean(*key)
            sample[row], mean[row] = seen[key]
        self.report_rows(np.array(list(invalid), dtype=np.int64), "size_values", invalid.__getitem__)
        return store.table(), sample, mean

    def _lists(self, column: str, rows: NDArray[np.int64]) -> list[tuple[float, ...]]:
        """Lists of numbers of some rows; an empty one where there is none, NaN for a null in a list."""
        if column not in self._table.column_names:
            return [()] * len(rows)
        lists = self._table[column].take(rows).to_pylist()
        return [tuple(np.nan if one is None else float(one) for one in each or ()) for each in lists]

    def _encoded(self, column: str) -> tuple[Integers, list[str | None]]:
        """Per row the number of its value, -1 for null; and the values."""
        import pyarrow as pa

        values = self._table[column]
        dictionary = pa.types.is_dictionary(values.type)
        array = _whole(values.unify_dictionaries() if dictionary else values.dictionary_encode())
        codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.asarray(codes, dtype=np.int32), array.dictionary.to_pylist()


def _whole(chunked: Any) -> Any:
    """A column as one array."""
    import pyarrow as pa

    combined = chunked.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], type=combined.type)
    return combined


def _valid_columns(schema: Any, problems: Problems, columns: Mapping[str, Column]) -> bool:
    valid = True
    for name in schema.names:
        if schema.names.count(name) > 1:
            problems.report(None, name, "stands in the table twice", "remove one of the two columns")
            return False
        if name not in columns:
            problems.report(None, name, "is not a known column", unknown_key((name,), list(columns)).fix)
            valid = False
        elif not _has_kind(schema.field(name).type, columns[name].kind):
            type_name = schema.field(name).type
            problems.report(None, name, f"is a column of {type_name}", f"write {columns[name].words}")
            valid = False
    for name, column in columns.items():
        if column.required and name not in schema.names:
            problems.report(None, name, "is missing", f"add a column of {column.words}")
            valid = False
    return valid


def _has_kind(kind: Any, wanted: str) -> bool:
    import pyarrow as pa

    if wanted == "list":
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _has_kind(
            kind.value_type, "number"
        )
    if wanted == "truth":
        return bool(pa.types.is_boolean(kind) or pa.types.is_null(kind))
    if wanted == "number":
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


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
        values = getattr(table, name, None)
        if column.kind == "list" or values is None or (column.kind == "text" and column.kinds is None):
            continue
        default = values == DEFAULTS.get(name)
        if not column.required and default.all():
            continue
        if column.kinds is not None:
            words = tuple(kind.name.lower() for kind in sorted(column.kinds))
            columns[name] = _name_column(values.astype(np.int32), words)
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
