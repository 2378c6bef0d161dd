"""The columns of one Parquet table: read as NumPy arrays, and checked all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario.mistakes import described, nearest, unknown_key
from triagemq.scenario.model import Codes, Floats, Integers
from triagemq.scenario.reader import Reader

__all__ = ["Column", "TableColumns"]

MOST_OF_A_KIND = 20
"""Rows named for one kind of problem; the rest are counted."""

Message = Callable[[int], tuple[str, str]]


@dataclass(frozen=True)
class Column:
    """What a column holds, and whether it must be there."""

    kind: Literal["text", "number", "list"]
    required: bool = False

    @property
    def words(self) -> str:
        """The kind for a message."""
        return {"text": "text", "number": "numbers", "list": "lists of numbers"}[self.kind]


class TableColumns:
    """A table whose columns have the right names and types; what is in them is checked column by column."""

    def __init__(self, table: Any, reader: Reader) -> None:
        self._table = table
        self._reader = reader

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @classmethod
    def read(cls, path: Path, reader: Reader, columns: Mapping[str, Column]) -> TableColumns | None:
        """Open a table; None, after reporting, if it is none or its columns are not the expected ones."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        texts = [name for name, column in columns.items() if column.kind == "text"]
        try:
            table = pq.read_table(path, read_dictionary=texts, partitioning=None)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            reader.report(
                None, "table", f"is not a Parquet table: {reason}", "write it with triagemq.scenario.save"
            )
            return None
        if not _right_columns(table.schema, reader, columns):
            return None
        return cls(table, reader)

    def report_rows(self, rows: NDArray[np.int64], column: str, message: Message) -> None:
        """Report the same kind of problem of many rows: the first of them, and how many more there are."""
        for row in rows[:MOST_OF_A_KIND].tolist():
            self._reader.report(row + 1, column or "row", *message(row))
        more = len(rows) - MOST_OF_A_KIND
        if more > 0:
            self._reader.report(
                int(rows[MOST_OF_A_KIND]) + 1,
                column or "row",
                f"and {more} more",
                "correct them in the same way",
            )

    def check(self, column: str, values: Floats, right: NDArray[np.bool_], fix: str) -> None:
        """Report the rows where a number is not right."""
        # -1 stands for a null where one is not allowed; it is never right.
        self.report_rows(
            np.flatnonzero(~right),
            column,
            lambda row: (
                "is empty" if self._is_null(column, row) else f"is {described(float(values[row]))}",
                fix,
            ),
        )

    def _is_null(self, column: str, row: int) -> bool:
        return column not in self._table.column_names or not self._table[column][row].is_valid

    def numbers(self, column: str, default: float) -> Floats:
        """A column of numbers, `default` where there is none."""
        if column not in self._table.column_names:
            return np.full(len(self), default)
        values = _whole(self._table[column].cast("float64", safe=False).fill_null(default))
        return np.array(values.to_numpy(zero_copy_only=False), dtype=np.float64) + 0.0  # -0.0 is 0.0

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
        known: Mapping[str, int],
        kind: str,
        section: str,
        mistake: Callable[[str], tuple[str, str] | None] = lambda name: None,
    ) -> Integers:
        """A column of names of other things as their numbers; unknown ones are reported and -1."""
        codes, values = self._encoded(column)
        index = np.array([known.get(value or "", -1) for value in values] + [-1], dtype=np.int32)[codes]

        def message(row: int) -> tuple[str, str]:
            name = values[codes[row]] if codes[row] >= 0 else None
            if not name:
                return "is empty", f"write the name of a {kind}"
            return mistake(name) or self._reader.unknown(kind, name, known, section)

        self.report_rows(np.flatnonzero(index < 0), column, message)
        return index

    def kinds(self, column: str, kinds: type[IntEnum], default: IntEnum | None = None) -> Codes:
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

    def lists(self, column: str) -> _Lists:
        """A column of lists of numbers; an empty list where there is none, NaN for a null in a list."""
        if column not in self._table.column_names:
            return _Lists(np.empty(0), np.zeros(len(self), dtype=np.int64))
        array = _whole(self._table[column])
        lengths = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        flat = array.flatten().cast("float64", safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
        return _Lists(np.array(flat, dtype=np.float64), np.asarray(lengths, dtype=np.int64))

    def check_pairs(self, column: str, owner: Integers, topic: Integers) -> None:
        """Report rows that repeat the owner and topic of a row before."""
        known = np.flatnonzero((owner >= 0) & (topic >= 0))
        pair = owner[known].astype(np.int64) << 32 | topic[known]
        order = np.argsort(pair, kind="stable")
        again = pair[order][1:] == pair[order][:-1]
        if not again.any():
            return
        first = dict(zip(known[order][1:][again].tolist(), known[order][:-1][again].tolist(), strict=True))
        self.report_rows(
            np.sort(known[order][1:][again]),
            "topic",
            lambda row: (
                f"repeats row {first[row] + 1}: the same {column} and topic",
                "remove one of the two rows",
            ),
        )

    def _encoded(self, column: str) -> tuple[Integers, list[str | None]]:
        """Per row the number of its value, -1 for null; and the values."""
        import pyarrow as pa

        values = self._table[column]
        dictionary = pa.types.is_dictionary(values.type)
        array = _whole(values.unify_dictionaries() if dictionary else values.dictionary_encode())
        codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.asarray(codes, dtype=np.int32), array.dictionary.to_pylist()


class _Lists:
    """A column of lists: all numbers in one array, and where each list ends."""

    def __init__(self, flat: Floats, lengths: NDArray[np.int64]) -> None:
        self._flat = flat
        self._ends = np.concatenate([[0], np.cumsum(lengths)])

    def __getitem__(self, row: int) -> Floats:
        return self._flat[self._ends[row] : self._ends[row + 1]]


def _whole(chunked: Any) -> Any:
    """A column as one array."""
    import pyarrow as pa

    combined = chunked.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], type=combined.type)
    return combined


def _right_columns(schema: Any, reader: Reader, columns: Mapping[str, Column]) -> bool:
    right = True
    for name in schema.names:
        if schema.names.count(name) > 1:
            reader.report(None, name, "stands in the table twice", "remove one of the two columns")
            return False
        if name not in columns:
            reader.report(None, name, "is not a known column", unknown_key((name,), None, list(columns)).fix)
            right = False
        elif not _has_kind(schema.field(name).type, columns[name].kind):
            type_name = schema.field(name).type
            reader.report(None, name, f"is a column of {type_name}", f"write {columns[name].words}")
            right = False
    for name, column in columns.items():
        if column.required and name not in schema.names:
            reader.report(None, name, "is missing", f"add a column of {column.words}")
            right = False
    return right


def _has_kind(kind: Any, wanted: str) -> bool:
    import pyarrow as pa

    if wanted == "list":
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _has_kind(
            kind.value_type, "number"
        )
    if wanted == "number":
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind))
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
