"""The closed vocabularies of a scenario: utility shapes, size distributions, arrival processes, orders of sending,
disciplines of ports, kinds of limiters.

Columns store these as small integers; files and tables spell them by name.
"""

from __future__ import annotations

from enum import IntEnum


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


class SendingOrder(IntEnum):
    """In what order the copies of one event leave its broker for the subscribers."""

    BY_CLASS = 0
    """Together, the highest class first, as our gateway and its data planes hand them over."""
    RANDOM = 1
    """Each after an outbound time of its own, whatever its class, as in the papers' simulators."""


class Discipline(IntEnum):
    """Whose packet an output port sends next."""

    PRIORITY = 0
    """The first of the highest class that has one; a packet on the wire is finished."""
    FAIR = 1
    """Flow by flow in turn, a packet each, whatever their classes: best effort. It keeps no promise."""
    QUEUE_RATES = 2
    """Every class has a queue with a bandwidth of its own, and none waits for another. It keeps no promise."""


class LimiterKind(IntEnum):
    """How a switch limits what enters it."""

    WINDOW = 0
    """What has passed may pass again a separation later, and not before: never more than bounds count."""
    BUCKET = 1
    """A token bucket: a message, and the rate on top of it. Bounds count that."""


WORDS: dict[str, type[IntEnum]] = {
    "size_distribution": SizeDistribution,
    "arrival_process": ArrivalProcess,
    "utility_shape": UtilityShape,
    "discipline": Discipline,
    "limiter": LimiterKind,
}
"""The columns that hold one of these, and which."""


def codes_of(column: str) -> dict[str, int]:
    """The words of a column as files spell them, and their codes.

    >>> codes_of("limiter")
    {'window': 0, 'bucket': 1}
    """
    return {kind.name.lower(): int(kind) for kind in WORDS[column]}


def word_of(column: str, code: int) -> str:
    """
    >>> word_of("utility_shape", 2)
    'step'
    """
    return WORDS[column](code).name.lower()
