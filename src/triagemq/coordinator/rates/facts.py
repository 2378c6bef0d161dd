"""What is said and measured about publication rates: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from triagemq.coordinator.rates.burstiness import Arrivals

__all__ = ["DeclaredRate", "RateChange", "Rates", "TopicEstimate"]


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates (events per second) and mean sizes to plan with where measurements overrule what was announced."""

    per_second: Mapping[str, float] = field(default_factory=dict)
    size_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeclaredRate:
    """What a topic's publishers announce, None where they leave it to be measured; `arrivals` empty if unknown."""

    rate_per_second: float | None = None
    size_bytes: float | None = None
    arrivals: tuple[Arrivals, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicEstimate:
    """What is measured of a topic: its rate, mean size (None before the first event) and index of dispersion."""

    rate_per_second: float
    size_bytes: float | None
    index_of_dispersion: float
    publications: int


@dataclass(frozen=True, slots=True)
class RateChange:
    """A topic that has left its band. `what` is rate or size; `str()` says it in words."""

    topic: str
    what: str
    before: float
    after: float

    def __str__(self) -> str:
        unit = "events/s" if self.what == "rate" else "bytes"
        return f"{self.what} of topic {self.topic} from {self.before:.4g} to {self.after:.4g} {unit}"
