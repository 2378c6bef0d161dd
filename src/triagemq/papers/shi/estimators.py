"""Shi et al. (Sensors 2019) Fig. 5 in simulation: how estimators see the delay of queues."""

from __future__ import annotations

import numpy as np

from triagemq.delay.estimators import ESTIMATORS, make_estimator
from triagemq.delay.read_errors import ReadErrors, disturbed
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
    percent,
)
from triagemq.papers.shi.network import QUEUES, WIDTHS_BPS, QueueRun, observe, shi_scenario
from triagemq.scenario import ArrivalProcess

LOADS = (0.5, 0.8, 0.95, 1.5)
"""Of the width of each queue."""
TRAFFIC = (ArrivalProcess.PERIODIC, ArrivalProcess.POISSON, ArrivalProcess.PARETO, ArrivalProcess.ON_OFF)


def _figure_5(effort: Effort, progress: Progress) -> Findings:
    errors: dict[tuple[str, float, int], dict[str, list[float]]] = {}
    cells = [(traffic, load, seed) for traffic in TRAFFIC for load in LOADS for seed in range(effort.seeds)]
    for number, (traffic, load, seed) in enumerate(cells):
        rates = [load * width / 8_000 for width in WIDTHS_BPS]
        for queue, run in observe(shi_scenario(rates, traffic), effort.seconds, seed).items():
            found = errors.setdefault((traffic.name.lower(), load, queue), {})
            for name, error in _errors(run, seed).items():
                found.setdefault(name, []).append(error)
        progress((number + 1) / len(cells))
    mean = {
        cell: {name: float(np.mean(each)) for name, each in found.items()} for cell, found in errors.items()
    }
    overall = {name: float(np.mean([each[name] for each in mean.values()])) for name in ESTIMATORS}
    lossy = [each for (_, load, _), each in mean.items() if load > 1]
    nearer = float(np.mean([each["idm"] < each["red"] for each in lossy]))
    return Findings(
        tables=(
            PrintedTable.of(
                "mean absolute error of the delay, read errors on; means over runs",
                mean,
                ("traffic", lambda cell: cell[0]),
                ("load", lambda cell: f"{cell[1]:g}"),
                ("queue", lambda cell: QUEUES[cell[2]]),
                *((name, lambda cell, name=name: duration(mean[cell][name])) for name in ESTIMATORS),
            ),
            PrintedTable.of(
                "over all cells",
                ESTIMATORS,
                ("estimator", str),
                ("error", lambda name: duration(overall[name])),
            ),
        ),
        panels=tuple(
            Panel(
                f"{QUEUES[queue]}, Poisson",
                "load",
                "error, ms",
                tuple(
                    Series.of(name, LOADS, [1e3 * mean["poisson", load, queue][name] for load in LOADS])
                    for name in ESTIMATORS
                ),
            )
            for queue in range(len(QUEUES))
        ),
        differences=(
            Difference(
                "order of the estimators",
                "XGBoost closest, IDM second, RED worst",
                ", ".join(
                    f"{name} {duration(error)}"
                    for name, error in sorted(overall.items(), key=lambda at: at[1])
                ),
                "Without the learned one, which needs a model. Where packets are lost, red and the paper's form of IDM "
                "count them as waiting for ever, and are off by seconds; below that, what is read at different moments "
                "is larger than the delays themselves, and clamping it at zero makes it a bias. Only backlog reads "
                "the length of a queue, which OpenFlow switches do not show.",
            ),
            Difference(
                "read errors",
                "not printed",
                f"what went out is read up to {duration(ReadErrors().skew_seconds)} earlier or later, "
                f"{percent(ReadErrors().hidden_drops)} of the drops are not counted",
                "The paper names both causes and no sizes. Delays are from a packet's coming to its last bit.",
            ),
        ),
        claims=(
            Claim(
                "with losses idm is nearer to the truth than red",
                nearer == 1,
                f"in {percent(nearer)} of the cells",
            ),
            Claim(
                "where the length of queues is shown, backlog is the nearest over all",
                overall["backlog"] == min(overall.values()),
                duration(overall["backlog"]),
            ),
        ),
        figures={
            "error_seconds": [
                {"traffic": cell[0], "load": cell[1], "queue": QUEUES[cell[2]], **each}
                for cell, each in mean.items()
            ],
            "overall_error_seconds": overall,
        },
    )


def _errors(run: QueueRun, seed: int) -> dict[str, float]:
    """How far each estimator is from the truth, in windows in which something left."""
    seen = disturbed(run.samples, ReadErrors(), seed)
    found = {}
    for name in ESTIMATORS:
        estimator, said = make_estimator(name, "linux"), []
        for sample in seen:
            estimator.feed(sample)
            said.append(estimator.now_seconds)
        found[name] = float(np.nanmean(np.abs(np.array(said) - run.delay_seconds)))
    return found


SHI_ESTIMATORS = Experiment(
    "estimates of queueing delay against the truth, by traffic, load and queue",
    _figure_5,
    Effort(seeds=5, seconds=20.0),
    Effort(seeds=1, seconds=10.0),
)
