"""Simulations as Spark jobs: several to a task, a job for each core that is free, handed over as it finishes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from triagemq.errors import PipelineError
from triagemq.pipeline.causes import cause_of
from triagemq.pipeline.session import SparkOptions, spark_session
from triagemq.scenario import Scenario

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Batches", "finished_jobs", "simulation_seconds", "sweep_session"]

Item = TypeVar("Item")
Batches = Iterator[pa.RecordBatch]
Tasks = Sequence[Sequence[Item]]

# A task costs some 40 ms and a job 100; what is under way is lost when the sweep is killed.
_TASK_SECONDS = 2.0
_COPIES_PER_SECOND = 2e6
_SECONDS_PER_SIMULATION = 0.02

# Jobs that wait in Spark's queue cost nothing; a cluster with more cores than this gets several tasks per job.
_JOBS_AT_ONCE = 32

_SPARK_TYPES = {
    "double": "double",
    "int64": "bigint",
    "int32": "int",
    "string": "string",
    "binary": "binary",
}


def simulation_seconds(scenario: Scenario, publications: float) -> float:
    """About how long a core simulates so many publications."""
    rate = scenario.publications.rate_per_second
    subscribed = np.bincount(scenario.subscriptions.topic, minlength=len(scenario.topics))
    total = float(rate.sum())
    copies = float((rate * subscribed[scenario.publications.topic]).sum()) / total if total else 1.0
    return _SECONDS_PER_SIMULATION + publications * copies / _COPIES_PER_SECOND


@contextlib.contextmanager
def sweep_session(spark: SparkSession | None, options: SparkOptions) -> Iterator[SparkSession]:
    """The session that is given, or one for simulations alone."""
    if spark is not None:
        yield spark
        return
    # A new Python worker for every task would load numba and its kernels again.
    reuse = {"spark.python.worker.reuse": "true"}
    with spark_session(replace(options, kind="sweep", conf=reuse | dict(options.conf))) as session:
        yield session


def finished_jobs(
    spark: SparkSession,
    items: Sequence[Item],
    seconds_each: float,
    task_function: Callable[[Tasks[Item]], Callable[[Batches], Batches]],
    schema: pa.Schema,
) -> Generator[tuple[pa.Table, int]]:
    """What the simulations of each job made, and how many these were, as soon as it has finished.

    `task_function` makes of the items of some tasks what `mapInArrow` runs over the numbers of these tasks. A task has
    as many items as take it about two seconds, but so few that all cores are busy to the end.
    """
    cores = spark.sparkContext.defaultParallelism
    tasks = _cut(items, max(1, min(int(_TASK_SECONDS / seconds_each), len(items) // (4 * cores))))
    jobs = _cut(tasks, -(-cores // _JOBS_AT_ONCE))
    with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
        futures: dict[Future[pa.Table], int] = {
            pool.submit(_run, spark, len(job), task_function(job), schema): sum(map(len, job)) for job in jobs
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


def _cut(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


def _run(
    spark: SparkSession, tasks: int, function: Callable[[Batches], Batches], schema: pa.Schema
) -> pa.Table:
    columns = ", ".join(f"`{field.name}` {_SPARK_TYPES[str(field.type)]}" for field in schema)
    try:
        return spark.range(0, tasks, 1, tasks).mapInArrow(function, columns).toArrow()
    except Exception as error:
        # Whatever ends a job in Spark: Java's errors have no base that can be imported without starting it.
        raise PipelineError(f"simulations failed in Spark: {cause_of(error)}") from error
