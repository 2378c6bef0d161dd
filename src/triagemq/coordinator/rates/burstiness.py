"""How much counts of events may vary: the index of dispersion over time, and the silences, of known processes.

The index of dispersion of counts over w seconds is I(w) = variance / mean of the events in a stretch of w seconds; a
Poisson process has 1 for every w.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from triagemq.scenario import ArrivalProcess, Floats


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The process of one publication's events, as a scenario states it."""

    process: ArrivalProcess
    rate_per_second: float
    pareto_shape: float = 0.0
    on_seconds: float = 0.0
    off_seconds: float = 0.0


def dispersion(arrivals: tuple[Arrivals, ...], seconds: Floats) -> Floats:
    """I(w) of independent publications together, for every w of `seconds`; 1 where no rate is above 0.

    >>> clock = Arrivals(ArrivalProcess.PERIODIC, 5.0)
    >>> dispersion((clock,), np.array([0.2, 2.0])).tolist()
    [0.25, 0.025]
    """
    rate = sum(each.rate_per_second for each in arrivals)
    if rate <= 0:
        return np.ones_like(seconds)
    variance = sum((_variance(each, seconds) for each in arrivals), start=np.zeros_like(seconds))
    return np.asarray(variance / (rate * seconds))


def longest_silence_seconds(arrivals: tuple[Arrivals, ...], surprise: float) -> float:
    """The silence that events of all publications together exceed with probability exp(-surprise) at most.

    Counted from an event on; independent publications are silent together no longer than the one that is silent least.
    """
    rated = [each for each in arrivals if each.rate_per_second > 0]
    return min((_silence(each, surprise) for each in rated), default=0.0)


def _variance(arrivals: Arrivals, seconds: Floats) -> Floats:
    """The variance of the events in w seconds, or a bound on it."""
    rate = arrivals.rate_per_second
    mean = rate * seconds
    match arrivals.process:
        case ArrivalProcess.PERIODIC:
            # A stretch holds one of two numbers of events that differ by one.
            return np.minimum(mean, 0.25)
        case ArrivalProcess.ON_OFF:
            on, off = arrivals.on_seconds, arrivals.off_seconds
            # The rate jumps between rate (on + off) / on and 0; its covariance decays with time constant tau.
            tau = on * off / (on + off)
            jumps = 2 * rate**2 * off / on * tau
            return np.asarray(mean + jumps * (seconds - tau * -np.expm1(-seconds / tau)))
        case ArrivalProcess.PARETO:
            shape = arrivals.pareto_shape
            # Var of a gap over its squared mean is what I(w) tends to; without a variance it grows with w.
            return np.asarray(mean * max(1.0, 1 / (shape * (shape - 2)))) if shape > 2 else mean**2
        case _:
            return mean


def _silence(arrivals: Arrivals, surprise: float) -> float:
    gap = 1 / arrivals.rate_per_second
    match arrivals.process:
        case ArrivalProcess.PERIODIC:
            return gap
        case ArrivalProcess.ON_OFF:
            on, off = arrivals.on_seconds, arrivals.off_seconds
            return surprise * (gap * on / (on + off) + off)
        case ArrivalProcess.PARETO:
            shape = arrivals.pareto_shape
            return float(gap * (shape - 1) / shape * np.exp(surprise / shape))
        case _:
            return surprise * gap
