"""PrioDeX Fig. 8 and FireDeX Fig. 10: what flat, linear, exponential and optimal drop rates are worth."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from triagemq.forecast import forecast
from triagemq.lab.generators import table2
from triagemq.lab.papers.experiment import (
    Claim,
    Difference,
    Effort,
    Experiment,
    Findings,
    Panel,
    PrintedTable,
    Progress,
    Series,
    percent,
)
from triagemq.lab.papers.runs import median_seconds, simulated, table2_case
from triagemq.plan import DROP_POLICIES, DropProblem, Plan, demand, make_plan
from triagemq.scenario import Floats, Scenario, achieved_utility, maximum_utility, port_paths

POLICIES = ("flat", "linear", "exponential", "optimal")
SUBSCRIPTION_SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)
"""Of Table 2's 70 + 42; at 1.4 a subscriber asks for 59 of the 60 event topics."""

WEIGHT_FACTORS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
SIMULATION_WARMUP = 0.1
SIMULATION_AGREES = 0.005
"""How far a simulated utility rate may lie from the forecast one; the drops alone decide it, so it is noise."""


def reproduce(effort: Effort, progress: Progress) -> Findings:
    """Forecast the utility rate over load and weight, simulate it at the default point, and time the policies."""
    seeds = range(effort.seeds)
    subscribed = [[_subscribed(share, seed) for share in SUBSCRIPTION_SHARES] for seed in seeds]
    weighed = [[table2(seed=seed, event_weight_factor=factor) for factor in WEIGHT_FACTORS] for seed in seeds]
    rho = np.mean([[_load(each) for each in row] for row in subscribed], axis=0)
    by_load, by_weight = (
        np.mean([[_rates(each) for each in row] for row in drawn], axis=0) for drawn in (subscribed, weighed)
    )
    seconds = _policy_seconds(table2(seed=0))
    measured = _simulated_rates(effort.seeds, effort.publications, progress)
    default = SUBSCRIPTION_SHARES.index(1.0)
    return Findings(
        tables=(
            _table(
                "utility rate over the load of the ports, forecast",
                "rho",
                [f"{each:.2f}" for each in rho],
                by_load,
            ),
            _table(
                f"utility rate over the weight of event topics, rho {rho[default]:.2f}, forecast",
                "weight factor",
                [f"{each:g}" for each in WEIGHT_FACTORS],
                by_weight,
            ),
            _spot_check(by_load[default], measured, seconds),
        ),
        panels=_panels(rho, by_load, by_weight, seconds),
        differences=_differences(rho, by_load, by_weight, seconds),
        claims=_claims(by_load, by_weight, by_load[default], measured),
        figures=_figures(rho, by_load, by_weight, measured, seconds),
    )


def _subscribed(share: float, seed: int) -> Scenario:
    return table2(seed=seed, subscriptions=(round(70 * share), round(42 * share)))


def _load(scenario: Scenario) -> float:
    return float(make_plan(scenario, drops="none").ports.rho_offered.mean())


def _rates(scenario: Scenario) -> list[float]:
    """The achieved share of the maximum utility under each policy (greedy classes, as PrioDeX 6.3.2)."""
    rates = []
    for policy in POLICIES:
        predicted = forecast(scenario, make_plan(scenario, drops=policy), formulas=True)
        rates.append(float(predicted.utility.sum() / predicted.maximum_utility.sum()))
    return rates


def _simulated_rates(seeds: int, publications: int, progress: Progress) -> Floats:
    """The simulated utility rate of every policy, the mean over seeds."""
    cases = [
        table2_case(
            scenario,
            make_plan(scenario, drops=policy),
            publications=publications,
            seed=seed,
            warmup=SIMULATION_WARMUP,
        )
        for seed, scenario in enumerate(table2(seed=seed) for seed in range(seeds))
        for policy in POLICIES
    ]
    rates = [
        achieved_utility(case.scenario.subscriptions, np.nan_to_num(measured.success_rate)).sum()
        / maximum_utility(case.scenario.subscriptions).sum()
        for case, measured in zip(cases, simulated(cases, progress), strict=True)
    ]
    return np.asarray(np.reshape(rates, (seeds, len(POLICIES))).mean(axis=0))


def _policy_seconds(scenario: Scenario) -> dict[str, float]:
    problem = _drop_problem(scenario, make_plan(scenario, drops="none"))
    return {name: median_seconds(partial(DROP_POLICIES[name], problem)) for name in POLICIES}


def _drop_problem(scenario: Scenario, plan: Plan) -> DropProblem:
    """What a policy is given once flows and classes are cut: the part of planning that Fig. 8b times."""
    free = 1 - scenario.planning.rho_tolerance
    return DropProblem(
        flow_load_bytes_per_second=plan.flows.load_bytes_per_second,
        flow_class=plan.flows.priority_class,
        flow_ports=port_paths(scenario)[plan.flows.port],
        port_names=scenario.ports.name,
        port_capacity_bytes_per_second=scenario.ports.bandwidth_bps / 8 * free,
        subscription_flow=plan.flow,
        subscription_success=demand(scenario).ideal_success,
        subscription_freshness=np.ones(len(scenario.subscriptions)),
        subscriptions=scenario.subscriptions,
    )


def _table(title: str, label: str, points: list[str], rates: Floats) -> PrintedTable:
    return PrintedTable(
        title=title,
        columns=(label, *POLICIES, "printed"),
        rows=tuple(
            (point, *(percent(each) for each in row), "optimal best")
            for point, row in zip(points, rates, strict=True)
        ),
    )


def _spot_check(predicted: Floats, simulated: Floats, seconds: dict[str, float]) -> PrintedTable:
    printed = {"optimal": "best, slowest", "linear": "as exponential", "exponential": "as linear"}
    return PrintedTable.of(
        "Table 2 as it stands: forecast, simulation, and time of the policy alone",
        POLICIES,
        ("policy", str),
        ("utility rate, forecast", lambda policy: percent(predicted[POLICIES.index(policy)], 2)),
        ("simulated", lambda policy: percent(simulated[POLICIES.index(policy)], 2)),
        ("time", lambda policy: f"{1e6 * seconds[policy]:.0f} µs"),
        ("printed", lambda policy: printed.get(policy, "")),
    )


def _panels(rho: Floats, by_load: Floats, by_weight: Floats, seconds: dict[str, float]) -> tuple[Panel, ...]:
    return (
        Panel(
            "by load (more subscriptions)",
            "rho",
            "utility rate",
            tuple(Series.of(name, rho, by_load[:, row]) for row, name in enumerate(POLICIES)),
        ),
        Panel(
            "by weight of event topics",
            "weight factor",
            "utility rate",
            tuple(Series.of(name, WEIGHT_FACTORS, by_weight[:, row]) for row, name in enumerate(POLICIES)),
        ),
        Panel(
            "execution time",
            "policy",
            "seconds",
            (Series.of("one plan", POLICIES, [seconds[name] for name in POLICIES]),),
            logarithmic=True,
            bars=True,
        ),
    )


def _differences(
    rho: Floats, by_load: Floats, by_weight: Floats, seconds: dict[str, float]
) -> tuple[Difference, ...]:
    default = SUBSCRIPTION_SHARES.index(1.0)
    flat, linear, exponential, optimal = by_load[default]
    overloaded = rho > 0.9
    apart = float(np.abs(by_load[overloaded, 1] - by_load[overloaded, 2]).max())
    lead = by_weight[:, 3] - by_weight[:, 2]
    slowdown = seconds["optimal"] / seconds["exponential"]
    return (
        Difference(
            "utility rate",
            "optimal best; linear and exponential similar",
            f"rho {rho[default]:.2f}: flat {percent(flat)}, linear {percent(linear)}, exponential "
            f"{percent(exponential)}, optimal {percent(optimal)}",
            f"The order is the same, and linear and exponential are never more than {100 * apart:.1f} points "
            "apart. Up to a load of 0.9 nothing is dropped and all are at 100 %; the paper prints curves, no numbers.",
        ),
        Difference(
            "weight of one topic class",
            "optimal best",
            f"ahead of exponential by {100 * lead[0]:.1f} points at factor {WEIGHT_FACTORS[0]:g}, by "
            f"{100 * lead[-1]:.1f} at factor {WEIGHT_FACTORS[-1]:g}",
            "Classes are cut by value per byte, so heavier event topics move up, and the policies that follow "
            "the classes gain with them. What remains to the optimum is the worth of choosing by flow and not by rank.",
        ),
        Difference(
            "execution time",
            "optimal slowest",
            ", ".join(f"{name} {1e6 * seconds[name]:.0f} µs" for name in POLICIES),
            f"Also slowest here, {slowdown:.1f} times exponential, but no solver runs: one price per port is raised "
            "until the port fits. At these times the optimum costs nothing that would be a reason to drop by rule."
            if slowdown > 1
            else f"Here it takes {slowdown:.1f} of exponential's time, because no solver runs: one price per port is "
            "raised until the port fits. Linear and exponential rules are solved by iteration too, and so no faster.",
            timed=True,
        ),
    )


def _claims(by_load: Floats, by_weight: Floats, predicted: Floats, simulated: Floats) -> tuple[Claim, ...]:
    margins = np.concatenate([by_load, by_weight])
    margin = float((margins[:, 3] - margins[:, :3].max(axis=1)).min())
    off = np.abs(simulated - predicted)
    worst = int(np.argmax(off))
    return (
        Claim(
            "optimal is best at every load and weight, or equal where nothing is dropped",
            margin >= -1e-9,
            f"smallest lead {percent(margin, 3)}",
        ),
        Claim(
            f"simulation agrees with the forecast utility within {percent(SIMULATION_AGREES)} of the maximum",
            bool((off <= SIMULATION_AGREES).all()),
            f"{POLICIES[worst]}: {percent(float(off[worst]), 3)}",
        ),
    )


def _figures(
    rho: Floats, by_load: Floats, by_weight: Floats, simulated: Floats, seconds: dict[str, float]
) -> dict[str, Any]:
    def by_policy(row: Floats) -> dict[str, float]:
        return {name: float(value) for name, value in zip(POLICIES, row, strict=True)}

    return {
        "by_load": [{"rho": float(point), **by_policy(row)} for point, row in zip(rho, by_load, strict=True)],
        "by_weight": [
            {"weight_factor": factor, **by_policy(row)}
            for factor, row in zip(WEIGHT_FACTORS, by_weight, strict=True)
        ],
        "simulated_at_table2": by_policy(simulated),
        "seconds": seconds,
    }


DROP_POLICY_UTILITY = Experiment(
    title="utility rate of flat, linear, exponential and optimal drop rates",
    run=reproduce,
    normal=Effort(seeds=10, publications=1_000_000),
    quick=Effort(seeds=2, publications=500_000),
)
