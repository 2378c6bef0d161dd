"""How true forecasts are: families of random scenarios, forecast and simulated, subscription by subscription.

A cell is one subscription of one scenario. Its mean latency (and its success) is outside when forecast and simulation
differ by more than 2 % and the simulation's 95 % interval; of percentiles the errors are shown. The forecast may flag
a cell: it then names the reason and the error to expect, and claims nothing closer. `sampled` are the cells where no
formula is known, which the forecast takes from a sample of events of its own. Cells that a simulation of this length
does not know within 5 % are left out. A simulation with wide intervals, as of long bursts, is made four times as long,
up to sixteen times: an interval of few runs is less sure than it says. About half of the scenarios send the copies of
one event by class, the others in random order. Scenario N of a family is always the same one: `--family trees --seed 7
--scenarios 1 --cells` shows its cells. `--formulas` leaves sampling out, and shows what the formulas' flags are worth.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from fidelity_families import FAMILIES, Family
from measuring import finish, machine, options
from triagemq.lab.fidelity import TAIL_ALLOWED, Comparison, Figure, compare, seconds_for_copies
from triagemq.plan import make_plan
from triagemq.scenario import Floats, Scenario, loads

REPLICATIONS = 8
LONGER, MOST_LONGER = 4, 16
FEWEST_EVENTS = 500
"""Of each replication: what is under way when it is cut off counts as lost, which with fewer would be seen."""

UNFLAGGED, FLAGGED_OUTSIDE, STATED_WITHIN_TWO = 0.02, 0.5, 0.5
TAILS, WITHIN_A_FIFTH = {"p95": 0.05, "p99": 0.08}, 0.9
"""What is allowed, or asked for: shares of cells, and median errors of percentiles."""


@dataclass(frozen=True, slots=True)
class Run:
    """One scenario of a family, and how long it is simulated."""

    family: str
    seed: int
    copies: float
    formulas: bool

    def compared(self) -> Comparison:
        """Forecast and simulated, for longer where that is not known well."""
        scenario, planner = drawn(self.family, self.seed)
        rate = float(scenario.publications.rate_per_second.sum())
        plan, longer = make_plan(scenario, **planner), 1
        while True:
            copies = longer * self.copies / REPLICATIONS
            found = compare(
                scenario,
                plan,
                duration_seconds=max(seconds_for_copies(scenario, copies), FEWEST_EVENTS / rate),
                replications=REPLICATIONS,
                seed=self.seed,
                threads=1,
                sample=not self.formulas,
            )
            latency = found.figures["latency"]
            known = latency.simulated > 0
            share = latency.interval[known] / latency.simulated[known]
            if longer == MOST_LONGER or not (np.median(share) if share.size else 0.0) > latency.allowed:
                return found
            longer *= LONGER


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="only this one; may be repeated")
    parser.add_argument("--scenarios", type=int, default=40, help="of each family (40)")
    parser.add_argument("--seed", type=int, default=0, help="number of the first scenario (0)")
    parser.add_argument("--copies", type=float, default=4e6, help="simulated for each scenario (4e6)")
    parser.add_argument("--formulas", action="store_true", help="forecast by formulas alone")
    parser.add_argument("--cells", action="store_true", help="show every cell too")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + (8 if arguments.quick else arguments.scenarios))
    copies = arguments.copies / 4 if arguments.quick else arguments.copies
    started = time.perf_counter()
    result: dict[str, Any] = {
        "machine": machine("triagemq", "numpy", "numba"),
        "seeds": [seeds.start, seeds.stop - 1],
        "families": {},
    }
    lines = [f"seeds {seeds.start} to {seeds.stop - 1} of each family", HEADER]
    poisson: list[Comparison] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name in arguments.family or FAMILIES:
            runs = [Run(name, seed, copies, arguments.formulas) for seed in seeds]
            compared = list(pool.map(Run.compared, runs))
            judged = judge(compared, FAMILIES[name])
            poisson += compared if FAMILIES[name].poisson else []
            result["families"][name] = judged
            lines += described(name, judged)
            if arguments.cells:
                judged["each"] = [
                    {"seed": run.seed, **cell}
                    for run, each in zip(runs, compared, strict=True)
                    for cell in each.rows()
                ]
                lines += [json.dumps(cell) for cell in judged["each"]]
    result["tails"] = {figure: tail(poisson, figure) for figure in TAILS} if poisson else {}
    result["over_the_limits"] = [
        words for name, judged in result["families"].items() for words in over(name, judged)
    ] + [words for figure, found in result["tails"].items() for words in tail_over(figure, found)]
    result["wall_seconds"] = time.perf_counter() - started
    if poisson:
        lines.append(f"{'Poisson':12} {tails(result['tails'])}")
    lines.append("; ".join(result["over_the_limits"]) or "within all limits")
    lines.append(f"{result['wall_seconds']:.0f} s")
    finish(result, lines, as_json=arguments.json)


def drawn(family: str, seed: int) -> tuple[Scenario, dict[str, Any]]:
    """Scenario number `seed` of a family, and the planner it is planned by."""
    random = np.random.default_rng([list(FAMILIES).index(family), seed])
    found = FAMILIES[family].draw(random)
    document = {"sending_order": str(random.choice(["by_class", "random"])), **found.document}
    # JSON is YAML: the document goes the way of a user's file.
    return loads(json.dumps(document), f"{family}-{seed}"), found.planner


def together(compared: list[Comparison], name: str) -> Figure:
    """One figure of the cells of many scenarios."""
    figures = [each.figures[name] for each in compared]
    return Figure(
        forecast=np.concatenate([each.forecast for each in figures]),
        simulated=np.concatenate([each.simulated for each in figures]),
        interval=np.concatenate([each.interval for each in figures]),
        expected_error=np.concatenate([each.expected_error for each in figures]),
        allowed=figures[0].allowed,
    )


def judge(compared: list[Comparison], family: Family) -> dict[str, Any]:
    """The figures of one family, for latency and for success."""
    sampled = np.concatenate([each.sampled for each in compared])
    found: dict[str, Any] = {
        "title": family.title,
        "cells": len(sampled),
        "sampled": float(sampled.mean()),
        "most_flagged": family.most_flagged,
    }
    for name in ("latency", "success"):
        figure = together(compared, name)
        judged, flagged = figure.comparable, figure.comparable & figure.flagged
        off, stated = figure.error, figure.expected_error
        shares = np.divide(
            figure.interval, figure.simulated, out=np.zeros_like(off), where=figure.simulated > 0
        )
        claimed = np.where(judged & ~flagged, off, 0.0)
        found[name] = {
            "judged": int(judged.sum()),
            "without_forecast": int((figure.known & ~np.isfinite(figure.forecast)).sum()),
            "median_interval": _median(shares[judged]),
            "median_error": _median(off[judged]),
            "unflagged_outside": _share(figure.outside & ~flagged, judged),
            "flagged": _share(flagged, judged),
            "flagged_outside": _share(figure.outside & flagged, flagged),
            "median_stated_error": _median(stated[flagged]),
            "median_flagged_error": _median(off[flagged]),
            "stated_within_two": _share(flagged & (off <= 2 * stated) & (off >= stated / 2), flagged),
            "largest_unflagged_error": float(claimed.max(initial=0.0)),
        }
    return found | {"tails": {name: tail(compared, name) for name in TAILS}}


def tail(compared: list[Comparison], name: str) -> dict[str, Any]:
    """Errors of a percentile where the mean is not flagged."""
    figure = together(compared, name)
    judged = figure.comparable & ~figure.flagged
    return {
        "judged": int(judged.sum()),
        "median_error": _median(figure.error[judged]),
        "within_a_fifth": _share(judged & (figure.error <= TAIL_ALLOWED), judged),
    }


def over(name: str, judged: dict[str, Any]) -> list[str]:
    """What of a family is over its limits, in words."""
    words = []
    for figure in ("latency", "success"):
        found = judged[figure]
        for key, least, most in (
            ("unflagged_outside", 0.0, UNFLAGGED),
            ("flagged", 0.0, judged["most_flagged"]),
            ("flagged_outside", FLAGGED_OUTSIDE, 1.0),
            ("stated_within_two", STATED_WITHIN_TWO, 1.0),
        ):
            if found[key] is not None and not least <= found[key] <= most:
                words.append(f"{name}, {figure}: {key.replace('_', ' ')} {_percent(found[key])}")
    return words


def tail_over(figure: str, found: dict[str, Any]) -> list[str]:
    bad = found["median_error"] > TAILS[figure] or found["within_a_fifth"] < WITHIN_A_FIFTH
    return [f"{figure} of the Poisson families"] if bad else []


HEADER = (
    f"{'':20} {'cells':>6} {'sampled':>8} {'known':>6} {'±':>6} {'error':>6} | {'unflagged':>9} {'largest':>8} | "
    f"{'flagged':>7} {'outside':>7} {'stated':>6} {'found':>6} {'in two':>6}"
)


def described(name: str, judged: dict[str, Any]) -> list[str]:
    lines = []
    for figure in ("latency", "success"):
        found, first = judged[figure], figure == "latency"
        columns = [
            (name if first else "", -12),
            (figure, -7),
            (str(judged["cells"]) if first else "", 6),
            (_percent(judged["sampled"]) if first else "", 8),
            (str(found["judged"]), 6),
            (_percent(found["median_interval"]), 6),
            (f"{_percent(found['median_error'])} |", 8),
            (_percent(found["unflagged_outside"]), 9),
            (f"{_percent(found['largest_unflagged_error'])} |", 10),
            (_percent(found["flagged"]), 7),
            (_percent(found["flagged_outside"]), 7),
            (_percent(found["median_stated_error"]), 6),
            (_percent(found["median_flagged_error"]), 6),
            (_percent(found["stated_within_two"]), 6),
        ]
        lines.append(" ".join(f"{text:{'<' if width < 0 else '>'}{abs(width)}}" for text, width in columns))
    lines.append(f"{'':12} {tails(judged['tails'])}")
    return lines


def tails(found: dict[str, Any]) -> str:
    return "; ".join(
        f"{figure}: error {_percent(each['median_error'])} in the median, "
        f"{_percent(each['within_a_fifth'])} within 20 %"
        for figure, each in found.items()
    )


def _share(part: Any, whole: Any) -> float | None:
    return float(part.sum() / whole.sum()) if whole.any() else None


def _median(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
