"""What the experiments share: simulations of Table 2 under a plan, a list of cases in and results out, from this
process or from Spark tasks; and simulations and forecasts in figures per priority class."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from triagemq.errors import PipelineError
from triagemq.forecast import Forecast
from triagemq.forecast.summary import NEGLIGIBLE_SHARE
from triagemq.lab.papers.experiment import Progress
from triagemq.lab.sweep.cases import Case, simulate_cases
from triagemq.pipeline import SparkOptions
from triagemq.pipeline.session import find_java
from triagemq.plan import Plan
from triagemq.plan.demands import total_by
from triagemq.scenario import Floats, Integers, Scenario
from triagemq.simulate import SubscriptionResults

TABLE2_BUFFER_PACKETS = 2000.0
"""The switch buffer k of PrioDeX 6.2 and FireDeX 5.3."""


REPLICATIONS = 2
"""Independent parts of every simulation: they use two cores, and the result is the same on any number."""

LEAST_CASES = 8
LEAST_SECONDS = 150.0
"""Of one core. Below either, Spark would start for longer than it saves."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class OnSpark:
    """How Spark is run, and where finished simulations are stored until all are, so that a kill costs little."""

    options: SparkOptions
    directory: Path
    least_seconds: float = LEAST_SECONDS

    def pays(self, seconds: Sequence[float]) -> bool:
        """Whether simulations of so many seconds are enough for it, and Spark is there or on a cluster."""
        enough = len(seconds) >= LEAST_CASES and sum(seconds) >= self.least_seconds
        return enough and (self.options.master is not None or _spark_is_here())


_ON_SPARK: ContextVar[OnSpark | None] = ContextVar("on_spark", default=None)


@contextmanager
def on_spark(where: OnSpark | None) -> Iterator[None]:
    """Experiments inside this block run their many-seed simulations there; None is this process."""
    before = _ON_SPARK.set(where)
    try:
        yield
    finally:
        _ON_SPARK.reset(before)


def table2_case(scenario: Scenario, plan: Plan, *, publications: int, seed: int, warmup: float) -> Case:
    """A simulation of about so many publications, in parts, that is cut off in time.

    A run that waits until every queue is empty would deliver a full buffer in a second after the last event, and
    take 20 s off the latency of classes that wait behind it.
    """
    seconds = publications / REPLICATIONS / float(scenario.publications.rate_per_second.sum())
    return Case(scenario, plan, duration_seconds=seconds, seed=seed, replications=REPLICATIONS, warmup=warmup)


def simulated(cases: Sequence[Case], progress: Progress) -> list[SubscriptionResults]:
    """The results of all cases, in their order: the same to the last bit wherever they run."""
    weights = [case.seconds for case in cases]
    where = _ON_SPARK.get()
    if where is not None and where.pays(weights):
        return simulate_cases(
            cases,
            out=where.directory,
            options=where.options,
            progress=lambda done, total: progress(done / total),
        )
    found, before = [], 0.0
    for case, weight in zip(cases, weights, strict=True):
        found.append(case.simulate(progress=_part(progress, before, weight, sum(weights))))
        before += weight
    progress(1.0)
    return found


def median_seconds(work: Callable[[], object], calls: int = 30) -> float:
    """How long it takes, once it has been done before."""
    work()
    return float(np.median(timeit.repeat(work, number=1, repeat=calls)))


def grouped(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Each `size` items that follow each other.

    >>> grouped([1, 2, 3, 4], 2)
    [[1, 2], [3, 4]]
    """
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def _part(progress: Progress, before: float, weight: float, total: float) -> Progress:
    return lambda share: progress(min(1.0, (before + share * weight) / total))


def _spark_is_here() -> bool:
    try:
        return find_spec("pyspark") is not None and bool(find_java())
    except PipelineError:
        return False


@dataclass(frozen=True, slots=True, eq=False)
class ClassFigures:
    """Columns over priority classes; NaN where nothing is known, infinity where a mean has no bound."""

    success: Floats
    latency_seconds: Floats


def class_figures(
    level: Integers, offered: Floats, received: Floats, latency_seconds: Floats
) -> ClassFigures:
    """Success and latency per class as THEORY.md section 1 defines them: latency is weighted by what arrives."""
    count = int(level.max(initial=0)) + 1
    is_known = (received > 0) & ~np.isnan(latency_seconds)
    total, arrived = total_by(level, offered, count), total_by(level, received, count)
    known_rate = total_by(level, np.where(is_known, received, 0.0), count)
    seconds = total_by(
        level, np.where(is_known, received, 0.0) * np.where(is_known, latency_seconds, 0.0), count
    )
    enough = (known_rate > 0) & (known_rate >= (1 - NEGLIGIBLE_SHARE) * arrived)
    unknown = np.full(count, np.nan)
    return ClassFigures(
        success=np.divide(arrived, total, out=unknown.copy(), where=total > 0),
        latency_seconds=np.divide(seconds, known_rate, out=unknown.copy(), where=enough),
    )


def forecast_figures(levels: Sequence[Integers], predicted: Sequence[Forecast]) -> ClassFigures:
    """Forecasts of several scenarios by class, together."""
    return class_figures(
        np.concatenate(levels),
        np.concatenate([each.published_rate for each in predicted]),
        np.concatenate([each.received_rate for each in predicted]),
        np.concatenate([each.latency_seconds for each in predicted]),
    )


def simulated_figures(levels: Sequence[Integers], measured: Sequence[SubscriptionResults]) -> ClassFigures:
    """Simulations of several scenarios by class, together: any classes, not only those they were run with."""
    return class_figures(
        np.concatenate(levels),
        np.concatenate([each.count for each in measured]).astype(np.float64),
        np.concatenate([each.delivered for each in measured]).astype(np.float64),
        np.concatenate([each.mean_latency_seconds for each in measured]),
    )


class RecordedRun:
    """A Sink that stores deliveries, hops, samples and decisions."""

    def __init__(self, *, with_hops: bool = True) -> None:
        self.with_hops = with_hops
        self._parts: dict[str, list[Mapping[str, NDArray[Any]]]] = {}

    def _store(self, name: str, columns: Mapping[str, NDArray[Any]]) -> None:
        self._parts.setdefault(name, []).append({key: np.array(values) for key, values in columns.items()})

    def publications(self, columns: Mapping[str, NDArray[Any]], /) -> None: ...

    def deliveries(self, columns: Mapping[str, NDArray[Any]], /) -> None:
        self._store("deliveries", columns)

    def hops(self, columns: Mapping[str, NDArray[Any]], /) -> None:
        self._store("hops", columns)

    def queue_samples(self, columns: Mapping[str, NDArray[Any]], /) -> None:
        self._store("queue_samples", columns)

    def decisions(self, columns: Mapping[str, NDArray[Any]], /) -> None:
        self._store("decisions", columns)

    def table(self, name: str) -> dict[str, NDArray[Any]]:
        parts = self._parts[name]
        return {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
