"""Where results may lie: on this machine's disks, and on any file system of Hadoop's, which Python cannot open."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from triagemq.errors import OutputError, PipelineError
from triagemq.pipeline import Tables, run_pipeline
from triagemq.pipeline.store import Location, TableStore, current_manifest
from triagemq.pipeline.sweep.jobs import KeptRows
from triagemq.pipeline.sweep.run import SCHEMA, SWEEP


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> str:
    """A file system as a cluster has it: only Hadoop knows that what it holds lies in a folder of this test."""
    name = f"t{uuid.uuid4().hex}"
    settings: Any = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    settings.set(f"fs.viewfs.mounttable.{name}.link./data", tmp_path.as_uri())
    return f"viewfs://{name}/data"


@pytest.mark.parametrize("remote", [False, True])
def test_every_file_system_keeps_the_contract(remote: bool, elsewhere: str, tmp_path: Path) -> None:
    place = Location(elsewhere if remote else tmp_path, published=True)
    folder = place / "a folder" / "deep"
    (folder / "file").write(b"content")
    assert (folder / "file").read() == b"content"
    assert (folder / "file").read(3) == b"con"
    assert (folder / "file").file().size_bytes == 7
    assert folder.is_directory()
    assert not (folder / "file").is_directory()
    assert [entry.name for entry in folder.entries() if not entry.name.endswith(".crc")] == ["file"]
    assert place.directories() == ["a folder"]
    with pytest.raises(FileExistsError):
        (folder / "file").write(b"again")
    (folder / "whole").create(b"first", hidden=".whole")
    with pytest.raises(FileExistsError):
        (folder / "whole").create(b"second", hidden=".whole")
    assert (folder / "whole").read() == b"first"
    assert not (folder / ".whole").exists()
    folder.remove_empty()
    assert (folder / "file").exists(), "it is not empty"
    for name in ("file", "whole", "never there"):
        (folder / name).remove()
        assert not (folder / name).exists()
    folder.remove_empty()
    assert not folder.exists()
    with pytest.raises(FileNotFoundError):
        folder.entries()
    with pytest.raises(PipelineError, match="is not there"):
        (folder / "file").read()


@pytest.mark.slow
def test_tables_are_the_same_wherever_they_are_read_from_and_published(
    spark: SparkSession,
    elsewhere: str,
    write_trace: Callable[..., Path],
    assert_same_tables: Callable[[Tables, Tables], None],
    tmp_path: Path,
) -> None:
    write_trace(tmp_path / "runs" / "a", seed=2, publications=200, run_id="a", damage=True)
    write_trace(tmp_path / "runs" / "b", seed=3, publications=100, run_id="b")
    run_pipeline([tmp_path / "runs"], tmp_path / "here")
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    for number, inputs in ((1, str(tmp_path / "runs")), (2, f"{elsewhere}/runs")):
        # With more than one, Spark's tasks write the files.
        spark.conf.set("spark.sql.shuffle.partitions", str(number))
        out = f"out-{number}-{'here' if inputs.startswith('/') else 'there'}"
        try:
            done = run_pipeline([inputs], f"{elsewhere}/{out}")
        finally:
            spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        assert done.added == ("a", "b")
        found, expected = Tables(tmp_path / out), Tables(tmp_path / "here")
        assert {name: count for name, count in found.rows.items() if name != "quarantine"} == {
            name: count for name, count in expected.rows.items() if name != "quarantine"
        }
        if inputs.startswith("/"):
            assert_same_tables(found, expected)
        assert not (tmp_path / out / "_work").exists()
        listed = {tmp_path / out / name for name in found.manifest.names()}
        assert listed == set((tmp_path / out).rglob("*.parquet"))
    again = run_pipeline([f"{elsewhere}/runs"], f"{elsewhere}/out-2-there")
    assert (again.added, again.unchanged) == ((), ("a", "b"))
    with pytest.raises(OutputError, match="lies in the input"):
        run_pipeline([f"{elsewhere}/runs"], f"{elsewhere}/runs/tables")


def test_a_sweep_keeps_its_results_there_too(elsewhere: str, tmp_path: Path) -> None:
    with KeptRows.open(SWEEP, f"{elsewhere}/sweep") as results:
        for _ in range(20):
            results.add(SCHEMA.empty_table())
        assert results.rows.num_rows == 0
    assert len(list((tmp_path / "sweep").rglob("part-*.parquet"))) == 4


def test_foreign_files_there_are_refused_and_kept(elsewhere: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text("mine")
    with (
        pytest.raises(OutputError, match=r"holds other files \(manifest.json\)"),
        TableStore.open(f"{elsewhere}/out", kind="run"),
    ):
        pass
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.json"]


def test_the_second_of_two_commands_that_publish_at_once_is_refused(elsewhere: str) -> None:
    with (
        TableStore.open(f"{elsewhere}/out", kind="run") as first,
        TableStore.open(f"{elsewhere}/out", kind="run") as second,
    ):
        second.begin()
        with pytest.raises(OutputError, match="another command has written there meanwhile"):
            first.begin()
    manifest = current_manifest(Location(f"{elsewhere}/out"))
    assert manifest is not None
    assert manifest.making == ()


def test_without_spark_a_place_that_arrow_does_not_know_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triagemq.pipeline.store.places.active_session", lambda: None)
    assert Location.needs_spark("nonsense://x/y")
    assert Location.needs_spark("s3://bucket/tables", published=True)
    assert not Location.needs_spark("file:///x", published=True)
    with pytest.raises(PipelineError, match="nonsense://x/y: cannot be opened without Spark"):
        Tables("nonsense://x/y")


@pytest.mark.parametrize("given", ["/a b/c", "file:///a b/c", "file:/a b/c"])
def test_a_path_of_this_machine_may_be_given_as_hadoop_writes_it(given: str) -> None:
    place = Location(given)
    assert (place.local, place.url) == (Path("/a b/c"), "file:///a b/c")
    assert not Location.needs_spark(given, published=True)
    assert place.shown == Path("/a b/c")
    assert Location("x/y").shown == Path("x/y")
