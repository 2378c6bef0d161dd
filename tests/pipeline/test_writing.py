"""Rows in the files against rows that were made: what is missing is an error, and nothing is published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from triagemq.errors import PipelineError
from triagemq.pipeline import Mapping, Tables, run_pipeline
from triagemq.pipeline.store import PublishedRun, TableFile, TablesManifest, TableStore
from triagemq.pipeline.store.store import LAYOUT_VERSION, write_table


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
@pytest.mark.parametrize("tasks", [1, 2])
def test_rows_that_are_all_there_are_written(
    spark: SparkSession, rows: int, runs: int, tasks: int, tmp_path: Path
) -> None:
    out = tmp_path / "100 % of [these] {rows}"
    with TableStore.open(out, kind="run") as store:
        store.begin()
        files = write_table(rows_of(spark, rows, runs), store, "numbers", runs, tasks)
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
            write_table(rows_of(spark, 1000, runs), store, "numbers", runs, 2)
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


def published(number: int, files: tuple[TableFile, ...]) -> dict[str, PublishedRun]:
    return {str(number): PublishedRun(str(number), "here", 1, 1, 0, {}, {"numbers": files})}


def test_spark_reads_the_folder_of_a_table_that_several_commands_wrote(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark would take the first for a number and the second for a date, were there no letter before them.
    for number, token in enumerate(("1234567890123456", "2026101010101010", "00000000000000ab")):
        monkeypatch.setattr("triagemq.pipeline.store.store.secrets.token_hex", lambda _, token=token: token)
        with TableStore.open(tmp_path, kind="run") as store:
            store.begin()
            files = write_table(rows_of(spark, 10, 2), store, "numbers", 2, 2)
            store.publish(published(number, (*files[0], *files[1])))
    found = spark.read.parquet(str(tmp_path / "numbers"))
    assert found.count() == 30
    assert set(found.columns) == {"id", "token", "run"}
    assert found.select("token").distinct().count() == 3


def test_files_that_a_manifest_of_before_calls_kept_are_retained(tmp_path: Path) -> None:
    before = TablesManifest("0123456789abcdef", "stream", 3, retained=(TableFile("_cells/one", 1, 100),))
    text = before.to_json().replace(b'"retained"', b'"kept"')
    assert b'"kept"' in text
    (tmp_path / "manifest-000000003.json").write_bytes(text)
    assert Tables(tmp_path).manifest == before


def test_tables_of_the_layout_without_partitions_are_read_and_replaced(tmp_path: Path) -> None:
    names = [
        f"numbers/{token}/run=0/part-000000000.parquet" for token in ("00000000000000ab", "00000000000000cd")
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": [7]}), tmp_path / name)
    # The second is what a command left that was killed.
    before = TablesManifest("0123456789abcdef", "run", 3, making=("00000000000000cd",), layout=3)
    before = replace(before, runs=published(0, (TableFile(names[0], 1, 100),)))
    (tmp_path / "manifest-000000003.json").write_bytes(before.to_json())
    assert Tables(tmp_path).records("numbers") == [{"id": 7}]
    with TableStore.open(tmp_path, kind="run") as store:
        assert not (tmp_path / names[1]).exists()
        store.begin()
        store.publish(published(1, (store.write("numbers", pa.table({"id": [8]})),)))
        assert Tables(tmp_path).records("numbers") == [{"id": 7}, {"id": 8}]
        store.publish(published(0, ()))
    assert Tables(tmp_path).manifest.layout == LAYOUT_VERSION
    assert [path.parts[-3][:7] for path in tmp_path.rglob("*.parquet")] == ["token=t"]
