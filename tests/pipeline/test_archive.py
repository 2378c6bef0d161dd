"""`triage pipeline archive`: events with their payloads, which expire by age, in a folder of their owner."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pyarrow.dataset as ds
import pytest
import yaml
from pyspark.sql import SparkSession
from tests.gateway.real import Mosquitto

from triagemq.broker.process import find_mosquitto
from triagemq.cli.main import run
from triagemq.errors import OutputError, PipelineError
from triagemq.pipeline import Mapping, Tables
from triagemq.pipeline.archive import ArchiveResult, archive, transform
from triagemq.pipeline.store import Location, TableStore

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
    events = write_log(tmp_path / "log.jsonl", list(range(10, 0, -1)))
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
    assert (said["rows_in"], said["quarantined"], said["reasons"]) == (10, 1, {"missing time": 1})
    rows = sorted(
        ds.dataset(out / "events", format="parquet").to_table().to_pylist(),
        key=lambda row: row["published_ns"],
    )
    assert [(row["published_ns"] // 10**9, row["payload"].decode()) for row in rows] == events
    assert {(row["topic"], row["publisher"]) for row in rows} == {("hall/door", "door-7")}
    assert all(row["size_bytes"] == len(row["payload"]) for row in rows)
    assert all(row["published_at"].timestamp() == row["published_ns"] / 1e9 for row in rows)
    assert len(Tables(out).records("events", where={"topic": "hall/door"})) == 10
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unchanged"] == said["added"]


def test_only_the_owner_enters_a_new_archive(spark: object, tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", [1])
    archive([tmp_path / "log.jsonl"], tmp_path / "kept", mapping=Mapping.model_validate(MAPPING))
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


def test_days_that_are_too_old_are_given_up_and_nothing_else(spark: object, tmp_path: Path) -> None:
    write_log(tmp_path / "log.jsonl", [40, 31, 10, 0])
    out, mapping = tmp_path / "kept", Mapping.model_validate(MAPPING)
    assert archive([tmp_path / "log.jsonl"], out, mapping=mapping).tables["events"] == 4
    (out / "events" / "mine.parquet").write_bytes(b"somebody's own")
    done = archive([tmp_path / "log.jsonl"], out, mapping=mapping, keep_days=30)
    assert (done.expired, done.tables["events"]) == (2, 2)
    assert (out / "events" / "mine.parquet").read_bytes() == b"somebody's own"
    payloads = {row["payload"] for row in Tables(out).records("events")}
    assert payloads == {"10 days ago, äöü", "0 days ago, äöü"}
    assert len(list((out / "events").rglob("part-*.parquet"))) == 2
    again = archive([tmp_path / "log.jsonl"], out, mapping=mapping, keep_days=30)
    assert (again.expired, again.tables["events"]) == (0, 2)


@pytest.mark.parametrize(("hours", "stays"), [(17, True), (19, False)])
def test_only_the_footer_of_the_day_that_is_just_expiring_is_read(
    hours: int, stays: bool, spark: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events at 06:00 and 18:00 of the days 10, 20 and 30, which are given up by what is the hour of day 50."""
    times = [day * DAY + hour * 3600 for day in (20_010, 20_020, 20_030) for hour in (6, 18)]
    rows = [{"tst": at, "topic": "t", "client": "c", "payload": str(at)} for at in times]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    read: list[str] = []
    footer = Location.footer

    def counted(place: Location) -> object:
        read.append(place.path)
        return footer(place)

    def archived(keep_days: int | None) -> ArchiveResult:
        mapping = Mapping.model_validate(MAPPING)
        return archive([tmp_path / "log.jsonl"], tmp_path / "kept", mapping=mapping, keep_days=keep_days)

    archived(None)
    monkeypatch.setattr(Location, "footer", counted)
    monkeypatch.setattr(TableStore, "read", None)
    monkeypatch.setattr("time.time_ns", lambda: (20_050 * DAY + hours * 3600) * 10**9)
    assert archived(30).tables["events"] == (4 if stays else 2)
    assert [path.split("/")[-2] for path in read] == ["run=20020"]


def test_a_day_is_the_work_of_several_tasks(spark: SparkSession) -> None:
    rows = spark.range(0, 4000, 1, 4).selectExpr(
        f"20010 * {DAY} * 1000000000L + id * 40000000000L AS published_ns",
        "'t' AS topic", "'p' AS publisher", "binary('x') AS payload", "1 AS size_bytes",
    )  # fmt: skip
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "4")
    try:
        found = (
            transform(rows, "log").selectExpr("spark_partition_id() AS task", "run", "published_ns").toArrow()
        )
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))
    frame = found.to_pandas()
    assert frame.groupby("task").size().between(500, 1500).all()
    assert frame["task"].nunique() == 4
    assert set(frame["run"]) == {20_010, 20_011}
    assert frame["published_ns"].is_monotonic_increasing, "each task has a stretch of time, in order"


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


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "archive.md"
BINARY = b'\xff\xfe\x80"\\\x00'


@pytest.mark.skipif(
    find_mosquitto() is None or shutil.which("mosquitto_sub") is None,
    reason="needs Mosquitto and its clients (apt install mosquitto mosquitto-clients)",
)
def test_the_recipes_of_the_page_archive_what_the_real_program_writes(spark: object, tmp_path: Path) -> None:
    text = PAGE.read_text()
    recipes = re.findall(r"`(mosquitto_sub [^`]*>> ([^`]*))`", text)
    mappings = [yaml.safe_load(each) for each in re.findall(r"```yaml \S+\n(.*?)```", text, re.DOTALL)]
    broker = Mosquitto(tmp_path / "broker", "log_type all\n")
    # Options of the user's own, as the program looks for them; its clock is not in UTC.
    (tmp_path / "mosquitto_sub").write_text(f"-p {broker.port}\n-V mqttv5\n")
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "TZ": "America/St_Johns"}
    began_ns = time.time_ns()
    recorders = [
        subprocess.Popen(["sh", "-c", f"exec {command}"], cwd=tmp_path, env=environment)
        for command, _ in recipes
    ]
    try:
        while (tmp_path / "broker" / "log").read_text().count("Sending SUBACK") < len(recipes):
            time.sleep(0.02)
        properties = ["user-property a b", "user-property a c", "content-type text/plain"]
        options = [word for each in properties for word in ["-D", "publish", *each.split()]]
        common = ["mosquitto_pub", "-p", str(broker.port), "-V", "mqttv5"]
        for topic, payload, more in [
            ("hall/door", b"open", []),
            ("hall/camera", BINARY, []),
            ("hall/smoke", b'{"level": 0.1}', options),
        ]:
            subprocess.run([*common, "-t", topic, "-s", *more], input=payload, check=True)
        while any((tmp_path / name).read_bytes().count(b"\n") < 3 for _, name in recipes):
            time.sleep(0.02)
    finally:
        for each in recorders:
            each.terminate()
            each.wait()
        broker.end()
    found = []
    for (_, name), mapping in zip(recipes, mappings, strict=True):
        out = tmp_path / f"kept-{name}"
        done = archive([tmp_path / name], out, mapping=Mapping.model_validate(mapping))
        rows = Tables(out).records("events")
        assert all(began_ns <= row["published_ns"] + 1000 <= time.time_ns() for row in rows)
        found.append((done.reasons, {row["topic"]: (str(row["payload"]), row["size_bytes"]) for row in rows}))
    texts = {"hall/door": ("open", 4), "hall/smoke": ('{"level": 0.1}', 14)}
    assert found[0] == ({"not UTF-8": 1}, texts)
    digits = {topic: (text.encode().hex(), size) for topic, (text, size) in texts.items()}
    assert found[1] == ({}, digits | {"hall/camera": (BINARY.hex(), len(BINARY))})
