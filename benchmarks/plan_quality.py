"""Plans beside simulation: what planning by the forecast gains where worth ages, and how many steps are really met.

Random scenarios, seeds printed. With freshness, the plan made at first and the one made by the forecast are simulated
with the same random numbers, replication by replication, so that their difference has an interval of its own. With
steps, the thresholds that the plan means to meet are counted in one period as long as success is judged over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from fidelity import drawn
from fidelity_families import FAMILIES
from measuring import finish, machine, options
from triagemq.forecast import forecast
from triagemq.lab.generators import table2
from triagemq.plan import make_plan, rounds
from triagemq.scenario import Floats, Scenario, UtilityShape
from triagemq.simulate import simulate

REPLICATIONS = 5


def loaded(draw: np.random.Generator, seed: int, lowest: float, highest: float) -> Scenario:
    """Table 2, small, with ports that are offered between `lowest` and `highest` times what they can carry."""
    plain = table2(
        seed=seed,
        subscribers=int(draw.integers(2, 6)),
        subscriptions=(int(draw.integers(10, 30)), int(draw.integers(5, 20))),
    )
    offered = make_plan(plain, drops="none").ports.rho_offered.mean()
    width = plain.ports.bandwidth_bps * offered / draw.uniform(lowest, highest)
    return replace(plain, ports=replace(plain.ports, bandwidth_bps=width))


def aging_scenario(seed: int) -> Scenario:
    """Most subscriptions lose worth by waiting, each at a pace of its own, around the latency that is usual here."""
    draw = np.random.default_rng(seed)
    scenario = loaded(draw, seed, 0.5, 2.5)
    wanted = scenario.subscriptions
    usual = np.nanmean(forecast(scenario, make_plan(scenario), formulas=True).latency_seconds)
    freshness = usual * draw.lognormal(draw.uniform(-1, 2), 1.0, len(wanted))
    freshness[draw.random(len(wanted)) < draw.choice([0.0, 0.3, 0.6])] = np.inf
    return replace(scenario, subscriptions=replace(wanted, freshness_seconds=freshness))


IRREGULAR = [name for name in FAMILIES if name.startswith("irregular-")]


def aging_irregular_scenario(seed: int) -> Scenario:
    """Publications that are not Poisson, at every kind of queue in turn, and worth that is lost by waiting there."""
    scenario, _ = drawn(IRREGULAR[seed % len(IRREGULAR)], seed)
    draw = np.random.default_rng(seed)
    usual = np.nanmean(forecast(scenario, make_plan(scenario)).latency_seconds)
    freshness = usual * draw.lognormal(draw.uniform(-1, 2), 1.0, len(scenario.subscriptions))
    return replace(scenario, subscriptions=replace(scenario.subscriptions, freshness_seconds=freshness))


def stepped_scenario(seed: int) -> Scenario:
    """Some or all subscriptions are steps, over links that lose up to a tenth, judged over 5 to 60 seconds."""
    draw = np.random.default_rng(seed)
    scenario = loaded(draw, seed, 1.0, 2.5)
    wanted, subscribers = scenario.subscriptions, scenario.subscribers
    steps = draw.random(len(wanted)) < draw.choice([0.3, 0.6, 1.0])
    return replace(
        scenario,
        subscribers=replace(subscribers, error_rate=draw.uniform(0, 0.1, len(subscribers))),
        planning=replace(scenario.planning, judged_over_seconds=float(draw.uniform(5, 60))),
        subscriptions=replace(
            wanted,
            utility_shape=np.where(steps, UtilityShape.STEP, wanted.utility_shape).astype(np.int8),
            utility_threshold=np.where(steps, draw.uniform(0.2, 1.0, len(wanted)).round(2), 0.0),
        ),
    )


def paired_gain(scenario: Scenario, seed: int, publications: int) -> tuple[float, float]:
    """Simulated utility of the plan by the forecast over that of the first plan, and the 95 % interval beside it."""
    first, ahead = make_plan(scenario), rounds.plan(scenario)
    if ahead.latency is None:
        return 0.0, 0.0
    utilities: Floats = np.array(
        [
            [
                simulate(scenario, plan, publications=publications, seed=100 * seed + run, threads=1)
                .as_json()["utility"]["achieved"]
                for run in range(REPLICATIONS)
            ]
            for plan in (first, ahead)
        ]
    )  # fmt: skip
    gain = utilities[1] / utilities[0] - 1
    half = stdtrit(REPLICATIONS - 1, 0.975) * gain.std(ddof=1) / np.sqrt(REPLICATIONS)
    return float(gain.mean()), float(half)


def steps_met(scenario: Scenario, seed: int) -> tuple[int, int]:
    """Thresholds that are met by the forecast, and those of them that are met in a simulated period."""
    plan, warmup = rounds.plan(scenario), 0.1
    wanted = scenario.subscriptions
    found = simulate(
        scenario,
        plan,
        duration_seconds=scenario.planning.judged_over_seconds / (1 - warmup),
        warmup=warmup,
        seed=seed,
        threads=1,
    )
    almost = wanted.utility_threshold * (1 - 1e-12)
    planned = (wanted.utility_shape == UtilityShape.STEP) & (
        forecast(scenario, plan, formulas=True).success >= almost
    )
    met = planned & (np.nan_to_num(found.subscriptions.success_rate) >= almost)
    return int(planned.sum()), int(met.sum())


def gained(make: Callable[[int], Scenario], scenarios: int, publications: int) -> dict[str, Any]:
    """What planning by the forecast gains in so many scenarios of a kind, seeds from 0 on."""
    pairs = [paired_gain(make(seed), seed, publications) for seed in range(scenarios)]
    gains, halves = (np.array(column) for column in zip(*pairs, strict=True))
    return {
        "mean_gain": float(gains.mean()),
        "least_gain": float(gains.min()),
        "greatest_gain": float(gains.max()),
        "planned_anew": int((halves > 0).sum()),
        "lower_by_more_than_the_interval": np.flatnonzero(gains + halves < 0).tolist(),
    }


def measured(scenarios: int, publications: int) -> dict[str, Any]:
    """The figures of so many scenarios of either kind, seeds from 0 on."""
    counts = [steps_met(stepped_scenario(seed), seed) for seed in range(scenarios)]
    planned, met = (sum(column) for column in zip(*counts, strict=True))
    return {
        "scenarios": scenarios,
        "publications": publications,
        "replications": REPLICATIONS,
        "freshness": gained(aging_scenario, scenarios, publications),
        "freshness_irregular": gained(aging_irregular_scenario, scenarios, publications),
        "steps": {"planned": planned, "met": met, "share": met / planned},
    }


def described(kind: str, fresh: dict[str, Any]) -> list[str]:
    return [
        f"{kind}: simulated utility {fresh['mean_gain']:+.2%} in the mean, {fresh['least_gain']:+.2%} to "
        f"{fresh['greatest_gain']:+.2%}; {fresh['planned_anew']} plans are other than the first",
        f"lower by more than the paired 95 % interval: {fresh['lower_by_more_than_the_interval'] or 'none'}",
    ]


def main() -> None:
    arguments = options(__doc__).parse_args()
    result = measured(10 if arguments.quick else 100, 20_000)
    steps = result["steps"]
    lines = [
        f"{result['scenarios']} random scenarios of each kind, seeds 0 to {result['scenarios'] - 1}",
        *described("freshness", result["freshness"]),
        *described("freshness, publications that are not Poisson", result["freshness_irregular"]),
        f"steps: {steps['met']} of {steps['planned']} thresholds planned as met are met, {steps['share']:.1%}",
    ]
    finish({**result, "machine": machine("triagemq", "numpy", "numba")}, lines, as_json=arguments.json)


if __name__ == "__main__":
    main()
