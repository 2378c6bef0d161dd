"""PrioDeX Fig. 6, FireDeX Figs. 7 and 8: one queue, priorities, priorities and drops, at a buffer of 2000 packets.

What was printed of each of these three, what draws of Table 2 do in them, and why the figures part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triagemq.forecast import Forecast, forecast
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
    duration,
    percent,
)
from triagemq.lab.papers.runs import (
    TABLE2_BUFFER_PACKETS,
    ClassFigures,
    forecast_figures,
    grouped,
    simulated,
    simulated_figures,
    table2_case,
)
from triagemq.plain import plain
from triagemq.plan import Plan, demand, make_plan
from triagemq.plan.demands import total_by
from triagemq.scenario import Floats, Integers, Scenario
from triagemq.simulate import SubscriptionResults

CLASSES = 9
PRINTED_CLASS_8_SECONDS = 0.647

WARMUP_SHARE = 0.3
"""Of the default run this is 125 simulated seconds, five times the longest delay; a run four times as long adds
a point to the success of class 6, 1 % to its latency, and 4 % to that of class 7."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One of the three configurations of PrioDeX 6.2, with what was printed per class (success, seconds)."""

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
    """What one draw of Table 2 gave in every configuration, the classes that show it, and what explains it."""

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
    # One queue has one class; its figures are given by the classes its subscriptions would have had.
    level = plans[1].subscription_class
    demanded = demand(scenario)
    ports = len(scenario.ports)
    sixth = np.flatnonzero(level == 6)
    counted = [
        total_by(demanded.port[sixth], column[sixth].astype(np.float64), ports)
        for column in (measured[1].delivered, measured[1].count)
    ]
    return Seed(
        level=level,
        simulated=tuple(measured),
        predicted=tuple(forecast(scenario, plan, formulas=True) for plan in plans),
        offered_load=plans[0].ports.rho_offered,
        packets_per_second=float(
            (total_by(demanded.port, demanded.notify_rate, ports) / plans[0].ports.rho_offered).mean()
        ),
        class_6_by_port=counted[0] / np.maximum(counted[1], 1),
        class_6_rate=float(demanded.notify_rate[level == 6].sum() / ports),
        class_8_bound_seconds=_longest_mean_seconds(scenario, plans[2]),
    )


def _longest_mean_seconds(scenario: Scenario, plan: Plan) -> Floats:
    """Per port, what no class can exceed on average at the planned load: R / (1 - rho)^2 and a transmission.

    Cobham's wait R / ((1 - sigma_7) (1 - sigma_8)) is longest when class 8 itself is empty: sigma_7 = sigma_8 = rho.
    """
    demanded = demand(scenario)
    bytes_per_second = scenario.ports.bandwidth_bps[demanded.port] / 8
    left = 0.5 * demanded.notify_rate * plan.subscription_keep
    left = left * demanded.sizes.event_square_bytes / bytes_per_second**2
    residual = total_by(demanded.port, left, len(scenario.ports))
    transmission = float((demanded.sizes.event_bytes / bytes_per_second).max())
    return np.asarray(residual / (1 - plan.ports.rho_planned) ** 2 + transmission)


def reproduce(effort: Effort, progress: Progress) -> Findings:
    """Simulate and forecast the three configurations, by the classes that greedy gives."""
    seeds = run_seeds(effort.seeds, effort.publications, progress)
    levels = [each.level for each in seeds]
    simulated = [
        simulated_figures(levels, [each.simulated[row] for each in seeds])
        for row in range(len(CONFIGURATIONS))
    ]
    predicted = [
        forecast_figures(levels, [each.predicted[row] for each in seeds])
        for row in range(len(CONFIGURATIONS))
    ]
    return Findings(
        tables=tuple(_table(*each) for each in zip(CONFIGURATIONS, simulated, predicted, strict=True)),
        panels=_panels(simulated, predicted),
        differences=_differences(seeds, simulated, predicted),
        claims=_claims(simulated),
        figures=_figures(seeds, simulated, predicted),
    )


def _table(configuration: Configuration, simulated: ClassFigures, predicted: ClassFigures) -> PrintedTable:
    return PrintedTable.of(
        f"{configuration.title}, buffer {TABLE2_BUFFER_PACKETS:.0f} packets",
        range(CLASSES),
        ("class", str),
        ("success, simulated", lambda level: percent(simulated.success[level])),
        ("forecast", lambda level: percent(predicted.success[level])),
        ("latency, simulated", lambda level: duration(simulated.latency_seconds[level])),
        ("forecast", lambda level: duration(predicted.latency_seconds[level])),
        ("printed", lambda level: configuration.printed_text[level]),
    )


def _panels(simulated: list[ClassFigures], predicted: list[ClassFigures]) -> tuple[Panel, ...]:
    def lines(title: str, found: Floats, computed: Floats, printed: dict[int, float]) -> list[Series]:
        return [
            Series.of(title, range(CLASSES), found),
            Series.of(f"{title}, forecast", range(CLASSES), computed, "dashed"),
            Series.of(f"{title}, printed", printed, list(printed.values()), "marks"),
        ]

    success: list[Series] = []
    latency: list[Series] = []
    for each, found, computed in zip(CONFIGURATIONS, simulated, predicted, strict=True):
        success += lines(each.title, found.success, computed.success, each.printed_success)
        latency += lines(each.title, found.latency_seconds, computed.latency_seconds, each.printed_seconds)
    return (
        Panel("success rate", "priority class", "delivered of published", tuple(success)),
        Panel("response time", "priority class", "mean seconds", tuple(latency), logarithmic=True),
    )


def _differences(
    seeds: list[Seed], simulated: list[ClassFigures], predicted: list[ClassFigures]
) -> tuple[Difference, ...]:
    one_queue, priorities, with_drops = simulated
    load = float(np.mean([each.offered_load for each in seeds]))
    throughput = float(np.mean([each.packets_per_second for each in seeds]))
    class_6 = np.concatenate([each.class_6_by_port for each in seeds])
    class_6_rate = float(np.mean([each.class_6_rate for each in seeds]))
    bound = np.concatenate([each.class_8_bound_seconds for each in seeds])
    class_8 = float(with_drops.latency_seconds[8])
    factor = float((with_drops.success[8] / with_drops.success[0]) ** (1 / 8))
    needed = 1 - 0.1 * class_8 / PRINTED_CLASS_8_SECONDS
    return (
        Difference(
            "one queue",
            "58 %, 0.9 s",
            f"{percent(float(one_queue.success.mean()))}, {float(one_queue.latency_seconds.mean()):.2f} s",
            f"A full port delivers 1/rho of what it is offered: our {len(seeds)} draws of Table 2 offer it "
            f"{load:.2f} times its bandwidth on average, and 58 % would be {1 / 0.58:.2f}. "
            f"The response time is the buffer over the port's throughput, {TABLE2_BUFFER_PACKETS:.0f} packets at "
            f"{throughput:.0f} a second, which is {TABLE2_BUFFER_PACKETS / throughput:.2f} s.",
        ),
        Difference(
            "priorities, classes 0-4",
            "100 %, < 4 ms",
            f"at least {percent(float(priorities.success[:5].min()), 2)}, at most "
            f"{duration(float(priorities.latency_seconds[:5].max()))}",
            "No difference: these classes fit into the port together, and nothing below them matters to them but "
            "the packet in service. The forecast says the same without simulation.",
        ),
        Difference(
            "priorities, class 6",
            "45 %, 11 s",
            f"{percent(float(priorities.success[6]))}, {duration(float(priorities.latency_seconds[6]))}",
            "In class 6 the load of the classes down to it passes 1, so it gets what those above leave: between "
            f"single ports that is {percent(float(np.nanmin(class_6)), 0)} to {percent(float(np.nanmax(class_6)), 0)},"
            f" a matter of the draw, and {percent(float((class_6 <= 0.45).mean()), 0)} of the ports lie at 45 % or "
            "below. Success and latency belong together, because the buffer fills with this class: "
            f"{TABLE2_BUFFER_PACKETS:.0f} packets at 45 % of {class_6_rate:.0f} a second take "
            f"{TABLE2_BUFFER_PACKETS / (0.45 * class_6_rate):.1f} s, as printed.",
        ),
        Difference(
            "priorities, classes 7-8",
            "almost 0 %, 20 s",
            f"7: {percent(float(priorities.success[7]))}, {duration(float(priorities.latency_seconds[7]))}; "
            f"8: {percent(float(priorities.success[8]), 2)}, {duration(float(priorities.latency_seconds[8]))}",
            "Class 7 passes only on ports where class 6 fits, after as long as it takes to move a buffer full of it. "
            "Class 8 is pushed out by class 7 before it is sent; a latency of what never arrives is not a figure.",
        ),
        Difference(
            "priorities, forecast of class 7",
            "not printed",
            f"{duration(float(predicted[1].latency_seconds[7]))} forecast, "
            f"{duration(float(priorities.latency_seconds[7]))} simulated",
            "With a full buffer the forecast is an approximation, and marked so. A class that gets little through is "
            "given the buffer over its throughput, and one starved behind a full buffer no latency at all; the "
            "simulation is the truth there.",
        ),
        Difference(
            "drops, class 8",
            "647 ms",
            duration(class_8),
            "At the planned load of 0.9 no class can wait more than R / (1 - 0.9)^2, by the forecast's R and with the "
            f"longest transmission {duration(float(bound.mean()))} on the average port and "
            f"{duration(float(bound.max()))} on the worst of {len(bound)}: 647 ms cannot follow from it. "
            f"Class 8 would wait so long at a load of {percent(needed)}, or where drops do not hold yet.",
        ),
        Difference(
            "drops, classes 0-6",
            "< 6 ms, class 0 100 %",
            f"at most {duration(float(with_drops.latency_seconds[:7].max()))}, class 0 "
            f"{percent(float(with_drops.success[0]), 2)}",
            f"No difference. Success falls by a factor of {factor:.2f} from class to class, as rates of 1 - a^y say.",
        ),
    )


def _claims(simulated: list[ClassFigures]) -> tuple[Claim, ...]:
    one_queue, priorities, with_drops = simulated
    success, seconds = float(one_queue.success.mean()), float(one_queue.latency_seconds.mean())
    least = int(np.argmin(priorities.success[:5]))
    slowest = int(np.argmax(with_drops.latency_seconds))
    return (
        Claim(
            "one queue: near 58 % (55..61) and 0.9 s (0.8..1.05)",
            0.55 <= success <= 0.61 and 0.8 <= seconds <= 1.05,
            f"{percent(success, 2)}, {seconds:.3f} s",
        ),
        Claim(
            "priorities only: 100 % in classes 0-4 (above 99.9)",
            bool((priorities.success[:5] > 0.999).all()),
            f"class {least}: {percent(float(priorities.success[least]), 3)}",
        ),
        Claim(
            "with drops: class 0 at 100 % (above 99.9), all classes in milliseconds (below 100)",
            bool(with_drops.success[0] > 0.999 and (with_drops.latency_seconds < 0.1).all()),
            f"class 0: {percent(float(with_drops.success[0]), 3)}; "
            f"class {slowest}: {duration(float(with_drops.latency_seconds[slowest]))}",
        ),
    )


def _figures(
    seeds: list[Seed], simulated: list[ClassFigures], predicted: list[ClassFigures]
) -> dict[str, Any]:
    return {
        "mean_offered_load": float(np.mean([each.offered_load for each in seeds])),
        "class_8_bound_seconds": max(float(each.class_8_bound_seconds.max()) for each in seeds),
        "printed_class_8_seconds": PRINTED_CLASS_8_SECONDS,
        "configurations": [
            {
                "title": configuration.title,
                "priorities": configuration.priorities,
                "drops": configuration.drops,
                "classes": [
                    {
                        "priority_class": level,
                        "success_rate": plain(found.success[level]),
                        "mean_latency_seconds": plain(found.latency_seconds[level]),
                        "forecast_success_rate": plain(computed.success[level]),
                        "forecast_latency_seconds": plain(computed.latency_seconds[level]),
                        "printed": configuration.printed_text[level] or None,
                    }
                    for level in range(CLASSES)
                ],
            }
            for configuration, found, computed in zip(CONFIGURATIONS, simulated, predicted, strict=True)
        ],
    }


BUFFER_CONFIGURATIONS = Experiment(
    title="success and response time with one queue, with priorities, and with drops",
    run=reproduce,
    normal=Effort(seeds=10, publications=5_000_000),
    quick=Effort(seeds=2, publications=1_600_000),
)
