"""What the coordinator counts of its own work."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Histogram", "Metrics"]

_PLAN_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(slots=True)
class Histogram:
    """Counts of values up to each bound.

    >>> seconds = Histogram((0.1, 1.0)); seconds.add(0.05); seconds.add(3.0)
    >>> list(seconds.rows())
    [('0.1', 1), ('1', 1), ('+Inf', 2)]
    """

    bounds: tuple[float, ...] = _PLAN_SECONDS
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def add(self, value: float) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def rows(self) -> Iterator[tuple[str, int]]:
        so_far = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts or [0] * 99, strict=False):
            so_far += count
            yield ("+Inf" if math.isinf(bound) else f"{bound:g}"), so_far


@dataclass(slots=True)
class Metrics:
    """What the coordinator itself has counted since its start."""

    plan_seconds: Histogram = field(default_factory=Histogram)
    plans_unchanged: int = 0
    plans_refused: int = 0
    gateway_connections: int = 0
    measurements: int = 0
