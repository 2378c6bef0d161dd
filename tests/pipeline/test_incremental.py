"""Running again does nothing, a new run adds itself, a changed run replaces itself, and readers never see half."""

from __future__ import annotations

import contextlib
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
from triagemq.pipeline.inputs import TraceInput, find_inputs
from triagemq.pipeline.store import PublishedRun, TableStore
from triagemq.pipeline.store.places import LocalFiles
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
    assert all(after[name] == seen for name, seen in before.items() if not name.startswith("manifest-"))
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


def run_of(opened: TableStore, number: int) -> dict[str, PublishedRun]:
    """A run of one row, whose file is written now."""
    opened.begin()
    file = opened.write("numbers", pa.table({"run_id": ["r"], "number": [number]}))
    return {"r": PublishedRun(str(number), "here", 1, 1, 0, {}, {"numbers": (file,)})}


class Killed(BaseException):
    """As kill -9: nothing is cleared away."""


STEPS = ["write", "create", "remove", "remove_empty"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_kill_at_any_step_of_publishing_leaves_whole_tables_and_the_next_command_goes_on(
    step: str, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TableStore.open(tmp_path, kind="run") as opened:
        opened.publish(run_of(opened, 1))
    left = [calls]
    done = getattr(LocalFiles, step)

    def crash(self: LocalFiles, *arguments: Any) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise Killed
        done(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, step, crash)
        with contextlib.suppress(Killed), TableStore.open(tmp_path, kind="run") as opened:
            opened.publish(run_of(opened, 2))
    assert [row["number"] for row in Tables(tmp_path).records("numbers")] in ([1], [2])

    with TableStore.open(tmp_path, kind="run") as opened:
        opened.publish(run_of(opened, 3))
    assert [row["number"] for row in Tables(tmp_path).records("numbers")] == [3]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    assert len(list(tmp_path.glob("manifest-*"))) == 1


def test_a_reader_of_the_old_manifest_reads_the_new_tables_when_a_run_is_replaced(tmp_path: Path) -> None:
    with TableStore.open(tmp_path, kind="run") as opened:
        opened.publish(run_of(opened, 1))
        reader = Tables(tmp_path)
        opened.publish(run_of(opened, 2))
    assert [row["number"] for row in reader.records("numbers")] == [2]


def test_tables_can_be_read_by_a_plain_glob(tables: Tables, tmp_path: Path) -> None:
    out = Path(tables.place)
    for name, rows in tables.rows.items():
        found = [pq.read_metadata(path).num_rows for path in (out / name).rglob("*.parquet")]
        assert sum(found) == rows, name


def test_who_publishes_a_version_second_is_refused(tmp_path: Path) -> None:
    with TableStore.open(tmp_path, kind="run") as opened:
        made = run_of(opened, 1)
        (tmp_path / f"manifest-{opened.manifest.version + 1:09d}.json").write_text("of somebody faster")
        with pytest.raises(OutputError, match="another command has written there meanwhile"):
            opened.publish(made)


def test_only_one_command_at_a_time_makes_tables_in_a_directory(tmp_path: Path) -> None:
    with (
        TableStore.open(tmp_path, kind="run"),
        pytest.raises(OutputError, match="another command is writing tables"),
        TableStore.open(tmp_path, kind="run"),
    ):
        pass


def test_input_may_be_a_url(trace: Path, tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    no_spark(monkeypatch)
    out = tables.place
    assert run_pipeline([f"file://{trace}"], f"file://{out}").unchanged == ("one",)


@pytest.mark.parametrize("name", ["cut_off_ns", "judged_until_ns"])
def test_the_cut_off_of_a_trace_is_read_by_its_old_name_too(
    name: str, write_trace: Callable[..., Path], tmp_path: Path
) -> None:
    run = write_trace(tmp_path / "run", publications=20, extra={name: 7})
    (found,), _ = find_inputs([run], None)
    assert isinstance(found, TraceInput)
    assert found.cut_off_ns == 7
