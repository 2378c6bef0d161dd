"""`triage pipeline train`: models of queueing delay from the table queue_features, grown by Spark's workers together.

Every queue of a run is the work of one task: it feeds the samples to the code that estimators use, and keeps the rows.
Then the same tasks grow trees, each from its own rows; xgboost has them agree on every split. This is what its
xgboost.spark does, less the conversion of every row, and less scikit-learn, which that asks for. How rows are spread
depends on nothing but the runs and the number of workers: this machine and a cluster grow the same trees.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from triagemq.delay.learning.features import SwitchConstants, feature_names
from triagemq.delay.learning.model_files import save_model
from triagemq.delay.learning.parameters import GRID, ParameterSet
from triagemq.delay.learning.rows import LearningRows, held_out, learning_rows, together
from triagemq.delay.learning.runs import port_constants, traffic_kind
from triagemq.delay.learning.training import Grown, check_enough, grow, least, predicted_seconds, ranges_of
from triagemq.delay.learning.trees import read_trees
from triagemq.delay.read_errors import ReadErrors
from triagemq.delay.samples import COUNTER_SETS, Samples, check_counters
from triagemq.errors import ParameterError
from triagemq.pipeline.causes import explained
from triagemq.pipeline.progress import TableProgress
from triagemq.pipeline.reading import Tables
from triagemq.pipeline.session import SparkOptions, spark_session
from triagemq.pipeline.store import Location
from triagemq.scenario import loads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLE = "queue_features"
_TARGET = "next_queueing_delay_seconds"
_QUEUE = ("run", "port_id", "queue")
_ROWS = "kind string, held_out boolean, judges boolean, delay_seconds double, features array<float>"
_GROWN = "trees_json binary, trees int, judged_seconds double, low array<double>, high array<double>"
_ERRORS = "kind string, part string, windows bigint, absolute double, square double"


def train(
    tables: str | Path,
    out: str | Path,
    *,
    counters: Sequence[str] = tuple(COUNTER_SETS),
    read_errors: ReadErrors | None = None,
    sets: Sequence[ParameterSet] = GRID,
    seed: int = 0,
    workers: int | None = None,
    options: SparkOptions | None = None,
    progress: bool = False,
) -> list[Path]:
    """Learn a model for each set of counters, and return their folders.

    With `read_errors` every queue is seen twice, with and without them. Until a model is whole, the one before it stays
    in force; a training that is ended starts again from the tables.
    """
    for each in counters:
        check_counters(each)
    source = Tables(tables)
    if not source.rows.get(_TABLE):
        raise ParameterError(
            str(tables), f"has nothing in {_TABLE}; give tables of runs whose trace has samples of queues"
        )
    known = _known_runs(source)
    errors = (None,) if read_errors is None else (None, read_errors)
    started = datetime.now(UTC)
    with (
        TableProgress(enabled=progress) as shown,
        spark_session(options or SparkOptions()) as spark,
        shown.watching(spark, len(counters) * (len(sets) + 1)),
        explained("Spark could not grow the trees"),
    ):
        return [
            _Training(spark, source, known, each, errors, seed, workers, shown).model(
                Path(out), sets, started
            )
            for each in counters
        ]


def _known_runs(source: Tables) -> pa.Table:
    """What is known of each run and port beside its samples; `run` numbers the runs in order of their ids."""
    scenarios: dict[str, Any] = {}
    if source.rows.get("scenarios"):
        texts = source.table("scenarios").to_pylist()
        scenarios = {row["run_id"]: loads(row["text"]) if row["text"] else None for row in texts}
    runs = sorted(run_id for run_id, run in source.manifest.runs.items() if run.tables.get(_TABLE))
    kinds = {run_id: traffic_kind(scenarios.get(run_id)) for run_id in runs}
    aside = held_out(kinds)
    rows = [
        {"run_id": run_id, "run": number, "kind": kinds[run_id], "held_out": run_id in aside, "port": port}
        | {"buffer_bytes": found.buffer_bytes, "largest_packet_bytes": found.largest_packet_bytes}
        for number, run_id in enumerate(runs)
        for port, found in {-1: SwitchConstants(), **port_constants(scenarios.get(run_id))}.items()
    ]
    return pa.Table.from_pylist(rows)


class _Training:
    """One set of counters: rows of all queues, kept where they were made, and what is grown from them."""

    def __init__(
        self,
        spark: SparkSession,
        source: Tables,
        known: pa.Table,
        counters: str,
        errors: Sequence[ReadErrors | None],
        seed: int,
        workers: int | None,
        shown: TableProgress,
    ) -> None:
        from pyspark import StorageLevel
        from pyspark.sql import functions as F  # noqa: N812

        self._source, self._counters, self._seed, self._shown = source, counters, seed, shown
        self._errors = errors
        columns = ("sampled_ns", *COUNTER_SETS[counters], "width_bps", _TARGET)
        # Folders are called after runs of one batch; here they are nothing but folders.
        files = [(Location(source.place) / file.name).spark_path for file in source.manifest.files(_TABLE)]
        table = spark.read.option("recursiveFileLookup", "true").parquet(*files)
        lacking = [name for name in columns if name not in table.columns]
        if lacking:
            raise ParameterError(_TABLE, f"lacks {', '.join(lacking)}: make the tables again")
        runs = spark.createDataFrame(known.filter(pc.equal(known["port"], -1)).select(["run_id", "run"]))
        self._workers = workers or spark.sparkContext.defaultParallelism
        spread = (
            table.select("run_id", "port_id", "queue", *columns)
            .join(F.broadcast(runs), "run_id")
            .drop("run_id")
            .repartition(self._workers, *_QUEUE)
            .sortWithinPartitions(*_QUEUE, "sampled_ns")
        )
        self._shown.begin(f"features, {counters}")
        made = _row_maker(counters, known, errors, seed)
        self._rows = spread.mapInArrow(made, _ROWS).persist(StorageLevel.DISK_ONLY)

    def model(self, out: Path, sets: Sequence[ParameterSet], started: datetime) -> Path:
        """Grow all sets, keep the best one."""
        try:
            counted = {
                (row.held_out, row.judges): row["count"]
                for row in self._rows.groupBy("held_out", "judges").count().collect()
            }
            check_enough(counted.get((False, False), 0), counted.get((False, True), 0))
            self._shown.finish()
            found = [self._grow(each) for each in sets]
            best = least([grown for grown, _ in found])
            ranges = found[0][1]
            folder = out / self._counters / started.strftime("%Y-%m-%dT%H%M%S.%fZ")
            save_model(
                folder,
                best.trees_json,
                counters=self._counters,
                ranges=ranges,
                about={
                    "trained": started.isoformat(timespec="seconds"),
                    "tables": str(self._source.place),
                    "runs": {run_id: run.identity for run_id, run in self._source.manifest.runs.items()},
                    "read_errors": [_plain(each) for each in self._errors],
                    "seed": self._seed,
                    "workers": self._workers,
                    "rows": {"growing": counted[False, False], "judging": counted[False, True]},
                    "chosen": best.as_json(),
                    "grid": [grown.as_json() for grown, _ in found],
                    "errors": self._errors_by_kind(best),
                },
            )
            return folder
        finally:
            self._rows.unpersist()

    def _grow(self, parameters: ParameterSet) -> tuple[Grown, list[tuple[float, float]]]:
        self._shown.begin(f"trees, {self._counters}, {parameters.name}")
        grow = _grower(self._counters, parameters, self._seed)
        rows = self._rows.where("not held_out").select("judges", "delay_seconds", "features")
        (row,) = rows.mapInArrow(grow, _GROWN, barrier=True).collect()
        self._shown.finish()
        grown = Grown(parameters, bytes(row.trees_json), row.trees, row.judged_seconds)
        return grown, list(zip(row.low, row.high, strict=True))

    def _errors_by_kind(self, best: Grown) -> list[dict[str, Any]]:
        """How far the model is from the truth, by kind of traffic: in runs held out, and in the rows that judged."""
        found = self._rows.where("held_out or judges").mapInArrow(
            _judge(best.trees_json, self._counters), _ERRORS
        )
        sums = found.groupBy("kind", "part").sum("windows", "absolute", "square").orderBy("kind", "part")
        return [
            {
                "traffic": kind,
                "part": part,
                "windows": windows,
                "mean_absolute_seconds": absolute / windows,
                "root_mean_square_seconds": math.sqrt(square / windows),
            }
            for kind, part, windows, absolute, square in sums.collect()
        ]


def _plain(errors: ReadErrors | None) -> Mapping[str, float] | None:
    return (
        None if errors is None else {"skew_seconds": errors.skew_seconds, "hidden_drops": errors.hidden_drops}
    )


def _row_maker(counters: str, known: pa.Table, errors: Sequence[ReadErrors | None], seed: int) -> Any:
    """Rows of features of every queue of a partition, which come in order of queue and time."""
    runs = {(row["run"], row["port"]): row for row in known.to_pylist()}

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from triagemq.pipeline.partitions import groups

        for group in groups((pa.Table.from_batches([batch]) for batch in batches), _QUEUE):
            run, port, queue = (group[name][0].as_py() for name in _QUEUE)
            of_run = runs[run, -1]
            of_port = runs.get((run, port), of_run)
            columns = {name: group[name].to_numpy() for name in group.column_names if name != "width_bps"}
            columns["width_bps"] = group["width_bps"].fill_null(-1).to_numpy()
            rows = learning_rows(
                Samples.of(columns, counters),
                columns[_TARGET],
                switch=SwitchConstants(of_port["buffer_bytes"], of_port["largest_packet_bytes"]),
                errors=errors,
                seed=int(np.random.SeedSequence((seed, run, port, queue)).generate_state(1)[0]),
            )
            yield from _as_arrow(rows, of_run["kind"], of_run["held_out"]).to_batches()

    return made


def _as_arrow(rows: LearningRows, kind: str, aside: bool) -> pa.Table:
    width = rows.features.shape[1]
    values = pa.array(rows.features.ravel(), from_pandas=False)
    offsets = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * width)
    return pa.table(
        {
            "kind": pa.array([kind] * len(rows), pa.string()),
            "held_out": pa.array(np.full(len(rows), aside)),
            "judges": pa.array(rows.judges),
            "delay_seconds": pa.array(rows.delay_seconds),
            "features": pa.ListArray.from_arrays(offsets, values),
        }
    )


def _of_arrow(batches: Iterator[pa.RecordBatch], counters: str) -> LearningRows:
    width = len(feature_names(counters))
    found = [
        LearningRows(
            batch["features"].flatten().to_numpy(zero_copy_only=False).reshape(-1, width),
            batch["delay_seconds"].to_numpy(zero_copy_only=False),
            batch["judges"].to_numpy(zero_copy_only=False),
        )
        for batch in batches
    ]
    return together(found, counters)


def _grower(counters: str, parameters: ParameterSet, seed: int) -> Any:
    """The part of one worker in growing trees; the first of them says what all have grown."""

    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import BarrierTaskContext
        from xgboost import collective
        from xgboost.tracker import RabitTracker

        context = BarrierTaskContext.get()
        rows, told, tracker = _of_arrow(batches, counters), {}, None
        if context.partitionId() == 0:
            host = context.getTaskInfos()[0].address.partition(":")[0]
            tracker = RabitTracker(len(context.getTaskInfos()), host, sortby="task")
            tracker.start()
            told = tracker.worker_args()
        told = json.loads(context.allGather(json.dumps(told))[0])
        with collective.CommunicatorContext(**told, dmlc_task_id=f"{context.partitionId():06d}"):
            grown, low, high = _grow_together(rows, counters, parameters, seed)
        if tracker is not None:
            tracker.wait_for()
            columns = (grown.trees_json, grown.trees, grown.judged_seconds, low.tolist(), high.tolist())
            names = ("trees_json", "trees", "judged_seconds", "low", "high")
            kinds = (pa.binary(), pa.int32(), pa.float64(), pa.list_(pa.float64()), pa.list_(pa.float64()))
            arrays = [pa.array([value], kind) for value, kind in zip(columns, kinds, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names)

    return made


def _grow_together(
    rows: LearningRows, counters: str, parameters: ParameterSet, seed: int
) -> tuple[Grown, Any, Any]:
    """As `training.grow`, with others who have other rows; and what features range over in the rows of all."""
    from xgboost import collective

    own = np.array(ranges_of(rows.take(~rows.judges).features)).reshape(-1, 2)
    low = collective.allreduce(np.nan_to_num(own[:, 0], nan=np.inf), collective.Op.MIN)
    high = collective.allreduce(np.nan_to_num(own[:, 1], nan=-np.inf), collective.Op.MAX)
    never = low > high
    return (
        grow(rows, counters, parameters, seed=seed),
        np.where(never, np.nan, low),
        np.where(never, np.nan, high),
    )


def _judge(trees_json: bytes, counters: str) -> Any:
    def made(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        trees = read_trees(trees_json)
        for batch in batches:
            rows = _of_arrow(iter([batch]), counters)
            off = predicted_seconds(trees, rows.features, counters) - rows.delay_seconds
            part = np.where(batch["held_out"].to_numpy(zero_copy_only=False), "held out", "judging")
            columns = (batch["kind"], part, np.ones(len(off), np.int64), np.abs(off), off**2)
            yield pa.RecordBatch.from_arrays(
                [pa.array(each) for each in columns], ("kind", "part", "windows", "absolute", "square")
            )

    return made
