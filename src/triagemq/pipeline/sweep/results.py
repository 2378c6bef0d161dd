"""The results table of sweeps, which says what is done, and one simulation of a sweep.

A simulation is known by everything that its outcome depends on, and all of that is in its rows: no second record of
what is done could disagree with the results themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from triagemq import __version__
from triagemq.forecast import plan_ahead
from triagemq.pipeline.sweep.jobs import ResultsTable, simulation_seconds
from triagemq.pipeline.sweep.variables import VARIABLES, Value, planner_settings, varied_scenario
from triagemq.scenario import Scenario
from triagemq.simulate import SimulationResult, simulate

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

SWEEP = ResultsTable("sweep", SCHEMA, ("scenario_fingerprint", "version", *VARIABLES, "publications", "seed"))


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """One simulation: its rows are what `triage simulate` with these settings and this seed gives.

    >>> from triagemq.scenario.generators import table2
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
    def columns(self) -> dict[str, Value | None]:
        """What says in its rows which simulation it is."""
        return {
            "scenario": self.name,
            "scenario_fingerprint": self.scenario.fingerprint,
            "version": __version__,
            **{name: self.settings.get(name) for name in VARIABLES},
            "publications": self.publications,
            "seed": self.seed,
        }

    @property
    def key(self) -> tuple[Value | None, ...]:
        """What its rows hold in the columns of the key."""
        columns = self.columns
        return tuple(columns[name] for name in SWEEP.key)

    @property
    def seconds(self) -> float:
        """About how long a core takes for it."""
        return simulation_seconds(self.scenario, self.publications)

    def rows(self) -> list[dict[str, Any]]:
        """Its classes in their order, and the whole simulation last."""
        varied = varied_scenario(self.scenario, self.settings)
        plan = plan_ahead(varied, seed=self.seed, **planner_settings(self.settings))
        # The other cores have tasks of their own.
        found = simulate(varied, plan, publications=self.publications, seed=self.seed, threads=1)
        ports = plan.ports
        return _rows(self.columns, found, ports.rho_offered.mean(), ports.rho_planned.mean())

    def __str__(self) -> str:
        settings = [f"{name}={value}" for name, value in self.settings.items()]
        return ", ".join([self.name, *settings, f"seed {self.seed}"])


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
