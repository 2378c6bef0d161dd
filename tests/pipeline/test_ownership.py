"""Whatever lies in a directory that is not ours is there afterwards, octet for octet."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triagemq.cli.main import run as triage
from triagemq.errors import OutputError, PipelineError, TriageError
from triagemq.pipeline import Tables, run, run_pipeline
from triagemq.pipeline.published import PublishedRun, Publisher
from triagemq.pipeline.report import write_report
from triagemq.pipeline.streaming import job as stream_job
from triagemq.pipeline.streaming import read_stream_table, stream_pipeline
from triagemq.pipeline.sweep.cases import forget_cases, simulate_cases
from triagemq.pipeline.sweep.results import SCHEMA, SweepResults

Files = Mapping[str, bytes]

FOLDERS = (
    "",
    "deliveries/",
    "topic_rates/",
    "results/",
    ".state/",
    ".work-1-0a1b2c3d/",
    "run/publications/",
    "mine/",
)
NAMES = (
    "manifest.json",
    "sweep.json",
    "report.html",
    ".lock",
    ".part-5f3759df.parquet",
    "part-5f3759df.parquet",
    "part-00000.parquet",
    "one-1-0.parquet",
    "00000-000000001-0.parquet",
    "1.parquet",
    "scenario.yaml",
    "publications.parquet",
    "notes.txt",
)
trees = st.dictionaries(
    st.builds(lambda folder, name: folder + name, st.sampled_from(FOLDERS), st.sampled_from(NAMES)),
    st.binary(max_size=20),
    max_size=8,
)


def put(directory: Path, files: Files) -> None:
    for name, content in files.items():
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.write_bytes(content)


def content(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def tried(command: Callable[[], object]) -> None:
    """Done or refused; nothing else."""
    with contextlib.suppress(TriageError):
        command()


COMMANDS = {"run", "run again", "stream", "report", "scenario", "sweep", "reproduce"}


@pytest.fixture(scope="module")
def other(write_trace: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another trace of the same run, which takes the place of the first."""
    return write_trace(tmp_path_factory.mktemp("other") / "run", seed=2, publications=20, run_id="one")


@pytest.fixture(scope="module")
def sweep_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "out"
    with SweepResults.open(out) as results:
        results.add(SCHEMA.empty_table())
    return out


@pytest.fixture(scope="module")
def stream_directory(spark: Any, trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stream") / "out"
    stream_pipeline(trace, out, once=True, spark=spark)
    return out


@pytest.fixture
def commands(
    spark: Any, tables: Tables, other: Path, monkeypatch: pytest.MonkeyPatch
) -> Mapping[str, Callable[[Path, Path], object]]:
    """Every command of the pipeline that writes, from an input into a directory.

    They do everything but the work of Spark, which would take minutes for all examples: one row is what it makes.
    """
    monkeypatch.setattr(run, "_process", _one_row)
    monkeypatch.setattr(stream_job, "_reader", _no_reader)
    made = str(tables.files("run_summary")[0].parent.parent)

    def command(*arguments: str) -> None:
        """As it is typed; what it says goes nowhere."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert triage(arguments) in (0, 1, 2)

    return {
        "run": lambda source, out: command("pipeline", "run", str(source), "--out", str(out), "--json"),
        "run again": lambda source, out: [run_pipeline([each], out) for each in (source, other)],
        "stream": lambda source, out: stream_pipeline(source, out, once=True, spark=spark),
        "report": lambda source, out: write_report({}, out / "report.html", title="Ours"),
        "scenario": lambda source, out: command("pipeline", "scenario", made, "-o", str(out), "--json"),
        "sweep": lambda source, out: _swept(out),
        "reproduce": lambda source, out: (tried(lambda: simulate_cases([], out=out)), forget_cases(out)),
    }


OWN = {"tables": {"run", "run again"}, "sweep": {"sweep"}, "stream": {"stream"}}
"""Who may change what is there already, because the same command made it."""


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    tree=trees,
    start=st.sampled_from(["nothing", "tables", "sweep", "stream", "trace"]),
    order=st.lists(st.sampled_from(sorted(COMMANDS)), min_size=1, max_size=3),
    where=st.sampled_from([".", "run", "mine", "new", "topic_rates", "results"]),
    reads_it=st.booleans(),
)
def test_foreign_files_survive_every_command(
    trace: Path,
    tables: Tables,
    sweep_directory: Path,
    stream_directory: Path,
    commands: Mapping[str, Callable[[Path, Path], object]],
    tree: Files,
    start: str,
    order: list[str],
    where: str,
    reads_it: bool,
) -> None:
    assert set(commands) == COMMANDS
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        sources = {
            "tables": tables.files("run_summary")[0].parent.parent,
            "sweep": sweep_directory,
            "stream": stream_directory,
            "trace": trace,
        }
        if start in sources:
            shutil.copytree(sources[start], root)
        own = content(root) if start in sources else {}
        put(root, tree)
        before = content(root)
        source = root if reads_it and root.exists() else trace
        foreign = {name: octets for name, octets in before.items() if name not in own}
        for number, command in enumerate(order):
            tried(partial(commands[command], source, root / where))
            after = content(root)
            assert {name: after.get(name) for name in foreign} == foreign, command
            # What another command made is somebody else's, too.
            if not set(order[: number + 1]) & OWN.get(start, set()):
                assert {name: after.get(name) for name in before} == before, command


def _one_row(todo: list[Any], publisher: Publisher, options: object, progress: object) -> None:
    for number, each in enumerate(todo):
        made = {
            table: [publisher.work / f"{table}-{number}.parquet"] for table in ("publications", "run_summary")
        }
        for files in made.values():
            pq.write_table(pa.table({"run_id": [each.run_id]}), files[0])
        published = PublishedRun(each.identity, each.source, 1, 1, 0, {}, {})
        publisher.publish({each.run_id: published}, {each.run_id: made})


def _no_reader(*_: object) -> None:
    raise PipelineError("the directory is taken, and that is all there is to do here")


def _swept(out: Path) -> None:
    with SweepResults.open(out) as results:
        results.add(SCHEMA.empty_table())
        results.done()


def test_an_output_that_is_holds_or_lies_in_the_input_is_refused(trace: Path, tmp_path: Path) -> None:
    run = shutil.copytree(trace, tmp_path / "runs" / "one")
    before = content(tmp_path)
    for source, out, words in (
        (run, run, "is what is read"),
        (run, tmp_path, "holds the input"),
        (tmp_path / "runs", run / "tables", "lies in the input"),
    ):
        with pytest.raises(OutputError, match=words):
            run_pipeline([source], out)
        with pytest.raises(OutputError, match=words):
            stream_pipeline(source, out, once=True)
    assert content(tmp_path) == before


def test_a_stream_does_not_take_the_tables_of_a_run_nor_the_other_way_round(
    trace: Path, tables: Tables, stream_directory: Path
) -> None:
    out = tables.files("run_summary")[0].parent.parent
    before = content(out), content(stream_directory)
    with pytest.raises(OutputError, match="holds tables of `triage pipeline run`"):
        stream_pipeline(trace, out, once=True)
    with pytest.raises(OutputError, match="holds tables of `triage pipeline stream`"):
        run_pipeline([trace], stream_directory)
    assert (content(out), content(stream_directory)) == before
    assert len(read_stream_table(stream_directory)) > 0


def test_a_page_that_is_no_report_is_not_replaced(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("<h1>Mine</h1>")
    with pytest.raises(OutputError, match="is no report of TriageMQ"):
        write_report({}, page, title="Ours")
    assert page.read_text() == "<h1>Mine</h1>"
    page.unlink()
    write_report({}, page, title="Ours")
    write_report({}, page, title="Ours again")
    assert "Ours again" in page.read_text()


def test_what_a_killed_command_was_making_is_removed(tmp_path: Path) -> None:
    with Publisher.open(tmp_path) as publisher:
        mark = publisher.manifest.mark
    put(
        tmp_path, {f".work-{mark}-7-0a1b2c3d/part.parquet": b"half", f"numbers/r-1-{mark}-0.parquet": b"half"}
    )
    with Publisher.open(tmp_path):
        pass
    assert not list(tmp_path.glob(".work-*"))
    assert not list(tmp_path.glob("numbers/*"))
