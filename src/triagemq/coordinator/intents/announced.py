"""What one publisher says it publishes, as columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from triagemq.coordinator.intents.asked import PublicationIntent, PublisherIntent
from triagemq.errors import ParameterError
from triagemq.scenario import Floats
from triagemq.scenario.wildcards import topic_mistake

__all__ = ["Announced", "announced"]


@dataclass(frozen=True, slots=True, eq=False)
class Announced:
    """One publisher's topics, each once. NaN is what it leaves to be measured."""

    topics: tuple[str, ...]
    rate_per_second: Floats
    size_bytes: Floats


def announced(intent: PublisherIntent) -> Announced:
    """The intent of a publisher, checked; of several lines about a topic the first holds."""
    first: dict[str, PublicationIntent] = {}
    for each in intent.publications:
        wrong = topic_mistake(each.topic)
        if wrong is not None:
            raise ParameterError(f"topic {each.topic!r}", "; ".join(wrong))
        if each.rate_per_second is not None and not 0 <= each.rate_per_second < math.inf:
            raise ParameterError(f"topic {each.topic!r}", f"rate_per_second is {each.rate_per_second!r}")
        if each.size_bytes is not None and not 0 < each.size_bytes < math.inf:
            raise ParameterError(f"topic {each.topic!r}", f"size_bytes is {each.size_bytes!r}")
        first.setdefault(each.topic, each)
    return Announced(
        topics=tuple(first),
        rate_per_second=_numbers([each.rate_per_second for each in first.values()]),
        size_bytes=_numbers([each.size_bytes for each in first.values()]),
    )


def _numbers(values: list[float | None]) -> Floats:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)
