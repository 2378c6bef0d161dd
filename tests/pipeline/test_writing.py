"""Rows in the files against rows that were made: what is missing is an error, and nothing is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from triagemq.errors import PipelineError
from triagemq.pipeline import Mapping, Tables, run_pipeline
from triagemq.pipeline.store import TableStore
from triagemq.pipeline.store.writing import write_table


@pytest.fixture
def _another_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with an executor that has a disk of its own: one of the files it wrote is not here."""
    write = DataFrameWriter.parquet

    def elsewhere(self: DataFrameWriter, path: str, *more: Any, **options: Any) -> None:
        write(self, path, *more, **options)
        max(
            Path(path.removeprefix("file://")).rglob("part-*.parquet"), key=lambda file: file.stat().st_size
        ).unlink()

    monkeypatch.setattr(DataFrameWriter, "parquet", elsewhere)


def rows_of(spark: SparkSession, rows: int, runs: int = 1) -> Any:
    return spark.range(0, rows, 1, 2).withColumn("run", (F.col("id") % runs).cast("int"))


@pytest.mark.parametrize(("rows", "runs"), [(1000, 1), (1000, 3), (0, 1), (0, 2)])
@pytest.mark.parametrize("here", [True, False])
def test_rows_that_are_all_there_are_written(
    spark: SparkSession, rows: int, runs: int, here: bool, tmp_path: Path
) -> None:
    out = tmp_path / "100 % of [these] {rows}"
    with TableStore.open(out, kind="run") as store:
        store.begin()
        made = rows_of(spark, rows, runs)
        files = write_table(made.toArrow() if here else made, store, "numbers", runs)
        listed = [file for run in range(runs) for file in files.get(run, ())]
        assert [pq.read_metadata(out / file.name).num_rows for file in listed] == [
            file.rows for file in listed
        ]
        assert sum(file.rows for file in listed) == rows
        assert set(files) == set(range(runs)) or not rows


@pytest.mark.usefixtures("_another_disk")
@pytest.mark.parametrize("runs", [1, 3])
def test_a_file_that_is_not_on_this_disk_is_missed(spark: SparkSession, runs: int, tmp_path: Path) -> None:
    with TableStore.open(tmp_path, kind="run") as store:
        store.begin()
        with pytest.raises(
            PipelineError, match=r"^numbers: 1,000 rows were made and \d+ are in .*share this disk"
        ):
            write_table(rows_of(spark, 1000, runs), store, "numbers", runs)
    assert not list(tmp_path.rglob("*.parquet")), "what is not published is cleared away"


@pytest.mark.usefixtures("_another_disk")
def test_a_log_whose_rows_are_not_all_there_publishes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    log, out = tmp_path / "log.csv", tmp_path / "out"
    log.write_text("time,room,value\n" + "".join(f"{second},3,20\n" for second in range(100)))
    mapping = Mapping.model_validate(
        {"time": {"column": "time", "unit": "s"}, "topic": "room/{room}", "value": "value", "publisher": "p"}
    )
    with pytest.raises(PipelineError, match=r"100 rows were made and 0 are in .*; nothing is published"):
        run_pipeline([log], out, mapping=mapping)
    assert Tables(out).rows == {}
    assert not [path for path in out.rglob("*") if "manifest-" not in path.name and path.name != ".lock"]
