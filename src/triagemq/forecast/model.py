"""The Forecast: success rate, mean latency and utility of every subscription under a plan, predicted; and where it is
less than exact, the reason and the error to expect.

Every stage of the path says how many seconds of its delay, and what share of its success, may be wrong, and why. What
adds up to less than `CLAIMED` of the whole is within what an unflagged forecast claims, and is not worth a word.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.scenario import Floats
from triagemq.theory import LatencyDistribution, percentile

CLAIMED = 0.02
"""An unflagged forecast claims to be within this share of the truth."""


class Reason(IntEnum):
    """What makes a figure approximate; NONE is a figure that claims to be right."""

    NONE = 0
    OVERLOAD = 1
    ARRIVALS = 2
    BUFFER = 3
    TANDEM = 4
    BROKERS = 5
    PROMISED = 6
    BORROWING = 7
    SENDING_ORDER = 8
    TERMS = 9


REASONS: tuple[str, ...] = (
    "",
    "overloaded queue",
    "arrivals not Poisson",
    "finite buffers",
    "queues in a row",
    "copies through several brokers",
    "the bound of a promise, not a mean",
    "queues that borrow bandwidth",
    "copies in random order",
    "thinned, superseded or expired copies",
)
"""In words, by code."""


class ErrorEstimate:
    """Adds up what may be wrong, over the subscriptions of one scenario.

    >>> errors = ErrorEstimate(2)
    >>> errors.add(Reason.BUFFER, [0], seconds=[0.5], success=0.1)
    >>> reason, latency_error, success_error = errors.flag(np.array([2.0, 1.0]), np.ones(2))
    >>> reason, latency_error, success_error
    (array([3, 0], dtype=int8), array([0.25, 0.  ]), array([0.1, 0. ]))
    """

    def __init__(self, subscriptions: int) -> None:
        self._seconds, self._success, self._largest, self._largest_success = (
            np.zeros(subscriptions) for _ in range(4)
        )
        self._reason, self._success_reason = (np.zeros(subscriptions, dtype=np.int8) for _ in range(2))

    def add(
        self, reason: Reason, rows: ArrayLike, *, seconds: ArrayLike = 0.0, success: ArrayLike = 0.0
    ) -> None:
        """These subscriptions' latency may be off by so many seconds, their success by such a share of it."""
        rows = np.asarray(rows)
        for given, total, largest, named in (
            (seconds, self._seconds, self._largest, self._reason),
            (success, self._success, self._largest_success, self._success_reason),
        ):
            expected = np.asarray(given, dtype=np.float64)
            # What is infinite or unknown itself has no share that may be wrong.
            amount = np.broadcast_to(np.where(np.isfinite(expected), expected, 0.0), rows.shape)
            total[rows] += amount
            # But what makes a figure unknown is named.
            weight = np.broadcast_to(np.where(np.isnan(expected), np.inf, amount), rows.shape)
            leading = weight > largest[rows]
            largest[rows[leading]] = weight[leading]
            named[rows[leading]] = reason

    def flag(
        self, latency: Floats, success: Floats, claimed: float = CLAIMED
    ) -> tuple[NDArray[np.int8], Floats, Floats]:
        """Per subscription the reason (0: none), and the relative errors of latency and success to expect."""
        known = np.isfinite(latency) & (latency > 0)
        seconds, lost = self._seconds, self._success
        latency_error = np.divide(seconds, latency, out=np.zeros_like(seconds), where=known)
        latency_error[latency_error <= claimed] = 0.0
        success_error = np.where(lost > claimed, lost, 0.0)
        named = self._reason
        reason = np.where(latency_error > 0, named, np.where(success_error > 0, self._success_reason, 0))
        unknown = ~np.isfinite(latency) & (success > 0)
        endless = np.isinf(latency) | (named == Reason.NONE)
        reason = np.where(unknown, np.where(endless, Reason.OVERLOAD, named), reason)
        return reason.astype(np.int8), latency_error, success_error


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Columns over subscriptions.

    `latency_seconds` is the mean over events that arrive: infinite where a queue grows without end, NaN where
    nothing is known (nothing arrives, or a class starved behind a full buffer).

    `times` is the law of the latency, and `share_within` the share of what arrives that comes within the subscription's
    max_latency_seconds, NaN where it has none.

    `reason` is a code into `REASONS`: 0 where latency and success claim to be within 2 % of the truth, else what makes
    them approximate. `latency_error` and `success_error` are the relative errors to expect there, 0 where within 2 %.
    A promised subscription's latency is its bound, and its reason says so.
    `sampled` says which figures are those of a sample of events, not of formulas (see prediction.py), and `basis` in
    words what was done.
    """

    published_rate: Floats
    received_rate: Floats
    success: Floats
    latency_seconds: Floats
    times: LatencyDistribution
    share_within: Floats
    utility: Floats
    maximum_utility: Floats
    reason: NDArray[np.int8]
    latency_error: Floats
    success_error: Floats
    sampled: NDArray[np.bool_]
    basis: str = "formulas"

    def of(self, rows: NDArray[np.int64]) -> Forecast:
        """The forecast of some of the subscriptions."""
        return replace(self, **{name: getattr(self, name)[rows] for name in COLUMNS})

    @property
    def approximations(self) -> tuple[str, ...]:
        """What makes figures of this scenario approximate; empty where all claim to be right."""
        return tuple(REASONS[code] for code in np.unique(self.reason) if code)

    def percentile_seconds(self, share: float) -> Floats:
        """The latency that a share of what arrives does not exceed; infinite or NaN where the mean is."""
        return np.where(
            np.isfinite(self.latency_seconds), percentile(self.times, share), self.latency_seconds
        )


COLUMNS = tuple(each.name for each in fields(Forecast) if each.name != "basis")
