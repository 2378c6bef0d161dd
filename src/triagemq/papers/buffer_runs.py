"""The three configurations of PrioDeX 6.2, what was printed of each, and what one draw of Table 2 does in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from triagemq.forecast import Forecast, forecast
from triagemq.papers.experiment import Progress
from triagemq.papers.runs import TABLE2_BUFFER_PACKETS
from triagemq.papers.simulations import grouped, simulated, table2_case
from triagemq.plan import Plan, demand, make_plan
from triagemq.plan.demand import total_by
from triagemq.scenario import Floats, Integers, Scenario
from triagemq.scenario.generators import table2
from triagemq.simulate import SubscriptionResults

__all__ = ["CLASSES", "CONFIGURATIONS", "PRINTED_CLASS_8_SECONDS", "Configuration", "Seed", "run_seeds"]

CLASSES = 9
PRINTED_CLASS_8_SECONDS = 0.647

WARMUP_SHARE = 0.3
"""Of the default run this is 125 simulated seconds, five times the longest delay; a run four times as long adds
a point to the success of class 6, 1 % to its latency, and 4 % to that of class 7."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One of the three ways of PrioDeX 6.2, with what was printed per class (success, seconds)."""

    title: str
    priorities: str
    drops: str
    printed_success: dict[int, float]
    printed_seconds: dict[int, float]
    printed_text: tuple[str, ...]


ONE_QUEUE = Configuration(
    "one queue",
    "none",
    "none",
    dict.fromkeys(range(CLASSES), 0.58),
    dict.fromkeys(range(CLASSES), 0.9),
    ("58 %, 0.9 s",) * CLASSES,
)
PRIORITIES = Configuration(
    "priorities",
    "greedy",
    "none",
    {**dict.fromkeys(range(5), 1.0), 6: 0.45},
    {6: 11.0, 7: 20.0, 8: 20.0},
    (*("100 %, < 4 ms",) * 5, "", "45 %, 11 s", "almost 0 %, 20 s", "almost 0 %, 20 s"),
)
WITH_DROPS = Configuration(
    "priorities and drops",
    "greedy",
    "exponential",
    {0: 1.0},
    {8: PRINTED_CLASS_8_SECONDS},
    ("100 %, < 6 ms", *("< 6 ms",) * 6, "", "647 ms"),
)
CONFIGURATIONS = (ONE_QUEUE, PRIORITIES, WITH_DROPS)


@dataclass(frozen=True, slots=True, eq=False)
class Seed:
    """What one draw of Table 2 gave in every configuration, the classes to tell it by, and what explains it."""

    level: Integers
    simulated: tuple[SubscriptionResults, ...]
    predicted: tuple[Forecast, ...]
    offered_load: Floats
    packets_per_second: float
    class_6_by_port: Floats
    class_6_rate: float
    class_8_bound_seconds: Floats


def run_seeds(seeds: int, publications: int, progress: Progress) -> list[Seed]:
    """Draw Table 2 so often, and run the three configurations on every draw."""
    drawn = [_draw(seed) for seed in range(seeds)]
    cases = [
        table2_case(scenario, plan, publications=publications, seed=seed, warmup=WARMUP_SHARE)
        for seed, (scenario, plans) in enumerate(drawn)
        for plan in plans
    ]
    measured = grouped(simulated(cases, progress), len(CONFIGURATIONS))
    return [_seed(*each, results) for each, results in zip(drawn, measured, strict=True)]


def _draw(seed: int) -> tuple[Scenario, list[Plan]]:
    scenario = table2(seed=seed, buffer_packets=TABLE2_BUFFER_PACKETS)
    return scenario, [
        make_plan(scenario, priorities=each.priorities, drops=each.drops) for each in CONFIGURATIONS
    ]


def _seed(scenario: Scenario, plans: Sequence[Plan], measured: Sequence[SubscriptionResults]) -> Seed:
    # One queue has one class; its figures are told by the classes its subscriptions would have had.
    level = plans[1].subscription_class
    asked = demand(scenario)
    ports = len(scenario.ports)
    sixth = np.flatnonzero(level == 6)
    counted = [
        total_by(asked.port[sixth], column[sixth].astype(np.float64), ports)
        for column in (measured[1].delivered, measured[1].count)
    ]
    return Seed(
        level=level,
        simulated=tuple(measured),
        predicted=tuple(forecast(scenario, plan) for plan in plans),
        offered_load=plans[0].ports.rho_offered,
        packets_per_second=float(
            (total_by(asked.port, asked.notify_rate, ports) / plans[0].ports.rho_offered).mean()
        ),
        class_6_by_port=counted[0] / np.maximum(counted[1], 1),
        class_6_rate=float(asked.notify_rate[level == 6].sum() / ports),
        class_8_bound_seconds=_longest_mean_seconds(scenario, plans[2]),
    )


def _longest_mean_seconds(scenario: Scenario, plan: Plan) -> Floats:
    """Per port, what no class can exceed on average at the planned load: R / (1 - rho)^2 and a transmission.

    Cobham's wait R / ((1 - sigma_7) (1 - sigma_8)) is longest when class 8 itself is empty: sigma_7 = sigma_8 = rho.
    """
    asked = demand(scenario)
    bytes_per_second = scenario.ports.bandwidth_bps[asked.port] / 8
    left = 0.5 * asked.notify_rate * plan.subscription_keep
    left = left * asked.sizes.event_square_bytes / bytes_per_second**2
    residual = total_by(asked.port, left, len(scenario.ports))
    transmission = float((asked.sizes.event_bytes / bytes_per_second).max())
    return np.asarray(residual / (1 - plan.ports.rho_planned) ** 2 + transmission)
