"""What an experiment of a paper is: how much to run, what it finds, and what the paper printed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from triagemq.errors import ParameterError

Progress = Callable[[float], None]
"""Called with the share done, from 0 to 1."""

Style = Literal["line", "dashed", "marks"]

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is run; 0 or nothing where an experiment has no use for the number.

    `seeds` counts scenarios, each drawn and simulated with its own seed. `publications` are simulated for every
    seed and configuration. `repeats` counts random problems of an experiment without simulation. Experiments with
    real packets take `seconds` for each load in `rho` and each number of `subscribers`; those of MIDAS observe so many
    simulated `seconds` with each seed.
    """

    seeds: int = 0
    publications: int = 0
    repeats: int = 0
    rho: tuple[float, ...] = ()
    subscribers: tuple[int, ...] = ()
    seconds: float = 0.0

    def with_values(self, **requested: Any) -> Effort:
        """This effort with what a user asks for instead; what the experiment has no use for is refused."""
        used = self.as_json()
        given = {name: number for name, number in requested.items() if number is not None}
        for name, number in given.items():
            if name not in used:
                raise ParameterError(
                    name, f"means nothing to this experiment; it takes {' and '.join(used)}; leave it out"
                )
            least = 0.01 if name == "rho" else 1
            if min(number if isinstance(number, tuple) else (number,)) < least:
                raise ParameterError(name, f"is {number}; must be {least} or more")
        return replace(self, **given)

    def as_json(self) -> dict[str, Any]:
        """What the experiment has a use for."""
        return {name: number for name, number in asdict(self).items() if number}


@dataclass(frozen=True, slots=True)
class PrintedTable:
    """Figures as a person reads them: ours, and what the paper printed where it printed something."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(
        cls, title: str, items: Iterable[Item], *columns: tuple[str, Callable[[Item], str]]
    ) -> PrintedTable:
        """A row for each item; of a column its heading, and what stands there of an item.

        >>> PrintedTable.of("squares", [2, 3], ("of", str), ("is", lambda side: f"{side * side} m²")).rows
        (('2', '4 m²'), ('3', '9 m²'))
        """
        rows = tuple(tuple(cell(item) for _, cell in columns) for item in items)
        return cls(title, tuple(heading for heading, _ in columns), rows)


@dataclass(frozen=True, slots=True)
class Series:
    """One line or one set of bars of a plot; NaN is a gap.

    Lines are what was measured, dashed lines what a model says, bare marks what the paper printed.
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float, ...]
    style: Style = "line"

    @classmethod
    def of(cls, name: str, x: Iterable[float | str], y: ArrayLike, style: Style = "line") -> Series:
        values = tuple(each if isinstance(each, str) else float(each) for each in x)
        return cls(name, values, tuple(np.asarray(y, dtype=np.float64).tolist()), style)


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of an experiment's figure."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    logarithmic: bool = False
    logarithmic_x: bool = False
    bars: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """What was printed, our figure, and why they differ: two sentences.

    `timed` ones are execution times, which are not the same twice.
    """

    subject: str
    printed: str
    ours: str
    why: str
    timed: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """What our figures must show. `worst` is the case that comes closest to failing, or fails."""

    statement: str
    holds: bool
    worst: str


@dataclass(frozen=True, slots=True)
class Findings:
    """All that one run of an experiment found. `figures` are the bare numbers, ready for JSON."""

    tables: tuple[PrintedTable, ...]
    panels: tuple[Panel, ...]
    differences: tuple[Difference, ...]
    claims: tuple[Claim, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment of a paper, and how much of it is run by default and in a hurry."""

    title: str
    run: Callable[[Effort, Progress], Findings]
    normal: Effort
    quick: Effort


def tracked(items: Iterable[Item], progress: Progress) -> Iterator[tuple[Item, Progress]]:
    """Every item with the progress of its part, which is done when the next one is due.

    >>> shares = []
    >>> for item, part in tracked("ab", shares.append):
    ...     part(0.5)
    >>> shares
    [0.25, 0.5, 0.75, 1.0]
    """
    listed = list(items)
    for number, item in enumerate(listed):
        yield item, part_of(progress, number, len(listed))
        progress((number + 1) / len(listed))


def part_of(progress: Progress, number: int, count: int) -> Progress:
    """Progress of part `number` of `count` equal ones.

    >>> shares = []
    >>> part_of(shares.append, 1, 4)(0.5)
    >>> shares
    [0.375]
    """
    return lambda share: progress((number + share) / count)


def percent(share: float, digits: int = 1) -> str:
    """A share as a percentage.

    >>> percent(0.5834), percent(float("nan"))
    ('58.3 %', '-')
    """
    return f"{100 * share:.{digits}f} %" if np.isfinite(share) else "-"


def signed(gain: float) -> str:
    """A gain as a percentage with its sign.

    >>> signed(0.36), signed(-0.024)
    ('+36 %', '-2 %')
    """
    return f"{100 * gain:+.0f} %"


def duration(seconds: float) -> str:
    """A duration in the unit a person would use.

    >>> duration(0.00412), duration(20.04), duration(float("inf")), duration(float("nan"))
    ('4.12 ms', '20.0 s', 'no bound', '-')
    """
    if np.isnan(seconds):
        return "-"
    if np.isinf(seconds):
        return "no bound"
    if seconds >= 10:
        return f"{seconds:.1f} s"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.{0 if seconds >= 0.1 else 2}f} ms"
