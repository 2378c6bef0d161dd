"""FireDeX Fig. 9 and section 5.4: what priorities and drops gain in utility, plain and with freshness; and which time
constant of freshness gives the gains that were printed for drop rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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
    signed,
)
from triagemq.lab.papers.runs import TABLE2_BUFFER_PACKETS, grouped, simulated, table2_case
from triagemq.plan import make_plan
from triagemq.scenario import Floats, Subscriptions, achieved_utility, maximum_utility

CONFIGURATIONS = {
    "no priorities": ("none", "none"),
    "random": ("random", "none"),
    "info": ("info", "none"),
    "greedy": ("greedy", "none"),
    "greedy + flat": ("greedy", "flat"),
    "greedy + linear": ("greedy", "linear"),
    "greedy + exponential": ("greedy", "exponential"),
    "greedy + optimal": ("greedy", "optimal"),
}
"""Title to priorities and drops; the first four lose packets to full buffers only."""

WITH_DROPS = tuple(title for title in CONFIGURATIONS if "+" in title)
FIRST_GAINS = {("greedy", "no priorities"): 0.36, ("greedy", "info"): 0.12}
"""Printed gains without drop rates: (what, over what)."""

GAIN_OVER_GREEDY, GAIN_OVER_NONE = 0.42, 0.94
"""Printed gains of FireDeX with drop rates over priorities only and over no priorities; its policy is not named."""

TIME_CONSTANTS = np.geomspace(1e-3, 100, 101)
"""Seconds in which an event loses all but 1/e of its worth."""

WORTHLESS = 1e-6
"""The utility rate below which a baseline is taken as this, so that gains over it stay finite."""

NEAR_ENOUGH = 0.05
"""Both printed gains count as explained when a time constant gives them within so much."""

WARMUP_SHARE = 0.3
ROWS = list(CONFIGURATIONS)


@dataclass(frozen=True, slots=True, eq=False)
class SeedFigures:
    """One seed's success and latency per configuration (rows) and subscription (columns)."""

    subscriptions: Subscriptions
    success: Floats
    latency_seconds: Floats

    def utility_rate(self, time_constant: float = np.inf) -> tuple[Floats, Floats]:
        """Sum achieved over sum of maxima, and the mean of the subscriptions' ratios, per configuration."""
        planned_for = replace(
            self.subscriptions, freshness_seconds=np.full(len(self.subscriptions), time_constant)
        )
        maximum = maximum_utility(planned_for)
        achieved = np.stack(
            [
                achieved_utility(planned_for, success, latency)
                for success, latency in zip(self.success, self.latency_seconds, strict=True)
            ]
        )
        return achieved.sum(axis=1) / maximum.sum(), (achieved / maximum).mean(axis=1)


def reproduce(effort: Effort, progress: Progress) -> Findings:
    """Simulate every configuration at a buffer of 2000 packets; value what arrived, plain and fresh."""
    seeds = _measure(effort.seeds, effort.publications, progress)
    plain, plain_mean = _mean_rates(seeds)
    by_constant = [_mean_rates(seeds, constant) for constant in TIME_CONSTANTS]
    scan = _scan(np.stack([rates for rates, _ in by_constant]))
    scan_of_means = _scan(np.stack([means for _, means in by_constant]))
    return Findings(
        tables=(
            _rate_table(plain, plain_mean),
            _gain_table(plain, plain_mean),
            freshness_table({"sums": scan, "mean of ratios": scan_of_means}),
        ),
        panels=_panels(plain, scan),
        differences=_differences(plain, plain_mean, scan, scan_of_means),
        claims=_claims(plain),
        figures=_figures(plain, plain_mean, scan, scan_of_means),
    )


def _measure(seeds: int, publications: int, progress: Progress) -> list[SeedFigures]:
    """Every configuration on every draw of Table 2."""
    drawn = [table2(seed=seed, buffer_packets=TABLE2_BUFFER_PACKETS) for seed in range(seeds)]
    cases = [
        table2_case(
            scenario,
            make_plan(scenario, priorities=priorities, drops=drops, seed=seed),
            publications=publications,
            seed=seed,
            warmup=WARMUP_SHARE,
        )
        for seed, scenario in enumerate(drawn)
        for priorities, drops in CONFIGURATIONS.values()
    ]
    by_seed = grouped(simulated(cases, progress), len(CONFIGURATIONS))
    return [
        SeedFigures(
            scenario.subscriptions,
            np.stack([np.nan_to_num(each.success_rate) for each in results]),
            # What never arrives has no latency, and is worth nothing whatever its freshness.
            np.stack([np.where(each.delivered > 0, each.mean_latency_seconds, np.inf) for each in results]),
        )
        for scenario, results in zip(drawn, by_seed, strict=True)
    ]


def _mean_rates(seeds: list[SeedFigures], time_constant: float = np.inf) -> tuple[Floats, Floats]:
    rates = [each.utility_rate(time_constant) for each in seeds]
    return np.mean([rate for rate, _ in rates], axis=0), np.mean([mean for _, mean in rates], axis=0)


def _scan(rates: Floats) -> FreshnessScan:
    """Rates have a row per time constant and a column per configuration."""
    column = {title: rates[:, number] for number, title in enumerate(ROWS)}
    return scan_freshness(
        WITH_DROPS,
        column["greedy"],
        column["no priorities"],
        np.stack([column[title] for title in WITH_DROPS], axis=1),
    )


def _gain(rates: Floats, what: str, over: str) -> float:
    return float(rates[ROWS.index(what)] / rates[ROWS.index(over)] - 1)


def _rate_table(plain: Floats, mean: Floats) -> PrintedTable:
    return PrintedTable.of(
        "achieved utility, plain (no freshness), simulated, buffer 2000 packets",
        ROWS,
        ("configuration", str),
        ("sum over sum of maxima", lambda title: percent(plain[ROWS.index(title)])),
        ("mean of ratios", lambda title: percent(mean[ROWS.index(title)])),
        ("over no priorities", lambda title: signed(_gain(plain, title, "no priorities"))),
        ("over greedy", lambda title: signed(_gain(plain, title, "greedy"))),
    )


def _gain_table(plain: Floats, mean: Floats) -> PrintedTable:
    gains = _printed_gains(plain)
    return PrintedTable.of(
        "gains beside the printed ones",
        gains,
        ("gain of", lambda pair: pair[0]),
        ("over", lambda pair: pair[1]),
        ("ours, sums", lambda pair: signed(_gain(plain, *pair))),
        ("ours, mean of ratios", lambda pair: signed(_gain(mean, *pair))),
        ("printed", lambda pair: signed(gains[pair])),
    )


def _printed_gains(plain: Floats) -> dict[tuple[str, str], float]:
    """Of what over what; with drop rates, of the policy that is best here."""
    best = _best(plain)
    return FIRST_GAINS | {(best, "greedy"): GAIN_OVER_GREEDY, (best, "no priorities"): GAIN_OVER_NONE}


def _best(plain: Floats) -> str:
    return max(WITH_DROPS, key=lambda title: float(plain[ROWS.index(title)]))


def _panels(plain: Floats, scan: FreshnessScan) -> tuple[Panel, ...]:
    # At short time constants the gain over one queue has no bound; the interesting part is below 300 %.
    shown = 3.0

    def over_time(title: str, gains: Floats, printed: float) -> Panel:
        curves = [
            Series.of(policy, TIME_CONSTANTS, np.where(gains[:, column] <= shown, gains[:, column], np.nan))
            for column, policy in enumerate(WITH_DROPS)
        ]
        curves.append(Series.of("printed", TIME_CONSTANTS, np.full(len(TIME_CONSTANTS), printed), "dashed"))
        return Panel(title, "time constant, seconds", "gain", tuple(curves), logarithmic_x=True)

    return (
        Panel(
            "achieved utility, plain",
            "configuration",
            "of the maximum",
            (Series.of("simulated", ROWS, plain),),
            bars=True,
        ),
        over_time("gain over no priorities", scan.over_none, GAIN_OVER_NONE),
        over_time("gain over greedy without drops", scan.over_greedy, GAIN_OVER_GREEDY),
    )


def _differences(
    plain: Floats, mean: Floats, scan: FreshnessScan, scan_of_means: FreshnessScan
) -> tuple[Difference, ...]:
    def gain(what: str, over: str) -> str:
        return f"by sums {signed(_gain(plain, what, over))}, by the mean of ratios {signed(_gain(mean, what, over))}"

    none, greedy = plain[ROWS.index("no priorities")], plain[ROWS.index("greedy")]
    best = _best(plain)
    return (
        Difference(
            "greedy over no priorities",
            "+36 %",
            gain("greedy", "no priorities"),
            "FireDeX 5.4 defines a mean of the subscriptions' ratios; what it prints follows from the sum of "
            "achieved over the sum of maximum utilities. What is left is the draw: the paper prints no topics "
            "per publisher.",
        ),
        Difference(
            "greedy over info",
            "+12 %",
            gain("greedy", "info"),
            "By sums, as before. By the mean of ratios info is far behind: it ranks by worth alone, and "
            "starves the many subscriptions of little worth.",
        ),
        Difference(
            "with drops over priorities only",
            "+42 %",
            f"{gain(best, 'greedy')} ({best})",
            f"No policy can gain that: greedy already has {percent(greedy)} of the maximum by sums, so all of "
            f"it would be {signed(1 / greedy - 1)}. Drop rates leave a tenth of the port free and buy latency, "
            "which this utility does not count.",
        ),
        Difference(
            "with drops over no priorities",
            "+94 %",
            f"{gain(best, 'no priorities')} ({best})",
            f"No priorities already have {percent(none)} of the maximum, so all of it would be "
            f"{signed(1 / none - 1)}. The printed gain is out of reach of any policy under this utility.",
        ),
        freshness_difference(scan, scan_of_means),
    )


def _claims(plain: Floats) -> tuple[Claim, ...]:
    over_none, over_info = _gain(plain, "greedy", "no priorities"), _gain(plain, "greedy", "info")
    order = [float(plain[ROWS.index(title)]) for title in ("no priorities", "random", "info", "greedy")]
    return (
        Claim(
            "greedy gains about 36 % over no priorities and 12 % over info (within 10 points)",
            abs(over_none - 0.36) <= 0.1 and abs(over_info - 0.12) <= 0.1,
            f"{signed(over_none)} and {signed(over_info)}",
        ),
        Claim(
            "greedy is best of the four without drops, info second",
            order[3] > order[2] > max(order[:2]),
            ", ".join(percent(each) for each in order),
        ),
    )


def _figures(
    plain: Floats, mean: Floats, scan: FreshnessScan, scan_of_means: FreshnessScan
) -> dict[str, Any]:
    return {
        "configurations": [
            {"title": title, "utility_rate": float(plain[row]), "utility_rate_mean": float(mean[row])}
            for row, title in enumerate(ROWS)
        ],
        "gains": [
            {"of": what, "over": over, "ours": _gain(plain, what, over), "printed": printed}
            for (what, over), printed in _printed_gains(plain).items()
        ],
        "nearest_freshness": scan.as_json(),
        "nearest_freshness_by_mean_of_ratios": scan_of_means.as_json(),
    }


# Freshness.


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
    """How near any time constant comes, by both averages of a utility rate."""
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


UTILITY_GAINS = Experiment(
    title="achieved utility of priority algorithms, without and with drop rates",
    run=reproduce,
    normal=Effort(seeds=10, publications=2_000_000),
    quick=Effort(seeds=2, publications=800_000),
)
