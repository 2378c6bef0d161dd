"""Running again does nothing, a new run adds itself, a changed run replaces itself, and readers never see half."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triagemq.errors import OutputError, PipelineError, TraceError
from triagemq.pipeline import Tables, run_pipeline
from triagemq.pipeline import run as run_module
from triagemq.pipeline.published import MANIFEST_NAME, PublishedRun, Publisher
from triagemq.trace import TraceWriter


def content(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(options: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(run_module, "spark_session", refuse)


def test_runs_come_one_by_one_and_each_is_computed_once(
    spark: object,
    tables: Tables,
    trace: Path,
    write_trace: Callable[..., Path],
    assert_same_tables: Callable[[Tables, Tables], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    shutil.copytree(trace, runs / "first")
    assert run_pipeline([runs], out).added == ("one",)
    before = content(out)

    with monkeypatch.context() as patched:
        no_spark(patched)
        again = run_pipeline([runs], out)
    assert (again.added, again.replaced, again.unchanged, again.started_spark) == ((), (), ("one",), False)
    assert content(out) == before

    write_trace(runs / "second", seed=2, publications=200, run_id="two")
    write_trace(runs / "third", seed=3, publications=100, run_id="three")
    added = run_pipeline([runs], out)
    assert set(added.added) == {"two", "three"}
    assert added.unchanged == ("one",)
    after = content(out)
    assert all(after[name] == seen for name, seen in before.items() if name != MANIFEST_NAME)
    assert {row["run_id"] for row in Tables(out).records("class_performance")} == {"one", "two", "three"}

    shutil.rmtree(runs / "second")
    write_trace(runs / "second", seed=4, publications=250, run_id="two")
    changed = run_pipeline([runs], out)
    assert (changed.added, changed.replaced) == ((), ("two",))
    rows = Tables(out).records("run_summary", run_id="two")
    assert [row["publications"] for row in rows] == [250]
    listed = {file.name for table in Tables(out).rows for file in Tables(out).manifest.files(table)}
    assert listed == {name for name in content(out) if name.endswith(".parquet")}

    shutil.rmtree(runs / "second")
    shutil.rmtree(runs / "third")
    alone = tmp_path / "alone"
    run_pipeline([runs], alone)
    assert_same_tables(Tables(alone), tables)


def test_a_run_that_is_not_whole_is_refused_alone_and_left_out_among_others(
    write_trace: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = TraceWriter(tmp_path / "runs" / "killed", scenario_text="", plan_text=None, producer="test")
    writer.abort("killed")
    with pytest.raises(TraceError, match="interrupted"):
        run_pipeline([tmp_path / "runs" / "killed"], tmp_path / "out")
    with pytest.raises(PipelineError, match="holds neither a trace nor runs with one"):
        run_pipeline([tmp_path / "runs"], tmp_path / "out")


def test_two_runs_of_the_same_id_are_refused(write_trace: Callable[..., Path], tmp_path: Path) -> None:
    first = write_trace(tmp_path / "a", publications=50, run_id="same")
    second = write_trace(tmp_path / "b", publications=60, run_id="same")
    with pytest.raises(PipelineError, match="different runs with the same id 'same'"):
        run_pipeline([first, second], tmp_path / "out")


def test_the_directory_of_a_trace_is_not_taken_for_tables(trace: Path) -> None:
    with pytest.raises(PipelineError, match="directory of a trace"):
        Tables(trace)


def made(publisher: Publisher, number: int) -> dict[str, list[Path]]:
    place = publisher.work / "part.parquet"
    pq.write_table(pa.table({"run_id": ["r"], "number": [number]}), place)
    return {"numbers": [place]}


def run_of(identity: str) -> PublishedRun:
    return PublishedRun(identity, "here", 1, 1, 0, {}, {})


@pytest.mark.parametrize("step", ["pq.read_metadata", "os.replace", "flush_directory", "write_durably"])
def test_a_crash_at_any_step_of_publishing_leaves_the_old_tables_whole(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triagemq.pipeline import published

    with Publisher.open(tmp_path) as publisher:
        publisher.publish({"r": run_of("1")}, {"r": made(publisher, 1)})

    class Killed(BaseException):
        pass

    def crash(*arguments: Any, **options: Any) -> None:
        raise Killed

    target = {"pq.read_metadata": pq, "os.replace": published.os}.get(step, published)
    with monkeypatch.context() as patched, Publisher.open(tmp_path) as publisher:
        files = made(publisher, 2)
        patched.setattr(target, step.rpartition(".")[2], crash)
        with pytest.raises(Killed):
            publisher.publish({"r": run_of("2")}, {"r": files})
    assert [row["number"] for row in Tables(tmp_path).records("numbers")] == [1]

    with Publisher.open(tmp_path) as publisher:
        publisher.publish({"r": run_of("2")}, {"r": made(publisher, 2)})
    assert [row["number"] for row in Tables(tmp_path).records("numbers")] == [2]
    assert len(list(tmp_path.glob("numbers/*.parquet"))) == 1
    assert not list(tmp_path.glob(".work-*"))


def test_a_reader_of_the_old_manifest_reads_the_new_tables_when_a_run_is_replaced(tmp_path: Path) -> None:
    with Publisher.open(tmp_path) as publisher:
        publisher.publish({"r": run_of("1")}, {"r": made(publisher, 1)})
        reader = Tables(tmp_path)
        publisher.publish({"r": run_of("2")}, {"r": made(publisher, 2)})
    assert [row["number"] for row in reader.records("numbers")] == [2]


def test_only_one_command_at_a_time_makes_tables_in_a_directory(tmp_path: Path) -> None:
    with (
        Publisher.open(tmp_path),
        pytest.raises(OutputError, match="another command is writing tables"),
        Publisher.open(tmp_path),
    ):
        pass


def test_tables_elsewhere_than_on_this_machine_are_refused(trace: Path) -> None:
    with pytest.raises(PipelineError, match="mount it"):
        run_pipeline([trace], "s3://bucket/tables")


def test_input_may_be_a_url(trace: Path, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    no_spark(monkeypatch)
    out = tables.files("run_summary")[0].parent.parent
    assert run_pipeline([f"file://{trace}"], f"file://{out}").unchanged == ("one",)
