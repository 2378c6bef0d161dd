"""What the experiments share: Table 2 under a plan, simulated and forecast, in figures per priority class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from triagemq.forecast import Forecast
from triagemq.forecast.summary import NEGLIGIBLE_SHARE
from triagemq.plan.demand import total_by
from triagemq.scenario import Floats, Integers
from triagemq.simulate import SubscriptionResults

__all__ = [
    "TABLE2_BUFFER_PACKETS",
    "ClassFigures",
    "class_figures",
    "forecast_figures",
    "half_width",
    "simulated_figures",
]

TABLE2_BUFFER_PACKETS = 2000.0
"""The switch buffer k of PrioDeX 6.2 and FireDeX 5.3."""

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, eq=False)
class ClassFigures:
    """Columns over priority classes; NaN where nothing is known, infinity where a mean has no bound."""

    success: Floats
    latency_seconds: Floats


def class_figures(
    level: Integers, offered: Floats, received: Floats, latency_seconds: Floats
) -> ClassFigures:
    """Success and latency per class as THEORY.md section 1 defines them: latency is weighted by what arrives."""
    count = int(level.max(initial=0)) + 1
    told = (received > 0) & ~np.isnan(latency_seconds)
    total, arrived = total_by(level, offered, count), total_by(level, received, count)
    told_rate = total_by(level, np.where(told, received, 0.0), count)
    seconds = total_by(level, np.where(told, received, 0.0) * np.where(told, latency_seconds, 0.0), count)
    enough = (told_rate > 0) & (told_rate >= (1 - NEGLIGIBLE_SHARE) * arrived)
    unknown = np.full(count, np.nan)
    return ClassFigures(
        success=np.divide(arrived, total, out=unknown.copy(), where=total > 0),
        latency_seconds=np.divide(seconds, told_rate, out=unknown.copy(), where=enough),
    )


def forecast_figures(levels: Sequence[Integers], predicted: Sequence[Forecast]) -> ClassFigures:
    """Forecasts of several scenarios by class, together."""
    return class_figures(
        np.concatenate(levels),
        np.concatenate([each.published_rate for each in predicted]),
        np.concatenate([each.received_rate for each in predicted]),
        np.concatenate([each.latency_seconds for each in predicted]),
    )


def simulated_figures(levels: Sequence[Integers], measured: Sequence[SubscriptionResults]) -> ClassFigures:
    """Simulations of several scenarios by class, together: any classes, not only those they were run with."""
    return class_figures(
        np.concatenate(levels),
        np.concatenate([each.count for each in measured]).astype(np.float64),
        np.concatenate([each.delivered for each in measured]).astype(np.float64),
        np.concatenate([each.mean_latency_seconds for each in measured]),
    )


def half_width(samples: Floats, *, means: int = 1) -> Floats:
    """Half of the 95 % interval (Student's t) of the mean over the first axis; NaN with fewer than two samples.

    With several `means` the intervals are wide enough to hold all of them together in 95 % of all runs (Bonferroni).
    """
    count = len(samples)
    if count < 2:
        return np.full(samples.shape[1:], np.nan)
    quantile = float(stdtrit(count - 1, 1 - (1 - CONFIDENCE) / 2 / means))
    return np.asarray(quantile * samples.std(axis=0, ddof=1) / np.sqrt(count))
