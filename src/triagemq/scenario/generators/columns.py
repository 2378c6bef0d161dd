"""What the generators share: checked arguments, padded names, random streams, and tables with usual values.

A value that a generator does not set is the model's "none": 0 for numbers, -1 for references, infinity for
limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from triagemq.errors import ParameterError
from triagemq.scenario.kinds import ArrivalProcess, SizeDistribution, UtilityShape
from triagemq.scenario.model import (
    DEFAULT_SERVICE_RATE,
    Brokers,
    Floats,
    Integers,
    OutputPorts,
    Publications,
    Publishers,
    Subscribers,
    Subscriptions,
    Switches,
)

__all__ = [
    "checked_count",
    "checked_distribution",
    "checked_number",
    "checked_range",
    "numbered",
    "one_broker",
    "one_switch",
    "output_ports",
    "publications",
    "publishers",
    "random_streams",
    "references",
    "subscribers",
    "subscriptions",
    "truncated_exponential",
]


def checked_count(parameter: str, value: object, minimum: int = 1) -> int:
    """A whole number of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise ParameterError(parameter, f"is {value!r}; write a whole number of at least {minimum}")
    return int(value)


def checked_number(
    parameter: str, value: float, *, zero: bool = False, infinite: bool = False, below: float = math.inf
) -> float:
    """A number above 0; `zero` and `infinite` also admit these, `below` is a bound it must not reach."""
    admitted = (value > 0 or (zero and value == 0)) and (value < below or (infinite and value == math.inf))
    if not admitted:  # NaN compares false with everything
        bound = "" if below == math.inf else f" below {below:g}"
        kind = "number" if infinite or bound else "finite number"
        raise ParameterError(
            parameter, f"is {value!r}; write a {kind} {'of at least' if zero else 'above'} 0{bound}"
        )
    return float(value)


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


def random_streams(seed: int, count: int) -> list[np.random.Generator]:
    """Independent generators, one per quantity, so that drawing more of one never changes another."""
    children = np.random.SeedSequence(checked_count("seed", seed, minimum=0)).spawn(count)
    return [np.random.Generator(np.random.PCG64(child)) for child in children]


def truncated_exponential(uniform: Floats, mean: float, low: float, high: float) -> Floats:
    """Exponential values of the given mean (before truncation), redrawn while outside [low, high].

    The redrawing has a closed form: what remains is the exponential distribution cut to the range, and its
    inverse distribution function of a uniform number in [0, 1) is exact and needs no loop.

    >>> truncated_exponential(np.array([0.0, 0.5]), mean=6, low=4, high=7).round(3)
    array([4.   , 5.314])
    """
    values = low - mean * np.log1p(uniform * np.expm1((low - high) / mean))
    return np.asarray(np.clip(values, low, high), dtype=np.float64)


def numbered(prefix: str, count: int, width: int = 2) -> tuple[str, ...]:
    """Names counted from 1, padded with zeros so that their order is that of their numbers.

    >>> numbered("port", 3)
    ('port-01', 'port-02', 'port-03')
    """
    width = max(width, len(str(count)))
    return tuple(f"{prefix}-{number:0{width}}" for number in range(1, count + 1))


def references(rows: ArrayLike) -> Integers:
    """A column that refers to rows of another table."""
    return np.asarray(rows, dtype=np.int32)


def one_broker(name: str) -> Brokers:
    """A broker at the service rate of theory.md section 1."""
    rate = np.array([DEFAULT_SERVICE_RATE])
    return Brokers(name=(name,), inbound_rate_per_second=rate, outbound_rate_per_second=rate.copy())


def one_switch(name: str) -> Switches:
    """A managed switch that hangs at the broker."""
    return Switches(
        name=(name,), inbound_rate_per_second=np.array([DEFAULT_SERVICE_RATE]), fed_by_port=references([-1])
    )


def output_ports(names: Sequence[str], bandwidth_bps: ArrayLike, buffer_packets: float) -> OutputPorts:
    """Ports of the only switch, without link errors or delays."""
    count = len(names)
    return OutputPorts(
        name=tuple(names),
        switch=references(np.zeros(count)),
        bandwidth_bps=_floats(bandwidth_bps, count),
        buffer_packets=_floats(buffer_packets, count),
        queues=references(np.zeros(count)),
        error_rate=np.zeros(count),
        propagation_seconds=np.zeros(count),
    )


def publishers(names: Sequence[str], unmanaged_switch: int = -1) -> Publishers:
    """Publishers at the only broker, without link errors or delays."""
    count = len(names)
    return Publishers(
        name=tuple(names),
        broker=references(np.zeros(count)),
        unmanaged_switch=references(np.full(count, unmanaged_switch)),
        error_rate=np.zeros(count),
        propagation_seconds=np.zeros(count),
    )


def publications(
    *,
    publisher: ArrayLike,
    topic: ArrayLike,
    rate_per_second: ArrayLike,
    size_bytes: ArrayLike,
    size_distribution: ArrayLike,
    arrival_process: ArrayLike = ArrivalProcess.POISSON,
    on_seconds: ArrayLike = 0.0,
    off_seconds: ArrayLike = 0.0,
) -> Publications:
    """Publications; a single value stands for the whole column."""
    publisher = references(publisher)
    count = len(publisher)
    return Publications(
        publisher=publisher,
        topic=references(topic),
        rate_per_second=_floats(rate_per_second, count),
        size_bytes=_floats(size_bytes, count),
        size_distribution=_codes(size_distribution, count),
        size_samples=references(np.full(count, -1)),
        arrival_process=_codes(arrival_process, count),
        pareto_shape=np.zeros(count),
        on_seconds=_floats(on_seconds, count),
        off_seconds=_floats(off_seconds, count),
        min_separation_seconds=np.zeros(count),
        max_separation_seconds=np.full(count, np.inf),
    )


def subscribers(names: Sequence[str], port: ArrayLike) -> Subscribers:
    """Subscribers at the only broker, without link errors or delays."""
    count = len(names)
    return Subscribers(
        name=tuple(names),
        broker=references(np.zeros(count)),
        port=references(port),
        error_rate=np.zeros(count),
        propagation_seconds=np.zeros(count),
    )


def subscriptions(
    *,
    subscriber: ArrayLike,
    topic: ArrayLike,
    utility_weight: ArrayLike,
    utility_shape: ArrayLike = UtilityShape.LOG,
    utility_threshold: ArrayLike = 0.0,
    freshness_seconds: ArrayLike = np.inf,
) -> Subscriptions:
    """Subscriptions without promises; a single value stands for the whole column."""
    subscriber = references(subscriber)
    count = len(subscriber)
    return Subscriptions(
        subscriber=subscriber,
        topic=references(topic),
        utility_shape=_codes(utility_shape, count),
        utility_weight=_floats(utility_weight, count),
        utility_threshold=_floats(utility_threshold, count),
        freshness_seconds=_floats(freshness_seconds, count),
        max_latency_seconds=np.full(count, np.inf),
        max_separation_seconds=np.full(count, np.inf),
        max_latency_share=np.zeros(count),
    )


def _floats(values: ArrayLike, count: int) -> Floats:
    return np.array(np.broadcast_to(np.asarray(values, dtype=np.float64), count))


def _codes(values: ArrayLike, count: int) -> NDArray[np.int8]:
    return np.array(np.broadcast_to(np.asarray(values, dtype=np.int8), count))
