"""A sweep in short: per setting and class the mean over the seeds, and how sure it is."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.lab.sweep.variables import VARIABLES
from triagemq.theory.interval import t_quantile

FIGURES = ("success_rate", "mean_latency_seconds", "utility_rate", "utility_rate_mean")
"""The columns of the results that are averaged."""


def sweep_summary(results: pa.Table) -> pa.Table:
    """One row per scenario, setting and class (null for the whole), in the order of the results.

    For each figure its mean over the seeds, and in `<figure>_ci95` the half-width of the 95 % confidence interval of
    that mean (Student's t), null with one seed. `seeds` counts the simulations.

    >>> from triagemq.lab.sweep.run import SCHEMA
    >>> rows = [{"scenario": "fire", "seed": seed, "success_rate": 0.5 + seed / 10} for seed in (0, 1, 2)]
    >>> found = sweep_summary(pa.Table.from_pylist(rows, schema=SCHEMA)).to_pylist()[0]
    >>> found["seeds"], round(found["success_rate"], 3), round(found["success_rate_ci95"], 3)
    (3, 0.6, 0.248)
    """
    keys = ["scenario", *VARIABLES, "publications", "priority_class"]
    sample = pc.VarianceOptions(ddof=1)
    wanted: list[tuple[str, str] | tuple[str, str, pc.VarianceOptions]] = [("seed", "count")]
    for name in FIGURES:
        wanted += [(name, "mean"), (name, "stddev", sample), (name, "count")]
    grouped = results.group_by(keys, use_threads=False).aggregate(wanted)
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
