"""What the generators share beside those of the building: arguments, a truncated distribution, tables of usual values.

A value that a generator does not set is the default (`model.DEFAULTS`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from triagemq.errors import ParameterError
from triagemq.scenario.building import checked_number
from triagemq.scenario.kinds import SizeDistribution
from triagemq.scenario.model import (
    Brokers,
    Floats,
    OutputPorts,
    Publications,
    Publishers,
    Subscribers,
    Subscriptions,
    Switches,
    filled,
)


def checked_range(parameter: str, bounds: tuple[float, float], *, zero: bool = False) -> tuple[float, float]:
    """A lower and an upper bound, in order; the upper one may be infinite."""
    try:
        low, high = bounds
    except (TypeError, ValueError):
        raise ParameterError(parameter, f"is {bounds!r}; write two numbers, the lower bound first") from None
    low = checked_number(parameter, low, zero=zero)
    high = checked_number(parameter, high, zero=zero, infinite=True)
    if low > high:
        raise ParameterError(parameter, f"is {bounds!r}; write the lower bound first")
    return low, high


def checked_distribution(parameter: str, sizes: str) -> SizeDistribution:
    """The size distribution of that name; generators have no samples to be empirical with."""
    known = {"exponential": SizeDistribution.EXPONENTIAL, "constant": SizeDistribution.CONSTANT}
    if sizes not in known:
        raise ParameterError(parameter, f"is {sizes!r}; write {' or '.join(known)}")
    return known[sizes]


def truncated_exponential(uniform: Floats, mean: float, low: float, high: float) -> Floats:
    """Exponential values of the given mean (before truncation), redrawn while outside [low, high].

    The redrawing has a closed form: what remains is the exponential distribution cut to the range, and its
    inverse distribution function of a uniform number in [0, 1) is exact and needs no loop.

    >>> truncated_exponential(np.array([0.0, 0.5]), mean=6, low=4, high=7).round(3)
    array([4.   , 5.314])
    """
    values = low - mean * np.log1p(uniform * np.expm1((low - high) / mean))
    return np.asarray(np.clip(values, low, high), dtype=np.float64)


def one_broker(name: str) -> Brokers:
    """A broker at the service rate of theory.md section 1."""
    return filled(Brokers, 1, name=(name,))


def one_switch(name: str) -> Switches:
    """A managed switch that hangs at the broker."""
    return filled(Switches, 1, name=(name,))


def output_ports(names: Sequence[str], bandwidth_bps: ArrayLike, buffer_packets: float) -> OutputPorts:
    """Ports of the only switch, without link errors or delays."""
    return filled(
        OutputPorts,
        len(names),
        name=names,
        switch=0,
        bandwidth_bps=bandwidth_bps,
        buffer_packets=buffer_packets,
    )


def publishers(names: Sequence[str]) -> Publishers:
    """Publishers at the only broker, without link errors or delays."""
    return filled(Publishers, len(names), name=names, broker=0)


def publications(*, publisher: ArrayLike, **columns: ArrayLike) -> Publications:
    """Publications; a single value stands for the whole column, and what is left out is not stated."""
    return filled(Publications, np.size(publisher), publisher=publisher, **columns)


def subscribers(names: Sequence[str], port: ArrayLike) -> Subscribers:
    """Subscribers at the only broker, without link errors or delays."""
    return filled(Subscribers, len(names), name=names, broker=0, port=port)


def subscriptions(*, subscriber: ArrayLike, **columns: ArrayLike) -> Subscriptions:
    """Subscriptions; a single value stands for the whole column, and what is left out is not stated."""
    return filled(Subscriptions, np.size(subscriber), subscriber=subscriber, **columns)
