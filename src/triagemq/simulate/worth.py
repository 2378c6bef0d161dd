"""What a simulation was worth: success rates and latencies by the utilities of subscriptions, phase by phase."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from triagemq.scenario import Floats, Scenario, Subscriptions, Table, achieved_utility, maximum_utility
from triagemq.simulate.changes import Phase
from triagemq.simulate.endings import ARRIVED, COPIES, LATE, LATENCY_NS, ratio

Integers64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class PhaseResults(Table):
    """One row per phase of a run in which what subscriptions are worth changes: what was published in it, and what
    that was worth. `utility` is the sum achieved, `utility_rate` that over the sum of maxima."""

    begins_seconds: Floats
    count: NDArray[np.int64]
    success_rate: Floats
    utility: Floats
    utility_rate: Floats


@dataclass(frozen=True, slots=True)
class SimulatedUtility:
    """What the measured success rates and latencies are worth; `rate` is achieved over maximum, `rate_mean` the mean
    of that ratio over subscriptions, as the papers print it. Where worth changes during a run, phases count by the
    measured time that they last."""

    achieved: float
    maximum: float
    rate: float
    rate_mean: float


def worth(
    scenario: Scenario,
    phases: Sequence[Phase],
    counts: Integers64,
    measured: tuple[Floats, Floats, Floats],
    judged: bool,
    between: tuple[float, float],
) -> tuple[SimulatedUtility, PhaseResults]:
    """What a run was worth, and each of its phases; one without changes of worth has no phases to tell of.

    `counts` has what Tally.phases has: by phase and subscription, copies, arrivals, late ones and latencies. `measured`
    are success rates, mean latencies and shares within the latency asked for over the whole run, which was
    measured `between` two times; where its end is `judged`, late copies are no success.
    """
    if len(phases) == 1:
        weighed = replace(scenario.subscriptions, utility_weight=phases[0].utility_weight)
        none = np.zeros(0)
        return _utility(*_utilities(weighed, *measured)), PhaseResults(
            none, none.astype(np.int64), none, none, none
        )
    begins = np.array([each.begins_seconds for each in phases])
    lasts = np.diff(np.clip(np.append(begins, np.inf), between[0], max(between)))
    share = ratio(lasts, np.full(len(lasts), lasts.sum()))
    delivered = counts[:, :, ARRIVED] - (counts[:, :, LATE] if judged else 0)
    rows = [
        _utilities(
            replace(scenario.subscriptions, utility_weight=phase.utility_weight),
            ratio(delivered[row], counts[row, :, COPIES]),
            ratio(counts[row, :, LATENCY_NS], counts[row, :, ARRIVED]) * 1e-9,
            measured[2],
        )
        for row, phase in enumerate(phases)
    ]
    achieved, maximum = (np.stack(each) for each in zip(*rows, strict=True))
    found = PhaseResults(
        begins_seconds=begins,
        count=counts[:, :, COPIES].sum(axis=1),
        success_rate=ratio(delivered.sum(axis=1), counts[:, :, COPIES].sum(axis=1)),
        # What falls into the warm-up, or after the end, was not measured.
        utility=np.where(lasts > 0, achieved.sum(axis=1), np.nan),
        utility_rate=np.where(lasts > 0, ratio(achieved.sum(axis=1), maximum.sum(axis=1)), np.nan),
    )
    return _utility(share @ achieved, share @ maximum), found


def _utilities(
    wanted: Subscriptions, success: Floats, latency_seconds: Floats, share_within: Floats
) -> tuple[Floats, Floats]:
    """Achieved and maximum; a subscription of which nothing was published, or nothing arrived, is worth nothing."""
    latency = np.where(np.isfinite(latency_seconds), latency_seconds, np.inf)
    achieved = achieved_utility(wanted, np.nan_to_num(success, nan=0.0), latency, share_within)
    return achieved, maximum_utility(wanted)


def _utility(achieved: Floats, maximum: Floats) -> SimulatedUtility:
    return SimulatedUtility(
        achieved=float(achieved.sum()),
        maximum=float(maximum.sum()),
        rate=float(ratio(achieved.sum(), maximum.sum())),
        rate_mean=float(np.nanmean(ratio(achieved, maximum))) if (maximum > 0).any() else math.nan,
    )
