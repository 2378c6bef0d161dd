"""Forecast and simulation, cell by cell: is a forecast as exact as it claims?

A cell is a subscription, or a priority class. Its success or mean latency is outside where forecast and simulation
differ by more than 2 % and the simulation's 95 % interval; a percentile, by more than 20 % and the interval. Where the
forecast flags a cell it names a reason and the error to expect, and claims nothing closer. A figure that a simulation
of this length does not know within 5 % (a percentile: 10 %) is compared only where the two differ by more than the
allowed share and twice the interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import ParameterError
from triagemq.forecast import REASONS, Forecast, forecast, summary
from triagemq.forecast.model import CLAIMED
from triagemq.plain import plain
from triagemq.plan import Plan
from triagemq.plan.demands import copy_rate
from triagemq.scenario import Floats, Scenario
from triagemq.simulate import SimulationResult, simulate

ALLOWED = CLAIMED
"""An unflagged success or mean claims to be within this share of the truth; so many of the cells may fail by chance."""

TAIL_ALLOWED = 0.2
"""An unflagged percentile is within this share of the truth in nine cells of ten."""
TAIL_FAILING = 0.1

KNOWN = 0.05
"""A figure is compared if the simulation knows it within this share."""
WIDE = 2.0
"""A figure with a wider interval is compared where the difference exceeds this many intervals: rarely by chance."""

MEANS = ("latency", "success")
PERCENTILES = {"p95": 0.95, "p99": 0.99}

MOST_HISTOGRAMS = 20_000
"""With more subscriptions than these their percentiles are not counted: 16 KB each, in every thread."""

DEFAULT_COPIES = 20_000_000
"""Simulated in all replications together, by default."""
DEFAULT_REPLICATIONS = 16

Kind = Literal["subscription", "class"]
Truths = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Figure:
    """One figure of every cell, in seconds or as a share.

    `interval` is half the simulation's 95 % interval, `expected_error` the relative error that the forecast states, 0
    where it claims to be right: within the share `allowed`.

    >>> figure = Figure(np.array([1.0, 1.0]), np.array([1.01, 1.5]), np.array([0.005, 0.01]), np.zeros(2))
    >>> figure.outside
    array([False,  True])
    """

    forecast: Floats
    simulated: Floats
    interval: Floats
    expected_error: Floats
    allowed: float = ALLOWED

    @property
    def flagged(self) -> Truths:
        """Where the forecast says that it is approximate."""
        return self.expected_error > 0

    @property
    def known(self) -> Truths:
        """Where the simulation is precise enough to compare with."""
        larger = np.fmax(self.simulated, np.where(np.isfinite(self.forecast), self.forecast, 0.0))
        return np.isfinite(self.simulated) & (self.interval <= max(KNOWN, self.allowed / 2) * larger)

    @property
    def comparable(self) -> Truths:
        """Where the two can be compared; what grows without end, or never arrives, has no figure to compare."""
        finite = np.isfinite(self.forecast) & np.isfinite(self.simulated)
        difference = np.abs(np.where(finite, self.forecast - self.simulated, 0.0))
        beyond = difference > self.allowed * self.simulated + WIDE * self.interval
        return finite & (self.known | beyond)

    @property
    def not_known(self) -> Truths:
        """Where a longer simulation could say more."""
        return np.isfinite(self.forecast) & np.isfinite(self.simulated) & ~self.comparable

    @property
    def outside(self) -> Truths:
        """Where they differ by more than is allowed."""
        difference = np.abs(np.where(self.comparable, self.forecast - self.simulated, 0.0))
        return self.comparable & (difference > self.allowed * self.simulated + self.interval)

    @property
    def error(self) -> Floats:
        """The relative error of the forecast, of the forecast itself where the simulation is 0; NaN if not compared."""
        difference = np.abs(np.where(self.comparable, self.forecast - self.simulated, np.nan))
        from_zero = np.where(difference > 0, 1.0, difference)
        return np.divide(difference, self.simulated, out=from_zero, where=self.simulated > 0)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """All cells of a scenario under a plan. `names` holds what a cell is called by, column by column.

    `flags` are in words what the forecast says makes each cell approximate; None where it claims to be right.
    `sampled` is the share of each cell's subscriptions whose forecast is that of a sample of events, not of formulas.
    """

    kind: Kind
    names: Mapping[str, tuple[Any, ...]]
    figures: Mapping[str, Figure]
    flags: tuple[str | None, ...]
    sampled: Floats
    replications: int
    simulated_seconds: float

    def __len__(self) -> int:
        return len(self.flags)

    @property
    def percentiles(self) -> tuple[str, ...]:
        """Those of PERCENTILES that were simulated."""
        return tuple(name for name in PERCENTILES if name in self.figures)

    def comparable(self, figures: Sequence[str] = MEANS) -> Truths:
        """Cells of which at least one of the figures is compared."""
        return _any([self.figures[name].comparable for name in figures])

    def outside_unflagged(self, figures: Sequence[str] = MEANS) -> Truths:
        """Cells with a figure that is wrong and claims to be right."""
        return _any([self.figures[name].outside & ~self.figures[name].flagged for name in figures])

    def outside_flagged(self, figures: Sequence[str] = MEANS) -> Truths:
        """The other cells with a figure that is outside: the forecast says so itself."""
        return _any([self.figures[name].outside for name in figures]) & ~self.outside_unflagged(figures)

    @property
    def holds(self) -> bool:
        """Whether the forecast is as true as it claims: so few cells are outside without a flag as it allows for."""

        def few(figures: Sequence[str], failing: float) -> bool:
            return bool(self.outside_unflagged(figures).sum() <= failing * self.comparable(figures).sum())

        return few(MEANS, ALLOWED) and all(few((name,), TAIL_FAILING) for name in self.percentiles)

    def counts(self, figures: Sequence[str] = MEANS) -> dict[str, int]:
        """How many cells there are of which kind, by some of the figures."""
        return {
            "cells": len(self),
            "judged": int(self.comparable(figures).sum()),
            "flagged": sum(flag is not None for flag in self.flags),
            "outside_unflagged": int(self.outside_unflagged(figures).sum()),
            "outside_flagged": int(self.outside_flagged(figures).sum()),
            "not_known": int(_any([self.figures[name].not_known for name in figures]).sum()),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One object per cell: its names, every figure, the reason in words; null for what is unknown or infinite."""
        rows = [
            dict(zip(self.names, values, strict=True)) for values in zip(*self.names.values(), strict=True)
        ]
        for name, figure in self.figures.items():
            columns = {
                "forecast": figure.forecast,
                "simulated": figure.simulated,
                "ci95": figure.interval,
                "error": figure.error,
                "expected_error": np.where(figure.flagged, figure.expected_error, np.nan),
            }
            for place, row in enumerate(rows):
                row[name] = {
                    **{key: plain(values[place]) for key, values in columns.items()},
                    "known": bool(figure.known[place]),
                    "outside": bool(figure.outside[place]),
                }
        for row, flag, sampled in zip(rows, self.flags, self.sampled, strict=True):
            row |= {"flag": flag, "sampled": float(sampled)}
        return rows

    def as_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        return {
            "by": self.kind,
            "replications": self.replications,
            "simulated_seconds": self.simulated_seconds,
            "allowed": ALLOWED,
            "counts": self.counts(),
            "allowed_percentiles": TAIL_ALLOWED,
            "counts_percentiles": {name: self.counts((name,)) for name in self.percentiles},
            "holds": self.holds,
            "cells": self.rows(),
        }


def compare(
    scenario: Scenario,
    plan: Plan,
    *,
    kind: Kind = "subscription",
    duration_seconds: float | None = None,
    replications: int = DEFAULT_REPLICATIONS,
    seed: int = 0,
    threads: int | None = None,
    sample: bool = True,
    progress: Callable[[float], None] | None = None,
) -> Comparison:
    """Forecast and simulate a plan, and put the two side by side.

    Every replication runs for `duration_seconds`; without it, for as long as it takes to make twenty million copies
    in all of them together. What an overloaded port has not delivered by then is not delivered, as in the forecast.
    Without `sample` the forecast is by formulas alone.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.lab.generators import table2
    >>> scenario = table2(seed=1)
    >>> found = compare(scenario, make_plan(scenario, drops="exponential"), duration_seconds=20.0, replications=4)
    >>> len(found) == len(scenario.subscriptions), sorted(found.figures)
    (True, ['latency', 'p95', 'p99', 'success'])
    """
    if replications < 2:
        raise ParameterError("replications", f"is {replications}; an interval needs 2 or more")
    predicted = forecast(scenario, plan, formulas=not sample)
    seconds = duration_seconds or seconds_for_copies(scenario, DEFAULT_COPIES / replications)
    simulated = simulate(
        scenario,
        plan,
        duration_seconds=seconds,
        replications=replications,
        seed=seed,
        threads=threads,
        progress=progress,
        percentiles=kind == "subscription" and len(scenario.subscriptions) <= MOST_HISTOGRAMS,
    )
    cells = _by_class if kind == "class" else _by_subscription
    names, figures, flags = cells(scenario, plan, predicted, simulated)
    sampled = predicted.sampled.astype(np.float64)
    if kind == "class":
        level = plan.subscription_class
        sampled = np.array([sampled[level == each].mean() for each in names["priority_class"]])
    return Comparison(kind, names, figures, flags, sampled, replications, replications * seconds)


def seconds_for_copies(scenario: Scenario, copies: float) -> float:
    """How long it takes until so many copies are made, on average."""
    rate = copy_rate(scenario)
    if rate <= 0:
        raise ParameterError("scenario", "publishes nothing that anyone subscribes to")
    return copies / rate


def _any(truths: Sequence[Truths]) -> Truths:
    return np.asarray(np.any(truths, axis=0))


_Cells = tuple[dict[str, tuple[Any, ...]], dict[str, Figure], tuple[str | None, ...]]


def _by_subscription(
    scenario: Scenario, plan: Plan, predicted: Forecast, simulated: SimulationResult
) -> _Cells:
    subscriptions, found = scenario.subscriptions, simulated.subscriptions
    names: dict[str, tuple[Any, ...]] = {
        "subscriber": tuple(scenario.subscribers.name[row] for row in subscriptions.subscriber),
        "topic": tuple(scenario.topics.name[row] for row in subscriptions.topic),
        "priority_class": tuple(plan.subscription_class.tolist()),
    }
    figures = {
        "latency": Figure(
            predicted.latency_seconds,
            found.mean_latency_seconds,
            found.ci95_seconds,
            predicted.latency_error,
        ),
        "success": Figure(
            predicted.success,
            found.success_rate,
            # All or nothing of n copies is no certainty: what happens once in n / 3 may well have failed to.
            np.where(found.success_ci95 > 0, found.success_ci95, 3 / np.maximum(found.count, 1)),
            predicted.success_error,
        ),
    }
    if len(subscriptions) <= MOST_HISTOGRAMS:
        for name, share in PERCENTILES.items():
            figures[name] = Figure(
                predicted.percentile_seconds(share),
                getattr(found, f"{name}_seconds"),
                getattr(found, f"{name}_ci95_seconds"),
                predicted.latency_error,
                TAIL_ALLOWED,
            )
    return names, figures, tuple(REASONS[code] or None for code in predicted.reason)


def _by_class(scenario: Scenario, plan: Plan, predicted: Forecast, simulated: SimulationResult) -> _Cells:
    rows = summary(scenario, plan, predicted)["classes"]
    levels = [row["priority_class"] for row in rows]
    found = simulated.classes
    place = {int(level): row for row, level in enumerate(found.priority_class)}

    def column(name: str) -> Floats:
        return np.array([np.nan if row[name] is None else row[name] for row in rows], dtype=np.float64)

    def measured(values: Floats) -> Floats:
        return np.array([values[place[level]] if level in place else np.nan for level in levels])

    def claimed(name: str) -> Floats:
        """As doubtful as its subscriptions in the mean; within what is claimed, it is not."""
        error = column(name)
        return np.where(error > CLAIMED, error, 0.0)

    figures = {
        "latency": Figure(
            column("mean_latency_seconds"),
            measured(found.mean_latency_seconds),
            measured(found.ci95_seconds),
            claimed("latency_error"),
        ),
        "success": Figure(
            column("success_rate"),
            measured(found.success_rate),
            measured(found.success_ci95),
            claimed("success_error"),
        ),
    }
    for name in PERCENTILES:
        figures[name] = Figure(
            column(f"{name}_seconds"),
            measured(getattr(found, f"{name}_seconds")),
            measured(getattr(found, f"{name}_ci95_seconds")),
            claimed("latency_error"),
            TAIL_ALLOWED,
        )
    doubtful = _any([figure.flagged | ~np.isfinite(figure.forecast) for figure in figures.values()])
    names: dict[str, tuple[Any, ...]] = {
        "priority_class": tuple(levels),
        "subscriptions": tuple(row["subscriptions"] for row in rows),
    }
    return names, figures, tuple(row["flag"] if doubtful[each] else None for each, row in enumerate(rows))
