"""`triage pipeline train`: models of queueing delay from the table queue_features, grown by Spark's workers together.

Every queue of a run is fed to the code that estimators use, where its samples are; xgboost.spark grows trees from the
rows. How rows are spread depends on nothing but the queues and the number of workers: this machine and a cluster grow
the same trees.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from triagemq.delay.learning.features import SwitchConstants, feature_names
from triagemq.delay.learning.models import save_model
from triagemq.delay.learning.training import (
    GRID,
    MOST_TREES,
    Grown,
    KnownRun,
    ParameterSet,
    check_enough,
    grown_of,
    known_runs,
    learning_rows,
)
from triagemq.delay.samples import COUNTER_SETS, ReadErrorModel, Samples, check_counters
from triagemq.errors import ParameterError
from triagemq.pipeline.causes import explained
from triagemq.pipeline.progress import TableProgress
from triagemq.pipeline.reading import Tables
from triagemq.pipeline.session import SparkOptions, spark_session
from triagemq.pipeline.store import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE = "queue_features"
_TARGET = "next_queueing_delay_seconds"
_QUEUE = ("run_id", "port_id", "queue")
_ROWS = "traffic string, part string, judges boolean, delay_seconds double, difference_seconds double"


def train(
    tables: str | Path,
    out: str | Path,
    *,
    counters: Sequence[str] = tuple(COUNTER_SETS),
    read_errors: ReadErrorModel | None = None,
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
    runs = _known_runs(source)
    errors = (None,) if read_errors is None else (None, read_errors)
    # It tells how it is called and on what it runs; and else nothing that its errors do not say.
    logging.getLogger("XGBoost-PySpark").setLevel(logging.ERROR)
    with (
        TableProgress(enabled=progress) as shown,
        spark_session(replace(options or SparkOptions(), rows=source.rows[_TABLE])) as spark,
        shown.watching(spark, len(counters) * (len(sets) + 1)),
        explained("Spark could not grow the trees"),
    ):
        workers = workers or spark.sparkContext.defaultParallelism
        return [
            _Training(spark, source, runs, each, errors, seed, workers, shown).model(Path(out), sets)
            for each in counters
        ]


@dataclass(frozen=True, slots=True)
class _Training:
    """Trees for one set of counters."""

    spark: SparkSession
    source: Tables
    runs: Mapping[str, KnownRun]
    counters: str
    errors: Sequence[ReadErrorModel | None]
    seed: int
    workers: int
    shown: TableProgress

    def model(self, out: Path, sets: Sequence[ParameterSet]) -> Path:
        """Grow all sets, keep the best one, and say how good it is."""
        from pyspark import StorageLevel

        started = datetime.now(UTC)
        folder = out / self.counters / started.strftime("%Y-%m-%dT%H%M%S.%fZ")
        self.shown.begin(f"features, {self.counters}")
        rows = self._rows().persist(StorageLevel.DISK_ONLY)
        try:
            counted, ranges = self._extent(rows)
            check_enough(counted["growing"], counted["judging"])
            self.shown.finish()
            grid = [self._grow(rows, each) for each in sets]
            regressor, best = min(grid, key=lambda each: each[1].judged_seconds)
            about = {
                "trained": started.isoformat(timespec="seconds"),
                "tables": str(self.source.place),
                "runs": {run_id: run.identity for run_id, run in self.source.manifest.runs.items()},
                "read_errors": [None if each is None else each.as_json() for each in self.errors],
                "seed": self.seed,
                "workers": self.workers,
                "rows": counted,
                "chosen": best.as_json(),
                "grid": [grown.as_json() for _, grown in grid],
                "errors": _errors(regressor.transform(rows.where("part != 'growing'"))),
            }
        finally:
            rows.unpersist()
        save_model(folder, best.trees_json, counters=self.counters, ranges=ranges, about=about)
        return folder

    def _rows(self) -> DataFrame:
        """What is learned from, and judged by: the rows of a queue with one worker, in order of time."""
        columns = ("sampled_ns", *COUNTER_SETS[self.counters], "width_bps", _TARGET)
        # Folders are called after runs of one batch; here they are nothing but folders.
        files = [Location(self.source.place) / file.name for file in self.source.manifest.files(_TABLE)]
        read = self.spark.read.option("recursiveFileLookup", "true")
        table = read.parquet(*(file.spark_path for file in files))
        lacking = [name for name in columns if name not in table.columns]
        if lacking:
            raise ParameterError(_TABLE, f"lacks {', '.join(lacking)}: make the tables again")
        spread = table.select(*_QUEUE, *columns).repartition(self.workers, *_QUEUE)
        schema = ", ".join((_ROWS, *(f"{name} float" for name in feature_names(self.counters))))
        made = _row_maker(self.counters, self.runs, self.errors, self.seed)
        return spread.groupBy(*_QUEUE).applyInArrow(made, schema)

    def _extent(self, rows: DataFrame) -> tuple[dict[str, int], list[tuple[float, float]]]:
        """How many rows grow trees and judge them, and what features range over in those they grow from."""
        from pyspark.sql import functions as F  # noqa: N812

        counts = [F.count_if(F.col("part") == part) for part in ("growing", "judging")]
        ranges = []
        for name in feature_names(self.counters):
            known = F.when((F.col("part") == "growing") & (F.abs(name) < math.inf), F.col(name))
            ranges += [F.min(known), F.max(known)]
        ((growing, judging, *ends),) = rows.agg(*counts, *ranges).collect()
        known_ends = [math.nan if each is None else each for each in ends]
        ends_by_feature = list(zip(known_ends[::2], known_ends[1::2], strict=True))
        return {"growing": growing, "judging": judging}, ends_by_feature

    def _grow(self, rows: DataFrame, parameters: ParameterSet) -> tuple[Any, Grown]:
        """Trees of these parameters: as Spark predicts with them, and as they are stored."""
        from xgboost.spark import SparkXGBRegressor

        self.shown.begin(f"trees, {self.counters}, {parameters.name}")
        options = parameters.options(self.seed)
        # As many as Spark gives a task.
        del options["nthread"]
        regressor = SparkXGBRegressor(
            features_col=list(feature_names(self.counters)),
            label_col="difference_seconds",
            validation_indicator_col="judges",
            num_workers=self.workers,
            n_estimators=MOST_TREES,
            early_stopping_rounds=parameters.early_stopping_rounds,
            verbose=False,
            verbosity=0,
            **options,
        ).fit(rows.where("part != 'held out'"))
        self.shown.finish()
        return regressor, grown_of(regressor.get_booster(), parameters)


def _known_runs(source: Tables) -> dict[str, KnownRun]:
    """What is known of each run beside its samples."""
    runs = sorted(run_id for run_id, run in source.manifest.runs.items() if run.tables.get(_TABLE))
    return known_runs({run_id: source.scenario(run_id) for run_id in runs})


def _row_maker(
    counters: str, runs: Mapping[str, KnownRun], errors: Sequence[ReadErrorModel | None], seed: int
) -> Callable[[tuple[pa.Scalar, ...], pa.Table], pa.Table]:
    """Rows of features of one queue."""

    def made(key: tuple[pa.Scalar, ...], samples: pa.Table) -> pa.Table:
        run_id, port, queue = (each.as_py() for each in key)
        run, ordered = runs[run_id], samples.sort_by("sampled_ns")
        columns = {name: ordered[name].to_numpy() for name in ordered.column_names if name not in _QUEUE}
        columns["width_bps"] = ordered["width_bps"].fill_null(-1).to_numpy()
        rows = learning_rows(
            Samples.of(columns, counters),
            columns[_TARGET],
            switch=run.ports.get(port, SwitchConstants()),
            errors=errors,
            seed=int(np.random.SeedSequence((seed, run.number, port, queue)).generate_state(1)[0]),
        )
        part = "held out" if run.held_out else np.where(rows.judges, "judging", "growing")
        known = {"traffic": np.full(len(rows), run.traffic), "part": np.broadcast_to(part, len(rows))}
        return pa.table(known | rows.columns(counters))

    return made


def _errors(predicted: DataFrame) -> list[dict[str, Any]]:
    """How far a model is from the truth, by kind of traffic: in runs held out, and in the rows that judged."""
    from pyspark.sql import functions as F  # noqa: N812

    # As a model in use: by so much more than its anchor, and never less than nothing.
    delay = F.col("delay_seconds")
    delay_predicted = F.greatest(F.lit(0.0), delay - F.col("difference_seconds") + F.col("prediction"))
    by_kind = predicted.groupBy("traffic", "part").agg(
        F.count("*").alias("windows"),
        F.mean(F.abs(delay_predicted - delay)).alias("mean_absolute_seconds"),
        F.sqrt(F.mean((delay_predicted - delay) ** 2)).alias("root_mean_square_seconds"),
    )
    return [row.asDict() for row in by_kind.orderBy("traffic", "part").collect()]
