"""run_sweep(): every combination of settings and seeds that is not yet simulated, as Spark tasks."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from triagemq.errors import ParameterError, PipelineError
from triagemq.pipeline.session import SparkOptions, spark_session
from triagemq.pipeline.sweep.results import KEY, SCHEMA, Point, SweepResults
from triagemq.pipeline.sweep.tasks import OUTPUT, PROBLEM, packed, task_function
from triagemq.pipeline.sweep.variables import Value, checked_vary
from triagemq.scenario import Scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DEFAULT_PUBLICATIONS", "run_sweep"]

DEFAULT_PUBLICATIONS = 100_000

Progress = Callable[[int, int], None]
Item = TypeVar("Item")

# A task costs some 40 ms and a job 100; what is under way is lost when the sweep is killed.
_TASK_SECONDS = 2.0
_COPIES_PER_SECOND = 2e6
_SECONDS_PER_SIMULATION = 0.02

# Jobs that wait in Spark's queue cost nothing; a cluster with more cores than this gets several tasks per job.
_JOBS_AT_ONCE = 32

_SPARK_TYPES = {"double": "double", "int64": "bigint", "int32": "int", "string": "string"}


def run_sweep(
    scenario: Scenario | Mapping[str, Scenario],
    vary: Mapping[str, Iterable[Value] | Value],
    seeds: int | Iterable[int] = 1,
    *,
    publications: int = DEFAULT_PUBLICATIONS,
    out: str | Path = "out/sweep",
    options: SparkOptions | None = None,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> pa.Table:
    """Simulate every combination of the varied settings with every seed; the results as a table (see SCHEMA).

    A number of `seeds` means 0 up to it. Several scenarios are given by name, and each is swept. A seed is that of the
    plan and of the simulation, as with `triage simulate --seed`. What `out` holds already is not simulated again: a
    sweep that was killed continues, one that is whole does not even start Spark. `spark` is a session to
    use instead of one for this sweep alone. `progress` is called with the simulations done and all of this sweep.

    >>> from triagemq.scenario.generators import table2
    >>> results = run_sweep(  # doctest: +SKIP
    ...     table2(seed=1), {"rho": [0.8, 1.6], "drops": ["flat", "optimal"]}, seeds=10
    ... )
    """
    if publications < 1:
        raise ParameterError("publications", f"is {publications}; must be 1 or more")
    scenarios = {scenario.name: scenario} if isinstance(scenario, Scenario) else dict(scenario)
    points = _points(scenarios, checked_vary(vary), _checked_seeds(seeds), publications)
    with SweepResults.open(Path(out)) as results:
        done = results.done()
        left = list({point.key: point for point in points if point.key not in done}.values())
        report = progress or (lambda finished, total: None)
        report(len(points) - len(left), len(points))
        if left:
            finished = len(points) - len(left)
            with (
                _session(spark, options or SparkOptions()) as session,
                contextlib.closing(_simulated(session, left, scenarios)) as simulated,
            ):
                for rows, count in simulated:
                    results.add(rows)
                    finished += count
                    report(finished, len(points))
        return results.rows(points)


def _points(
    scenarios: Mapping[str, Scenario],
    vary: Mapping[str, tuple[Value, ...]],
    seeds: Sequence[int],
    publications: int,
) -> list[Point]:
    return [
        Point(name, scenario.fingerprint, publications, seed, dict(zip(vary, values, strict=True)))
        for name, scenario in scenarios.items()
        for values in itertools.product(*vary.values())
        for seed in seeds
    ]


def _checked_seeds(seeds: int | Iterable[int]) -> list[int]:
    chosen = list(range(seeds)) if isinstance(seeds, int | np.integer) else list(dict.fromkeys(seeds))
    if not chosen:
        raise ParameterError("seeds", "is none; at least 1 is needed")
    for seed in chosen:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise ParameterError("seeds", f"holds {seed!r}; whole numbers of at least 0 are needed")
    return [int(seed) for seed in chosen]


@contextlib.contextmanager
def _session(spark: SparkSession | None, options: SparkOptions) -> Iterator[SparkSession]:
    if spark is not None:
        yield spark
        return
    # A new Python worker for every task would load numba and its kernels again.
    reuse = {"spark.python.worker.reuse": "true"}
    with spark_session(replace(options, kind="sweep", conf=reuse | dict(options.conf))) as session:
        yield session


def _simulated(
    spark: SparkSession, points: Sequence[Point], scenarios: Mapping[str, Scenario]
) -> Generator[tuple[pa.Table, int]]:
    """The rows of some simulations and how many these were, as soon as a job has finished."""
    content = {scenario.fingerprint: packed(scenario) for scenario in scenarios.values()}
    cores = spark.sparkContext.defaultParallelism
    tasks = _cut(points, _points_per_task(points, list(scenarios.values()), cores))
    jobs = _cut(tasks, -(-cores // _JOBS_AT_ONCE))
    with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
        futures: dict[Future[pa.Table], int] = {
            pool.submit(_job, spark, job, content): sum(map(len, job)) for job in jobs
        }
        try:
            for future in as_completed(futures):
                yield future.result(), futures[future]
        except BaseException:
            for future in futures:
                future.cancel()
            with contextlib.suppress(Exception):
                spark.sparkContext.cancelAllJobs()
            raise


def _points_per_task(points: Sequence[Point], scenarios: Sequence[Scenario], cores: int) -> int:
    """As many as take a task about two seconds, but few enough that all cores are busy to the end."""
    copies = max(map(_copies_per_publication, scenarios))
    seconds = _SECONDS_PER_SIMULATION + points[0].publications * copies / _COPIES_PER_SECOND
    return max(1, min(int(_TASK_SECONDS / seconds), len(points) // (4 * cores)))


def _copies_per_publication(scenario: Scenario) -> float:
    rate = scenario.publications.rate_per_second
    subscribed = np.bincount(scenario.subscriptions.topic, minlength=len(scenario.topics))
    total = float(rate.sum())
    return float((rate * subscribed[scenario.publications.topic]).sum()) / total if total else 1.0


def _cut(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def _job(spark: SparkSession, tasks: Sequence[Sequence[Point]], scenarios: Mapping[str, bytes]) -> pa.Table:
    needed = {point.scenario_fingerprint for task in tasks for point in task}
    function = task_function(tasks, {name: scenarios[name] for name in needed})
    columns = ", ".join(f"`{field.name}` {_SPARK_TYPES[str(field.type)]}" for field in OUTPUT)
    numbers = spark.range(0, len(tasks), 1, len(tasks))
    try:
        rows = numbers.mapInArrow(function, columns).toArrow()
    except Exception as error:
        # Whatever ends a job in Spark: Java's errors have no base that can be imported without starting it.
        raise PipelineError(f"simulations failed in Spark: {_reason(error)}") from error
    for row in rows.filter(rows[PROBLEM].is_valid()).slice(0, 1).to_pylist():
        key = tuple(row[name] for name in KEY)
        point = next(point for task in tasks for point in task if point.key == key)
        raise PipelineError(f"{point}: {row[PROBLEM]}")
    return rows.select(SCHEMA.names)


def _reason(error: Exception) -> str:
    """The last line of a Python worker's traceback if there is one, else the first of what Spark says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (named or lines or [type(error).__name__])[0]
