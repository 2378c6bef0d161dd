"""run_sweep(): every combination of settings and seeds that is not yet simulated, as Spark tasks.

A simulation is known by everything that its outcome depends on, and all of that is in its rows: no second record of
what is done could disagree with the results themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, TypeAdapter, ValidationError

from triagemq import __version__
from triagemq.errors import ParameterError
from triagemq.lab.sweep.jobs import Progress, ResultsTable, simulated, simulation_seconds
from triagemq.lab.sweep.variables import (
    VARIABLES,
    Value,
    checked_vary,
    planner_settings,
    varied_scenario,
)
from triagemq.pipeline.session import SparkOptions
from triagemq.plan import rounds
from triagemq.scenario import Scenario
from triagemq.simulate import simulate
from triagemq.theory.interval import t_quantile

DEFAULT_PUBLICATIONS = 100_000
_ARROW = {float: pa.float64(), int: pa.int64(), str: pa.string()}

SCHEMA = pa.schema(
    [
        ("scenario", pa.string()),
        ("scenario_fingerprint", pa.string()),
        ("version", pa.string()),  # of triagemq; a newer one may simulate differently
        *((name, _ARROW[variable.kind]) for name, variable in VARIABLES.items()),  # null where not varied
        ("publications", pa.int64()),
        ("seed", pa.int64()),
        ("priority_class", pa.int32()),  # null in the row of the whole simulation
        ("count", pa.int64()),
        ("delivered", pa.int64()),
        ("success_rate", pa.float64()),
        ("mean_latency_seconds", pa.float64()),  # null where nothing was delivered
        ("p50", pa.float64()),  # latency in seconds, within 0.8 %; of classes only
        ("p95", pa.float64()),
        ("p99", pa.float64()),
        ("max", pa.float64()),
        ("utility", pa.float64()),  # from here on: of the whole simulation only
        ("maximum_utility", pa.float64()),
        ("utility_rate", pa.float64()),  # utility / maximum_utility
        ("utility_rate_mean", pa.float64()),  # mean of that ratio over subscriptions
        ("rho_offered", pa.float64()),  # mean over the ports
        ("rho_planned", pa.float64()),
        ("simulated_seconds", pa.float64()),
    ]
)
"""One row per simulation and priority class, and one per simulation whose class is null."""

FIGURES = ("success_rate", "mean_latency_seconds", "utility_rate", "utility_rate_mean")
"""The columns of the results that a summary averages."""

SWEEP = ResultsTable("sweep", SCHEMA, ("scenario_fingerprint", "version", *VARIABLES, "publications", "seed"))

_SEEDS = TypeAdapter(Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)])


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One simulation: its rows are what `triage simulate` with these settings and this seed gives.

    >>> from triagemq.lab.generators import table2
    >>> situation = table2(seed=1, subscribers=2, subscriptions=(20, 10))
    >>> [row["priority_class"] for row in Point("table2", situation, 500, 1, {"classes": 2}).rows()]
    [0, 1, None]
    """

    name: str
    scenario: Scenario
    publications: int
    seed: int
    settings: Mapping[str, Value] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Value | None, ...]:
        """What its rows hold in the columns of the key."""
        varied = (self.settings.get(name) for name in VARIABLES)
        return self.scenario.fingerprint, __version__, *varied, self.publications, self.seed

    @property
    def seconds(self) -> float:
        """About how long a core takes for it."""
        return simulation_seconds(self.scenario, self.publications)

    def rows(self) -> list[dict[str, Any]]:
        """Its classes in their order, and the whole simulation last."""
        varied = varied_scenario(self.scenario, self.settings)
        plan = rounds.plan(varied, seed=self.seed, **planner_settings(self.settings))
        # The other cores have tasks of their own.
        found = simulate(varied, plan, publications=self.publications, seed=self.seed, threads=1).as_json()
        classes = [
            row
            | {"scenario": self.name}
            | {name: row[f"{name}_seconds"] for name in ("p50", "p95", "p99", "max")}
            for row in found["classes"]
        ]
        latency = sum(row["delivered"] * (row["mean_latency_seconds"] or 0.0) for row in classes)
        copies, delivered, utility = found["copies"], found["deliveries"], found["utility"]
        whole = {
            "scenario": self.name,
            "priority_class": None,
            "count": copies,
            "delivered": delivered,
            "success_rate": delivered / copies if copies else None,
            "mean_latency_seconds": latency / delivered if delivered else None,
            "max": max((row["max"] for row in classes if row["max"] is not None), default=None),
            "utility": utility["achieved"],
            "maximum_utility": utility["maximum"],
            "utility_rate": utility["rate"],
            "utility_rate_mean": utility["rate_mean"],
            "rho_offered": float(plan.ports.rho_offered.mean()),
            "rho_planned": float(plan.ports.rho_planned.mean()),
            "simulated_seconds": found["simulated_seconds"],
        }
        return [*classes, whole]

    def __str__(self) -> str:
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join([self.name, *settings, f"seed {self.seed}"])


def run_sweep(
    scenario: Scenario | Mapping[str, Scenario],
    vary: Mapping[str, Iterable[Value] | Value],
    seeds: int | Iterable[int] = 1,
    *,
    publications: int = DEFAULT_PUBLICATIONS,
    out: str | Path = "out/sweep",
    options: SparkOptions | None = None,
    progress: Progress | None = None,
) -> pa.Table:
    """Simulate every combination of the varied settings with every seed; the results as a table (see SCHEMA).

    A number of `seeds` means 0 up to it. Several scenarios are given by name, and each is swept. A seed is that of the
    plan and of the simulation, as with `triage simulate --seed`. What `out` holds already is not simulated again: a
    sweep that was killed continues, one that is whole does not even start Spark. Inside a `spark_session` that session
    is used. `progress` is called with the simulations done and all of this sweep.

    >>> from triagemq.lab.generators import table2
    >>> results = run_sweep(  # doctest: +SKIP
    ...     table2(seed=1), {"rho": [0.8, 1.6], "drops": ["flat", "optimal"]}, seeds=10
    ... )
    """
    if publications < 1:
        raise ParameterError("publications", f"is {publications}; must be 1 or more")
    scenarios = {scenario.name: scenario} if isinstance(scenario, Scenario) else dict(scenario)
    varied, chosen = checked_vary(vary), _checked_seeds(seeds)
    points = [
        Point(name, situation, publications, seed, dict(zip(varied, values, strict=True)))
        for name, situation in scenarios.items()
        for values in itertools.product(*varied.values())
        for seed in chosen
    ]
    rows, owners = simulated(points, SWEEP, out, options, progress)
    # The same situation may have had another name when it was simulated.
    names = pa.array([point.name for point in owners], pa.string())
    return rows.set_column(0, SCHEMA.field("scenario"), names)


def sweep_summary(results: pa.Table) -> pa.Table:
    """One row per scenario, setting and class (null for the whole), in the order of the results.

    For each figure its mean over the seeds, and in `<figure>_ci95` the half-width of the 95 % confidence interval of
    that mean (Student's t), null with one seed. `seeds` counts the simulations.

    >>> rows = [{"scenario": "fire", "seed": seed, "success_rate": 0.5 + seed / 10} for seed in (0, 1, 2)]
    >>> found = sweep_summary(pa.Table.from_pylist(rows, schema=SCHEMA)).to_pylist()[0]
    >>> found["seeds"], round(found["success_rate"], 3), round(found["success_rate_ci95"], 3)
    (3, 0.6, 0.248)
    """
    keys = ["scenario", *VARIABLES, "publications", "priority_class"]
    sample = pc.VarianceOptions(ddof=1)
    aggregates: list[tuple[str, str] | tuple[str, str, pc.VarianceOptions]] = [("seed", "count")]
    for name in FIGURES:
        aggregates += [(name, "mean"), (name, "stddev", sample), (name, "count")]
    grouped = results.group_by(keys, use_threads=False).aggregate(aggregates)
    columns = {name: grouped[name] for name in keys} | {"seeds": grouped["seed_count"]}
    for name in FIGURES:
        columns[name] = grouped[f"{name}_mean"]
        columns[f"{name}_ci95"] = _half_width(grouped[f"{name}_stddev"], grouped[f"{name}_count"])
    return pa.table(columns)


def _half_width(deviation: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.Array:
    """Of the interval of a mean; null where fewer than two values make it."""
    number = np.maximum(count.to_numpy().astype(np.float64), 2.0)
    width = pc.multiply(deviation, pa.array(t_quantile(number) / np.sqrt(number)))
    return pc.if_else(pc.greater(count, 1), width, pa.scalar(None, pa.float64()))


def _checked_seeds(seeds: int | Iterable[int]) -> list[int]:
    try:
        return _SEEDS.validate_python(list(dict.fromkeys(range(seeds) if isinstance(seeds, int) else seeds)))
    except ValidationError as error:
        raise ParameterError("seeds", f"is {seeds!r}: {error.errors()[0]['msg']}") from None
