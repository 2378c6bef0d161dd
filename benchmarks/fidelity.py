"""How true forecasts are: families of random scenarios, forecast and simulated, subscription by subscription.

A cell is one subscription of one scenario. Its mean latency (and its success) is outside when forecast and simulation
differ by more than 2 % and the simulation's 95 % interval; of percentiles the errors are shown. The forecast may flag
a cell: it then names the reason and the error to expect, and claims nothing closer. Cells that a simulation of this
length does not know within 5 % are left out. About half of the scenarios send the copies of one event by class, the
others in random order. Scenario N of a family is always the same one:
`--family trees --seed 7 --scenarios 1 --cells` shows its cells.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.special import stdtrit

from fidelity_families import FAMILIES, Family
from measuring import finish, machine, options
from triagemq.forecast import forecast
from triagemq.plan import make_plan
from triagemq.scenario import Floats, Scenario, loads
from triagemq.simulate import simulate

ALLOWED = 0.02
"""What an unflagged forecast claims: within this share of the truth."""
KNOWN = 0.05
"""A cell is judged if its simulated mean is known within this share."""
TAIL_KNOWN = 0.1
"""The same for percentiles."""
REPLICATIONS = 8
FEWEST_EVENTS = 500
PRECISION = 0.015
"""Replications are added until nine in ten cells are known within this share, or the copies are used up."""


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Columns over subscriptions: forecast, simulated mean and half its 95 % interval; seconds and shares."""

    seed: Floats
    latency: Floats
    latency_simulated: Floats
    latency_interval: Floats
    success: Floats
    success_simulated: Floats
    success_interval: Floats
    reason: Floats
    latency_error: Floats
    success_error: Floats
    p95: Floats
    p95_simulated: Floats
    p95_interval: Floats
    p99: Floats
    p99_simulated: Floats
    p99_interval: Floats

    @property
    def flagged(self) -> Any:
        return self.reason > 0


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this one; may be repeated")
    parser.add_argument("--scenarios", type=int, default=40, help="of each family (40)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first scenario (0)")
    parser.add_argument(
        "--copies", type=float, default=4e6, help="simulated for each scenario, at most (4e6)"
    )
    parser.add_argument("--cells", action="store_true", help="show every cell too")
    arguments = parser.parse_args()
    scenarios = 8 if arguments.quick else arguments.scenarios
    seeds = range(arguments.seed, arguments.seed + scenarios)
    copies = arguments.copies / 4 if arguments.quick else arguments.copies
    started = time.perf_counter()
    result: dict[str, Any] = {
        "machine": machine("triagemq", "numpy", "numba"),
        "seeds": [seeds.start, seeds.stop - 1],
        "families": {},
    }
    lines = [f"seeds {seeds.start} to {seeds.stop - 1} of each family", HEADER]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name in arguments.family or FAMILIES:
            compared = list(pool.map(compare, [name] * len(seeds), seeds, [copies] * len(seeds)))
            cells = together(compared)
            judged = judge(cells, FAMILIES[name])
            result["families"][name] = judged
            lines += described(name, judged)
            if arguments.cells:
                judged["each"] = list(rows(cells))
                lines += [shown(cell) for cell in judged["each"]]
    result["wall_seconds"] = time.perf_counter() - started
    lines.append(f"{result['wall_seconds']:.0f} s")
    finish(result, lines, as_json=arguments.json)


def drawn(family: str, seed: int) -> tuple[Scenario, dict[str, Any]]:
    """Scenario number `seed` of a family, and the planner it is planned by."""
    random = np.random.default_rng([list(FAMILIES).index(family), seed])
    found = FAMILIES[family].draw(random)
    document = {"sending_order": str(random.choice(["by_class", "random"])), **found.document}
    # JSON is YAML: the document goes the way of a user's file.
    return loads(json.dumps(document), f"{family}-{seed}"), found.planner


def compare(family: str, seed: int, copies: float) -> Cells:
    """Forecast and simulate one scenario."""
    scenario, planner = drawn(family, seed)
    plan = make_plan(scenario, **planner)
    predicted = forecast(scenario, plan)
    subscribed = np.bincount(scenario.subscriptions.topic, minlength=len(scenario.topics))
    rate = scenario.publications.rate_per_second
    copy_rate = float((rate * subscribed[scenario.publications.topic]).sum())
    latency: list[Floats] = []
    success: list[Floats] = []
    tails: dict[float, list[Floats]] = {0.95: [], 0.99: []}
    most = 4 * REPLICATIONS
    # What is under way when a run is cut off counts as lost: with few events that would be seen.
    seconds = max(copies / most / copy_rate, FEWEST_EVENTS / float(rate.sum()))
    while len(latency) < most:
        for number in range(len(latency), len(latency) + REPLICATIONS):
            found = simulate(
                scenario,
                plan,
                duration_seconds=seconds,
                seed=1000 * seed + number,
                threads=1,
                percentiles=True,
            ).subscriptions
            latency.append(found.mean_latency_seconds)
            success.append(found.success_rate)
            tails[0.95].append(found.p95_seconds)
            tails[0.99].append(found.p99_seconds)
        mean, interval = means(latency)
        known = np.isfinite(mean)
        if (interval[known] <= PRECISION * mean[known]).mean() >= 0.9:
            break
    success_mean, success_interval = means(success)
    count = len(scenario.subscriptions)
    return Cells(
        seed=np.full(count, seed, dtype=np.float64),
        latency=predicted.latency_seconds,
        latency_simulated=mean,
        latency_interval=interval,
        success=predicted.success,
        success_simulated=success_mean,
        success_interval=success_interval,
        reason=predicted.reason.astype(np.float64),
        latency_error=predicted.latency_error,
        success_error=predicted.success_error,
        p95=predicted.percentile_seconds(0.95),
        p95_simulated=means(tails[0.95])[0],
        p95_interval=means(tails[0.95])[1],
        p99=predicted.percentile_seconds(0.99),
        p99_simulated=means(tails[0.99])[0],
        p99_interval=means(tails[0.99])[1],
    )


def means(samples: list[Floats]) -> tuple[Floats, Floats]:
    """Mean over replications per cell and half the width of its 95 % interval; NaN where a replication had none."""
    each = np.stack(samples)
    count = len(each)
    spread = each.std(axis=0, ddof=1) / np.sqrt(count)
    return each.mean(axis=0), float(stdtrit(count - 1, 0.975)) * spread


def together(compared: list[Cells]) -> Cells:
    return Cells(
        **{
            field.name: np.concatenate([getattr(each, field.name) for each in compared])
            for field in fields(Cells)
        }
    )


def judge(cells: Cells, family: Family) -> dict[str, Any]:
    """The figures of one family, for latency and for success."""
    flagged = cells.flagged
    found: dict[str, Any] = {"title": family.title, "cells": len(flagged)}
    for name in ("latency", "success"):
        predicted = getattr(cells, name)
        simulated, interval = getattr(cells, f"{name}_simulated"), getattr(cells, f"{name}_interval")
        stated = getattr(cells, f"{name}_error")
        judged = (simulated > 0) & (interval <= KNOWN * simulated)
        missing = judged & ~np.isfinite(predicted)
        judged &= np.isfinite(predicted)
        off = np.abs(predicted - simulated) / np.where(simulated > 0, simulated, 1.0)
        outside = judged & (np.abs(predicted - simulated) > ALLOWED * simulated + interval)
        doubted = judged & flagged
        if name == "success":
            doubted &= stated > 0
        claimed = judged & ~doubted
        found[name] = {
            "judged": int(judged.sum()),
            "without_forecast": int(missing.sum()),
            "median_interval": _median((interval / np.where(simulated > 0, simulated, 1.0))[judged]),
            "median_error": _median(off[judged]),
            "unflagged_outside": _share(outside & ~doubted, judged),
            "flagged": _share(doubted, judged),
            "flagged_outside": _share(outside & doubted, doubted),
            "median_stated_error": _median(stated[doubted]),
            "median_flagged_error": _median(off[doubted]),
            "stated_within_two": _share(doubted & (off <= 2 * stated) & (off >= stated / 2), doubted),
            "largest_unflagged_error": float(off[claimed].max(initial=0.0)),
            "seed_of_largest": int(cells.seed[claimed][off[claimed].argmax()]) if claimed.any() else None,
        }
    for name in ("p95", "p99"):
        simulated, interval = getattr(cells, f"{name}_simulated"), getattr(cells, f"{name}_interval")
        predicted = getattr(cells, name)
        judged = (simulated > 0) & (interval <= TAIL_KNOWN * simulated) & np.isfinite(predicted) & ~flagged
        off = np.abs(predicted - simulated) / np.where(simulated > 0, simulated, 1.0)
        found[name] = {
            "judged": int(judged.sum()),
            "median_error": _median(off[judged]),
            "within_a_fifth": _share(judged & (off <= 0.2), judged),
        }
    return found


HEADER = (
    f"{'':30} {'cells':>6} {'known':>6} {'±':>6} {'error':>6} | {'unflagged':>9} {'largest':>14} | {'flagged':>7} "
    f"{'outside':>7} {'stated':>6} {'found':>6} {'in two':>6}"
)


def described(name: str, judged: dict[str, Any]) -> list[str]:
    lines = []
    for figure in ("latency", "success"):
        found = judged[figure]
        largest = f"{_percent(found['largest_unflagged_error'])} ({found['seed_of_largest']})"
        lines.append(
            f"{name if figure == 'latency' else '':12} {figure:17} {judged['cells']:6} {found['judged']:6} "
            f"{_percent(found['median_interval']):>6} {_percent(found['median_error']):>6} | "
            f"{_percent(found['unflagged_outside']):>9} {largest:>14} | {_percent(found['flagged']):>7} "
            f"{_percent(found['flagged_outside']):>7} {_percent(found['median_stated_error']):>6} "
            f"{_percent(found['median_flagged_error']):>6} {_percent(found['stated_within_two']):>6}"
        )
    tails = [
        f"{figure}: error {_percent(judged[figure]['median_error'])} in the median, "
        f"{_percent(judged[figure]['within_a_fifth'])} within 20 %"
        for figure in ("p95", "p99")
    ]
    lines.append(f"{'':12} {'; '.join(tails)} (unflagged)")
    return lines


def rows(cells: Cells) -> Iterator[dict[str, float | None]]:
    for row in range(len(cells.seed)):
        values = {field.name: float(getattr(cells, field.name)[row]) for field in fields(Cells)}
        yield {name: value if np.isfinite(value) else None for name, value in values.items()}


def shown(cell: dict[str, float | None]) -> str:
    """A cell in one line: seed, latency forecast, simulated and its interval, success likewise, and the flag."""
    values = [f"{np.nan if value is None else value:.4g}" for value in cell.values()]
    return "  " + " ".join(f"{value:>10}" for value in values)


def _share(part: Any, whole: Any) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
