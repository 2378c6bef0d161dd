"""The closed vocabularies of a scenario: utility shapes, size distributions, arrival processes.

Columns store these as small integers; files and tables spell them by name.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ArrivalProcess", "SizeDistribution", "UtilityShape"]


class UtilityShape(IntEnum):
    """How a subscription's worth grows with the share of events that arrive."""

    LOG = 0
    LINEAR = 1
    STEP = 2


class SizeDistribution(IntEnum):
    """How the sizes of one publication's events are spread around their mean."""

    EXPONENTIAL = 0
    CONSTANT = 1
    EMPIRICAL = 2


class ArrivalProcess(IntEnum):
    """How one publication's events are spread over time."""

    POISSON = 0
    PERIODIC = 1
    PARETO = 2
    ON_OFF = 3
