"""`triage pipeline stream`: its table is what counting the events one by one gives, whatever happens on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from triagemq.errors import OutputError, ParameterError, PipelineError
from triagemq.pipeline import Tables
from triagemq.pipeline.store import Location, TableStore, current_manifest
from triagemq.pipeline.streaming import StreamResult, stream_pipeline
from triagemq.pipeline.streaming.runs import FoundRun
from triagemq.pipeline.streaming.sources import PublicationsReader
from triagemq.pipeline.streaming.windows import (
    CELLS,
    FOREVER_NS,
    NEVER_NS,
    Packing,
    StreamSettings,
    rates,
    recent,
)
from triagemq.trace import TraceWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000_000
UNIX_NS = 1_760_000_003_210_000_000
SCENARIO = """
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 400000}}
publishers:
  sensor: {publishes: {smoke: {rate_per_second: 20, size_bytes: 60}, heat: {rate_per_second: 9, size_bytes: 90}}}
subscribers: {commander: {port: radio, subscribes: {smoke: log:10, heat: linear:2}}}
"""

HANGS_UP = (
    "import os, socket; "
    'socket.create_connection(("127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"]))).close()'
)

Event = tuple[int, int, int, int]  # publication_id, topic_id, published_ns, size_bytes
Block = Sequence[Event]


def some_blocks(
    seed: int, *, begin_ns: int, blocks: int = 8, rows: int = 150, seconds: float = 3.0
) -> list[Block]:
    """Events that overtake each other by up to 2.5 s, with copies of some of them soon or long after."""
    chance = np.random.default_rng(seed)
    count = blocks * rows
    sent = np.sort(chance.integers(0, int(blocks * seconds * SECOND), count))
    published = begin_ns + np.maximum(0, sent - (chance.random(count) ** 6 * 2.5 * SECOND).astype(np.int64))
    events = [
        (number, int(topic), int(published[number]), int(size))
        for number, (topic, size) in enumerate(
            zip(chance.integers(0, 4, count), chance.integers(40, 400, count), strict=True)
        )
    ]
    for place in chance.choice(np.arange(1, count), count // 20, replace=False):
        events[place] = events[max(0, place - int(chance.integers(1, 3 * rows)))]
    return [events[place : place + rows] for place in range(0, count, rows)]


def write_blocks(directory: Path, blocks: Sequence[Block], *, run_id: str, finish: bool = True) -> Path:
    """A trace with one part for each block."""
    writer = TraceWriter(
        directory,
        scenario_text=SCENARIO,
        plan_text=None,
        producer="test",
        run_id=run_id,
        rotate_rows=len(blocks[0]),
    )
    for block in blocks:
        publish(writer, block)
    if finish:
        writer.finish(measured_from_ns=0)
    return directory


def publish(writer: TraceWriter, events: Block) -> None:
    ids, topics, published, sizes = zip(*events, strict=True)
    columns = {"publication_id": ids, "topic_id": topics, "published_ns": published, "size_bytes": sizes}
    writer.publications({**columns, "publisher_id": [0] * len(events)})


def counted_one_by_one(
    blocks: Sequence[Block], window: float, slide: float, watermark: float
) -> tuple[dict[tuple[int, float, int], dict[str, Any]], dict[int, list[int]]]:
    """Windows by topic, length and beginning, and counts by topic, straight from the definitions."""
    # Whole nanoseconds throughout: a float of this size is off by a hundred of them.
    latest, known = -(10**18), dict[tuple[int, int], int]()
    counters: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
    members: dict[tuple[int, float, int], list[Event]] = defaultdict(list)
    for block in blocks:
        mark = latest - round(watermark * SECOND)
        for event in block:
            number, topic, published, _ = event
            if published < mark:
                counters[topic][1] += 1
            elif (topic, number) in known and known[topic, number] >= mark:
                counters[topic][2] += 1
            else:
                counters[topic][0] += 1
                known[topic, number] = published
                for place in windows_around(published, window, slide) | windows_around(published, 10.0, 10.0):
                    members[topic, *place].append(event)
        latest = max(latest, *(event[2] for event in block))
    return {key: figures(key, events) for key, events in members.items()}, dict(counters)


def windows_around(published: int, length: float, step: float) -> set[tuple[float, int]]:
    last = published // round(step * SECOND) * round(step * SECOND)
    starts = range(last, published - round(length * SECOND), -round(step * SECOND))
    return {(length, start) for start in starts if start >= 0}


def figures(key: tuple[int, float, int], events: list[Event]) -> dict[str, Any]:
    _, length, start = key
    size = sum(event[3] for event in events)
    row = {
        "publications": len(events),
        "rate_per_second": len(events) / length,
        "bytes": size,
        "bytes_per_second": size / length,
        "index_of_dispersion": None,
        "ca2": None,
    }
    if length == 10.0 and start % (10 * SECOND) == 0:
        times = np.sort([event[2] for event in events])
        counts = np.bincount((times - start) // (SECOND // 5), minlength=50)
        row["index_of_dispersion"] = counts.var(ddof=1) / counts.mean()
        gaps = np.diff(times) * 1e-9
        if len(times) >= 3 and gaps.sum() > 0:
            row["ca2"] = (gaps**2).mean() / gaps.mean() ** 2 - 1
    return row


def assert_table_is(found: pa.Table, expected: dict[tuple[int, float, int], dict[str, Any]]) -> None:
    rows = found.to_pylist()
    keys = [(row["topic_id"], row["window_seconds"], row["window_start_ns"]) for row in rows]
    assert sorted(keys) == sorted(expected)
    for key, row in zip(keys, rows, strict=True):
        for name, value in expected[key].items():
            assert row[name] == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-9)), (
                key,
                name,
            )
        assert row["topic"] == ("heat", "smoke", None, None)[key[0]]


def assert_counters_are(out: Path, expected: dict[int, list[int]]) -> None:
    (run,) = Tables(out).manifest.runs.values()
    found = [run.rows_in, run.reasons["late"], run.reasons["duplicate"]]
    assert found == [sum(counts) for counts in zip(*expected.values(), strict=True)]


def stream(source: Path, out: Path, **options: Any) -> StreamResult:
    return stream_pipeline(source, out, **{"once": True, **options})


# --- without Spark


def test_a_directory_with_something_else_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    with TableStore.open(tmp_path / "tables", kind="run"):
        pass
    with pytest.raises(OutputError, match="pipeline run"):
        stream_pipeline(tmp_path / "source", tmp_path / "tables")
    with TableStore.open(tmp_path / "other", kind="stream") as store:
        begun = {"settings": asdict(StreamSettings("elsewhere")), "runs": {}}
        store.publish({}, extra=begun)
    with pytest.raises(PipelineError, match="another version of triage has begun it"):
        stream_pipeline(tmp_path / "source", tmp_path / "other")
    with TableStore.open(tmp_path / "other", kind="stream") as store:
        store.publish({}, extra=begun | {"cells": CELLS})
    with pytest.raises(PipelineError, match="with source elsewhere; go on with that"):
        stream_pipeline(tmp_path / "source", tmp_path / "other")
    with pytest.raises(ParameterError, match="no such"):
        stream_pipeline(tmp_path / "missing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"window_seconds": 2.5, "slide_seconds": 1.0}, "slide_seconds"),
        ({"window_seconds": 0}, "window_seconds"),
        ({"watermark_seconds": -1}, "watermark_seconds"),
        ({"slide_seconds": 0.0001}, "slide_seconds"),
        ({"trigger_seconds": 0}, "trigger_seconds"),
    ],
)
def test_impossible_options_are_named(tmp_path: Path, options: dict[str, Any], parameter: str) -> None:
    (tmp_path / "source").mkdir()
    with pytest.raises(ParameterError) as raised:
        stream_pipeline(tmp_path / "source", tmp_path / "out", **options)
    assert raised.value.parameter == parameter


# --- with Spark


@pytest.mark.parametrize(
    ("begin_ns", "lengths", "watermark"),
    [(UNIX_NS, (1.5, 0.5), 0.7), (0, (10.0, 5.0), 2.0), (7 * SECOND, (0.6, 0.3), 0.0)],
)
def test_every_window_closes_once_wherever_the_watermark_stops(
    spark: SparkSession, begin_ns: int, lengths: tuple[float, float], watermark: float
) -> None:
    from triagemq.pipeline.streaming.queries import cells

    blocks = some_blocks(4, begin_ns=begin_ns, rows=25)
    how = StreamSettings("x", *lengths, watermark)
    packing, earlier_ns, rows = Packing(how.cell_ns, how.delay_ns, ("heat", "smoke")), NEVER_NS, []
    for block in blocks:
        ids, topics, published, sizes = (np.array(values) for values in zip(*block, strict=True))
        rows.append(packing.packed(topics, ids, published, sizes, earlier_ns=earlier_ns))
        earlier_ns = max(earlier_ns, int(published.max()))
    # In any order and in any batches: a cell is the same.
    random.Random(len(rows)).shuffle(rows)
    made = cells(spark.createDataFrame(pa.Table.from_batches(rows)), how).toArrow()
    # A batch closes as many cells as the watermark has passed; until then none is.
    marks = [
        (begin_ns + offset * SECOND // 10) // how.cell_ns * how.cell_ns for offset in (37, 101, 102, 160)
    ]
    stops = sorted(mark if mark > 0 else NEVER_NS for mark in marks)
    found, kept = [], made
    for before, now in pairwise([NEVER_NS, *stops, FOREVER_NS]):
        found.append(rates(kept, "one", how, before, now))
        kept = recent(kept, how, now) if now < FOREVER_NS else kept
    expected, counted = counted_one_by_one(blocks, *lengths, watermark)
    assert_table_is(pa.concat_tables(found), expected)
    names = ("events", "late", "duplicates")
    totals = made.group_by("topic_id").aggregate([(name, "sum") for name in names]).to_pylist()
    assert {row["topic_id"]: [row[f"{name}_sum"] for name in names] for row in totals} == counted


def test_a_batch_is_published_once_and_many_have_few_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triagemq.pipeline.streaming import queries

    monkeypatch.setattr("triagemq.pipeline.store.store.MERGED_AT_ONCE", 4)
    how = StreamSettings("x")
    new = {"number": 0, "batch": -1, "closed_ns": NEVER_NS, "cells": []}
    with TableStore.open(tmp_path / "out", kind="stream") as store:
        store.publish({}, extra={"settings": asdict(how), "runs": {"one": new}})
        store.begin()
        taken = queries.RunQuery(store, how, FoundRun("one", "x", "publications", {}), 0, None)
        for batch in range(8):
            starts = [second * SECOND for second in (2 * batch, 2 * batch + 1)]
            rows = [(0, "heat", 1, 0, 0, start, 10, [start]) for start in starts]
            cells = spark.createDataFrame(rows, CELLS)
            taken(cells, batch)
            if batch % 4 == 0:
                taken(cells, batch)
            assert len(list((tmp_path / "out" / "topic_rates").rglob("*.parquet"))) <= 7
            assert len(list((tmp_path / "out" / "_cells").rglob("*.parquet"))) <= 1
    found = Tables(tmp_path / "out").table("topic_rates").to_pylist()
    sliding = [(row["window_start_ns"], row["publications"]) for row in found if row["window_seconds"] == 2]
    assert sliding == [(second * SECOND, 2) for second in range(15)]
    assert [row["publications"] for row in found if row["window_seconds"] == 10] == [10]
    assert_counters_are(tmp_path / "out", {0: [16, 0, 0]})


@pytest.fixture(scope="module")
def blocks() -> list[Block]:
    return some_blocks(5, begin_ns=UNIX_NS)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, blocks: list[Block]) -> Path:
    return write_blocks(tmp_path_factory.mktemp("live") / "run", blocks, run_id="one")


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    stream(source, out)
    return out


def test_the_table_is_what_counting_one_by_one_gives(undisturbed: Path, blocks: list[Block]) -> None:
    expected, counters = counted_one_by_one(blocks, 2.0, 1.0, 2.0)
    assert sum(late for _, late, _ in counters.values()) > 0
    assert sum(duplicates for _, _, duplicates in counters.values()) > 0
    assert_table_is(Tables(undisturbed).table("topic_rates"), expected)
    assert_counters_are(undisturbed, counters)
    assert Tables(undisturbed).rows == {"topic_rates": len(expected)}


def test_batches_of_one_block_give_the_same_table(
    spark: SparkSession,
    source: Path,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("triagemq.pipeline.streaming.queries.MOST_ROWS", 1)
    done = stream(source, tmp_path / "out")
    assert done.batches >= 8
    assert Tables(tmp_path / "out").table("topic_rates").equals(Tables(undisturbed).table("topic_rates"))
    again = stream(source, tmp_path / "out")
    assert (again.events, again.windows) == (0, 0)
    assert again.runs == done.runs


@pytest.mark.parametrize(
    "instead",
    [
        pytest.param("exec sleep 60", marks=pytest.mark.slow, id="late"),
        pytest.param(f"exec {sys.executable} -c '{HANGS_UP}'", id="hung-up"),
    ],
)
def test_a_machine_too_busy_to_begin_in_ten_seconds_begins_again(
    spark: SparkSession,
    source: Path,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    instead: str,
) -> None:
    begun, python = tmp_path / "begun", tmp_path / "python"
    # The first process that looks for news is not there in the time that Spark gives it, or gives up by itself.
    slow = f'case "$*" in *source_runner*) mkdir {begun} 2>/dev/null && {instead};; esac'
    python.write_text(f'#!/bin/sh\n{slow}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    stream(source, tmp_path / "out")
    assert begun.exists()
    assert Tables(tmp_path / "out").table("topic_rates").equals(Tables(undisturbed).table("topic_rates"))


def test_streams_follow_one_another_in_one_process(
    spark: SparkSession, source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        # As somebody does who knows of no session.
        stream_pipeline(source, tmp_path / name, once=True)
        assert spark.getActiveSession() is spark, (
            "what a stream sets for itself is not for who comes after it"
        )
        assert Tables(tmp_path / name).table("topic_rates").equals(Tables(undisturbed).table("topic_rates"))


def test_long_windows_equal_those_of_the_batch_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    from triagemq.pipeline.tables.topic_rates import transform

    blocks = [
        sorted(set(block), key=lambda event: event[2]) for block in some_blocks(6, begin_ns=0, blocks=1)
    ]
    write_blocks(tmp_path / "run", blocks, run_id="ordered")
    stream(tmp_path / "run", tmp_path / "out")
    publications = spark.read.parquet(str(tmp_path / "run" / "publications"))
    batch = transform(publications.selectExpr("*", "0 AS run", "true AS measured"))
    expected = {
        (row["topic_id"], row["window_start_ns"]): row
        for row in batch.toArrow().to_pylist()
        if row["window_seconds"] == 10
    }
    found = [
        row
        for row in Tables(tmp_path / "out").table("topic_rates").to_pylist()
        if row["window_seconds"] == 10
    ]
    assert {(row["topic_id"], row["window_start_ns"]) for row in found} == set(expected)
    for row in found:
        other = expected[row["topic_id"], row["window_start_ns"]]
        for name, value in row.items():
            if name not in ("run_id", "topic"):
                assert other[name] == value, name  # to the last bit


def test_runs_that_go_on_and_runs_that_appear_have_their_own_clocks(
    spark: SparkSession, tmp_path: Path
) -> None:
    live, simulated = some_blocks(7, begin_ns=UNIX_NS, blocks=4), some_blocks(8, begin_ns=0, blocks=3)
    root, out = tmp_path / "runs with a space", tmp_path / "out"
    root.mkdir()
    assert stream(root, out).events == 0
    writer = TraceWriter(
        root / "live",
        scenario_text=SCENARIO,
        plan_text=None,
        producer="test",
        run_id="live",
        rotate_seconds=0.1,
    )

    def produce() -> None:
        for block in live:
            publish(writer, block)
            time.sleep(0.3)
        write_blocks(root / "simulated", simulated, run_id="simulated")

    producer = threading.Thread(target=produce)
    producer.start()
    stream(root, out, once=False, until_idle_seconds=1.5, trigger_seconds=0.2)
    producer.join()
    both = {"live": live, "simulated": simulated}
    expected = {run: counted_one_by_one(blocks, 2.0, 1.0, 2.0)[0] for run, blocks in both.items()}
    table = Tables(out).table("topic_rates")
    assert_table_is(table.filter(pa.compute.equal(table["run_id"], "simulated")), expected["simulated"])
    # What the watermark has not passed may still change, as long as the run has not finished.
    passed = max(event[2] for block in live for event in block) - 2 * SECOND
    there = {
        (row["window_seconds"], row["window_start_ns"])
        for row in table.to_pylist()
        if row["run_id"] == "live"
    }
    assert there
    assert max(start + length * SECOND for length, start in there) <= passed
    writer.finish(measured_from_ns=0)
    stream(root, out)
    table = Tables(out).table("topic_rates")
    assert_table_is(table.filter(pa.compute.equal(table["run_id"], "live")), expected["live"])


def test_parts_that_were_removed_are_passed_over_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = some_blocks(3, begin_ns=UNIX_NS, blocks=5, rows=10)
    run = write_blocks(tmp_path / "run", blocks, run_id="kept")
    reader = PublicationsReader(run.as_uri(), 1000, Packing(SECOND, SECOND))
    before = reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    reader.commit(before)
    for number in (1, 2):
        (run / "publications" / f"part-{number:05d}.parquet").unlink()
    after = reader.latestOffset(before, ReadMaxRows(1000))
    assert (before["part"], before["events"]) == (1, 10)
    assert (after["part"], after["events"]) == (5, 30)
    assert capsys.readouterr().err == f"{run}: parts 1 to 2 were removed before they were read\n"


COMMAND = "import typer; from triagemq.cli.pipeline import stream; typer.run(stream)"
QUICK = ["--master", "local[1]", "--conf", "spark.sql.codegen.wholeStage=false", "--trigger", "0.05"]


def start(source: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    # Its own group: what the command started dies with it here, as it would when a machine goes down.
    command = [sys.executable, "-c", COMMAND, str(source), "--out", str(out), *QUICK, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def version_of(out: Path) -> int:
    """Of what a stream has committed; to take the directory, or to find a run, is no commit."""
    manifest = current_manifest(Location(out))
    return 0 if manifest is None or not manifest.runs else manifest.version


def wait_for_commits(process: subprocess.Popen[str], out: Path, commits: int) -> None:
    wanted = version_of(out) + commits
    while version_of(out) < wanted and process.poll() is None:
        time.sleep(0.01)


def test_asked_to_stop_it_commits_its_batch_and_ends_well(
    source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(source, out, "--json")
    wait_for_commits(process, out, 1)
    os.killpg(process.pid, signal.SIGINT)
    answer, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    done = json.loads(answer)
    assert done["events"] == 1200
    assert done["runs"]["one"]["events"] < 1200
    assert Tables(out).table("topic_rates").equals(Tables(undisturbed).table("topic_rates"))
    assert not (out / "_work").exists()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_the_table_after_kills_is_that_of_an_undisturbed_stream(
    spark: SparkSession, times: int, tmp_path: Path
) -> None:
    out, root = tmp_path / "out", tmp_path / "run"
    blocks = some_blocks(9, begin_ns=UNIX_NS, blocks=40, rows=40)
    writer = TraceWriter(
        root,
        scenario_text=SCENARIO,
        plan_text=None,
        producer="test",
        run_id="killed",
        rotate_rows=len(blocks[0]),
    )
    chance = random.Random(times)
    share = len(blocks) // times
    for number in range(times):
        for block in blocks[number * share : (number + 1) * share]:
            publish(writer, block)
        process = start(root, out)
        if number % 2 == 0:
            wait_for_commits(process, out, 1)
        time.sleep(chance.uniform(0, 0.4 if number % 2 == 0 else 10))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if list(out.glob("manifest-*")):
            Tables(out).table("topic_rates")
    for block in blocks[times * share :]:
        publish(writer, block)
    writer.finish(measured_from_ns=0)
    stream(root, out)
    expected, counters = counted_one_by_one(blocks, 2.0, 1.0, 2.0)
    assert_table_is(Tables(out).table("topic_rates"), expected)
    assert_counters_are(out, counters)
    listed = {file.name for table in Tables(out).rows for file in Tables(out).manifest.files(table)}
    assert listed == {str(path.relative_to(out)) for path in out.glob("[!_]*/*/*/*.parquet")}
