"""run_sweep(): every combination of settings and seeds that is not yet simulated, as Spark tasks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from triagemq.errors import ParameterError, PipelineError
from triagemq.pipeline.session import SparkOptions
from triagemq.pipeline.store import Location
from triagemq.pipeline.sweep.jobs import Batches, finished_jobs, simulation_seconds, sweep_session
from triagemq.pipeline.sweep.results import KEY, SCHEMA, Point, SweepResults
from triagemq.pipeline.sweep.tasks import OUTPUT, PROBLEM, packed, task_function
from triagemq.pipeline.sweep.variables import Value, checked_vary
from triagemq.scenario import Scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DEFAULT_PUBLICATIONS", "run_sweep"]

DEFAULT_PUBLICATIONS = 100_000

Progress = Callable[[int, int], None]


def run_sweep(
    scenario: Scenario | Mapping[str, Scenario],
    vary: Mapping[str, Iterable[Value] | Value],
    seeds: int | Iterable[int] = 1,
    *,
    publications: int = DEFAULT_PUBLICATIONS,
    out: str | Path = "out/sweep",
    options: SparkOptions | None = None,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> pa.Table:
    """Simulate every combination of the varied settings with every seed; the results as a table (see SCHEMA).

    A number of `seeds` means 0 up to it. Several scenarios are given by name, and each is swept. A seed is that of the
    plan and of the simulation, as with `triage simulate --seed`. What `out` holds already is not simulated again: a
    sweep that was killed continues, one that is whole does not even start Spark. `spark` is a session to
    use instead of one for this sweep alone. `progress` is called with the simulations done and all of this sweep.

    >>> from triagemq.scenario.generators import table2
    >>> results = run_sweep(  # doctest: +SKIP
    ...     table2(seed=1), {"rho": [0.8, 1.6], "drops": ["flat", "optimal"]}, seeds=10
    ... )
    """
    if publications < 1:
        raise ParameterError("publications", f"is {publications}; must be 1 or more")
    scenarios = {scenario.name: scenario} if isinstance(scenario, Scenario) else dict(scenario)
    points = _points(scenarios, checked_vary(vary), _checked_seeds(seeds), publications)
    wanted = options or SparkOptions()
    with contextlib.ExitStack() as stack:
        if Location.needs_spark(out, published=True):
            spark = stack.enter_context(sweep_session(spark, wanted))
        results = stack.enter_context(SweepResults.open(out))
        done = results.done()
        left = list({point.key: point for point in points if point.key not in done}.values())
        report = progress or (lambda finished, total: None)
        report(len(points) - len(left), len(points))
        if left:
            finished = len(points) - len(left)
            with (
                sweep_session(spark, wanted) as session,
                contextlib.closing(_simulated(session, left, scenarios)) as simulated,
            ):
                for rows, count in simulated:
                    results.add(rows)
                    finished += count
                    report(finished, len(points))
        return results.rows(points)


def _points(
    scenarios: Mapping[str, Scenario],
    vary: Mapping[str, tuple[Value, ...]],
    seeds: Sequence[int],
    publications: int,
) -> list[Point]:
    return [
        Point(name, scenario.fingerprint, publications, seed, dict(zip(vary, values, strict=True)))
        for name, scenario in scenarios.items()
        for values in itertools.product(*vary.values())
        for seed in seeds
    ]


def _checked_seeds(seeds: int | Iterable[int]) -> list[int]:
    chosen = list(range(seeds)) if isinstance(seeds, int | np.integer) else list(dict.fromkeys(seeds))
    if not chosen:
        raise ParameterError("seeds", "is none; at least 1 is needed")
    for seed in chosen:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ParameterError("seeds", f"holds {seed!r}; whole numbers of at least 0 are needed")
    return [int(seed) for seed in chosen]


def _simulated(
    spark: SparkSession, points: Sequence[Point], scenarios: Mapping[str, Scenario]
) -> Generator[tuple[pa.Table, int]]:
    """The rows of some simulations and how many these were, as soon as a job has finished."""
    content = {scenario.fingerprint: packed(scenario) for scenario in scenarios.values()}
    longest = max(simulation_seconds(scenario, points[0].publications) for scenario in scenarios.values())

    def function(tasks: Sequence[Sequence[Point]]) -> Callable[[Batches], Batches]:
        needed = {point.scenario_fingerprint for task in tasks for point in task}
        return task_function(tasks, {name: content[name] for name in needed})

    by_key = {point.key: point for point in points}
    with contextlib.closing(finished_jobs(spark, points, longest, function, OUTPUT)) as jobs:
        for rows, count in jobs:
            for row in rows.filter(rows[PROBLEM].is_valid()).slice(0, 1).to_pylist():
                point = by_key[tuple(row[name] for name in KEY)]
                raise PipelineError(f"{point}: {row[PROBLEM]}")
            yield rows.select(SCHEMA.names), count
