"""run_sweep(): every combination of settings and seeds that is not yet simulated, as Spark tasks.

A simulation is known by everything that its outcome depends on, and all of that is in its rows: no second record of
what is done could disagree with the results themselves.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, TypeAdapter, ValidationError

from triagemq import __version__
from triagemq.errors import ParameterError
from triagemq.lab.sweep.jobs import Progress, ResultsTable, simulated, simulation_seconds
from triagemq.pipeline.session import SparkOptions
from triagemq.plan import DROP_POLICIES, FLOW_ALGORITHMS, PRIORITY_ALGORITHMS, demand, rounds
from triagemq.plan.planner import resolve
from triagemq.scenario import Scenario, port_paths
from triagemq.simulate import simulate
from triagemq.theory.interval import t_quantile

Value = float | int | str

MOST_VALUES = 10_000
"""Of one range; more are a slip of the pen."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One thing to vary: a number within limits, as pydantic's Field has them, or the name of an algorithm."""

    kind: type[float] | type[int] | type[str]
    limits: Mapping[str, Any] = field(default_factory=dict)
    algorithms: Mapping[str, Any] | None = None
    planner: str = ""
    """What `make_plan` calls it; nothing for what changes the scenario."""

    def checked(self, name: str, value: object) -> Value:
        """The value as its column holds it, if it is possible."""
        allowed: Any = Annotated[self.kind, Field(**self.limits)]
        try:
            found: Value = TypeAdapter(allowed).validate_python(value)
        except ValidationError as error:
            raise ParameterError(name, f"is {value!r}: {error.errors()[0]['msg']}") from None
        if self.algorithms is not None:
            resolve(name, str(found), self.algorithms)
        return found


_POSITIVE = {"gt": 0, "allow_inf_nan": False}
_COUNT = {"ge": 1}

# In the order in which they are applied: rates first, because rho is relative to the load they make.
VARIABLES: Mapping[str, Variable] = {
    "rate": Variable(float, _POSITIVE),  # factor on how often everything is published
    "bandwidth_bps": Variable(float, _POSITIVE),  # of every output port that has subscribers
    "rho": Variable(float, _POSITIVE),  # offered load of every output port, by its bandwidth
    "buffer_packets": Variable(float, _COUNT),  # of every output port that has subscribers; inf for no limit
    "flows": Variable(str, {}, FLOW_ALGORITHMS, "flows"),
    "priorities": Variable(str, {}, PRIORITY_ALGORITHMS, "priorities"),
    "drops": Variable(str, {}, DROP_POLICIES, "drops"),
    "flows_per_subscriber": Variable(int, _COUNT, planner="flows_per_subscriber"),
    "classes": Variable(int, _COUNT, planner="priority_classes"),
    "rho_tolerance": Variable(float, {"ge": 0, "lt": 1}, planner="rho_tolerance"),  # of every port, left free
}
"""Name to what it is. What is not varied is as `triage simulate` has it: the scenario's, greedy, optimal drops.

`rho` sets the bandwidth of each port so that its own offered load is exactly the value (within rounding), also
where ports differ in the file; a port that carries nothing keeps its bandwidth. `rate` multiplies the rates and
divides the separations; the lengths of on and off periods stay.
"""


def parse_vary(texts: Sequence[str]) -> dict[str, tuple[Value, ...]]:
    """The values of every `--vary NAME=VALUES`: a list by commas, or a range FROM:TO:STEP with both ends.

    >>> parse_vary(["rho=0.5:1:0.25", "drops=flat,optimal", "classes=9"])
    {'rho': (0.5, 0.75, 1.0), 'drops': ('flat', 'optimal'), 'classes': (9,)}
    >>> parse_vary(["rho=1:0.5:0.1"])
    Traceback (most recent call last):
    triagemq.errors.ParameterError: --vary rho: the range 1:0.5:0.1 ends before it begins; write FROM:TO:STEP
    """
    vary: dict[str, tuple[Value, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name, values = name.strip(), values.strip()
        if not equals or not values:
            raise ParameterError("--vary", f"{text!r} should read NAME=VALUES, such as rho=0.5:2.0:0.1")
        if name in vary:
            raise ParameterError(f"--vary {name}", "is given twice; write all its values in one, by commas")
        vary[name] = _values(name, values)
    return checked_vary(vary)


def checked_vary(vary: Mapping[str, Iterable[Value] | Value]) -> dict[str, tuple[Value, ...]]:
    """The same values, each once, if all are possible and go together."""
    checked: dict[str, tuple[Value, ...]] = {}
    for name, given in vary.items():
        variable = _variable(name)
        values = (given,) if isinstance(given, str | int | float) else tuple(given)
        if not values:
            raise ParameterError(f"--vary {name}", "has no values")
        checked[name] = tuple(dict.fromkeys(variable.checked(f"--vary {name}", value) for value in values))
    if "rho" in checked and "bandwidth_bps" in checked:
        raise ParameterError(
            "--vary", "rho and bandwidth_bps both set the bandwidth of the ports; vary one of them"
        )
    return checked


def varied_scenario(scenario: Scenario, settings: Mapping[str, Value]) -> Scenario:
    """The scenario with the settings that concern what exists.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.lab.generators import table2
    >>> make_plan(varied_scenario(table2(seed=1), {"rho": 0.8})).ports.rho_offered.round(12).tolist()
    [0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
    """
    if "rate" in settings:
        scenario = replace(scenario, publications=scenario.publications.times(float(settings["rate"])))
    ports = scenario.ports
    # Trunks, the ports that feed other switches, keep their own.
    last_hop = np.isin(np.arange(len(ports)), scenario.subscribers.port)
    if "bandwidth_bps" in settings:
        ports = ports.with_bandwidths(
            np.where(last_hop, float(settings["bandwidth_bps"]), ports.bandwidth_bps)
        )
    if "rho" in settings:
        ports = ports.with_bandwidths(_bandwidths(scenario, float(settings["rho"])))
    if "buffer_packets" in settings:
        buffers = np.where(last_hop, float(settings["buffer_packets"]), ports.buffer_packets)
        ports = replace(ports, buffer_packets=buffers)
    return scenario if ports is scenario.ports else replace(scenario, ports=ports)


def planner_settings(settings: Mapping[str, Value]) -> dict[str, Any]:
    """The settings that concern what is decided, as `make_plan` calls them."""
    return {VARIABLES[name].planner: value for name, value in settings.items() if VARIABLES[name].planner}


def _bandwidths(scenario: Scenario, rho: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The bandwidth of each port at which what is offered to it, all ports downstream included, is `rho` of it."""
    demanded = demand(scenario)
    crossed = port_paths(scenario)[demanded.port]
    load = np.broadcast_to(demanded.load_bytes_per_second[:, None], crossed.shape)
    on_path = crossed >= 0
    offered = np.bincount(crossed[on_path], load[on_path], minlength=len(scenario.ports))
    return np.where(offered > 0, offered * 8 / rho, scenario.ports.bandwidth_bps)


def _variable(name: str) -> Variable:
    if name in VARIABLES:
        return VARIABLES[name]
    near = difflib.get_close_matches(name, VARIABLES, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ParameterError("--vary", f"{name!r} cannot be varied; {hint}known: {', '.join(VARIABLES)}")


def _values(name: str, text: str) -> tuple[Value, ...]:
    parts = [part.strip() for part in text.split(",")]
    if _variable(name).kind is str:
        return tuple(parts)
    return tuple(value for part in parts for value in _numbers(name, part))


def _numbers(name: str, text: str) -> list[float]:
    """One number, or the range FROM:TO:STEP in decimal steps, as exact as it is written."""
    try:
        numbers = [Decimal(part.strip()) for part in text.split(":")]
    except InvalidOperation:
        raise ParameterError(f"--vary {name}", f"{text!r} is not a number or a range FROM:TO:STEP") from None
    if len(numbers) == 1:
        return [float(numbers[0])]
    if len(numbers) != 3 or not all(number.is_finite() for number in numbers):
        raise ParameterError(f"--vary {name}", f"{text!r} is not a range; write FROM:TO:STEP")
    begin, end, step = numbers
    if step <= 0 or end < begin:
        what = "ends before it begins" if step > 0 else "has a step that is not above 0"
        raise ParameterError(f"--vary {name}", f"the range {text} {what}; write FROM:TO:STEP")
    if (end - begin) / step >= MOST_VALUES:
        raise ParameterError(f"--vary {name}", f"the range {text} has more than {MOST_VALUES:,} values")
    return [float(begin + number * step) for number in range(int((end - begin) / step) + 1)]


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
