"""The law of a time of which cumulants are known: its percentiles, and the share of times within a limit.

A copy finds its port idle or busy, and the two have laws of their own: at light load one is nearly a constant and the
other is not. Each has the gamma law, shifted (Pearson's type III), that has its mean, variance and third cumulant:
exact for constants and for M/M/1, close for the waits of priority queues.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.theory.cumulants import ByRow, Cumulants

Floats = NDArray[np.float64]

MOSTLY_BUSY = 0.6
"""A queue that is busy for a larger share is taken as a whole: what finds it idle is no longer in the tail."""

# Below this skewness a gamma law is a normal one to four digits; above the other no time here comes.
_NEARLY_SYMMETRIC = 0.01
_MOST_SKEWED = 200.0
_MOST_TABULATED = 5.0
_GRID = 600
_HALVINGS = 16
# A search ends where the time is as near as this to what it should be.
_CLOSE = 2e-5
_MOST_PARTS = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class LatencyDistribution(ByRow):
    """Columns over times that find their last queue idle (`quiet`) or, a share of them, busy."""

    quiet: Cumulants
    busy: Cumulants
    busy_share: Floats

    @classmethod
    def of(cls, law: Cumulants) -> LatencyDistribution:
        """Times that are all alike."""
        return cls(law, law.copy(), np.zeros_like(law.mean))

    @classmethod
    def through(cls, mean: Floats, p95: Floats, p99: Floats) -> LatencyDistribution:
        """Times with these means and percentiles, as samples have them.

        >>> law = LatencyDistribution.through(np.ones(1), np.full(1, 2.996), np.full(1, 4.605))
        >>> percentile(law, 0.99).round(3), law.overall.variance.round(2)
        (array([4.605]), array([1.]))
        >>> bursts = LatencyDistribution.through(np.full(1, 12.0), np.full(1, 17.0), np.full(1, 61.0))
        >>> percentile(bursts, 0.95).round(1), percentile(bursts, 0.99).round(1), bursts.mean.round(1)
        (array([17.]), array([61.]), array([12.]))
        """
        skewness, near = _distances(0.95)
        far = _distances(0.99)[1]
        # Further out the 95th percentile is below the mean.
        known = np.abs(skewness) <= _MOST_TABULATED
        ratio = np.divide(p99 - mean, p95 - mean, out=np.full_like(mean, np.inf), where=p95 > mean)
        skewed = np.interp(ratio, (far / near)[known], skewness[known])
        deviation = np.maximum((p99 - mean) / np.interp(skewed, skewness, far), 0.0)
        law = cls.of(Cumulants(mean, deviation**2, skewed * deviation**3))
        rows = np.flatnonzero(ratio > (far / near)[known].max())
        if rows.size:
            law = law[np.arange(mean.size)]
            law[rows] = cls._with_exponential_tail(mean[rows], p95[rows], p99[rows], law[rows])
        return law

    @classmethod
    def _with_exponential_tail(
        cls, mean: Floats, p95: Floats, p99: Floats, other: LatencyDistribution
    ) -> LatencyDistribution:
        """A twentieth of the times, those above the 95th percentile, have an exponential law; `other` where none fits.

        Rare long waits, as behind a burst: no gamma law passes through such percentiles.
        """
        scale = (p99 - p95) / math.log(5)
        below = (mean - 0.05 * (p95 + scale)) / 0.95
        fits = (below > 0) & (below < p95)
        nearly_all_below = ((p95 - below) / 4) ** 2
        none = np.zeros_like(mean)
        law = replace(
            cls.of(Cumulants(below, nearly_all_below, none)),
            busy=Cumulants(p95 + scale, scale**2, 2 * scale**3),
            busy_share=np.full_like(mean, 0.05),
        )
        law[np.flatnonzero(~fits)] = other[np.flatnonzero(~fits)]
        return law

    @classmethod
    def room(cls, count: int) -> LatencyDistribution:
        """Columns for so many times that are yet to come."""
        nothing = Cumulants.constant(np.zeros(count))
        return cls(nothing, nothing.copy(), np.zeros(count))

    @property
    def mean(self) -> Floats:
        """Of all times together."""
        quiet, busy = self.quiet.mean, self.busy.mean
        with np.errstate(invalid="ignore"):
            return np.where(np.isfinite(busy), quiet + self.busy_share * (busy - quiet), busy)

    @property
    def overall(self) -> Cumulants:
        """Of all times together."""
        with np.errstate(invalid="ignore"):
            both = zip(self.quiet.moments, self.busy.moments, strict=True)
            mixed = [
                np.where(np.isfinite(busy), quiet + self.busy_share * (busy - quiet), busy)
                for quiet, busy in both
            ]
        return Cumulants.of_moments(*mixed)

    def after(self, before: Cumulants) -> LatencyDistribution:
        """These times after independent others."""
        return replace(self, quiet=self.quiet + before, busy=self.busy + before)

    def with_mean(self, mean: Floats) -> LatencyDistribution:
        """These times multiplied by what gives them this mean; where they are endless and it is not, a constant."""
        own = self.mean
        scaled = np.isfinite(own) & (own > 0) & np.isfinite(mean)
        factor = np.zeros_like(mean)
        np.divide(mean, own, out=factor, where=scaled)
        busy = Cumulants(*(np.where(scaled, each, 0.0) for each in self.busy.columns))
        found = replace(self, quiet=self.quiet.times(factor), busy=busy.times(factor))
        other = np.flatnonzero(~scaled)
        found[other] = LatencyDistribution.of(Cumulants.constant(mean[other]))
        return found

    def moved_to(self, mean: Floats) -> LatencyDistribution:
        """These times with what constant time gives them this mean; endless or unknown where it is."""
        own = self.mean
        known = np.isfinite(own) & np.isfinite(mean)
        missing = np.zeros_like(mean)
        np.subtract(mean, own, out=missing, where=known)
        found = replace(self, quiet=self.quiet.later(missing), busy=self.busy.later(missing))
        other = np.flatnonzero(~known)
        if other.size:
            found = found[np.arange(mean.size)]
            found[other] = LatencyDistribution.of(Cumulants.constant(mean[other]))
        return found


def percentile(times: LatencyDistribution, share: float) -> Floats:
    """The time that a share of the times does not exceed; infinite or NaN where the mean is.

    >>> percentile(LatencyDistribution.of(Cumulants.exponential(np.ones(1))), 0.95).round(3)
    array([2.996])
    >>> percentile(LatencyDistribution.of(Cumulants.constant(np.ones(1))), 0.95)
    array([1.])
    """
    low, high = _between(times, share)
    rows = np.flatnonzero(low < high)
    if rows.size:
        within, below, above = _shares(times[rows]), low[rows], high[rows]
        for _ in range(_HALVINGS):
            middle = 0.5 * (below + above)
            reached = within(middle) >= share
            above, below = np.where(reached, middle, above), np.where(reached, below, middle)
        high[rows] = above
    return high


def share_within(times: LatencyDistribution, seconds: ArrayLike) -> Floats:
    """The share of times that do not exceed a limit; 0 where the mean is infinite or unknown.

    >>> share_within(LatencyDistribution.of(Cumulants.exponential(np.ones(1))), 3.0).round(4)
    array([0.9502])
    >>> share_within(LatencyDistribution.of(Cumulants.constant(np.ones(2))), [1.0, 0.9])
    array([1., 0.])
    """
    return _shares(times)(np.broadcast_to(np.asarray(seconds, dtype=np.float64), times.busy_share.shape))


def mixture_percentile(times: LatencyDistribution, weights: Floats, share: float) -> float:
    """The time that a share of all does not exceed, where each row stands for so many of them; NaN if there are none.

    Of more than a thousand rows as many stand for all: evenly spread in the order of their means.

    >>> both = LatencyDistribution.of(Cumulants.constant(np.array([1.0, 2.0])))
    >>> round(mixture_percentile(both, np.array([3.0, 1.0]), 0.7), 3)
    1.0
    """
    rows = np.flatnonzero(weights > 0)
    weight = weights[rows]
    if rows.size > _MOST_PARTS:
        order = np.argsort(times.mean[rows], kind="stable")
        total = np.cumsum(weight[order])
        middles = (np.arange(_MOST_PARTS) + 0.5) / _MOST_PARTS * total[-1]
        rows, weight = rows[order[np.searchsorted(total, middles)]], np.ones(_MOST_PARTS)
    parts, weight = times[rows], weight / weight.sum()
    least, most = _between(parts, share)
    if rows.size == 0 or np.isnan(most).any():
        return float("nan")
    if weight[np.isinf(most)].sum() > 1 - share:
        return float("inf")

    within = _shares(parts)

    def longer(seconds: float) -> float:
        """The share that takes longer."""
        return 1.0 - float(weight @ within(np.full(weight.shape, seconds)))

    low, high = float(least.min()), float(most[np.isfinite(most)].max())
    # Where endless waits take a part of the tail, the others' own percentile is not the end of the search.
    while longer(high) > 1 - share:
        low, high = high, 2 * high
    while longer(low) > 1 - share and high - low > _CLOSE * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if longer(middle) > 1 - share else (low, middle)
    return high if longer(low) > 1 - share else low


def _is_mixture(times: LatencyDistribution) -> NDArray[np.bool_]:
    return (times.busy_share > 0) & (times.busy_share < MOSTLY_BUSY)


def _shares(times: LatencyDistribution) -> Callable[[Floats], Floats]:
    """The shares of times within limits, as a function of these: what does not depend on them is computed once."""
    apart = _is_mixture(times)
    alike, rows = np.flatnonzero(~apart), np.flatnonzero(apart)
    overall, some = times[alike].overall, times[rows]

    def within(limit: Floats) -> Floats:
        found = np.empty(limit.shape)
        if alike.size:
            found[alike] = _within(overall, limit[alike])
        if rows.size:
            quiet = _within(some.quiet, limit[rows])
            found[rows] = quiet + some.busy_share * (_within(some.busy, limit[rows]) - quiet)
        return found

    return within


def _between(times: LatencyDistribution, share: float) -> tuple[Floats, Floats]:
    """Two times with the percentile between them, the same where all times are alike; infinite or NaN as the mean."""
    high = _alike(times.overall, share)
    low = high.copy()
    rows = np.flatnonzero(_is_mixture(times) & np.isfinite(high))
    if rows.size:
        some = times[rows]
        quiet, busy = _alike(some.quiet, share), _alike(some.busy, share)
        low[rows], high[rows] = np.minimum(quiet, busy), np.maximum(quiet, busy)
    return low, high


def _alike(law: Cumulants, share: float) -> Floats:
    """A percentile of shifted gamma laws.

    Its distance from the mean in standard deviations depends on the skewness alone, so it is read off a table.
    """
    skewness, distance = _distances(share)
    away = np.interp(_skewness(law), skewness, distance)
    return np.where(np.isfinite(law.mean), law.mean + away * _deviation(law), law.mean)


def _within(law: Cumulants, limit: Floats) -> Floats:
    """The share of shifted gamma laws within a limit, mirrored where the skewness is negative."""
    # 0.2 s to import, here and below, which most plans do not need.
    from scipy.special import gammainc, gammaincc, ndtr

    deviation, skewness = _deviation(law), _skewness(law)
    spread = (deviation > 1e-9 * np.abs(law.mean)) & np.isfinite(law.mean)
    away = np.where(limit >= law.mean * (1 - 1e-9), np.inf, -np.inf)
    np.divide(limit - law.mean, deviation, out=away, where=spread)
    skewed = np.abs(skewness) > _NEARLY_SYMMETRIC
    steep = np.where(skewed, skewness, 1.0)
    shape = 4 / steep**2
    reached = np.maximum(shape + np.sign(steep) * away * np.sqrt(shape), 0.0)
    found = ndtr(away)
    # Most of the time goes into these two: they are computed where they are needed.
    for share, rows in ((gammainc, skewed & (steep > 0)), (gammaincc, skewed & (steep < 0))):
        found[rows] = share(shape[rows], reached[rows])
    return np.where(np.isfinite(law.mean), found, 0.0)


def _deviation(law: Cumulants) -> Floats:
    return np.asarray(np.sqrt(np.maximum(law.variance, 0.0)))


def _skewness(law: Cumulants) -> Floats:
    variance = np.maximum(law.variance, 0.0)
    cube = variance * np.sqrt(variance)
    skewness = np.zeros_like(cube)
    np.divide(law.third, cube, out=skewness, where=(cube > 0) & np.isfinite(cube))
    return np.asarray(np.clip(skewness, -_MOST_SKEWED, _MOST_SKEWED))


@cache
def _distances(share: float) -> tuple[Floats, Floats]:
    """Over a grid of skewness, how many standard deviations the percentile is above the mean."""
    from scipy.special import gammaincinv, ndtri

    steps = np.geomspace(_NEARLY_SYMMETRIC, _MOST_SKEWED, _GRID)
    shape = 4 / steps**2
    above = (gammaincinv(shape, share) - shape) / np.sqrt(shape)
    below = (shape - gammaincinv(shape, 1 - share)) / np.sqrt(shape)
    return np.concatenate([-steps[::-1], [0.0], steps]), np.concatenate([below[::-1], [ndtri(share)], above])
