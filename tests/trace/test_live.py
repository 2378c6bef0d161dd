"""A run that is watched while it lasts: files appear by age and by rows, each of them whole."""

from __future__ import annotations

import threading
import time

import pyarrow.parquet as pq

from triagemq.trace import Trace


def _visible_rows(run):
    return Trace.open(run, allow_incomplete=True).table("deliveries").num_rows


def test_rows_become_visible_by_age_without_further_rows(tmp_path, start, deliveries):
    run = tmp_path / "run"
    with start(rotate_seconds=0.2) as writer:
        for round_number in (1, 2):
            writer.deliveries(deliveries(10))
            end = time.monotonic() + 30
            while _visible_rows(run) < 10 * round_number and time.monotonic() < end:
                time.sleep(0.02)
            assert _visible_rows(run) == 10 * round_number
        live = Trace.open(run, allow_incomplete=True)
        assert (live.manifest, live.run_id) == (None, writer.run_id)
        assert live.scenario_text == "topics: []\n"
        writer.finish(measured_from_ns=0)
    trace = Trace.open(run)
    assert trace.manifest is not None
    assert len(trace.parts["deliveries"]) == 2
    assert live.table("deliveries").num_rows == 20


def test_young_rows_are_not_shown_one_file_per_call(tmp_path, start, deliveries):
    with start(rotate_seconds=3600) as writer:
        for call in range(20):
            writer.deliveries(deliveries(5, first=call * 5))
        writer.finish(measured_from_ns=0)
    assert [part.rows for part in Trace.open(tmp_path / "run").manifest.tables["deliveries"]] == [100]


def test_a_reader_that_polls_a_live_directory_only_ever_sees_whole_files(tmp_path, start, deliveries):
    table = tmp_path / "run" / "deliveries"
    seen: dict[str, int] = {}
    problems: list[Exception] = []
    over = threading.Event()

    def poll():
        while not over.is_set():
            for path in table.glob("*.parquet"):
                # `glob` shows hidden files too, unlike Spark and the shell.
                if path.name.startswith(".") or path.name in seen:
                    continue
                try:
                    seen[path.name] = pq.read_table(path).num_rows
                except Exception as problem:
                    problems.append(problem)

    with start(row_group_rows=500, rotate_rows=2000, rotate_seconds=0.05) as writer:
        reader = threading.Thread(target=poll)
        reader.start()
        end = time.monotonic() + 2
        calls = 0
        while time.monotonic() < end:
            writer.deliveries(deliveries(700, first=calls * 700))
            calls += 1
            time.sleep(0.002)
        writer.finish(measured_from_ns=0)
        over.set()
        reader.join()
    assert not problems
    listed = {
        part.name.split("/")[1]: part.rows
        for part in Trace.open(tmp_path / "run").manifest.tables["deliveries"]
    }
    assert len(seen) > 20
    assert seen.items() <= listed.items()
    assert sum(listed.values()) == calls * 700


def test_several_threads_may_write_one_trace(tmp_path, start, deliveries):
    with start(row_group_rows=64, queue_bytes=50_000) as writer:

        def produce(first):
            for call in range(20):
                writer.deliveries(deliveries(50, first=first + call * 50))

        producers = [threading.Thread(target=produce, args=(number * 1000,)) for number in range(4)]
        for producer in producers:
            producer.start()
        for producer in producers:
            producer.join()
        writer.finish(measured_from_ns=0)
    ids = Trace.open(tmp_path / "run").table("deliveries")["publication_id"].to_pylist()
    assert sorted(ids) == list(range(4000))
