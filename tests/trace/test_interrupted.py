"""A run that is killed, interrupted or out of disk leaves no trace that looks whole, and nothing hangs."""

from __future__ import annotations

import errno
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.trace.checksums import verify

from triagemq.errors import OutputError, TraceError
from triagemq.trace import Trace, runs

CHILD = Path(__file__).with_name("child_writer.py")


@contextmanager
def _child(directory, milliseconds, *options):
    command = [sys.executable, str(CHILD), str(directory), str(milliseconds), *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def _hidden_files(run):
    return [path for path in run.rglob("*") if path.name.startswith(".")]


def _check_killed_run(run, start):
    """Either whole and correct, or said to be interrupted, with a beginning of the rows."""
    if not run.exists() or not any(run.iterdir()):
        return "not begun"
    with pytest.raises(OutputError, match="choose another directory or remove it"):
        start(run)
    if (run / "manifest.json").exists():
        trace = Trace.open(run)
        verify(trace)
        assert trace.table("publications").num_rows == trace.manifest.extra["rows"]
        state = "whole"
    else:
        assert runs(run).incomplete == (run,)
        with pytest.raises(
            TraceError, match=r"this run was interrupted \(killed, or still running as process"
        ):
            Trace.open(run)
        trace = Trace.open(run, allow_incomplete=True)
        state = "interrupted"
    ids = trace.table("publications", ["publication_id"])["publication_id"].to_pylist()
    assert ids == list(range(len(ids)))
    return state


def test_kill_at_any_moment_never_leaves_a_manifest_with_half_the_data(tmp_path, start):
    moments = random.Random(7)
    states = []
    for attempt in range(8):
        run = tmp_path / f"run-{attempt}"
        # The child writes for 150 ms and then finishes: moments fall before, during and after its end.
        with _child(run, 150) as process:
            time.sleep(moments.uniform(0.0, 0.25))
            process.send_signal(signal.SIGKILL)
            process.wait()
        states.append(_check_killed_run(run, start))
    assert "interrupted" in states


def test_kill_while_the_run_is_being_finished(tmp_path, start):
    run = tmp_path / "run"
    with _child(run, 60) as process:
        # The decisions table gets its only, empty, file at the very end, just before the manifest.
        while not list(run.glob("decisions/*.parquet")) and process.poll() is None:
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert _check_killed_run(run, start) in ("interrupted", "whole")


def test_control_c_is_named_as_the_reason(tmp_path):
    run = tmp_path / "run"
    with _child(run, 20_000) as process:
        while not list(run.glob("publications/part-*.parquet")):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) != 0
        assert "finished" not in process.stdout.read()
    with pytest.raises(
        TraceError, match=r"interrupted at 20.*: KeyboardInterrupt; finished files: publications \d"
    ):
        Trace.open(run)
    assert not _hidden_files(run)


@pytest.mark.parametrize(
    "reason", [KeyboardInterrupt(), MemoryError("full"), SystemExit(3), ValueError("bad")]
)
def test_leaving_by_an_exception_gives_the_trace_up(tmp_path, start, deliveries, reason):
    writer = start(row_group_rows=10, rotate_rows=50)
    writer.deliveries(deliveries(125))
    with pytest.raises(type(reason)), writer:
        raise reason
    run = tmp_path / "run"
    assert not (run / "manifest.json").exists()
    assert type(reason).__name__ in json.loads((run / "INCOMPLETE").read_text())["reason"]
    assert not _hidden_files(run)
    with pytest.raises(TraceError, match="finished or given up"):
        writer.deliveries(deliveries(1))
    with pytest.raises(TraceError, match="finished or given up"):
        writer.finish(measured_from_ns=0)


def test_forgetting_to_finish_is_an_error(tmp_path, start):
    with pytest.raises(TraceError, match=r"left without finish\(\)"), start():
        pass
    with pytest.raises(TraceError, match="left the run without finishing it"):
        Trace.open(tmp_path / "run")


def test_an_exception_after_finish_leaves_the_trace_whole(tmp_path, start):
    writer = start()
    writer.finish(measured_from_ns=0)
    with pytest.raises(RuntimeError), writer:
        raise RuntimeError
    assert Trace.open(tmp_path / "run").manifest


def test_a_manifest_beside_incomplete_means_whole(tmp_path, start):
    with start() as writer:
        before = (tmp_path / "run" / "INCOMPLETE").read_text()
        writer.finish(measured_from_ns=0)
    (tmp_path / "run" / "INCOMPLETE").write_text(before)
    assert Trace.open(tmp_path / "run").manifest


def test_an_incomplete_that_was_never_filled_still_says_interrupted(tmp_path):
    (tmp_path / "INCOMPLETE").touch()
    with pytest.raises(TraceError, match="this run was interrupted"):
        Trace.open(tmp_path)


def _record_noise(writer, deliveries):
    for call in range(100):
        noise = np.random.default_rng(call).integers(0, 2**31 - 1, 20_000)
        writer.deliveries(deliveries(20_000) | {"topic_id": noise, "size_bytes": noise})
    writer.finish(measured_from_ns=0)


def test_a_full_disk_ends_the_run_with_one_clear_line(tmp_path, start, deliveries):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip(
            "mounting a small disk needs root; run `make test` as root (a limit on file size is tested instead)"
        )
    try:
        with pytest.raises(OutputError) as caught, start(disk / "run", row_group_rows=20_000) as writer:
            _record_noise(writer, deliveries)
        message = f"cannot write the trace {disk / 'run'}: No space left on device; make room there"
        assert str(caught.value).startswith(message)
        assert not (disk / "run" / "manifest.json").exists()
        assert not _hidden_files(disk / "run")
        with pytest.raises(TraceError, match=r"interrupted at .*No space left on device"):
            Trace.open(disk / "run")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_limit_on_file_size_ends_the_run_with_one_clear_line(tmp_path):
    with _child(tmp_path / "run", 20_000, 100_000) as process:
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors.startswith(
        f"cannot write the trace {tmp_path / 'run'}: File too large; the limit on the size"
    )
    assert errors.count("\n") == 1
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_a_failure_reaches_a_producer_that_waits_for_room(tmp_path, start, deliveries):
    writer = start(row_group_rows=100, queue_bytes=20_000)
    shutil.rmtree(tmp_path / "run" / "deliveries")
    with pytest.raises(OutputError, match="No such file or directory; do not remove the directory"), writer:
        writer.deliveries(deliveries(100_000))


def test_a_failure_that_nobody_waits_for_is_raised_by_finish(tmp_path, start, deliveries):
    writer = start()
    shutil.rmtree(tmp_path / "run" / "deliveries")
    writer.deliveries(deliveries(10))
    with pytest.raises(OutputError, match="cannot write the trace"):
        writer.finish(measured_from_ns=0)
    with pytest.raises(TraceError, match="interrupted at"):
        Trace.open(tmp_path / "run")


def test_a_disk_that_fills_at_the_manifest_leaves_the_run_incomplete(tmp_path, start, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = start()
    monkeypatch.setattr("triagemq.trace.writer.write_durably", full)
    with pytest.raises(OutputError, match="No space left on device"):
        writer.finish(measured_from_ns=0)
    assert not (tmp_path / "run" / "manifest.json").exists()
    assert (tmp_path / "run" / "INCOMPLETE").exists()


def test_a_writing_thread_out_of_memory_is_an_error_and_not_a_hang(start, deliveries, monkeypatch):
    def fail(*_, **__):
        raise MemoryError("cannot allocate")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail)
    writer = start(row_group_rows=10, queue_bytes=1000)
    with pytest.raises(TraceError, match="MemoryError: cannot allocate"), writer:
        writer.deliveries(deliveries(100_000))


def test_a_slow_disk_makes_the_producer_wait_within_bounded_memory(tmp_path, start, deliveries, monkeypatch):
    disk_works = threading.Event()
    write_table = pq.ParquetWriter.write_table

    def slow(self, *arguments, **options):
        disk_works.wait()
        write_table(self, *arguments, **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", slow)
    handed_over = []
    with start(row_group_rows=100, queue_bytes=100_000) as writer:

        def produce():
            for call in range(100):
                writer.deliveries(deliveries(1000, first=call * 1000))
                handed_over.append(call)

        producer = threading.Thread(target=produce)
        producer.start()
        time.sleep(0.5)
        stuck_at = len(handed_over)
        waiting_bytes = writer._background.waiting_bytes
        disk_works.set()
        producer.join()
        writer.finish(measured_from_ns=0)
    assert stuck_at < 10
    assert 50_000 < waiting_bytes <= 100_000
    assert Trace.open(tmp_path / "run").table("deliveries").num_rows == 100_000
