"""Shi et al. (Sensors 2019) Fig. 5: estimators and the truth, on traffic that none has learned, simulated and real.

With real packets the truth is the time that each took in its queue by the kernel. The port is that of Fig. 6 with real
packets: a fiftieth of the bandwidth and buffer of the paper. Models have learned from simulated runs of such ports.
Counters are the kernel's; read errors are put into them as in simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import yaml

from triagemq.delay.estimators import Estimator, make_estimator
from triagemq.delay.learning.features import SwitchConstants
from triagemq.delay.learning.models import DelayModel
from triagemq.delay.samples import COUNTER_SETS, Samples
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
    part_of,
    percent,
    tracked,
)
from triagemq.lab.papers.real_packets import emulated
from triagemq.lab.papers.shi.learning import LEARNED_TRAFFIC, constants, learned_models
from triagemq.lab.papers.shi.network import (
    BUFFER_PACKETS,
    OFF_SECONDS,
    ON_SECONDS,
    PARETO_SHAPE,
    QUEUES,
    WIDTHS_BPS,
    QueueRun,
    observe,
    queue_run,
    shi_scenario,
)
from triagemq.lab.papers.shi.packets import SCALE, one_port
from triagemq.lab.queue_delay import EVERY_ESTIMATOR, ReadErrors, disturbed, only
from triagemq.scenario import ArrivalProcess

LOADS = (0.5, 0.8, 0.95, 1.5)
"""Of the width of each queue; in one run each has another one, so that some leave what others can borrow."""
TRAFFIC = (ArrivalProcess.PARETO, ArrivalProcess.ON_OFF)
"""None of it is in training."""

COMPARED = ("red", "idm-paper", "idm", "idm-buffer", "backlog", "model", "learned")
"""`idm-buffer` is `idm` that knows how much the queue holds, as `learned` does."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One queue at one rate, partitioned or borrowing, under one kind of traffic."""

    traffic: str
    borrowing: bool
    load: float
    queue: int

    def as_json(self) -> dict[str, Any]:
        return {
            "traffic": self.traffic,
            "queue_rates": self.queue_rates,
            "load": self.load,
            "queue": QUEUES[self.queue],
        }

    @property
    def queue_rates(self) -> str:
        return "borrowing" if self.borrowing else "partitioned"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a switch shows, and how well."""

    counters: str
    read_errors: bool

    def __str__(self) -> str:
        return f"{self.counters}, read errors {'on' if self.read_errors else 'off'}"

    def seen(self, samples: Samples, seed: int) -> Samples:
        read = disturbed(samples, ReadErrors(), seed) if self.read_errors else samples
        return only(read, self.counters)


SHOWN = tuple(Shown(counters, errors) for counters in COUNTER_SETS for errors in (True, False))

Errors = dict[Cell, dict[str, float]]
"""Mean absolute error in seconds, by estimator."""


def _figure_5(effort: Effort, progress: Progress) -> Findings:
    models = learned_models(effort, part_of(progress, 0, 2))
    return findings_of(compared(models, _simulated, effort, part_of(progress, 1, 2)), models)


def _simulated(
    traffic: ArrivalProcess, borrowing: bool, loads: Sequence[float], seconds: float, seed: int
) -> dict[int, QueueRun]:
    rates = [load * width / 8_000 for load, width in zip(loads, WIDTHS_BPS, strict=True)]
    return observe(shi_scenario(rates, traffic, borrowing=borrowing), seconds, seed)


def compared(
    models: Mapping[str, DelayModel],
    run_queues: Callable[[ArrivalProcess, bool, Sequence[float], float, int], Mapping[int, QueueRun]],
    effort: Effort,
    progress: Progress,
    buffer_packets: float = BUFFER_PACKETS,
) -> dict[Shown, Errors]:
    """The errors of all estimators in runs of traffic, borrowing or not, the loads of queues, seconds and a seed."""
    runs = product(TRAFFIC, (False, True), range(len(LOADS)), range(effort.seeds))
    by_cell: dict[Shown, dict[Cell, list[dict[str, float]]]] = {shown: {} for shown in SHOWN}
    for (traffic, borrowing, turn, seed), _ in tracked(runs, progress):
        loads = [LOADS[(turn + queue) % len(LOADS)] for queue in range(len(QUEUES))]
        for queue, run in run_queues(traffic, borrowing, loads, effort.seconds, seed).items():
            cell = Cell(traffic.name.lower(), borrowing, loads[queue], queue)
            for shown in SHOWN:
                errors = errors_of_run(run, shown, models[shown.counters], seed, constants(buffer_packets))
                by_cell[shown].setdefault(cell, []).append(errors)
    return {
        shown: {
            cell: {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
            for cell, runs in cells.items()
        }
        for shown, cells in by_cell.items()
    }


def errors_of_run(
    run: QueueRun, shown: Shown, model: DelayModel, seed: int, switch: SwitchConstants
) -> dict[str, float]:
    """How far what each estimator says of the next window is from the truth, where something came in it."""
    seen = shown.seen(run.samples, seed)
    return {
        name: float(np.nanmean(np.abs(_estimates(estimator, seen) - run.next_delay_seconds)[1:]))
        for name, estimator in _estimators(shown.counters, model, switch).items()
    }


def _estimators(counters: str, model: DelayModel, switch: SwitchConstants) -> dict[str, Estimator]:
    made = {name: EVERY_ESTIMATOR[name]() for name in ("red", "idm-paper", "idm", "model")}
    made["idm-buffer"] = make_estimator("idm", counters, switch=switch)
    made["learned"] = make_estimator("learned", counters, model=model, switch=switch)
    if "backlog_bytes" in COUNTER_SETS[counters]:
        made["backlog"] = make_estimator("backlog", counters)
    return {name: made[name] for name in COMPARED if name in made}


def _estimates(estimator: Estimator, samples: Samples) -> np.ndarray[Any, np.dtype[np.float64]]:
    estimates = []
    for sample in samples:
        estimator.feed(sample)
        estimates.append(estimator.next_seconds)
    return np.array(estimates)


def findings_of(
    found: Mapping[Shown, Errors], models: Mapping[str, DelayModel], *also: Difference
) -> Findings:
    """The comparison, whatever it was measured on, and what there is to say of that."""
    overall = {
        shown: {name: float(np.mean([each[name] for each in cells.values()])) for name in _names(cells)}
        for shown, cells in found.items()
    }
    won = {shown: {cell for cell, each in cells.items() if _wins(each)} for shown, cells in found.items()}
    hard = Shown("openflow", True)
    return Findings(
        tables=(
            *(_by_cell(shown, cells) for shown, cells in found.items()),
            PrintedTable.of(
                "over all cells, and where learned is better than red and idm",
                found,
                ("counters", str),
                *(
                    (name, lambda shown, name=name: duration(overall[shown].get(name, float("nan"))))
                    for name in COMPARED
                ),
                ("cells won", lambda shown: percent(len(won[shown]) / len(found[shown]))),
            ),
        ),
        panels=tuple(
            Panel(
                f"{traffic}, {queue_rates}, {hard}",
                "load",
                "error, ms",
                tuple(
                    Series.of(
                        name,
                        LOADS,
                        [1e3 * _mean_at(found[hard], traffic, queue_rates, load, name) for load in LOADS],
                    )
                    for name in _names(found[hard])
                ),
                logarithmic=True,
            )
            for traffic, queue_rates in dict.fromkeys(
                (cell.traffic, cell.queue_rates) for cell in found[hard]
            )
        ),
        differences=(*also, *_differences(found, overall, won)),
        claims=_claims(found, overall, won),
        figures={
            "cells": [
                {"counters": shown.counters, "read_errors": shown.read_errors, **cell.as_json(), **each}
                for shown, cells in found.items()
                for cell, each in cells.items()
            ],
            "overall_error_seconds": {str(shown): each for shown, each in overall.items()},
            "cells_won": {str(shown): len(won[shown]) / len(found[shown]) for shown in found},
            "models": {counters: dict(model.about) for counters, model in models.items()},
        },
    )


def _by_cell(shown: Shown, cells: Errors) -> PrintedTable:
    return PrintedTable.of(
        f"mean absolute error of the next window's delay; {shown}",
        cells,
        ("traffic", lambda cell: cell.traffic),
        ("queue rates", lambda cell: cell.queue_rates),
        ("load", lambda cell: f"{cell.load:g}"),
        ("queue", lambda cell: QUEUES[cell.queue]),
        *((name, lambda cell, name=name: duration(cells[cell][name])) for name in _names(cells)),
        ("learned wins", lambda cell: "yes" if _wins(cells[cell]) else "no"),
    )


def _names(cells: Errors) -> tuple[str, ...]:
    return tuple(next(iter(cells.values())))


def _wins(errors: Mapping[str, float]) -> bool:
    return errors["learned"] < min(errors["red"], errors["idm"])


def _mean_at(cells: Errors, traffic: str, queue_rates: str, load: float, name: str) -> float:
    chosen = [
        each[name]
        for cell, each in cells.items()
        if (cell.traffic, cell.queue_rates, cell.load) == (traffic, queue_rates, load)
    ]
    return float(np.mean(chosen)) if chosen else float("nan")


def _differences(
    found: Mapping[Shown, Errors],
    overall: Mapping[Shown, Mapping[str, float]],
    won: Mapping[Shown, set[Cell]],
) -> tuple[Difference, ...]:
    hard = Shown("openflow", True)
    lost = [cell for cell in found[hard] if cell not in won[hard]]
    behind = max(
        (
            found[hard][cell]["learned"] - min(found[hard][cell]["red"], found[hard][cell]["idm"])
            for cell in lost
        ),
        default=0.0,
    )
    errors = ReadErrors()
    return (
        Difference(
            "order of the estimators",
            "XGBoost closest, IDM second, RED worst",
            ", ".join(
                f"{name} {duration(error)}"
                for name, error in sorted(overall[hard].items(), key=lambda at: at[1])
            ),
            f"Over all cells, {hard}. Where packets are lost, red and the paper's form of IDM count them as waiting "
            "for ever. Where it knows how much a queue holds (idm-buffer), as learned does, idm loses most of its "
            "error.",
        ),
        Difference(
            "where learned does not win",
            "it always does",
            f"{len(lost)} of {len(found[hard])} cells, by at most {duration(behind)}: "
            + (
                ", ".join(dict.fromkeys(f"{cell.traffic} {cell.load:g} {cell.queue_rates}" for cell in lost))
                or "none"
            ),
            "Where nothing is lost, red is all that came less all that went: the truth but for the moment of reading, "
            "which its smoothing takes off. In such queues learned has nothing to add but what it mistakes bursts for "
            "that it has never seen; on-off sources switch within a window, and no counter says when.",
        ),
        Difference(
            "read errors",
            "not printed",
            f"what went out is read up to {duration(errors.skew_seconds)} earlier or later, "
            f"{percent(errors.hidden_drops)} of the drops are not counted",
            "The paper names both causes and no sizes. Delays are from a packet's coming to its last bit, and those of "
            "the packets that come in the window after a sample: what a controller acts on.",
        ),
        Difference(
            "traffic",
            "one kind for training and comparison",
            f"learned from {' and '.join(each.name.lower() for each in LEARNED_TRAFFIC)}, compared on "
            f"{' and '.join(each.name.lower() for each in TRAFFIC)}",
            "A model that is compared on what it has learned shows its memory. Half of the runs to learn from have "
            "rates that change every 0.02 to 20 s.",
        ),
    )


def _claims(
    found: Mapping[Shown, Errors],
    overall: Mapping[Shown, Mapping[str, float]],
    won: Mapping[Shown, set[Cell]],
) -> tuple[Claim, ...]:
    hard, clean = Shown("openflow", True), Shown("openflow", False)
    share = len(won[hard]) / len(found[hard])
    claims = [
        Claim(
            f"{hard}: learned is better than red and idm in 80 % of the cells", share >= 0.8, percent(share)
        ),
        *(
            Claim(
                f"{hard}: learned is off by at most {part} of what {name} is",
                overall[hard]["learned"] <= most * overall[hard][name],
                f"{duration(overall[hard]['learned'])} beside {duration(overall[hard][name])}",
            )
            for name, part, most in (("idm", "half", 0.5), ("red", "a quarter", 0.25))
        ),
        Claim(
            f"{clean}: learned is no worse than idm over all",
            overall[clean]["learned"] <= overall[clean]["idm"],
            f"{duration(overall[clean]['learned'])} beside {duration(overall[clean]['idm'])}",
        ),
    ]
    for shown in found:
        if "backlog" in overall[shown]:
            best, learned = overall[shown]["backlog"], overall[shown]["learned"]
            claims.append(
                Claim(
                    f"{shown}: learned is at least as good as backlog over all",
                    learned <= best,
                    f"{duration(learned)} beside {duration(best)}",
                )
            )
    return tuple(claims)


SHI_ESTIMATORS = Experiment(
    "estimates of queueing delay against the truth, on traffic not in training, by load and queue",
    _figure_5,
    Effort(seeds=3, seconds=60.0),
    Effort(seeds=1, seconds=20.0),
)


_ARRIVALS = {
    ArrivalProcess.PARETO: {"process": "pareto", "shape": PARETO_SHAPE},
    ArrivalProcess.ON_OFF: {"process": "on_off", "on_seconds": ON_SECONDS, "off_seconds": OFF_SECONDS},
}


def _packet_run(
    traffic: ArrivalProcess, borrowing: bool, loads: Sequence[float], seconds: float, seed: int
) -> dict[int, QueueRun]:
    document = one_port(loads, _ARRIVALS[traffic], borrowing=borrowing)
    return emulated(
        yaml.safe_dump(document, sort_keys=False),
        _queues,
        seconds=seconds,
        progress=lambda share: None,
        seed=seed,
        planner={"drops": "none"},
    )


def _queues(result: Any) -> dict[int, QueueRun]:
    """What the trace of a run says of each queue of its only port."""
    from triagemq.lab.queue_delay import of_trace
    from triagemq.trace import Outcome, Trace

    trace = Trace.open(result.trace)
    hops = trace.table("hops", ["queue", "enqueued_ns", "dequeued_ns"]).to_pandas()
    hops["outcome"] = int(Outcome.delivered)
    return {
        queue: queue_run(
            samples, {name: values.to_numpy() for name, values in hops[hops.queue == queue].items()}
        )
        for (_, queue), samples in of_trace(trace, "linux").items()
        if (hops.queue == queue).any()
    }


def _figure_5_packets(effort: Effort, progress: Progress) -> Findings:
    learning = Effort(seeds=2 * effort.seeds, seconds=2 * effort.seconds)
    models = learned_models(learning, part_of(progress, 0, 2), scale=SCALE)
    found = compared(models, _packet_run, effort, part_of(progress, 1, 2), round(BUFFER_PACKETS / SCALE))
    return findings_of(
        found,
        models,
        Difference(
            "what was run",
            "a switch with 100 Mbit/s",
            f"queues of the kernel with 1/{SCALE} of its bandwidth and buffer",
            "The truth is the kernel's: from when a packet is put into its queue until its last bit has left. The "
            "kernel counts a packet as gone when its transmission begins, simulation when it ends: what was learned "
            "there is off by a part of a packet here, and a packet takes 7 to 40 ms.",
        ),
    )


PACKETS_ESTIMATED = Experiment(
    f"estimates of queueing delay against the kernel's times of real packets, at 1/{SCALE} of the bandwidth",
    _figure_5_packets,
    Effort(seeds=1, seconds=30.0),
    Effort(seeds=1, seconds=6.0),
)
