"""How long messages spend inside this host, in fixed memory: stated beside the bound of a promise, never inside it.

A bound runs from the first bit on the publisher's wire to the last at the subscriber's interface. What operating
systems and programs add at both ends depends on what else they do, so that it can be measured, but not promised.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

_STEPS = 32
"""Bins for each doubling: quantiles are right to 3 %."""


class HostDelay:
    """Delays in nanoseconds.

    >>> delays = HostDelay()
    >>> for microseconds in range(1, 1_001):
    ...     delays.add(1_000 * microseconds)
    >>> abs(delays.quantile(0.5) / 500e-6 - 1) < 0.03
    True
    >>> delays.as_json()["count"], delays.as_json()["worst_seconds"]
    (1000, 0.001)
    """

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self.count = 0
        self.worst_seconds = 0.0

    def add(self, delay_ns: int) -> None:
        """Clocks of two hosts may disagree: what seems to be negative counts as nothing."""
        delay_ns = max(0, delay_ns)
        self.count += 1
        self.worst_seconds = max(self.worst_seconds, delay_ns / 1e9)
        doublings = max(0, delay_ns.bit_length() - 6)
        self._bins[doublings * _STEPS + (delay_ns >> doublings)] += 1

    def quantile(self, share: float) -> float | None:
        """The delay in seconds that this share does not exceed; None if there is none."""
        wanted = share * self.count
        below = 0
        for number in sorted(self._bins):
            below += self._bins[number]
            if below >= wanted:
                return min(_upper_end(number) / 1e9, self.worst_seconds)
        return None

    def as_json(self) -> dict[str, Any]:
        """How many, and p50, p99.9 and the worst, in seconds."""
        return {
            "count": self.count,
            "p50_seconds": self.quantile(0.5),
            "p99_9_seconds": self.quantile(0.999),
            "worst_seconds": self.worst_seconds if self.count else None,
        }


def _upper_end(number: int) -> int:
    # Of each doubling but the first only the upper half of the bins is in use.
    doublings = max(0, number // _STEPS - 1)
    return ((number - doublings * _STEPS) + 1 << doublings) - 1
