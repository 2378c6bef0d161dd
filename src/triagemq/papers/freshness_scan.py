"""Which time constant of freshness gives the gains that FireDeX 5.4 printed for its drop rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from triagemq.papers.experiment import Difference, PrintedTable, duration, percent, signed
from triagemq.scenario import Floats

__all__ = [
    "GAIN_OVER_GREEDY",
    "GAIN_OVER_NONE",
    "TIME_CONSTANTS",
    "FreshnessScan",
    "freshness_difference",
    "freshness_table",
    "scan_freshness",
]

GAIN_OVER_GREEDY, GAIN_OVER_NONE = 0.42, 0.94
"""Printed gains of FireDeX with drop rates over priorities only and over no priorities; its policy is not named."""

TIME_CONSTANTS = np.geomspace(1e-3, 100, 101)
"""Seconds in which an event loses all but 1/e of its worth."""

WORTHLESS = 1e-6
"""The utility rate below which a baseline is taken as this, so that gains over it stay finite."""

NEAR_ENOUGH = 0.05
"""Both printed gains count as explained when a time constant gives them within so much."""


@dataclass(frozen=True, slots=True, eq=False)
class FreshnessScan:
    """Gains of drop policies (columns) over the time constants (rows), and what the baselines are worth there."""

    policies: tuple[str, ...]
    greedy: Floats
    none: Floats
    over_greedy: Floats
    over_none: Floats

    def distance(self) -> Floats:
        """How far both gains together are from the printed ones."""
        return np.hypot(self.over_greedy - GAIN_OVER_GREEDY, self.over_none - GAIN_OVER_NONE)

    def nearest(self) -> tuple[int, int]:
        """Time constant and policy at which both printed gains are met best."""
        distance = self.distance()
        row, column = np.unravel_index(int(np.argmin(distance)), distance.shape)
        return int(row), int(column)

    def as_json(self) -> dict[str, Any]:
        """The nearest time constant, and how near it comes."""
        row, column = self.nearest()
        return {
            "time_constant_seconds": float(TIME_CONSTANTS[row]),
            "configuration": self.policies[column],
            "gain_over_greedy": float(self.over_greedy[row, column]),
            "gain_over_no_priorities": float(self.over_none[row, column]),
        }


def scan_freshness(policies: tuple[str, ...], greedy: Floats, none: Floats, fresh: Floats) -> FreshnessScan:
    """Gains from utility rates over TIME_CONSTANTS; `fresh` has a column per policy."""
    greedy, none = np.maximum(greedy, WORTHLESS), np.maximum(none, WORTHLESS)
    return FreshnessScan(
        policies, greedy, none, fresh / greedy[:, np.newaxis] - 1, fresh / none[:, np.newaxis] - 1
    )


def freshness_table(by_measure: dict[str, FreshnessScan]) -> PrintedTable:
    """Per measure of utility and policy: the time constant of each printed gain, and the best for both."""
    rows = []
    for measure, scan in by_measure.items():
        for column, title in enumerate(scan.policies):
            greedy, none = scan.over_greedy[:, column], scan.over_none[:, column]
            best = int(np.argmin(scan.distance()[:, column]))
            rows.append(
                (
                    title,
                    measure,
                    duration(_longest_reaching(none, GAIN_OVER_NONE)),
                    duration(_longest_reaching(greedy, GAIN_OVER_GREEDY)),
                    signed(float(greedy.max())),
                    f"{duration(float(TIME_CONSTANTS[best]))}: {signed(greedy[best])}, {signed(none[best])}",
                )
            )
    return PrintedTable(
        title="utility times exp(-latency / tau): which tau gives +94 % over no priorities and +42 % over greedy",
        columns=(
            "configuration",
            "utility rate",
            "tau for +94 %",
            "tau for +42 %",
            "most over greedy",
            "nearest to both (+42 %, +94 %)",
        ),
        rows=tuple(rows),
    )


def freshness_difference(scan: FreshnessScan, scan_of_means: FreshnessScan) -> Difference:
    """How near any time constant comes, by both ways to average a utility rate."""
    row, _ = scan.nearest()
    greedy, none = float(scan.greedy[row]), float(scan.none[row])
    return Difference(
        "with drops and freshness",
        "+42 % and +94 %",
        f"nearest at tau {_nearest(scan)}; by the mean of ratios at {_nearest(scan_of_means)}",
        f"At tau {duration(float(TIME_CONSTANTS[row]))} no priorities are worth {percent(none)} of the maximum and "
        f"greedy {percent(greedy)}: {_verdict(scan)} The printed gains also multiply, 1.36 x 1.42 = {1.36 * 1.42:.2f}, "
        f"as figures of one measure do; but with this freshness greedy alone would gain {signed(greedy / none - 1)} "
        "over no priorities, not 36 %.",
    )


def _longest_reaching(gains: Floats, printed: float) -> float:
    """The longest time constant at which a gain reaches the printed one; NaN if none does."""
    reached = np.flatnonzero(gains >= printed)
    return float(TIME_CONSTANTS[reached[-1]]) if len(reached) else float("nan")


def _nearest(scan: FreshnessScan) -> str:
    row, column = scan.nearest()
    return (
        f"{duration(float(TIME_CONSTANTS[row]))} ({scan.policies[column]}): "
        f"{signed(scan.over_greedy[row, column])} and {signed(scan.over_none[row, column])}"
    )


def _verdict(scan: FreshnessScan) -> str:
    row, column = scan.nearest()
    off = scan.over_greedy[row, column] - GAIN_OVER_GREEDY, scan.over_none[row, column] - GAIN_OVER_NONE
    if max(map(abs, off)) <= NEAR_ENOUGH:
        return "one time constant explains both printed gains."
    return (
        "the gain over no priorities follows from it, the one over priorities only from no time constant, since from "
        f"{duration(float(TIME_CONSTANTS[0]))} up it never passes {signed(float(scan.over_greedy.max()))} "
        "(most of the value is as fast without drops)."
    )
