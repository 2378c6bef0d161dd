"""What publications and subscriptions may be: one table of columns and rules for YAML and for Parquet.

Rows come from a file (`rows.py`) or from a table (`parquet.py`) as columns, and are checked all at once. A row whose
numbers are out of bounds, or that was invalid before, is not looked at by the rules between its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario.files.explain import counted, described, number_text, unit_of
from triagemq.scenario.kinds import ArrivalProcess, SizeDistribution, UtilityShape
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
Message = Callable[[int], tuple[str, str]]
"""Of a row, the error and what to write."""
Report = Callable[[NDArray[np.int64], NDArray[np.int64], str, Message], None]
"""Reports one problem of several rows: where they stand in the file or table, their numbers for the message, the column
or none, and the message."""
RowReport = Callable[[NDArray[np.int64], str, Message], None]
"""The same of rows that stand where their numbers say."""


@dataclass(frozen=True)
class Column:
    """What a column holds, where that stands in an entry of a file, and what its numbers or words may be."""

    kind: Literal["text", "number", "truth", "list"]
    path: tuple[str, ...] = ()
    required: bool = False
    above: float | None = None
    least: float | None = None
    most: float | None = None
    kinds: type[IntEnum] | None = None

    @property
    def words(self) -> str:
        """The kind for a message."""
        words = {"text": "text", "number": "numbers", "truth": "true and false", "list": "lists of numbers"}
        return words[self.kind]

    def within(self, values: Floats) -> Flags:
        """Which numbers are within the bounds; NaN and infinity never are."""
        above = -np.inf if self.above is None else self.above
        least = -np.inf if self.least is None else self.least
        most = np.inf if self.most is None else self.most
        return np.isfinite(values) & (values > above) & (values >= least) & (values <= most)

    def fix(self, name: str, null: str) -> str:
        """What to write for a number that is out of bounds, where `null` says that there is none."""
        unit = unit_of(name) or ""
        limit = f", or {null} for no limit" if DEFAULTS.get(name) == np.inf else ""
        if unit.startswith("a "):
            return f"write {unit}{limit}"
        bound = f" above {number_text(self.above)}" if self.above is not None else ""
        bound = f" of at least {number_text(self.least)}" if self.least is not None else bound
        return f"write a number{bound}{counted(name)}{limit}"


PUBLICATION_COLUMNS = {
    "publisher": Column("text", required=True),
    "topic": Column("text", required=True),
    "rate_per_second": Column("number", ("rate_per_second",), required=True, above=0),
    "size_bytes": Column("number", ("size_bytes",), required=True, above=0),
    "size_distribution": Column("text", ("sizes", "distribution"), kinds=SizeDistribution),
    "arrival_process": Column("text", ("arrivals", "process"), kinds=ArrivalProcess),
    "pareto_shape": Column("number", ("arrivals", "shape"), above=1),
    "on_seconds": Column("number", ("arrivals", "on_seconds"), above=0),
    "off_seconds": Column("number", ("arrivals", "off_seconds"), above=0),
    "min_separation_seconds": Column("number", ("min_separation_seconds",), above=0),
    "max_separation_seconds": Column("number", ("max_separation_seconds",), above=0),
    "max_size_bytes": Column("number", ("max_size_bytes",), above=0),
    "size_values": Column("list", ("sizes", "values")),
    "size_weights": Column("list", ("sizes", "weights")),
}
SUBSCRIPTION_COLUMNS = {
    "subscriber": Column("text", required=True),
    "topic": Column("text", required=True),
    "utility_shape": Column("text", ("utility", "shape"), required=True, kinds=UtilityShape),
    "utility_weight": Column("number", ("utility", "weight"), required=True, least=0),
    "utility_threshold": Column("number", ("utility", "threshold"), above=0, most=1),
    "freshness_seconds": Column("number", ("utility", "freshness_seconds"), above=0),
    "max_latency_seconds": Column("number", ("max_latency_seconds",), above=0),
    "max_latency_share": Column("number", ("max_latency_share",), above=0, most=1),
    "max_separation_seconds": Column("number", ("max_separation_seconds",), above=0),
    "guaranteed": Column("truth", ("guaranteed",), least=0, most=1),
}


@dataclass(frozen=True)
class PublicationRows:
    """All valid publications. `topics` numbers every topic that anyone publishes or that is listed.

    `doubtful` are topics with an invalid publication, about which nothing more is reported.
    """

    table: Publications
    samples: SizeSamples
    topics: dict[str, int]
    published: dict[str, int]
    doubtful: frozenset[str]
    report: RowReport


@dataclass(frozen=True)
class SubscriptionRows:
    """All valid subscriptions."""

    table: Subscriptions
    report: RowReport


class SampleStore:
    """Empirical size distributions, equal ones stored once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[bytes, bytes], int] = {}

    def add(self, values: Sequence[float], weights: Sequence[float]) -> int:
        """The row of a distribution."""
        key = np.array(values, dtype=np.float64).tobytes(), np.array(weights, dtype=np.float64).tobytes()
        return self._rows.setdefault(key, len(self._rows))

    def table(self) -> SizeSamples:
        """All distributions seen."""
        return SizeSamples(
            tuple(np.frombuffer(values) for values, _ in self._rows),
            tuple(np.frombuffer(weights) for _, weights in self._rows),
        )


class RowRule(NamedTuple):
    """Rows that are `broken` have a problem at `column`; `says` what, and what to write."""

    column: str
    broken: Callable[[Rows], Flags]
    says: Callable[[Rows, int], tuple[str, str]]


@dataclass
class Rows:
    """Publications or subscriptions of a file or of a table, as columns.

    `owner` and `topic` are numbers, -1 where they are not known; codes are -1 where a word is not known. `given` says
    where a number is not the default. `invalid` rows have been reported.
    """

    in_table: bool
    owner: Integers
    topic: Integers
    invalid: Flags
    values: dict[str, Any]
    given: dict[str, Flags]
    codes: dict[str, Any]
    report_rows: Report

    @property
    def missing(self) -> str:
        return "is empty" if self.in_table else "is missing"

    def check(self, columns: Mapping[str, Column], rules: tuple[RowRule, ...]) -> None:
        """Report every number out of bounds, and every row that breaks a rule."""
        self.invalid = self.invalid | (self.owner < 0) | (self.topic < 0)
        for codes in self.codes.values():
            self.invalid |= codes < 0
        for name, values in self.values.items():
            self.values[name] = np.where(self.given[name], values, DEFAULTS.get(name, np.nan))
            if name in columns:
                fix = columns[name].fix(name, "null" if self.in_table else "leave it out")
                self._report(
                    self.given[name] & ~columns[name].within(values), name, partial(self._is, values, fix)
                )
        for rule in rules:
            self._report(rule.broken(self) & ~self.invalid, rule.column, partial(rule.says, self))

    @staticmethod
    def _is(values: Floats, fix: str, row: int) -> tuple[str, str]:
        return f"is {described(float(values[row]))}", fix

    def _report(self, broken: Flags, column: str, message: Message) -> None:
        if broken.any():
            rows = np.flatnonzero(broken)
            self.report_rows(rows, rows, column, message)
            self.invalid |= broken

    def valid_report(
        self, valid: NDArray[np.int64], rows: NDArray[np.int64], column: str, message: Message
    ) -> None:
        """Report problems of rows that are numbered among the `valid` ones."""
        self.report_rows(valid[rows], rows, column, message)

    def lacks(self, *columns: str) -> Flags:
        """Rows where none of the columns is given."""
        given = np.zeros(len(self.invalid), dtype=np.bool_)
        for name in columns:
            given |= self.given[name]
        return ~given

    def text(self, column: str, row: int) -> str:
        return number_text(self.values[column][row])

    def inverse(self, column: str) -> Floats:
        """One over a column; infinity where that is too large a number, or nothing is given."""
        with np.errstate(divide="ignore", over="ignore"):
            inverse: Floats = np.reciprocal(self.values[column])
        return inverse


def _meaningless(column: str, words: str, kind: IntEnum, kinds: type[IntEnum], of: str) -> RowRule:
    """A number that belongs to one kind only."""

    def says(rows: Rows, row: int) -> tuple[str, str]:
        other = kinds(rows.codes[words][row]).name.lower()
        what = f"is {rows.text(column, row)}, which means nothing for {other} {of}"
        removed = "write null" if rows.in_table else "remove it"
        return what, f"{removed}: other {of} than {kind.name.lower()} have none"

    return RowRule(column, lambda rows: rows.given[column] & (rows.codes[words] != kind), says)


def _needed(
    column: str, words: str, kind: IntEnum, fix: Callable[[Rows, int], str], why: str = ""
) -> RowRule:
    """A number that a row of one kind must have."""
    return RowRule(
        column,
        lambda rows: rows.lacks(column) & (rows.codes[words] == kind),
        lambda rows, row: (f"{rows.missing}{why}", fix(rows, row)),
    )


def _arrival_rules(
    column: str, process: ArrivalProcess, wanted: str, example: str
) -> tuple[RowRule, RowRule]:
    name = process.name.lower()

    def fix(rows: Rows, row: int) -> str:
        in_file = f", as in arrivals: {{process: {name}, {example}}}"
        return f"write {wanted}{'' if rows.in_table else in_file}"

    return (
        _needed(column, "arrival_process", process, fix, f", and {name} arrivals need it"),
        _meaningless(column, "arrival_process", process, ArrivalProcess, "arrivals"),
    )


PUBLICATION_RULES = (
    RowRule(
        "rate_per_second",
        lambda rows: rows.lacks("rate_per_second", "min_separation_seconds"),
        lambda rows, row: (
            rows.missing,
            "add rate_per_second, a number above 0, or min_separation_seconds",
        ),
    ),
    RowRule(
        "min_separation_seconds",
        lambda rows: (
            rows.given["min_separation_seconds"] & ~np.isfinite(rows.inverse("min_separation_seconds"))
        ),
        lambda rows, row: ("is too small", "write at least 1e-9"),
    ),
    RowRule(
        "rate_per_second",
        lambda rows: (
            rows.given["rate_per_second"]
            & (rows.values["rate_per_second"] > (1 + 1e-9) * rows.inverse("min_separation_seconds"))
        ),
        lambda rows, row: (
            f"is {rows.text('rate_per_second', row)}, more than events "
            f"{rows.text('min_separation_seconds', row)} seconds apart can be",
            f"write at most {number_text(rows.inverse('min_separation_seconds')[row])}, "
            "or a smaller min_separation_seconds",
        ),
    ),
    RowRule(
        "max_separation_seconds",
        lambda rows: rows.values["max_separation_seconds"] < rows.values["min_separation_seconds"],
        lambda rows, row: (
            f"is {rows.text('max_separation_seconds', row)}, less than min_separation_seconds",
            f"write at least {rows.text('min_separation_seconds', row)}",
        ),
    ),
    *_arrival_rules("pareto_shape", ArrivalProcess.PARETO, "a number above 1", "shape: 2.5"),
    *_arrival_rules("on_seconds", ArrivalProcess.ON_OFF, "seconds above 0", "on_seconds: 2, off_seconds: 8"),
    *_arrival_rules("off_seconds", ArrivalProcess.ON_OFF, "seconds above 0", "on_seconds: 2, off_seconds: 8"),
    RowRule(
        "size_bytes",
        lambda rows: rows.lacks("size_bytes", "mean"),
        lambda rows, row: (rows.missing, "add size_bytes: 60, in bytes"),
    ),
    RowRule(
        "size_bytes",
        lambda rows: (
            rows.given["size_bytes"]
            & rows.given["mean"]
            & ~np.isclose(rows.values["size_bytes"], rows.values["mean"], rtol=1e-6, atol=0)
        ),
        lambda rows, row: (
            f"is {rows.text('size_bytes', row)}, and the mean of the sizes is {rows.text('mean', row)}",
            "leave size_bytes out beside sizes",
        ),
    ),
)
SUBSCRIPTION_RULES = (
    RowRule(
        "utility_weight",
        lambda rows: rows.lacks("utility_weight"),
        lambda rows, row: (rows.missing, "write a number of at least 0"),
    ),
    _needed(
        "utility_threshold",
        "utility_shape",
        UtilityShape.STEP,
        lambda rows, row: (
            "write a share above 0, at most 1"
            if rows.in_table
            else f"write step:{rows.text('utility_weight', row)}@0.8"
        ),
        ", and a step needs it",
    ),
    _meaningless("utility_threshold", "utility_shape", UtilityShape.STEP, UtilityShape, "shapes"),
    RowRule(
        "max_latency_share",
        lambda rows: rows.given["max_latency_share"] & rows.lacks("max_latency_seconds"),
        lambda rows, row: ("is a share within no time", "add max_latency_seconds: 0.2"),
    ),
    RowRule(
        "max_latency_seconds",
        lambda rows: rows.given["guaranteed"] & rows.lacks("max_latency_seconds"),
        lambda rows, row: (f"{rows.missing}, and a guarantee needs it", "add max_latency_seconds: 0.008"),
    ),
)


def checked_publications(
    rows: Rows, samples: SizeSamples, sample: Integers, topics: dict[str, int], doubtful: Collection[str] = ()
) -> PublicationRows:
    """The valid publications; others are reported, and their topics are doubtful too.

    `sample` is the row of `samples` that an empirical distribution has, and the column `mean` its mean.
    """
    empirical = rows.codes["size_distribution"] == SizeDistribution.EMPIRICAL
    rows.invalid = rows.invalid | empirical & (sample < 0)
    rows.check(PUBLICATION_COLUMNS, PUBLICATION_RULES)
    values, given = rows.values, rows.given
    often = rows.inverse("min_separation_seconds")
    values["rate_per_second"] = np.where(given["rate_per_second"], values["rate_per_second"], often)
    values["size_bytes"] = np.where(given["size_bytes"], values["size_bytes"], values.pop("mean"))
    table = Publications(publisher=rows.owner, topic=rows.topic, size_samples=sample, **rows.codes, **values)
    names = list(topics)
    invalid_topics = np.unique(table.topic[rows.invalid & (table.topic >= 0)])
    valid = np.flatnonzero(~rows.invalid)
    return PublicationRows(
        table=take(table, valid) if rows.invalid.any() else table,
        samples=samples,
        topics=dict(topics),
        published=dict(topics),
        doubtful=frozenset(doubtful).union(names[topic] for topic in invalid_topics),
        report=partial(rows.valid_report, valid),
    )


def checked_subscriptions(
    rows: Rows, topic: Integers | None = None, entry: NDArray[np.int64] | None = None
) -> SubscriptionRows:
    """The valid subscriptions; others are reported.

    Where a row stands for several subscriptions, `topic` and `entry` have the topic and the row of each.
    """
    rows.check(SUBSCRIPTION_COLUMNS, SUBSCRIPTION_RULES)
    guaranteed = rows.values.pop("guaranteed").astype(np.int8)
    table = Subscriptions(
        subscriber=rows.owner, topic=rows.topic, guaranteed=guaranteed, **rows.codes, **rows.values
    )
    valid = np.flatnonzero(~rows.invalid) if entry is None else entry[~rows.invalid[entry]]
    if topic is not None and entry is not None:
        table = replace(take(table, valid), topic=topic[~rows.invalid[entry]])
    elif rows.invalid.any():
        table = take(table, valid)
    return SubscriptionRows(table, partial(rows.valid_report, valid))
