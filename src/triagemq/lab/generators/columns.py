"""What the generators share: arguments, a truncated distribution, tables of usual values.

A value that a generator does not set is the default (`model.DEFAULTS`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    Scenario,
    Subscribers,
    Subscriptions,
    Switches,
    Topics,
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


def one_switch_scenario(
    *,
    topics: Sequence[str],
    ports: Sequence[str],
    bandwidth_bps: float,
    buffer_packets: float,
    publishers: Sequence[str],
    publications: Mapping[str, ArrayLike],
    subscribers: Sequence[str],
    port: ArrayLike,
    subscriptions: Mapping[str, ArrayLike],
    **others: Any,
) -> Scenario:
    """A broker at the service rate of theory.md section 1, and a managed switch with output ports, without link errors
    or delays. `publications` and `subscriptions` are columns; a single value stands for a whole column."""
    return Scenario.of(
        topics=Topics(tuple(topics)),
        brokers=filled(Brokers, 1, name=("broker",)),
        switches=filled(Switches, 1, name=("switch",)),
        ports=filled(
            OutputPorts,
            len(ports),
            name=ports,
            switch=0,
            bandwidth_bps=bandwidth_bps,
            buffer_packets=buffer_packets,
        ),
        publishers=filled(Publishers, len(publishers), name=publishers, broker=0),
        publications=filled(Publications, np.size(publications["publisher"]), **publications),
        subscribers=filled(Subscribers, len(subscribers), name=subscribers, broker=0, port=port),
        subscriptions=filled(Subscriptions, np.size(subscriptions["subscriber"]), **subscriptions),
        **others,
    )
