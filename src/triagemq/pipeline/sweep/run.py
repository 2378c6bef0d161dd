"""run_sweep(): every combination of settings and seeds that is not yet simulated, as Spark tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from triagemq.errors import ParameterError
from triagemq.pipeline.session import SparkOptions
from triagemq.pipeline.sweep.jobs import Progress, simulated
from triagemq.pipeline.sweep.results import SCHEMA, SWEEP, Point
from triagemq.pipeline.sweep.variables import Value, checked_vary
from triagemq.scenario import Scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_PUBLICATIONS = 100_000


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
    varied, chosen = checked_vary(vary), _checked_seeds(seeds)
    points = [
        Point(name, situation, publications, seed, dict(zip(varied, values, strict=True)))
        for name, situation in scenarios.items()
        for values in itertools.product(*varied.values())
        for seed in chosen
    ]
    rows, owners = simulated(points, SWEEP, out, options, spark, progress)
    # The same situation may have had another name when it was simulated.
    names = pa.array([point.name for point in owners], pa.string())
    return rows.set_column(0, SCHEMA.field("scenario"), names)


def _checked_seeds(seeds: int | Iterable[int]) -> list[int]:
    chosen = list(range(seeds)) if isinstance(seeds, int | np.integer) else list(dict.fromkeys(seeds))
    if not chosen:
        raise ParameterError("seeds", "is none; at least 1 is needed")
    for seed in chosen:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ParameterError("seeds", f"holds {seed!r}; whole numbers of at least 0 are needed")
    return [int(seed) for seed in chosen]
