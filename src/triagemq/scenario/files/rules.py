"""What publications and subscriptions may be: one table of columns and rules for YAML and for Parquet.

Rows come from a file (`rows.py`) or from a table (`parquet.py`) as a source of columns, and are checked all at once. A
row whose numbers are out of bounds, or that was wrong before, is not looked at by the rules between its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario.files.explain import counted, described
from triagemq.scenario.files.quantities import number_text, unit_of
from triagemq.scenario.kinds import ArrivalProcess, SizeDistribution, UtilityShape
from triagemq.scenario.model import (
    NONE,
    Codes,
    Floats,
    Integers,
    Publications,
    SizeSamples,
    Subscriptions,
    take,
)

Flags = NDArray[np.bool_]
Message = Callable[[int], tuple[str, str]]
"""Of a row, what is wrong and what to write."""
Report = Callable[[NDArray[np.int64], str, Message], None]
"""Reports one problem of several rows: the rows, the column or none, and what is wrong and what to write in each."""


@dataclass(frozen=True)
class Column:
    """What a column holds, where that stands in an entry of a file, and what its numbers may be."""

    kind: Literal["text", "number", "truth", "list"]
    path: tuple[str, ...] = ()
    required: bool = False
    above: float | None = None
    least: float | None = None
    most: float | None = None

    @property
    def words(self) -> str:
        """The kind for a message."""
        words = {"text": "text", "number": "numbers", "truth": "true and false", "list": "lists of numbers"}
        return words[self.kind]

    def right(self, values: Floats) -> Flags:
        """Which numbers are within the bounds; NaN and infinity never are."""
        right = np.isfinite(values)
        if self.above is not None:
            right &= values > self.above
        if self.least is not None:
            right &= values >= self.least
        if self.most is not None:
            right &= values <= self.most
        return right

    def fix(self, name: str, null: str) -> str:
        """What to write for a number that is out of bounds, where `null` says that there is none."""
        unit = unit_of(name) or ""
        limit = f", or {null} for no limit" if NONE.get(name) == np.inf else ""
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
    "size_distribution": Column("text", ("sizes", "distribution")),
    "arrival_process": Column("text", ("arrivals", "process")),
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
    "utility_shape": Column("text", ("utility", "shape"), required=True),
    "utility_weight": Column("number", ("utility", "weight"), required=True, least=0),
    "utility_threshold": Column("number", ("utility", "threshold"), above=0, most=1),
    "freshness_seconds": Column("number", ("utility", "freshness_seconds"), above=0),
    "max_latency_seconds": Column("number", ("max_latency_seconds",), above=0),
    "max_latency_share": Column("number", ("max_latency_share",), above=0, most=1),
    "max_separation_seconds": Column("number", ("max_separation_seconds",), above=0),
    "guaranteed": Column("truth", ("guaranteed",), least=0, most=1),
}


class RowSource(Protocol):
    """Rows of a file or of a table, column by column.

    `owner` and `topic` are numbers, -1 where they are not known. `flawed` rows have been complained about already.
    """

    in_table: bool
    owner: Integers
    topic: Integers
    flawed: Flags

    def numbers(self, column: str) -> tuple[Floats, Flags]:
        """A column of numbers, or of truths as 0 and 1, and in which rows one is given."""

    def words(self, column: str, kinds: type[IntEnum], default: IntEnum | None) -> Codes:
        """A column of words of a closed vocabulary as their codes; -1 where a word is wrong, and has been reported."""

    def samples(self, empirical: Flags) -> tuple[SizeSamples, Integers, Floats]:
        """Empirical sizes, per row the one it uses or -1, and per row the mean of it."""

    def report(
        self, rows: NDArray[np.int64], column: str, message: Message, at: NDArray[np.int64] | None = None
    ) -> None:
        """Report the same kind of problem of rows; `at` says which rows of the source they are, if not the same."""


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
    broken: Callable[[CheckedRows], Flags]
    says: Callable[[CheckedRows, int], tuple[str, str]]


class CheckedRows:
    """The columns of one kind of row while they are checked. `given` says where a number is not the model's none."""

    def __init__(self, source: RowSource, columns: Mapping[str, Column]) -> None:
        self.source = source
        self.missing = "is empty" if source.in_table else "is missing"
        self.values: dict[str, Floats] = {}
        self.given: dict[str, Flags] = {}
        self.codes: dict[str, Codes] = {}
        self.wrong: Flags = source.flawed | (source.owner < 0) | (source.topic < 0)
        for name, column in columns.items():
            if column.kind in ("number", "truth"):
                self._read_numbers(name, column)

    def _read_numbers(self, name: str, column: Column) -> None:
        values, given = self.source.numbers(name)
        outside = given & ~column.right(values)
        self.values[name], self.given[name] = np.where(given, values, NONE.get(name, np.nan)), given
        fix = column.fix(name, "null" if self.source.in_table else "leave it out")
        self.report(outside, name, lambda row: (f"is {described(float(values[row]))}", fix))

    def read_words(self, name: str, kinds: type[IntEnum], default: IntEnum | None = None) -> Codes:
        self.codes[name] = self.source.words(name, kinds, default)
        self.wrong |= self.codes[name] < 0
        return self.codes[name]

    def report(self, broken: Flags, column: str, message: Message) -> None:
        if broken.any():
            self.source.report(np.flatnonzero(broken), column, message)
            self.wrong |= broken

    def apply(self, rules: tuple[RowRule, ...]) -> None:
        for rule in rules:
            self.report(rule.broken(self) & ~self.wrong, rule.column, partial(rule.says, self))

    def lacks(self, *columns: str) -> Flags:
        """Rows where none of the columns is given."""
        given = np.zeros(len(self.wrong), dtype=np.bool_)
        for name in columns:
            given |= self.given[name]
        return ~given

    def text(self, column: str, row: int) -> str:
        return number_text(self.values[column][row])

    def inverse(self, column: str) -> Floats:
        """One over a column; infinity where that is too large a number, or nothing is given."""
        with np.errstate(divide="ignore", over="ignore"):
            return 1 / self.values[column]


def _meaningless(column: str, words: str, kind: IntEnum, kinds: type[IntEnum], of: str) -> RowRule:
    """A number that belongs to one kind only."""

    def says(rows: CheckedRows, row: int) -> tuple[str, str]:
        other = kinds(rows.codes[words][row]).name.lower()
        what = f"is {rows.text(column, row)}, which means nothing for {other} {of}"
        removed = "write null" if rows.source.in_table else "remove it"
        return what, f"{removed}: other {of} than {kind.name.lower()} have none"

    return RowRule(column, lambda rows: rows.given[column] & (rows.codes[words] != kind), says)


def _needed(
    column: str, words: str, kind: IntEnum, fix: Callable[[CheckedRows, int], str], why: str = ""
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

    def fix(rows: CheckedRows, row: int) -> str:
        in_file = f", as in arrivals: {{process: {name}, {example}}}"
        return f"write {wanted}{'' if rows.source.in_table else in_file}"

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
            if rows.source.in_table
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
    source: RowSource, topics: dict[str, int], doubtful: Collection[str] = ()
) -> PublicationRows:
    """The publications of a source that are right; what is wrong is reported, and its topics are doubtful too."""
    rows = CheckedRows(source, PUBLICATION_COLUMNS)
    distribution = rows.read_words("size_distribution", SizeDistribution, SizeDistribution.EXPONENTIAL)
    process = rows.read_words("arrival_process", ArrivalProcess, ArrivalProcess.POISSON)
    empirical = distribution == SizeDistribution.EMPIRICAL
    samples, sample, mean = source.samples(empirical)
    rows.values["mean"], rows.given["mean"] = mean, sample >= 0
    rows.wrong |= empirical & (sample < 0)
    rows.apply(PUBLICATION_RULES)
    values, given = rows.values, rows.given
    often = rows.inverse("min_separation_seconds")
    values["rate_per_second"] = np.where(given["rate_per_second"], values["rate_per_second"], often)
    values["size_bytes"] = np.where(given["size_bytes"], values["size_bytes"], values.pop("mean"))
    table = Publications(
        publisher=source.owner,
        topic=source.topic,
        size_distribution=distribution,
        size_samples=sample,
        arrival_process=process,
        **values,
    )
    names = list(topics)
    wrong_topics = np.unique(table.topic[rows.wrong & (table.topic >= 0)])
    kept = np.flatnonzero(~rows.wrong)
    return PublicationRows(
        table=take(table, kept) if rows.wrong.any() else table,
        samples=samples,
        topics=dict(topics),
        published=dict(topics),
        doubtful=frozenset(doubtful).union(names[topic] for topic in wrong_topics),
        report=lambda wrong, column, message: source.report(wrong, column, message, kept),
    )


def checked_subscriptions(
    source: RowSource, topic: Integers | None = None, entry: NDArray[np.int64] | None = None
) -> SubscriptionRows:
    """The subscriptions of a source that are right; what is wrong is reported.

    Where a row of the source stands for several, `topic` and `entry` have the topic and the source's row of each.
    """
    rows = CheckedRows(source, SUBSCRIPTION_COLUMNS)
    shape = rows.read_words("utility_shape", UtilityShape)
    rows.apply(SUBSCRIPTION_RULES)
    guaranteed = rows.values.pop("guaranteed").astype(np.int8)
    table = Subscriptions(
        subscriber=source.owner,
        topic=source.topic,
        utility_shape=shape,
        guaranteed=guaranteed,
        **rows.values,
    )
    kept = np.flatnonzero(~rows.wrong) if entry is None else entry[~rows.wrong[entry]]
    if topic is not None and entry is not None:
        table = replace(take(table, kept), topic=topic[~rows.wrong[entry]])
    elif rows.wrong.any():
        table = take(table, kept)
    return SubscriptionRows(table, lambda wrong, column, message: source.report(wrong, column, message, kept))
