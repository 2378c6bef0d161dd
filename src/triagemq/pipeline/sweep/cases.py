"""simulate_cases(): simulations that are each given as a whole, plan included, as Spark tasks.

A sweep plans in its tasks and keeps figures per class; here the caller has planned, and gets what `simulate` returns
for every subscription, to the last bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from pickle import dumps, loads
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from triagemq import __version__
from triagemq.errors import PipelineError, TriageError
from triagemq.pipeline.session import SparkOptions
from triagemq.pipeline.sweep.jobs import Batches, finished_jobs, simulation_seconds, sweep_session
from triagemq.pipeline.sweep.parts import KeptRows
from triagemq.plan import Plan, dump_plan
from triagemq.scenario import Scenario
from triagemq.simulate import SubscriptionResults, simulate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Case", "case_seconds", "forget_cases", "simulate_cases"]

_FLOATS = [column.name for column in fields(SubscriptionResults) if column.type == "Floats"]
_COLUMNS = [column.name for column in fields(SubscriptionResults)]
_SCHEMA = pa.schema([("key", pa.string()), *((name, pa.binary()) for name in _COLUMNS)])
# A simulation that cannot be run gives its problem, not a failed task, which Spark would try again.
_OUTPUT = _SCHEMA.append(pa.field("problem", pa.string()))


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One simulation; the fields are what `simulate` takes. Give either publications or duration_seconds."""

    scenario: Scenario
    plan: Plan
    publications: int | None = None
    duration_seconds: float | None = None
    seed: int = 0
    replications: int = 1
    warmup: float = 0.1

    def simulate(
        self, *, threads: int | None = None, progress: Callable[[float], None] | None = None
    ) -> SubscriptionResults:
        """Run it in this process."""
        return simulate(
            self.scenario,
            self.plan,
            publications=self.publications,
            duration_seconds=self.duration_seconds,
            seed=self.seed,
            replications=self.replications,
            warmup=self.warmup,
            threads=threads,
            progress=progress,
        ).subscriptions

    @property
    def key(self) -> str:
        """Equal for simulations with equal results, whoever runs them."""
        digest = hashlib.blake2b(digest_size=16)
        length = (self.publications, self.duration_seconds, self.warmup)
        chance = (self.seed, self.replications)
        for part in (__version__, self.scenario.fingerprint, dump_plan(self.plan), length, chance):
            digest.update(f"{part!r}\0".encode())
        return digest.hexdigest()


def case_seconds(case: Case) -> float:
    """About how long a core takes for it."""
    publications = float(case.publications or 0)
    if case.duration_seconds is not None:
        publications = case.duration_seconds * float(case.scenario.publications.rate_per_second.sum())
    return simulation_seconds(case.scenario, publications * case.replications)


def simulate_cases(
    cases: Sequence[Case],
    *,
    out: Path | None = None,
    options: SparkOptions | None = None,
    spark: SparkSession | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[SubscriptionResults]:
    """The results of every case, in their order.

    What `out` holds already is not simulated again: when this was killed, the next call continues. `progress` is
    called with the cases done and all of them.

    >>> from triagemq.plan import make_plan
    >>> from triagemq.scenario.generators import table2
    >>> scenario = table2(seed=1)
    >>> case = Case(scenario, make_plan(scenario), publications=10_000)
    >>> results = simulate_cases([case])  # doctest: +SKIP
    """
    keys = [case.key for case in cases]
    with contextlib.ExitStack() as stack:
        files = (
            stack.enter_context(KeptRows.open(out, _SCHEMA, kind="reproduction")) if out is not None else None
        )
        kept = files.read(_SCHEMA.names).to_pylist() if files is not None else []
        found = {row["key"]: _results(row) for row in kept}
        report = progress or (lambda done, total: None)

        def tell() -> None:
            report(sum(key in found for key in keys), len(keys))

        left = {key: case for key, case in zip(keys, cases, strict=True) if key not in found}
        tell()
        if left:
            session = stack.enter_context(sweep_session(spark, options or SparkOptions()))
            seconds = max(map(case_seconds, left.values()))
            jobs = finished_jobs(session, list(left.items()), seconds, _task_function, _OUTPUT)
            for rows, _ in stack.enter_context(contextlib.closing(jobs)):
                for row in rows.to_pylist():
                    if row["problem"] is not None:
                        raise PipelineError(f"seed {left[row['key']].seed}: {row['problem']}")
                    found[row["key"]] = _results(row)
                if files is not None:
                    files.add(rows.select(_SCHEMA.names))
                tell()
    return [found[key] for key in keys]


def forget_cases(out: Path) -> None:
    """Remove what `simulate_cases` has kept in a directory, when nobody needs it any more."""
    if out.is_dir():
        with KeptRows.open(out, _SCHEMA, kind="reproduction") as files:
            files.remove()


def _task_function(tasks: Sequence[Sequence[tuple[str, Case]]]) -> Callable[[Batches], Batches]:
    content = [zlib.compress(dumps(list(task)), level=1) for task in tasks]

    def run(batches: Batches) -> Batches:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                for key, case in loads(zlib.decompress(content[task])):
                    yield pa.RecordBatch.from_pylist([_row(key, case)], schema=_OUTPUT)

    return run


def _row(key: str, case: Case) -> dict[str, Any]:
    try:
        # The other cores have tasks of their own.
        found = case.simulate(threads=1)
    except TriageError as error:
        return {"key": key, "problem": str(error)}
    return {"key": key, **{name: getattr(found, name).tobytes() for name in _COLUMNS}}


def _results(row: dict[str, Any]) -> SubscriptionResults:
    columns: dict[str, Any] = {
        name: np.frombuffer(row[name], dtype=np.float64 if name in _FLOATS else np.int64) for name in _COLUMNS
    }
    return SubscriptionResults(**columns)
