"""`triage pipeline run`: looks for what is new, and only then starts Spark to make its tables and publish them."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from triagemq.pipeline.inputs import UNREADABLE, Input, LogInput, Skipped, find_inputs
from triagemq.pipeline.mapping import Mapping
from triagemq.pipeline.session import SMALL_ROWS, SparkOptions, explained, import_spark, spark_session
from triagemq.pipeline.store import PublishedRun, TableStore
from triagemq.progress import TableProgress

_MOST_SET_ASIDE = 0.1
"""A run or log of which a larger share is set aside is no success."""
_MOST_RUNS_AT_ONCE = 32
"""Small runs share their Spark jobs; a query over more parts than this takes long to plan."""


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The result of `triage pipeline run`. Rows and notes are those of the runs and logs that it processed."""

    out: str
    unchanged: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    rows_read: int
    rows_in: int
    quarantined: int
    reasons: dict[str, int]
    notes: tuple[str, ...]
    damaged: tuple[str, ...]
    """Runs and logs, earlier ones too, of which more than a tenth of the rows, or a whole file, was set aside."""
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    tables: dict[str, int]
    started_spark: bool
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """One object for `--json`."""
        return asdict(self) | {"seconds": round(self.seconds, 3)}


def run_pipeline(
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    mapping: Mapping | None = None,
    options: SparkOptions | None = None,
    progress: bool = False,
) -> PipelineResult:
    """Make the tables of every run and log that `out` does not have yet, or has in another form.

    An input is a directory with a Trace or with several, or, with a `mapping`, a log. Each batch of runs is published
    when it is whole: whatever ends this command in between, the tables are those of whole runs, and the next command
    goes on from there.
    """
    spark = options or SparkOptions()
    return take_in(
        inputs,
        out,
        kind="run",
        mapping=mapping,
        process=lambda todo, store: _process(todo, store, spark, progress),
    )


def take_in(
    inputs: Sequence[str | Path],
    out: str | Path,
    *,
    kind: str,
    mapping: Mapping | None,
    process: Callable[[list[Input], TableStore], None],
    require: Callable[[Input], object] = lambda each: None,
) -> PipelineResult:
    """Have the inputs that `out` lacks, or has in another form, processed and published in a store of this kind.

    `require` raises an error for an input of which that cannot be done, before anything is written.
    """
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        found, skipped = find_inputs(inputs, mapping)
        for each in found:
            require(each)
        store = stack.enter_context(TableStore.open(out, inputs, kind=kind))
        before = store.manifest.runs
        have = {run_id: run.identity for run_id, run in before.items()}
        todo = [each for each in found if have.get(each.run_id) != each.identity]
        process(todo, store)
        after = store.manifest
        runs = {each.run_id: after.runs[each.run_id] for each in found}
        done = {each.run_id: runs[each.run_id] for each in todo}
        reasons = sum((Counter(run.reasons) for run in done.values()), Counter[str]())
        return PipelineResult(
            out=str(out),
            added=tuple(run_id for run_id in done if run_id not in before),
            replaced=tuple(run_id for run_id in done if run_id in before),
            unchanged=tuple(run_id for run_id in runs if run_id not in done),
            skipped=tuple(skipped),
            rows_read=sum(run.rows_read for run in done.values()),
            rows_in=sum(run.rows_in for run in done.values()),
            quarantined=sum(run.quarantined for run in done.values()),
            reasons=dict(sorted(reasons.items())),
            notes=tuple(f"{run.source}: {note}" for run in done.values() for note in run.notes),
            damaged=tuple(run.source for run in runs.values() if _is_damaged(run)),
            tables=after.tables(),
            started_spark=bool(todo),
            seconds=time.monotonic() - started,
        )


def _is_damaged(run: PublishedRun) -> bool:
    return run.quarantined > run.rows_read * _MOST_SET_ASIDE or UNREADABLE in run.reasons


def _process(todo: list[Input], store: TableStore, options: SparkOptions, progress: bool) -> None:
    if not todo:
        return
    batches = list(_batches(todo))
    most = max(sum(each.rows for each in batch) for batch in batches)
    with ThreadPoolExecutor(1) as pool, TableProgress(enabled=progress) as shown:
        import_spark()
        # While Java starts.
        pool.submit(import_module, "triagemq.pipeline.job")
        with spark_session(replace(options, rows=most)) as spark:
            from triagemq.pipeline.job import TABLES, Batch

            # Checking and tables of every batch, and reading every log.
            logs = sum(isinstance(each, LogInput) for each in todo)
            shown.expect((1 + len(TABLES)) * len(batches) + logs)
            with explained("Spark could not make the tables"):
                for batch in batches:
                    store.begin()
                    store.publish(Batch(spark, store, batch, shown).make())


def _batches(todo: list[Input]) -> Iterator[list[Input]]:
    """Small runs together, large ones alone."""
    batch: list[Input] = []
    for each in todo:
        rows = sum(other.rows for other in [*batch, each])
        if batch and (len(batch) == _MOST_RUNS_AT_ONCE or rows > SMALL_ROWS):
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch
