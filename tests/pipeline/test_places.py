"""Where results may lie: on this machine's disks, and on any file system that Arrow knows."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyspark.sql import SparkSession

from triagemq.errors import OutputError, PipelineError
from triagemq.lab.sweep.jobs import StoredRows
from triagemq.lab.sweep.run import SCHEMA, SWEEP
from triagemq.pipeline import Tables, run_pipeline
from triagemq.pipeline.store import Location, PublishedRun, TableFile, TableStore, lease, places


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file system as a cluster has it: Spark and Arrow know that what it holds lies in a folder of this test."""
    name = f"t{uuid.uuid4().hex}"
    settings: Any = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    settings.set(f"fs.viewfs.mounttable.{name}.link./data", tmp_path.as_uri())
    root = f"viewfs://{name}/data"
    system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())

    def opened(uri: str) -> tuple[fs.FileSystem, str]:
        assert uri.startswith(root)
        return system, uri.removeprefix(root).strip("/")

    monkeypatch.setattr(places, "open_file_system", opened)
    return root


@pytest.mark.parametrize("remote", [False, True])
def test_every_file_system_keeps_the_contract(remote: bool, elsewhere: str, tmp_path: Path) -> None:
    place = Location(elsewhere if remote else tmp_path)
    folder = place / "a folder" / "deep"
    (folder / "file").write(b"content")
    assert (folder / "file").read() == b"content"
    assert (folder / "file").read(3) == b"con"
    assert (folder / "file").file().size_bytes == 7
    assert folder.is_directory()
    assert not (folder / "file").is_directory()
    assert [entry.name for entry in folder.entries() if not entry.name.endswith(".crc")] == ["file"]
    assert place.directories() == ["a folder"]
    (folder / "file").write(b"changed")
    assert (folder / "file").read() == b"changed"
    (folder / "whole").create(b"first", hidden=".whole")
    with pytest.raises(FileExistsError):
        (folder / "whole").create(b"second", hidden=".whole")
    assert (folder / "whole").read() == b"first"
    assert not (folder / ".whole").exists()
    content = io.BytesIO()
    pq.write_table(pa.table({"number": [3, 7]}), content)
    (folder / "rows").write(content.getvalue())
    assert (folder / "rows").footer().row_group(0).column(0).statistics.max == 7
    assert (folder / "rows").footer().num_rows == 2
    folder.remove_empty()
    assert (folder / "file").exists(), "it is not empty"
    for name in ("file", "whole", "rows", "never there"):
        (folder / name).remove()
        assert not (folder / name).exists()
    folder.remove_empty()
    assert folder.exists() == remote, "Arrow removes a directory only with all that is in it"
    with pytest.raises(FileNotFoundError):
        (place / "never there").entries()
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
    with StoredRows.open(SWEEP, f"{elsewhere}/sweep") as results:
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


def expire(out: Path) -> None:
    """As if all leases had been written two minutes ago."""
    for path in out.glob(".lease-*"):
        os.utime(path, (path.stat().st_mtime - 120,) * 2)


def begin(store: TableStore, number: int) -> TableFile:
    store.begin()
    return store.write("numbers", pa.table({"number": [number]}))


def publish(store: TableStore, file: TableFile) -> None:
    store.publish({"r": PublishedRun("1", "here", 1, 1, 0, {}, {"numbers": (file,)})})


def test_a_second_command_is_refused_while_the_first_lives_and_removes_nothing(
    elsewhere: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with TableStore.open(f"{elsewhere}/out", kind="run") as first:
        file = begin(first, 7)
        refusal = rf"another command is writing tables there \(process {os.getpid()} on \S+\); wait for it"
        for _ in range(2):
            with pytest.raises(OutputError, match=refusal), TableStore.open(f"{elsewhere}/out", kind="run"):
                pass
        publish(first, file)
        assert len(list(out.glob(".lease-*"))) == 1
    assert Tables(out).records("numbers") == [{"number": 7}]
    assert not list(out.glob(".*lease-*"))


def test_what_a_killed_command_left_is_removed_when_its_lease_has_expired(
    elsewhere: str, tmp_path: Path
) -> None:
    with TableStore.open(f"{elsewhere}/out", kind="run") as store:
        left = begin(store, 7)
        # What is on the disk at this moment is what kill -9 leaves.
        killed = shutil.copytree(tmp_path / "out", tmp_path / "killed")
    with (
        pytest.raises(OutputError, match="After a command was killed, wait for 60 s"),
        TableStore.open(f"{elsewhere}/killed", kind="run"),
    ):
        pass
    assert (killed / left.name).exists()
    expire(killed)
    with TableStore.open(f"{elsewhere}/killed", kind="run") as store:
        assert not (killed / left.name).exists()
        publish(store, begin(store, 8))
    assert Tables(killed).records("numbers") == [{"number": 8}]
    assert not list(killed.glob(".*lease-*"))


@pytest.mark.parametrize("taken", [False, True])
def test_a_command_that_stood_still_past_its_lease_publishes_nothing(
    taken: bool, elsewhere: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with TableStore.open(f"{elsewhere}/out", kind="run") as slow:
        old = begin(slow, 7)
        expire(out)
        with contextlib.ExitStack() as stack:
            if taken:
                second = stack.enter_context(TableStore.open(f"{elsewhere}/out", kind="run"))
                new = begin(second, 8)
            for _ in range(2):
                with pytest.raises(OutputError, match="this command stood still for 60 s"):
                    publish(slow, old)
            if taken:
                publish(second, new)
    assert Tables(out).rows == ({"numbers": 1} if taken else {})
    assert [path.read_bytes() for path in out.rglob("part-*")] == (
        [(out / new.name).read_bytes()] if taken else []
    )


def test_a_lease_is_renewed_while_its_holder_lives(
    elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_SECONDS", 2.0)
    with TableStore.open(f"{elsewhere}/out", kind="run"):
        seen = set[int]()
        while len(seen) < 3:
            seen.update(path.stat().st_mtime_ns for path in (tmp_path / "out").glob(".lease-*"))
            time.sleep(0.05)


def test_commands_that_start_at_the_same_moment_never_write_at_the_same_time(elsewhere: str) -> None:
    inside, most, together = 0, 0, threading.Barrier(3)

    def command(_: int) -> bool:
        nonlocal inside, most
        together.wait()
        try:
            with TableStore.open(f"{elsewhere}/out", kind="run"):
                inside += 1
                most = max(most, inside)
                time.sleep(0.1)
                inside -= 1
        except OutputError:
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        landed = list(pool.map(command, range(3)))
    assert most == (1 if any(landed) else 0)


def test_a_place_that_arrow_does_not_know_is_named() -> None:
    with pytest.raises(PipelineError, match="nonsense://x/y: cannot be opened: "):
        Tables("nonsense://x/y")


@pytest.mark.parametrize("given", ["/a b/c", "file:///a b/c", "file:/a b/c"])
def test_a_path_of_this_machine_may_be_given_as_hadoop_writes_it(given: str) -> None:
    place = Location(given)
    assert (place.local, place.url) == (Path("/a b/c"), "file:///a b/c")
    assert place.shown == Path("/a b/c")
    assert Location("x/y").shown == Path("x/y")
