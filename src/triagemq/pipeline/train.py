"""`triage pipeline train`: models of queueing delay from the table queue_features, grown by Spark's workers together.

Every queue of a run is fed to the code that estimators use, where its samples are; xgboost.spark grows trees from the
rows. How rows are spread depends on nothing but the queues and the number of workers: this machine and a cluster grow
the same trees.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from triagemq.pipeline.reading import Tables
from triagemq.pipeline.session import SparkOptions, explained, spark_session
from triagemq.pipeline.store import Location
from triagemq.progress import TableProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE = "queue_features"
_TARGET = "next_queueing_delay_seconds"
_QUEUE = ("run_id", "port_id", "queue")
RowMaker = Callable[[tuple[pa.Scalar, ...], pa.Table], pa.Table]
"""Rows of features of a queue, by its key and its samples."""

_ROWS = "traffic string, part string, validates boolean, delay_seconds double, difference_seconds double"


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
    run_ids = sorted(run_id for run_id, run in source.manifest.runs.items() if run.tables.get(_TABLE))
    runs = known_runs({run_id: source.scenario(run_id) for run_id in run_ids})
    errors = (None,) if read_errors is None else (None, read_errors)
    # It logs its arguments and its machine, and nothing of use beyond its errors.
    logging.getLogger("XGBoost-PySpark").setLevel(logging.ERROR)
    with (
        TableProgress(enabled=progress) as shown,
        spark_session(replace(options or SparkOptions(), rows=source.rows[_TABLE])) as spark,
        explained("Spark could not grow the trees"),
    ):
        shown.expect(len(counters) * (len(sets) + 1))
        workers = workers or spark.sparkContext.defaultParallelism

        def model(counters: str) -> Path:
            """Grow all sets, and store the best one with its errors."""
            from pyspark import StorageLevel

            started = datetime.now(UTC)
            folder = Path(out) / counters / started.strftime("%Y-%m-%dT%H%M%S.%fZ")
            shown.begin(f"features, {counters}")
            make = _row_maker(counters, runs, errors, seed)
            rows = _rows(spark, source, counters, workers, make).persist(StorageLevel.DISK_ONLY)
            try:
                counted, ranges = _extent(rows, counters)
                check_enough(counted["training"], counted["validation"])
                grid = []
                for each in sets:
                    shown.begin(f"trees, {counters}, {each.name}")
                    grid.append(_grow(rows, counters, each, seed, workers))
                regressor, best = min(grid, key=lambda each: each[1].validation_seconds)
                about = {
                    "trained": started.isoformat(timespec="seconds"),
                    "tables": str(source.place),
                    "runs": {run_id: run.identity for run_id, run in source.manifest.runs.items()},
                    "read_errors": [None if each is None else each.as_json() for each in errors],
                    "seed": seed,
                    "workers": workers,
                    "rows": counted,
                    "chosen": best.as_json(),
                    "grid": [grown.as_json() for _, grown in grid],
                    "errors": _errors(regressor.transform(rows.where("part != 'training'"))),
                }
            finally:
                rows.unpersist()
            save_model(folder, best.trees_json, counters=counters, ranges=ranges, about=about)
            return folder

        return [model(each) for each in counters]


def _rows(spark: SparkSession, source: Tables, counters: str, workers: int, make: RowMaker) -> DataFrame:
    """Rows of features for training and validation: those of a queue with one worker, in order of time."""
    columns = ("sampled_ns", *COUNTER_SETS[counters], "width_bps", _TARGET)
    # Folders are called after runs of one batch; here they are nothing but folders.
    files = [Location(source.place) / file.name for file in source.manifest.files(_TABLE)]
    read = spark.read.option("recursiveFileLookup", "true")
    table = read.parquet(*(file.spark_path for file in files))
    lacking = [name for name in columns if name not in table.columns]
    if lacking:
        raise ParameterError(_TABLE, f"lacks {', '.join(lacking)}: make the tables again")
    by_queue = table.select(*_QUEUE, *columns).repartition(workers, *_QUEUE).groupBy(*_QUEUE)
    return by_queue.applyInArrow(
        make, ", ".join((_ROWS, *(f"{name} float" for name in feature_names(counters))))
    )


def _extent(rows: DataFrame, counters: str) -> tuple[dict[str, int], list[tuple[float, float]]]:
    """How many rows are for training and validation, and the ranges of features in those for training."""
    from pyspark.sql import functions as F  # noqa: N812

    counts = [F.count_if(F.col("part") == part) for part in ("training", "validation")]
    ranges = []
    for name in feature_names(counters):
        known = F.when((F.col("part") == "training") & (F.abs(name) < math.inf), F.col(name))
        ranges += [F.min(known), F.max(known)]
    ((training, validation, *ends),) = rows.agg(*counts, *ranges).collect()
    known_ends = [math.nan if each is None else each for each in ends]
    ends_by_feature = list(zip(known_ends[::2], known_ends[1::2], strict=True))
    return {"training": training, "validation": validation}, ends_by_feature


def _grow(
    rows: DataFrame, counters: str, parameters: ParameterSet, seed: int, workers: int
) -> tuple[Any, Grown]:
    """Trees of these parameters: as Spark predicts with them, and as they are stored."""
    from xgboost.spark import SparkXGBRegressor

    options = parameters.options(seed)
    # As many as Spark gives a task.
    del options["nthread"]
    regressor = SparkXGBRegressor(
        features_col=list(feature_names(counters)),
        label_col="difference_seconds",
        validation_indicator_col="validates",
        num_workers=workers,
        n_estimators=MOST_TREES,
        early_stopping_rounds=parameters.early_stopping_rounds,
        verbose=False,
        verbosity=0,
        **options,
    ).fit(rows.where("part != 'test'"))
    return regressor, grown_of(regressor.get_booster(), parameters)


def _row_maker(
    counters: str, runs: Mapping[str, KnownRun], errors: Sequence[ReadErrorModel | None], seed: int
) -> RowMaker:
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
        part = "test" if run.held_out else np.where(rows.validates, "validation", "training")
        known = {"traffic": np.full(len(rows), run.traffic), "part": np.broadcast_to(part, len(rows))}
        return pa.table(known | rows.columns(counters))

    return made


def _errors(predicted: DataFrame) -> list[dict[str, Any]]:
    """How far a model is from the truth, by kind of traffic: in runs held out, and in the validation rows."""
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
