"""What a trace refuses, and whether it says what to do instead."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from tests.trace.checksums import verify

from triagemq.errors import OutputError, ParameterError, TraceError
from triagemq.trace import Trace, runs


@pytest.fixture
def finished(tmp_path, start, deliveries):
    """A finished run of three delivery files."""
    with start(rotate_rows=10) as writer:
        writer.deliveries(deliveries(25))
        writer.finish(measured_from_ns=0)
    return tmp_path / "run"


def _without(columns, name):
    return {key: value for key, value in columns.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: _without(rows, "topic_id"), "deliveries: .*missing topic_id"),
        (lambda rows: rows | {"colour": rows["topic_id"]}, "unknown colour"),
        (lambda rows: rows | {"topic_id": rows["topic_id"][:-1]}, "unequal length.*'topic_id': 4"),
        (lambda rows: rows | {"topic_id": np.zeros((5, 1), int)}, "topic_id: needs one dimension, has 2"),
        (lambda rows: rows | {"topic_id": np.zeros(5)}, "topic_id: needs whole numbers, is float64"),
        (
            lambda rows: rows | {"topic_id": np.full(5, 2**31)},
            "topic_id: holds 2147483648 to 2147483648; it takes 0 to 2147483647",
        ),
        (lambda rows: rows | {"topic_id": np.full(5, -1)}, "topic_id: holds -1 to -1; it takes 0 to"),
        (
            lambda rows: rows | {"delivered_ns": np.full(5, -2)},
            r"delivered_ns: holds -2 to -2; it takes -1 \(null\)",
        ),
        (lambda rows: rows | {"published_ns": np.full(5, 2**63, np.uint64)}, "published_ns: holds 92233720"),
        (lambda rows: rows | {"outcome": np.full(5, 11)}, "outcome: holds 11 to 11; it takes 0 to 10"),
    ],
)
def test_columns_that_do_not_fit_are_named_and_nothing_of_the_call_is_written(
    tmp_path, start, deliveries, change, message
):
    with start() as writer:
        writer.deliveries(deliveries(5))
        with pytest.raises(TraceError, match=message):
            writer.deliveries(change(deliveries(5, first=5)))
        writer.finish(measured_from_ns=0)
    assert Trace.open(tmp_path / "run").table("deliveries").num_rows == 5


def test_text_columns_take_text_only(start):
    with start() as writer:
        row = {"decided_ns": [1], "kind": ["a"], "subject": ["b"], "before": [None], "after": [""]}
        with pytest.raises(TraceError, match=r"decisions.reason: row 0 is None, not Unicode text"):
            writer.decisions(row | {"reason": [None]})
        with pytest.raises(TraceError, match=r"decisions.reason: row 0 is '.udc80', not Unicode text"):
            writer.decisions(row | {"reason": ["\udc80"]})
        writer.finish(measured_from_ns=0)


def test_hops_need_to_be_asked_for(tmp_path, start):
    with start(tmp_path / "with", with_hops=True) as writer:
        assert writer.with_hops
        writer.finish(measured_from_ns=0)
    with start() as writer:
        assert not writer.with_hops
        with pytest.raises(TraceError, match="with_hops=True"):
            writer.hops({})
        writer.finish(measured_from_ns=0)


@pytest.mark.parametrize("option", ["row_group_rows", "rotate_rows", "rotate_seconds", "queue_bytes"])
def test_options_must_be_positive(tmp_path, start, option):
    with pytest.raises(ParameterError, match=f"{option}: must be positive, is 0"):
        start(**{option: 0})
    assert not (tmp_path / "run").exists()


def test_a_directory_that_is_taken_is_refused_and_left_as_it_was(tmp_path, start, finished):
    with pytest.raises(
        OutputError, match=r"already holds the trace of a run; choose another directory or remove"
    ):
        start()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="exists and is not empty; choose another directory or remove it"):
        start(tmp_path / "other")
    assert os.listdir(tmp_path / "other") == ["notes.txt"]
    with pytest.raises(OutputError, match="a file is there"):
        start(tmp_path / "other" / "notes.txt")
    with pytest.raises(OutputError, match="a file is there"):
        start(tmp_path / "other" / "notes.txt" / "run")
    verify(Trace.open(finished))


def test_an_empty_directory_is_taken_by_one_run_only(tmp_path, start):
    (tmp_path / "run").mkdir()
    with start() as writer:
        with pytest.raises(
            OutputError, match="interrupted or is still going on; choose another directory or remove"
        ):
            start()
        writer.finish(measured_from_ns=0)


def test_a_missing_file_is_noticed(finished):
    (finished / "deliveries" / "part-00001.parquet").unlink()
    with pytest.raises(TraceError, match=r"part-00001.parquet: No such file.*the manifest lists it"):
        Trace.open(finished)


def test_a_file_of_another_size_is_noticed(finished):
    with (finished / "deliveries" / "part-00001.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.raises(TraceError, match=r"part-00001.parquet: has \d+ bytes instead of \d+"):
        Trace.open(finished)


def test_a_file_of_the_same_size_but_other_content_is_noticed_when_it_is_read(finished):
    path = finished / "deliveries" / "part-00002.parquet"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(TraceError, match=r"deliveries: cannot be read"):
        Trace.open(finished).table("deliveries")
    with pytest.raises(TraceError, match=r"deliveries: cannot be read"):
        Trace.open(finished).counts()


def test_a_file_that_the_manifest_does_not_list_is_not_read(finished):
    shutil.copy(
        finished / "deliveries" / "part-00000.parquet", finished / "deliveries" / "part-00009.parquet"
    )
    assert Trace.open(finished).table("deliveries").num_rows == 25


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"schema_version": 1, "tab', "damaged, not JSON"),
        ("[]", "damaged, not a JSON object"),
        ('{"schema_version": 1}', "not a manifest of a trace"),
        ('{"schema_version": 99}', "schema version 99, this program reads 1"),
    ],
)
def test_a_manifest_that_is_not_one_is_refused(finished, content, message):
    (finished / "manifest.json").write_text(content)
    with pytest.raises(TraceError, match=message):
        Trace.open(finished)


def test_a_scenario_that_was_removed_is_named(finished):
    (finished / "scenario.yaml").unlink()
    with pytest.raises(TraceError, match=r"scenario.yaml: cannot be read: No such file"):
        _ = Trace.open(finished).scenario_text


def test_a_place_without_a_trace_is_told_from_an_interrupted_one(tmp_path):
    with pytest.raises(ParameterError, match="no such directory"):
        Trace.open(tmp_path / "nowhere")
    with pytest.raises(TraceError, match="is no trace"):
        Trace.open(tmp_path)
    with pytest.raises(TraceError, match="cannot be read"):
        runs(tmp_path / "nowhere")


def test_a_manifest_takes_only_what_json_holds_and_the_run_is_given_up_otherwise(tmp_path, start):
    for extra in ({"array": np.arange(3)}, {"ratio": float("nan")}):
        with pytest.raises(TraceError, match="only what JSON can hold"), start() as writer:
            writer.finish(measured_from_ns=0, extra=extra)
        assert (
            "only what JSON can hold" in json.loads((tmp_path / "run" / "INCOMPLETE").read_text())["reason"]
        )
        shutil.rmtree(tmp_path / "run")


def test_runs_are_found_and_chosen_by_their_id(tmp_path, start):
    for name in ("b", "a"):
        with start(tmp_path / "all" / name, run_id=f"{name}-run", scenario_text=name) as writer:
            writer.finish(measured_from_ns=0)
    with pytest.raises(RuntimeError), start(tmp_path / "all" / "c", run_id="c-run"):
        raise RuntimeError("no more")
    (tmp_path / "all" / "notes").mkdir()
    found = runs(tmp_path / "all")
    assert [path.name for path in found.complete] == ["a", "b"]
    assert [path.name for path in found.incomplete] == ["c"]
    assert runs(tmp_path / "all" / "a").complete == (tmp_path / "all" / "a",)
    assert Trace.open(tmp_path / "all", run_id="b").scenario_text == "b"
    with pytest.raises(TraceError, match=r"several runs; choose by run_id from: a-run \(a\), b-run \(b\)"):
        Trace.open(tmp_path / "all")
    with pytest.raises(TraceError, match="has no run d"):
        Trace.open(tmp_path / "all", run_id="d")
    with pytest.raises(TraceError, match=r"interrupted at .*RuntimeError: no more"):
        Trace.open(tmp_path / "all", run_id="c")
