"""The Forecast: success rate, mean latency and utility of every subscription under a plan, predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triagemq.forecast.doubts import REASONS
from triagemq.scenario import Floats
from triagemq.theory import Times, percentile

__all__ = ["Forecast"]


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Columns over subscriptions.

    `latency_seconds` is the mean over events that arrive: infinite where a queue grows without end, NaN where
    nothing is known (nothing arrives, or a class starved behind a full buffer).

    `times` is the law of the latency, and `share_within` the share of what arrives that comes within the subscription's
    max_latency_seconds, NaN where it has none.

    `reason` is a code into `REASONS`: 0 where latency and success claim to be within 2 % of the truth, else what makes
    them approximate. `latency_error` and `success_error` are the relative errors to expect there, 0 where within 2 %.
    `sampled` says which figures are those of a sample of events, not of formulas (see prediction.py).
    """

    published_rate: Floats
    received_rate: Floats
    success: Floats
    latency_seconds: Floats
    times: Times
    share_within: Floats
    utility: Floats
    maximum_utility: Floats
    reason: NDArray[np.int8]
    latency_error: Floats
    success_error: Floats
    sampled: NDArray[np.bool_]

    @property
    def approximations(self) -> tuple[str, ...]:
        """What makes figures of this scenario approximate; empty where all claim to be right."""
        return tuple(REASONS[code] for code in np.unique(self.reason) if code)

    def percentile_seconds(self, share: float) -> Floats:
        """The latency that a share of what arrives does not exceed; infinite or NaN where the mean is."""
        return np.where(
            np.isfinite(self.latency_seconds), percentile(self.times, share), self.latency_seconds
        )
