"""What a Spark task of a sweep does: some simulations one after the other, in a Python worker that stays warm."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pickle import dumps, loads
from typing import Any

import pyarrow as pa

from triagemq.errors import TriageError
from triagemq.forecast import plan_ahead
from triagemq.pipeline.sweep.jobs import Batches
from triagemq.pipeline.sweep.results import SCHEMA, Point, point_columns
from triagemq.pipeline.sweep.variables import planner_settings, varied_scenario
from triagemq.scenario import Scenario
from triagemq.simulate import SimulationResult, simulate

__all__ = ["OUTPUT", "PROBLEM", "packed", "simulate_point", "task_function"]

PROBLEM = "problem"

# A simulation that cannot be run gives one row with its problem, not a failed task: Spark would try it again, and
# the user would read about it in Spark's words.
OUTPUT = SCHEMA.append(pa.field(PROBLEM, pa.string()))


def packed(scenario: Scenario) -> bytes:
    """The scenario as it travels with a job."""
    return zlib.compress(dumps(scenario), level=1)


@lru_cache(maxsize=8)
def _unpacked(content: bytes) -> Scenario:
    """A worker meets the same scenario in every task."""
    scenario: Scenario = loads(zlib.decompress(content))
    return scenario


def task_function(
    tasks: Sequence[Sequence[Point]], scenarios: Mapping[str, bytes]
) -> Callable[[Batches], Batches]:
    """For `mapInArrow` over the numbers of the tasks: the results of all simulations of each.

    `scenarios` are packed, by their fingerprints.
    """

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for point in tasks[task]:
                    yield _result(point, _unpacked(scenarios[point.scenario_fingerprint]))

    return run


def _result(point: Point, scenario: Scenario) -> pa.RecordBatch:
    try:
        rows = simulate_point(point, scenario)
    except TriageError as error:
        rows = [{**point_columns(point), PROBLEM: str(error)}]
    return pa.RecordBatch.from_pylist(rows, schema=OUTPUT)


def simulate_point(point: Point, scenario: Scenario) -> list[dict[str, Any]]:
    """The rows of one simulation: the same as `triage simulate` with these settings and this seed gives.

    >>> from triagemq.scenario.generators import table2
    >>> situation = table2(seed=1, subscribers=2, subscriptions=(20, 10))
    >>> rows = simulate_point(Point("table2", situation.fingerprint, 500, 1, {"classes": 2}), situation)
    >>> [row["priority_class"] for row in rows]
    [0, 1, None]
    """
    varied = varied_scenario(scenario, point.settings)
    plan = plan_ahead(varied, seed=point.seed, **planner_settings(point.settings))
    # The other cores have tasks of their own.
    found = simulate(varied, plan, publications=point.publications, seed=point.seed, threads=1)
    return _rows(point_columns(point), found, plan.ports.rho_offered.mean(), plan.ports.rho_planned.mean())


def _rows(
    key: dict[str, Any], found: SimulationResult, rho_offered: float, rho_planned: float
) -> list[dict[str, Any]]:
    result = found.as_json()
    classes = [
        {
            **key,
            **{name: row[name] for name in ("priority_class", "count", "delivered", "success_rate")},
            "mean_latency_seconds": row["mean_latency_seconds"],
            **{name: row[f"{name}_seconds"] for name in ("p50", "p95", "p99", "max")},
        }
        for row in result["classes"]
    ]
    latency = sum(row["delivered"] * (row["mean_latency_seconds"] or 0.0) for row in result["classes"])
    utility = result["utility"]
    whole = {
        **key,
        "priority_class": None,
        "count": result["copies"],
        "delivered": result["deliveries"],
        "success_rate": result["deliveries"] / result["copies"] if result["copies"] else None,
        "mean_latency_seconds": latency / result["deliveries"] if result["deliveries"] else None,
        "max": max((row["max"] for row in classes if row["max"] is not None), default=None),
        "utility": utility["achieved"],
        "maximum_utility": utility["maximum"],
        "utility_rate": utility["rate"],
        "utility_rate_mean": utility["rate_mean"],
        "rho_offered": float(rho_offered),
        "rho_planned": float(rho_planned),
        "simulated_seconds": result["simulated_seconds"],
    }
    return [*classes, whole]
