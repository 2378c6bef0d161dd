"""The one engine of sweeps and reproductions: what is not yet simulated becomes Spark tasks, several simulations to a
task, in jobs that are handed over as they finish. What a job has made survives whatever ends this process then.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import Pickler, Unpickler
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from triagemq.errors import PipelineError, TriageError
from triagemq.pipeline.session import SparkOptions, cause_of, spark_session
from triagemq.pipeline.store import PublishedRun, TableStore
from triagemq.scenario import Scenario

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext
    from pyspark.sql import SparkSession

# A task costs some 40 ms and a job 100; what is running is lost when the sweep is killed.
_TASK_SECONDS = 2.0
_COPIES_PER_SECOND = 2e6
_SECONDS_PER_SIMULATION = 0.02

# Jobs that wait in Spark's queue cost nothing; a cluster with more cores than this gets several tasks per job.
_JOBS_AT_ONCE = 32

_TABLE = "results"
_PROBLEM = "problem"
Key = tuple[Any, ...]
Progress = Callable[[int, int], None]
"""Called with the simulations that are done and all of them."""


class Simulation(Protocol):
    """Something to simulate, which says in its `str` what it is."""

    @property
    def key(self) -> Key:
        """Equal for simulations with equal results: what its rows have in the columns of the key."""

    @property
    def seconds(self) -> float:
        """About how long a core takes for it."""

    def rows(self) -> list[dict[str, Any]]:
        """Simulate it; the columns of the key are added."""


_Packed: TypeAlias = "tuple[bytes, dict[int, Broadcast[Scenario]]]"
Item = TypeVar("Item", bound=Simulation)


@dataclass(frozen=True, slots=True)
class ResultsTable:
    """What simulations of one command leave: its name in the store, the rows, and the columns that identify them."""

    name: str
    schema: pa.Schema
    key: tuple[str, ...]

    def keys(self, rows: pa.Table) -> list[Key]:
        """Of every row, which simulation it is of."""
        return list(zip(*(rows[name].to_pylist() for name in self.key), strict=True))


class StoredRows:
    """The rows of finished simulations, here and in a store. Use `StoredRows.open`."""

    def __init__(self, table: ResultsTable, store: TableStore) -> None:
        self._table, self._store = table, store
        self.rows = table.schema.empty_table()
        for stored in store.read(store.manifest.files(_TABLE)):
            self._append(stored)

    @classmethod
    @contextlib.contextmanager
    def open(cls, table: ResultsTable, directory: str | Path) -> Iterator[StoredRows]:
        """Take the directory for a command of this kind."""
        with TableStore.open(directory, kind=table.name) as store:
            yield cls(table, store)

    def add(self, rows: pa.Table) -> None:
        """Keep the rows of some whole simulations; when this returns, they survive anything."""
        added = self._append(rows)
        files = self._store.appended(self._store.manifest.files(_TABLE), _TABLE, added)
        name, count = self._table.name, len(self.rows)
        self._store.publish({name: PublishedRun(name, name, count, count, 0, {}, {_TABLE: files})})

    def _append(self, rows: pa.Table) -> pa.Table:
        try:
            added = rows.select(self._table.schema.names).cast(self._table.schema)
        except (pa.ArrowException, KeyError) as error:
            raise PipelineError(f"{self._store.place.given}: holds other results: {error}") from error
        self.rows = pa.concat_tables([self.rows, added])
        return added


def simulation_seconds(scenario: Scenario, publications: float) -> float:
    """About how long a core simulates so many publications."""
    rate = scenario.publications.rate_per_second
    subscribed = np.bincount(scenario.subscriptions.topic, minlength=len(scenario.topics))
    total = float(rate.sum())
    copies = float((rate * subscribed[scenario.publications.topic]).sum()) / total if total else 1.0
    return _SECONDS_PER_SIMULATION + publications * copies / _COPIES_PER_SECOND


def simulated(
    items: Sequence[Item],
    table: ResultsTable,
    out: str | Path,
    options: SparkOptions | None,
    progress: Progress | None,
) -> tuple[pa.Table, list[Item]]:
    """The rows of all items in their order, and the item of every row; what `out` has is not simulated again."""
    # A new Python worker for every task would load numba and its kernels again.
    spark_options = options or SparkOptions()
    spark_options = replace(
        spark_options, conf={"spark.python.worker.reuse": "true"} | dict(spark_options.conf)
    )
    keys = [item.key for item in items]
    with contextlib.ExitStack() as stack:
        stored = stack.enter_context(StoredRows.open(table, out))
        found = set(table.keys(stored.rows))

        def report() -> None:
            if progress is not None:
                progress(sum(key in found for key in keys), len(keys))

        report()
        left = {key: item for key, item in zip(keys, items, strict=True) if key not in found}
        if left:
            spark = stack.enter_context(spark_session(spark_options))
            jobs = _finished_jobs(spark, list(left.values()), table)
            for rows in stack.enter_context(contextlib.closing(jobs)):
                for number, problem in enumerate(rows[_PROBLEM].to_pylist()):
                    if problem is not None:
                        raise PipelineError(f"{left[table.keys(rows)[number]]}: {problem}")
                stored.add(rows)
                found.update(table.keys(rows))
                report()
    places: dict[Key, list[int]] = {}
    for row, key in enumerate(table.keys(stored.rows)):
        places.setdefault(key, []).append(row)
    order = [row for key in keys for row in places[key]]
    owners = [item for key, item in zip(keys, items, strict=True) for _ in places[key]]
    return stored.rows.take(pa.array(order, pa.int64())), owners


def _finished_jobs(
    spark: SparkSession, items: Sequence[Simulation], table: ResultsTable
) -> Generator[pa.Table]:
    """What the simulations of each job made, as soon as it has finished.

    A task has as many as take it about two seconds, but so few that all cores are busy to the end. How many cores there
    are is read for every job: a cluster may give more when it sees that there is work.
    """
    longest = max(item.seconds for item in items)
    sent = _Scenarios(spark.sparkContext)
    running: set[Future[pa.Table]] = set()
    begin = 0
    with ThreadPoolExecutor(_JOBS_AT_ONCE) as pool:
        try:
            while running or begin < len(items):
                while begin < len(items) and len(running) < _JOBS_AT_ONCE:
                    cores = spark.sparkContext.defaultParallelism
                    size = max(1, min(int(_TASK_SECONDS / longest), len(items) // (4 * cores)))
                    end = begin + size * -(-cores // _JOBS_AT_ONCE)
                    tasks = [items[each : each + size] for each in range(begin, min(end, len(items)), size)]
                    running.add(pool.submit(_run, spark, [sent.pack(task) for task in tasks], table))
                    begin = end
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in finished)
        except BaseException:
            for future in running:
                future.cancel()
            with contextlib.suppress(Exception):
                spark.sparkContext.cancelAllJobs()
            raise


class _Scenarios:
    """Every scenario is sent to an executor once, however many tasks simulate it."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._sent: dict[int, tuple[Scenario, Broadcast[Scenario]]] = {}

    def pack(self, task: Sequence[Simulation]) -> _Packed:
        """The simulations of a task without their scenarios, and these as broadcasts."""
        content, sent = io.BytesIO(), {}

        def place(item: object) -> int | None:
            if not isinstance(item, Scenario):
                return None
            if id(item) not in self._sent:
                self._sent[id(item)] = item, self._context.broadcast(item)
            sent[id(item)] = self._sent[id(item)][1]
            return id(item)

        pickler = Pickler(content)
        pickler.persistent_id = place  # type: ignore[method-assign]
        pickler.dump(list(task))
        return zlib.compress(content.getvalue(), level=1), sent


def _unpacked(packed: _Packed) -> list[Simulation]:
    content, sent = packed
    unpickler = Unpickler(io.BytesIO(zlib.decompress(content)))
    unpickler.persistent_load = lambda place: sent[place].value  # type: ignore[method-assign]
    found: list[Simulation] = unpickler.load()
    return found


def _run(spark: SparkSession, tasks: Sequence[_Packed], table: ResultsTable) -> pa.Table:
    from pyspark.sql.pandas.types import from_arrow_schema

    # A simulation that cannot be run gives one row with its problem, not a failed task: Spark would try it again, and
    # the user would read about it in Spark's words.
    output = table.schema.append(pa.field(_PROBLEM, pa.string()))

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for item in _unpacked(tasks[task]):
                    yield pa.RecordBatch.from_pylist(_rows(item, table), schema=output)

    try:
        made = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(run, from_arrow_schema(output))
        return made.toArrow()
    except Exception as error:
        # Whatever ends a job in Spark: Java's errors have no base that can be imported without starting it.
        raise PipelineError(f"simulations failed in Spark: {cause_of(error)}") from error


def _rows(item: Simulation, table: ResultsTable) -> list[dict[str, Any]]:
    key = dict(zip(table.key, item.key, strict=True))
    try:
        return [row | key for row in item.rows()]
    except TriageError as error:
        return [key | {_PROBLEM: str(error)}]
