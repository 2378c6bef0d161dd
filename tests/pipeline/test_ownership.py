"""Whatever lies in a directory that is not ours is there afterwards, octet for octet."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Callable, Iterator
from collections.abc import Mapping as Dictionary
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triagemq.cli.main import run as triage
from triagemq.errors import OutputError, PipelineError, TriageError
from triagemq.lab.sweep.cases import forget_cases, simulate_cases
from triagemq.lab.sweep.jobs import StoredRows
from triagemq.lab.sweep.run import SCHEMA, SWEEP
from triagemq.pipeline import Mapping, Tables, archive, run, run_pipeline
from triagemq.pipeline.report import write_report
from triagemq.pipeline.store import PublishedRun, TableFile, TablesManifest, TableStore
from triagemq.pipeline.store.places import LocalFiles
from triagemq.pipeline.streaming import job as stream_job
from triagemq.pipeline.streaming import stream_pipeline

Files = Dictionary[str, bytes]

FOLDERS = (
    "",
    "deliveries/",
    "topic_rates/",
    "results/",
    ".state/",
    "_work/0123456789abcdef/log-0/",
    "deliveries/0123456789abcdef/run=0/",
    "deliveries/token=t0123456789abcdef/run=0/",
    "run/publications/",
    "mine/",
)
NAMES = (
    "manifest.json",
    "manifest-000000007.json",
    ".manifest-0123456789abcdef",
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


class Killed(BaseException):
    """As kill -9 does it: from then on nothing is changed any more, whatever wants to be cleared away."""


@contextlib.contextmanager
def killed_after(changes: int | None) -> Iterator[None]:
    """Have a command die at one of its changes to the disk, a file that it writes then being half there."""
    left = [changes]
    with pytest.MonkeyPatch.context() as patch:

        def may_die(name: str) -> Callable[..., None]:
            done: Callable[..., None] = getattr(LocalFiles, name)

            def change(files: LocalFiles, path: str, *what: Any) -> None:
                if left[0] is not None:
                    left[0] -= 1
                    if left[0] == -1 and name == "write":
                        done(files, path, what[0][: len(what[0]) // 2])
                    if left[0] < 0:
                        raise Killed
                done(files, path, *what)

            return change

        for name in ("write", "create", "remove", "remove_empty"):
            patch.setattr(LocalFiles, name, may_die(name))
        with contextlib.suppress(Killed):
            yield


COMMANDS = {"run", "run again", "archive", "stream", "report", "scenario", "sweep", "reproduce"}


@pytest.fixture(scope="module")
def other(write_trace: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another trace of the same run, which takes the place of the first."""
    return write_trace(tmp_path_factory.mktemp("other") / "run", seed=2, publications=20, run_id="one")


@pytest.fixture(scope="module")
def sweep_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "out"
    with StoredRows.open(SWEEP, out) as results:
        results.add(SCHEMA.empty_table())
    return out


@pytest.fixture(scope="module")
def stream_directory(spark: Any, trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stream") / "out"
    stream_pipeline(trace, out, once=True)
    return out


@pytest.fixture
def commands(
    spark: Any, tables: Tables, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Dictionary[str, Callable[[Path, Path], object]]:
    """Every command of the pipeline that writes, from an input into a directory.

    They do everything but the work of Spark, which would take minutes for all examples: one row is what it makes.
    """
    monkeypatch.setattr(run, "_process", _one_row)
    monkeypatch.setattr(stream_job, "spark_session", _no_session)
    monkeypatch.setattr(archive, "_archive", _one_event)
    made = tables.place
    log = tmp_path / "log.csv"
    log.write_text("time,value\n1,2\n")
    mapping = Mapping.model_validate(
        {"time": {"column": "time", "unit": "s"}, "topic": "t", "publisher": "p", "value": "value"}
    )

    def command(*arguments: str) -> None:
        """As it is typed; what it says goes nowhere."""
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert triage(arguments) in (0, 1, 2)

    return {
        "run": lambda source, out: command("pipeline", "run", str(source), "--out", str(out), "--json"),
        "run again": lambda source, out: [run_pipeline([each], out) for each in (source, other)],
        "archive": lambda source, out: [
            archive.archive([log], out, mapping=mapping, keep_days=days) for days in (None, 30)
        ],
        "stream": lambda source, out: stream_pipeline(source, out, once=True),
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
    order=st.lists(
        st.tuples(st.sampled_from(sorted(COMMANDS)), st.none() | st.integers(0, 12)), min_size=1, max_size=3
    ),
    where=st.sampled_from([".", "run", "mine", "new", "topic_rates", "results"]),
    reads_it=st.booleans(),
)
def test_foreign_files_survive_every_command_and_every_kill(
    trace: Path,
    tables: Tables,
    sweep_directory: Path,
    stream_directory: Path,
    commands: Dictionary[str, Callable[[Path, Path], object]],
    tree: Files,
    start: str,
    order: list[tuple[str, int | None]],
    where: str,
    reads_it: bool,
) -> None:
    assert set(commands) == COMMANDS
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        sources = {
            "tables": Path(tables.place),
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
        for number, (command, changes) in enumerate(order):
            with killed_after(changes):
                tried(partial(commands[command], source, root / where))
            after = content(root)
            assert {name: after.get(name) for name in foreign} == foreign, command
            # What another command made is somebody else's, too.
            if not {each for each, _ in order[: number + 1]} & OWN.get(start, set()):
                assert {name: after.get(name) for name in before} == before, command


def _one_row(todo: list[Any], store: TableStore, options: object, progress: object) -> None:
    for each in todo:
        store.begin()
        rows = pa.table({"run_id": [each.run_id]})
        made = {table: (store.write(table, rows),) for table in ("publications", "run_summary")}
        store.publish({each.run_id: PublishedRun(each.identity, each.source, 1, 1, 0, {}, made)})


def _one_event(spark: object, store: TableStore, log: Any) -> PublishedRun:
    made = {"events": (store.write("events", pa.table({"published_ns": [0]})),)}
    return PublishedRun(log.identity, log.source, 1, 1, 0, {}, made)


def _no_session(*_: object) -> None:
    raise PipelineError("the directory is taken, and that is all there is to do here")


def _swept(out: Path) -> None:
    with StoredRows.open(SWEEP, out) as results:
        results.add(SCHEMA.empty_table())


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
    out = Path(tables.place)
    before = content(out), content(stream_directory)
    with pytest.raises(OutputError, match="holds tables of `triage pipeline run`"):
        stream_pipeline(trace, out, once=True)
    with pytest.raises(OutputError, match="holds tables of `triage pipeline stream`"):
        run_pipeline([trace], stream_directory)
    assert (content(out), content(stream_directory)) == before
    assert len(Tables(stream_directory).table("topic_rates")) > 0


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


MADE = "part-00000-0a1b2c3d-0a1b-4c3d-8e5f-0a1b2c3d4e5f.c000.zstd.parquet"


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    tree=st.dictionaries(
        st.builds(
            lambda folder, name: folder + name,
            st.sampled_from(["", "_temporary/0/", "run=0/", "mine/"]),
            st.sampled_from([*NAMES, "data.parquet", "part.txt", "notes"]),
        ),
        st.binary(max_size=20),
        max_size=6,
    ),
    table=st.sampled_from(["numbers", "_work", "other"]),
)
def test_even_in_a_folder_that_a_killed_command_made_foreign_files_survive(tree: Files, table: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        with contextlib.suppress(KeyboardInterrupt), TableStore.open(out, kind="run") as store:
            store.begin()
            token = store.token
            kept = store.write("numbers", pa.table({"number": [1]}))
            store.publish({"r": PublishedRun("1", "here", 1, 1, 0, {}, {"numbers": (kept,)})})
            left = f"{table}/{token}"
            put(out, {f"{left}/run=1/{MADE}": b"half", f"{left}/_temporary/0/task_1/.{MADE}.crc": b"half"})
            put(out, {f"{left}/{name}": octets for name, octets in tree.items()})
            before = content(out)
        after = content(out)
    foreign = {f"{left}/{name}" for name in tree if f"{left}/{name}" in before}
    assert {name: after.get(name) for name in foreign} == {name: before[name] for name in foreign}
    assert not [name for name in after if MADE in name]
    assert kept.name in after


def test_what_a_link_leads_to_survives(tmp_path: Path) -> None:
    mine = {f"mine/{MADE}": b"mine", "mine/part-000000000.parquet": b"mine"}
    put(tmp_path, mine)
    with TableStore.open(tmp_path / "out", kind="run") as store:
        store.begin()
        place = tmp_path / "out" / "numbers" / store.token
        place.mkdir(parents=True)
        (place / "run=0").symlink_to(tmp_path / "mine")
        (tmp_path / "out" / "_work").symlink_to(tmp_path / "mine")
    assert {name: (tmp_path / name).read_bytes() for name in mine} == mine


@pytest.mark.parametrize(
    "name",
    [
        "../mine.parquet",
        "/etc/hosts",
        "numbers/0123456789abcdef/notes.txt",
        "notes.txt",
        "numbers/x/part-0.parquet",
    ],
)
def test_a_manifest_that_lists_what_no_store_writes_removes_nothing(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    put(tmp_path, {"mine.parquet": b"mine", "out/notes.txt": b"mine"})
    put(out, {"numbers/0123456789abcdef/notes.txt": b"mine", "numbers/x/part-0.parquet": b"mine"})
    listed = {"r": PublishedRun("1", "here", 1, 1, 0, {}, {"numbers": (TableFile(name, 1, 1),)})}
    manifest = TablesManifest("0123456789abcdef", "run", 7, listed, making=("..", "numbers", ""))
    put(out, {"manifest-000000007.json": manifest.to_json()})
    before = {each: octets for each, octets in content(tmp_path).items() if "manifest" not in each}
    with TableStore.open(out, kind="run") as store:
        store.publish({"r": PublishedRun("2", "here", 1, 1, 0, {}, {})})
    after = content(tmp_path)
    assert {each: after.get(each) for each in before} == before


def test_a_lock_that_was_there_before_stays(tmp_path: Path) -> None:
    put(tmp_path, {".lock": b""})
    simulate_cases([], out=tmp_path)
    forget_cases(tmp_path)
    assert content(tmp_path) == {".lock": b""}
    simulate_cases([], out=tmp_path / "new")
    forget_cases(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_manifest_under_the_name_of_another_version_is_refused(tmp_path: Path) -> None:
    manifest = TablesManifest("0123456789abcdef", "run", 7).to_json()
    put(tmp_path, {"manifest-000000009.json": manifest, "manifest-000000006.json": b"mine"})
    before = content(tmp_path)
    with (
        pytest.raises(PipelineError, match="is not a manifest of tables"),
        TableStore.open(tmp_path, kind="run"),
    ):
        pass
    assert content(tmp_path) == before


def test_folders_with_the_mark_of_another_directory_survive(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with TableStore.open(out, kind="run") as store:
        own = f"numbers/token=t{store.manifest.mark}{16 * '0'}/run=0/{MADE}"
    theirs = f"numbers/token=t{32 * '0'}/run=0/{MADE}"
    put(out, {own: b"of a killed command", theirs: b"theirs"})
    with TableStore.open(out, kind="run"):
        pass
    assert not (out / own).exists()
    assert (out / theirs).read_bytes() == b"theirs"
