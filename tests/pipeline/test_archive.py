"""`triage pipeline archive`: events with their payloads, given up by age, for whoever may enter the folder."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from triagemq.cli.main import run
from triagemq.errors import OutputError, PipelineError
from triagemq.pipeline import Mapping, Tables
from triagemq.pipeline.archive import archive

DAY = 86_400
MAPPING = {
    "time": {"column": "tst", "unit": "s"},
    "topic": "{topic}",
    "publisher": "{client}",
    "value": "payload",
}


def write_log(path: Path, days_ago: list[int]) -> list[tuple[int, str]]:
    """One event on each of these days, and one without a time."""
    now = int(time.time())
    events = [(now - days * DAY, f"{days} days ago, äöü") for days in days_ago]
    rows = [
        {"tst": at, "topic": "hall/door", "client": "door-7", "payload": payload} for at, payload in events
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"topic": "hall/door"}]))
    return events


def test_events_are_kept_with_their_octets_and_read_by_any_parquet_tool(
    spark: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = write_log(tmp_path / "log.jsonl", [3, 2, 1])
    (tmp_path / "mapping.yaml").write_text(json.dumps(MAPPING))
    out = tmp_path / "kept"
    arguments = [
        "pipeline",
        "archive",
        str(tmp_path / "log.jsonl"),
        "--out",
        str(out),
        "--mapping",
        str(tmp_path / "mapping.yaml"),
    ]
    assert run([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows_in"], said["quarantined"], said["reasons"]) == (3, 1, {"missing time": 1})
    rows = sorted(
        ds.dataset(out / "events", format="parquet").to_table().to_pylist(),
        key=lambda row: row["published_ns"],
    )
    assert [(row["published_ns"] // 10**9, row["payload"].decode()) for row in rows] == events
    assert {(row["topic"], row["publisher"]) for row in rows} == {("hall/door", "door-7")}
    assert all(row["size_bytes"] == len(row["payload"]) for row in rows)
    assert all(row["published_at"].timestamp() == row["published_ns"] / 1e9 for row in rows)
    assert len(Tables(out).records("events", where={"topic": "hall/door"})) == 3
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unchanged"] == [str(tmp_path / "log.jsonl")]


def test_only_the_owner_enters_a_new_archive(spark: object, tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", [1])
    archive([tmp_path / "log.jsonl"], tmp_path / "kept", mapping=Mapping.model_validate(MAPPING))
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


def test_days_that_are_too_old_are_given_up_and_nothing_else(spark: object, tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", [40, 31, 10, 0])
    out, mapping = tmp_path / "kept", Mapping.model_validate(MAPPING)
    assert archive([tmp_path / "log.jsonl"], out, mapping=mapping).events == 4
    (out / "events" / "mine.parquet").write_bytes(b"somebody's own")
    done = archive([tmp_path / "log.jsonl"], out, mapping=mapping, keep_days=30)
    assert (done.expired, done.events) == (2, 2)
    assert (out / "events" / "mine.parquet").read_bytes() == b"somebody's own"
    payloads = {row["payload"] for row in Tables(out).records("events")}
    assert payloads == {"10 days ago, äöü", "0 days ago, äöü"}
    assert len(list((out / "events").rglob("part-*.parquet"))) == 2
    again = archive([tmp_path / "log.jsonl"], out, mapping=mapping, keep_days=30)
    assert (again.expired, again.events) == (0, 2)


def test_what_has_no_payloads_is_refused_with_a_way_to_get_them(trace: Path, tmp_path: Path) -> None:
    mapping = Mapping.model_validate(MAPPING)
    with pytest.raises(PipelineError, match="how large events were and not what was in them"):
        archive([trace], tmp_path / "out", mapping=mapping)
    write_log(tmp_path / "log.jsonl", [1])
    sizes = Mapping.model_validate(MAPPING | {"value": None, "size_bytes": 7})
    with pytest.raises(PipelineError, match="add value: COLUMN"):
        archive([tmp_path / "log.jsonl"], tmp_path / "out", mapping=sizes)
    assert not (tmp_path / "out").exists()


def test_tables_and_archives_have_directories_of_their_own(tables: Tables, tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", [1])
    with pytest.raises(OutputError, match="holds tables of `triage pipeline run`"):
        archive([tmp_path / "log.jsonl"], tables.place, mapping=Mapping.model_validate(MAPPING))
