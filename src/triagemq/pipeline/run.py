"""`triage pipeline run`: looks for what is new, and only then starts Spark to make its tables and publish them."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triagemq.pipeline.causes import explained
from triagemq.pipeline.inputs import UNREADABLE, Input, LogInput, Skipped, find_inputs
from triagemq.pipeline.mapping import Mapping
from triagemq.pipeline.progress import TableProgress
from triagemq.pipeline.session import SMALL_ROWS, SparkOptions, import_spark, spark_session
from triagemq.pipeline.store import Location, TablesManifest, TableStore

if TYPE_CHECKING:
    from triagemq.pipeline.dimensions import DimensionTables

_MOST_SET_ASIDE = 0.1
"""A run or log of which a larger share is set aside is no success."""
_MOST_RUNS_AT_ONCE = 32
"""Small runs share their Spark jobs; a query over more parts than this takes long to plan."""


@dataclass(frozen=True, slots=True)
class Processed:
    """What a command did with runs and logs. Rows are those of the ones that it processed."""

    out: str
    unchanged: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    rows_read: int
    rows_in: int
    quarantined: int
    reasons: dict[str, int]
    notes: tuple[str, ...]
    damaged: tuple[str, ...]
    """Those, also of what was there before, of which more than a tenth of the rows, or a whole file, was set aside."""

    @staticmethod
    def counted(manifest: TablesManifest, found: Iterable[Input], todo: Iterable[Input]) -> dict[str, Any]:
        """What was counted, as a manifest says it after the command."""
        runs, done = ([manifest.runs[each.run_id] for each in some] for some in (found, todo))
        reasons = sum((Counter(run.reasons) for run in done), Counter[str]())
        counts = ("rows_read", "rows_in", "quarantined")
        rows = {name: sum(getattr(run, name) for run in done) for name in counts}
        notes = tuple(f"{run.source}: {note}" for run in done for note in run.notes)
        damaged = tuple(
            run.source
            for run in runs
            if run.quarantined > run.rows_read * _MOST_SET_ASIDE or UNREADABLE in run.reasons
        )
        return {**rows, "reasons": dict(sorted(reasons.items())), "notes": notes, "damaged": damaged}


@dataclass(frozen=True, slots=True)
class PipelineResult(Processed):
    """What `triage pipeline run` did."""

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
    started = time.monotonic()
    wanted = options or SparkOptions()
    with contextlib.ExitStack() as stack:
        if Location.needs_spark(out, published=True) or any(map(Location.needs_spark, inputs)):
            # How much there is to read is not known before.
            stack.enter_context(spark_session(replace(wanted, rows=SMALL_ROWS)))
        found, skipped = find_inputs(inputs, mapping)
        store = stack.enter_context(TableStore.open(out, inputs, kind="run"))
        before = store.manifest.runs
        have = {run_id: run.identity for run_id, run in before.items()}
        todo = [each for each in found if have.get(each.run_id) != each.identity]
        if todo:
            _process(todo, store, wanted, progress)
        after = store.manifest
        done = {each.run_id: after.runs[each.run_id] for each in todo}
        return PipelineResult(
            out=str(out),
            added=tuple(run_id for run_id in done if run_id not in before),
            replaced=tuple(run_id for run_id in done if run_id in before),
            unchanged=tuple(each.run_id for each in found if each.run_id not in done),
            skipped=tuple(skipped),
            **Processed.counted(after, found, todo),
            tables=after.tables(),
            started_spark=bool(todo),
            seconds=time.monotonic() - started,
        )


def _process(todo: list[Input], store: TableStore, options: SparkOptions, progress: bool) -> None:
    batches = list(_batches(todo))
    most = max(sum(each.rows for each in batch) for batch in batches)
    with ThreadPoolExecutor(1) as pool, TableProgress(enabled=progress) as shown:
        import_spark()
        # What needs no Spark is done while Java starts, and for all batches but the first while Spark works.
        pool.submit(import_module, "triagemq.pipeline.job")
        known = pool.submit(_scenario_dimensions, batches[0])
        with spark_session(replace(options, rows=most)) as spark:
            from triagemq.pipeline.job import TABLES, Batch

            # Checking and tables of every batch, and reading every log.
            logs = sum(isinstance(each, LogInput) for each in todo)
            with (
                shown.watching(spark, (1 + len(TABLES)) * len(batches) + logs),
                explained("Spark could not make the tables"),
            ):
                for batch, following in zip_longest(batches, batches[1:]):
                    store.begin()
                    made = Batch(spark, store, batch, known.result(), shown)
                    if following is not None:
                        known = pool.submit(_scenario_dimensions, following)
                    store.publish(made.make())


def _scenario_dimensions(batch: list[Input]) -> DimensionTables:
    from triagemq.pipeline.dimensions import scenario_dimensions

    return scenario_dimensions(batch)


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
