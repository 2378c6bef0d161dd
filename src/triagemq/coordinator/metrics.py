"""Figures for Prometheus, in its text format, written down when they are asked for."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Histogram", "Metrics", "exposition"]

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


Samples = list[tuple[Mapping[str, str], float]]


def exposition(families: Mapping[str, tuple[str, str, float | Samples]], plan_seconds: Histogram) -> str:
    """Families of figures (name: kind, help, value or samples with labels) as Prometheus reads them.

    >>> print(exposition({"triage_generation": ("gauge", "Of the orders.", 3)}, Histogram((1.0,))).splitlines()[2])
    triage_generation 3
    """
    lines = []
    for name, (kind, words, value) in families.items():
        lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}"]
        samples: Samples = value if isinstance(value, list) else [({}, value)]
        lines += [f"{name}{_labels(labels)} {_number(number)}" for labels, number in samples]
    name = "triage_plan_seconds"
    lines += [f"# HELP {name} Time to make a plan.", f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{le="{bound}"}} {count}' for bound, count in plan_seconds.rows()]
    lines += [f"{name}_sum {_number(plan_seconds.total)}", f"{name}_count {plan_seconds.count}"]
    return "\n".join(lines) + "\n"


def counter_samples(counters: Mapping[str, Any]) -> Samples:
    """A gateway's counters: plain numbers by name, and counters by reason."""
    samples: Samples = []
    for name, value in sorted(counters.items()):
        if isinstance(value, Mapping):
            samples += [
                ({"counter": name, "reason": str(reason)}, float(count))
                for reason, count in sorted(value.items())
            ]
        elif isinstance(value, int | float):
            samples.append(({"counter": name, "reason": ""}, float(value)))
    return samples


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{int(value)}" if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
