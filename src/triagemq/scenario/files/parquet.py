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
from triagemq.scenario.files.document import empirical_mean, sample_mistake
from triagemq.scenario.files.explain import Problems, nearest, topic_mistake, unknown_key
from triagemq.scenario.files.rules import (
    PUBLICATION_COLUMNS,
    SUBSCRIPTION_COLUMNS,
    Column,
    Flags,
    Message,
    PublicationRows,
    SampleStore,
    SubscriptionRows,
    checked_publications,
    checked_subscriptions,
)
from triagemq.scenario.kinds import ArrivalProcess, SizeDistribution, UtilityShape
from triagemq.scenario.model import (
    NONE,
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
    columns = TableColumns.read(path, problems, PUBLICATION_COLUMNS)
    if columns is None:
        return None
    columns.owner = columns.references("publisher", publishers, "publishers of scenario.yaml")
    columns.topic, topics = columns.names("topic")
    names = list(topics)
    wrong = np.array([topic_mistake(name) is not None for name in topics] + [False])[columns.topic]

    def message(row: int) -> tuple[str, str]:
        what, fix = topic_mistake(names[columns.topic[row]]) or ("", "")
        return f"{names[columns.topic[row]]!r} {what}", fix

    columns.report(np.flatnonzero(wrong), "topic", message)
    columns.flawed |= wrong | columns.repeated("publisher")
    return checked_publications(columns, topics)


def read_subscription_table(
    path: Path,
    problems: Problems,
    subscribers: Collection[str],
    publications: PublicationRows,
    listed_topics: Collection[str] = (),
) -> SubscriptionRows | None:
    """All subscriptions of a table; None, after reporting, where it cannot be read at all."""
    columns = TableColumns.read(path, problems, SUBSCRIPTION_COLUMNS)
    if columns is None:
        return None

    def not_a_topic(name: str) -> tuple[str, str] | None:
        if has_wildcard(name):
            return f"{name!r} is a pattern", "write one row per topic"
        if name in listed_topics:
            return f"nobody publishes {name}", "add a row to the publications, or remove this one"
        return None

    columns.owner = columns.references("subscriber", subscribers, "subscribers of scenario.yaml")
    columns.topic = columns.references("topic", publications.published, "the publications", not_a_topic)
    columns.flawed |= columns.repeated("subscriber")
    return checked_subscriptions(columns)


class TableColumns:
    """A table whose columns have the right names and types; what is in them is checked column by column."""

    in_table = True
    owner: Integers
    topic: Integers

    def __init__(self, table: Any, problems: Problems, columns: Mapping[str, Column]) -> None:
        self._table = table
        self._problems = problems
        self._columns = columns
        self.flawed: Flags = np.zeros(len(self), dtype=np.bool_)

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
        if not _right_columns(table.schema, problems, columns):
            return None
        return cls(table, problems, columns)

    def report(
        self, rows: NDArray[np.int64], column: str, message: Message, at: NDArray[np.int64] | None = None
    ) -> None:
        """Report the same kind of problem of many rows: the first of them, and how many more there are."""
        lines = 1 + (rows if at is None else at[rows])
        for row, line in zip(rows[:MOST_OF_A_KIND].tolist(), lines.tolist(), strict=False):
            self._problems.report(line, column or "row", *message(row))
        more = len(rows) - MOST_OF_A_KIND
        if more > 0:
            line = int(lines[MOST_OF_A_KIND])
            self._problems.report(line, column or "row", f"and {more} more", "correct them in the same way")

    def numbers(self, column: str) -> tuple[Floats, Flags]:
        """A column of numbers or truths, and where there is one that is not the model's none."""
        if column not in self._table.column_names:
            return np.zeros(len(self)), np.zeros(len(self), dtype=np.bool_)
        numbers = _whole(self._table[column].cast("float64", safe=False))
        given = numbers.is_valid().to_numpy(zero_copy_only=False)
        values = numbers.fill_null(0.0).to_numpy(zero_copy_only=False)
        values = np.array(values, dtype=np.float64) + 0.0  # -0.0 is 0.0
        return values, given & (values != NONE.get(column))

    def names(self, column: str) -> tuple[Integers, dict[str, int]]:
        """A column of names as numbers, and the number of each name; an empty name is reported and -1."""
        codes, values = self._encoded(column)
        numbers: dict[str, int] = {}
        for value in values:
            if value:
                numbers.setdefault(value, len(numbers))
        index = np.array([numbers.get(value or "", -1) for value in values] + [-1], dtype=np.int32)[codes]
        self.report(np.flatnonzero(index < 0), column, lambda row: ("is empty", f"write a {column}"))
        return index, numbers

    def references(
        self,
        column: str,
        known: Collection[str],
        section: str,
        mistake: Callable[[str], tuple[str, str] | None] = lambda name: None,
    ) -> Integers:
        """A column of names of other things as their numbers; unknown ones are reported and -1."""
        codes, values = self._encoded(column)
        numbers = {name: number for number, name in enumerate(known)}
        index = np.array([numbers.get(value or "", -1) for value in values] + [-1], dtype=np.int32)[codes]

        def message(row: int) -> tuple[str, str]:
            name = values[codes[row]] if codes[row] >= 0 else None
            if not name:
                return "is empty", f"write the name of a {column}"
            return mistake(name) or self._problems.unknown(column, name, known, section)

        self.report(np.flatnonzero(index < 0), column, message)
        return index

    def words(self, column: str, kinds: type[IntEnum], default: IntEnum | None) -> Codes:
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

        self.report(np.flatnonzero(index < 0), column, message)
        return index

    def repeated(self, column: str) -> Flags:
        """Rows that repeat the owner and topic of a row before; they are reported."""
        known = np.flatnonzero((self.owner >= 0) & (self.topic >= 0))
        pair = self.owner[known].astype(np.int64) << 32 | self.topic[known]
        order = np.argsort(pair, kind="stable")
        again = pair[order][1:] == pair[order][:-1]
        rows = known[order][1:][again]
        first = dict(zip(rows.tolist(), known[order][:-1][again].tolist(), strict=True))
        self.report(
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
        wrong: dict[int, tuple[str, str]] = {}
        lists = zip(self._lists("size_values", rows), self._lists("size_weights", rows), strict=True)
        for row, (values, weights) in zip(rows.tolist(), lists, strict=True):
            key = values, weights or (1.0,) * len(values)
            mistake = None if key in seen else sample_mistake(*key)
            if mistake is not None:
                path, what, fix = mistake
                where = "size_weights: " if path[:1] == ("weights",) else ""
                number = f"number {int(path[1]) + 1} " if len(path) > 1 else ""
                wrong[row] = f"{where}{number}{what}", fix
                continue
            if key not in seen:
                seen[key] = store.add(*key), empirical_mean(*key)
            sample[row], mean[row] = seen[key]
        self.report(np.array(list(wrong), dtype=np.int64), "size_values", wrong.__getitem__)
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


def _right_columns(schema: Any, problems: Problems, columns: Mapping[str, Column]) -> bool:
    right = True
    for name in schema.names:
        if schema.names.count(name) > 1:
            problems.report(None, name, "stands in the table twice", "remove one of the two columns")
            return False
        if name not in columns:
            problems.report(
                None, name, "is not a known column", unknown_key((name,), None, list(columns)).fix
            )
            right = False
        elif not _has_kind(schema.field(name).type, columns[name].kind):
            type_name = schema.field(name).type
            problems.report(None, name, f"is a column of {type_name}", f"write {columns[name].words}")
            right = False
    for name, column in columns.items():
        if column.required and name not in schema.names:
            problems.report(None, name, "is missing", f"add a column of {column.words}")
            right = False
    return right


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
    table = scenario.publications
    columns = {
        "publisher": _name_column(table.publisher, scenario.publishers.name),
        "topic": _name_column(table.topic, scenario.topics.name),
        "rate_per_second": _number_column(table.rate_per_second),
        "size_bytes": _number_column(table.size_bytes),
    }
    if (table.size_distribution != SizeDistribution.EXPONENTIAL).any():
        columns["size_distribution"] = _word_column(table.size_distribution, SizeDistribution)
    if (table.arrival_process != ArrivalProcess.POISSON).any():
        columns["arrival_process"] = _word_column(table.arrival_process, ArrivalProcess)
    _add_optional(columns, table, PUBLICATION_COLUMNS)
    if len(scenario.size_samples):
        columns["size_values"] = _list_column(table.size_samples, scenario.size_samples.size_bytes)
        columns["size_weights"] = _list_column(table.size_samples, scenario.size_samples.weight)
    _write(columns, path)


def write_subscription_table(scenario: Scenario, path: Path) -> None:
    """One row per subscription."""
    table = scenario.subscriptions
    columns = {
        "subscriber": _name_column(table.subscriber, scenario.subscribers.name),
        "topic": _name_column(table.topic, scenario.topics.name),
        "utility_shape": _word_column(table.utility_shape, UtilityShape),
        "utility_weight": _number_column(table.utility_weight),
    }
    _add_optional(columns, table, SUBSCRIPTION_COLUMNS)
    _write(columns, path)


def _name_column(rows: Integers, names: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(names, pa.string()))


def _word_column(codes: Codes, kinds: type[IntEnum]) -> Any:
    return _name_column(codes.astype(np.int32), tuple(kind.name.lower() for kind in sorted(kinds)))


def _number_column(values: Floats, missing: NDArray[np.bool_] | None = None) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.float64(), mask=missing)


def _add_optional(
    columns: dict[str, Any], table: Publications | Subscriptions, known: Mapping[str, Column]
) -> None:
    """Numbers and truths that are given somewhere; a column at the model's none is left out."""
    import pyarrow as pa

    for name, column in known.items():
        if column.kind in ("number", "truth") and not column.required:
            values = getattr(table, name)
            missing = values == NONE[name]
            if missing.all():
                continue
            truths = column.kind == "truth"
            columns[name] = pa.array(values == 1) if truths else _number_column(values, missing)


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
