"""PrioDeX Fig. 6, FireDeX Figs. 7 and 8: one queue, priorities, priorities and drops, at a buffer of 2000 packets."""

from __future__ import annotations

from typing import Any

import numpy as np

from triagemq.papers.buffer_runs import (
    CLASSES,
    CONFIGURATIONS,
    PRINTED_CLASS_8_SECONDS,
    Configuration,
    Seed,
    run_seeds,
)
from triagemq.papers.experiment import (
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
    known,
    percent,
)
from triagemq.papers.runs import TABLE2_BUFFER_PACKETS, ClassFigures, forecast_figures, simulated_figures

__all__ = ["BUFFER_CONFIGURATIONS"]


def reproduce(effort: Effort, progress: Progress) -> Findings:
    """Simulate and forecast the three configurations, by the classes that greedy gives."""
    assert effort.seeds is not None
    assert effort.publications is not None
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
    return PrintedTable(
        title=f"{configuration.title}, buffer {TABLE2_BUFFER_PACKETS:.0f} packets",
        columns=(
            "class",
            "success, simulated",
            "forecast",
            "latency, simulated",
            "forecast",
            "printed",
        ),
        rows=tuple(
            (
                str(level),
                percent(simulated.success[level]),
                percent(predicted.success[level]),
                duration(simulated.latency_seconds[level]),
                duration(predicted.latency_seconds[level]),
                configuration.printed_text[level],
            )
            for level in range(CLASSES)
        ),
    )


def _panels(simulated: list[ClassFigures], predicted: list[ClassFigures]) -> tuple[Panel, ...]:
    success: list[Series] = []
    latency: list[Series] = []
    for configuration, found, said in zip(CONFIGURATIONS, simulated, predicted, strict=True):
        title, levels = configuration.title, range(CLASSES)
        printed = configuration.printed_success, configuration.printed_seconds
        success += [
            Series.of(title, levels, found.success),
            Series.of(f"{title}, forecast", levels, said.success, "dashed"),
            Series.of(f"{title}, printed", printed[0].keys(), list(printed[0].values()), "marks"),
        ]
        latency += [
            Series.of(title, levels, found.latency_seconds),
            Series.of(f"{title}, forecast", levels, said.latency_seconds, "dashed"),
            Series.of(f"{title}, printed", printed[1].keys(), list(printed[1].values()), "marks"),
        ]
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
                        "success_rate": known(found.success[level]),
                        "mean_latency_seconds": known(found.latency_seconds[level]),
                        "forecast_success_rate": known(said.success[level]),
                        "forecast_latency_seconds": known(said.latency_seconds[level]),
                        "printed": configuration.printed_text[level] or None,
                    }
                    for level in range(CLASSES)
                ],
            }
            for configuration, found, said in zip(CONFIGURATIONS, simulated, predicted, strict=True)
        ],
    }


BUFFER_CONFIGURATIONS = Experiment(
    title="success and response time with one queue, with priorities, and with drops",
    run=reproduce,
    normal=Effort(seeds=10, publications=5_000_000),
    quick=Effort(seeds=2, publications=1_600_000),
)
