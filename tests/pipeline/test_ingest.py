"""Foreign logs: what becomes of good rows, and that every bad one is set aside with its reason and its line."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triagemq.cli.main import run
from triagemq.errors import PipelineError, TraceError
from triagemq.pipeline import Mapping, Tables, ingest, load_mapping, run_pipeline

DATA = Path(__file__).parent / "data"
NARROW = {
    "time": {"column": "time"},
    "topic": "building/{room}",
    "value": "reading",
    "size_bytes": {"column": "size"},
    "publisher": "{device}",
    "numbers": True,
    "topics": [f"building/{room}" for room in range(8)],
}
NAMES = ["time", "room", "device", "reading", "size"]
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)

Damage = Callable[[list[str], int], list[str] | bytes]


def row(number: int) -> list[str]:
    moment = BEGIN + timedelta(seconds=number)
    return [
        f"{moment:%Y-%m-%dT%H:%M:%S}",
        str(number % 8),
        f"dev-{number % 3}",
        str(20 + number % 5),
        str(40 + number % 9),
    ]


def as_csv(cells: list[str]) -> bytes:
    return ",".join(cells).encode()


def as_json(cells: list[str]) -> bytes:
    return json.dumps(dict(zip(NAMES, cells, strict=True))).encode()


def replaced(place: int, *texts: str) -> Damage:
    return lambda cells, number: [*cells[:place], texts[number % len(texts)], *cells[place + 1 :]]


# Every way to damage a row, by the reason that must be found for it.
DAMAGES: list[tuple[str, Damage]] = [
    ("unparseable time", replaced(0, "yesterday at noon", "2026-13-45T99:00:00")),
    ("missing time", replaced(0, "")),
    ("time out of range", replaced(0, "1815-06-18T11:35:00")),
    ("unknown topic", replaced(1, "attic")),
    ("missing topic", replaced(1, " ")),
    ("invalid topic", replaced(1, "hall/#", "+")),
    ("missing publisher", replaced(2, "")),
    ("missing value", replaced(3, "")),
    ("value is not a number", replaced(3, "warm")),
    ("value is not finite", replaced(3, "NaN", "inf", "-Infinity", "1e999")),
    ("missing size", replaced(4, " ")),
    ("unparseable size", replaced(4, "big", "12.5", "0x10")),
    ("negative size", replaced(4, "-5")),
    ("absurd size", replaced(4, "99999999999")),
    ("duplicate", lambda _, number: row(number - 3)),
    ("clock going backwards", lambda _, number: [row(number - 300)[0], *row(number)[1:]]),
]
CSV_DAMAGES: list[tuple[str, Damage]] = [
    ("wrong number of columns", lambda cells, _: as_csv(cells[:3])),
    ("wrong number of columns", lambda cells, _: as_csv([*cells, "more"])),
    ("not UTF-8", lambda cells, _: as_csv(cells[:3]) + b",\xff\xfe," + cells[4].encode()),
]
JSON_DAMAGES: list[tuple[str, Damage]] = [
    ("not JSON", lambda cells, _: as_json(cells)[:-4]),
    ("not JSON", lambda cells, _: json.dumps(cells).encode()),
    ("not JSON", lambda cells, _: as_csv(cells)),
    ("not UTF-8", lambda cells, _: as_json(cells).replace(b"dev", b"\xff\xfe")),
]
FORMATS = {"csv": (as_csv, DAMAGES + CSV_DAMAGES), "jsonl": (as_json, DAMAGES + JSON_DAMAGES)}


def write_log(path: Path, rows: int, every: int) -> Counter[str]:
    """A log in which every so many rows one is damaged, in each way in turn; returns how often each reason."""
    damaged: Counter[str] = Counter()
    as_line, ways = FORMATS[path.suffix[1:]]
    with path.open("wb") as file:
        file.write(as_csv(NAMES) + b"\n" if as_line is as_csv else b"")
        for number in range(rows):
            line: list[str] | bytes = row(number)
            if number > 400 and number % every == 0:
                reason, damage = ways[damaged.total() % len(ways)]
                line = damage(row(number), number)
                damaged[reason] += 1
            file.write((line if isinstance(line, bytes) else as_line(line)) + b"\n")
    return damaged


@pytest.mark.parametrize("kind", FORMATS)
def test_every_kind_of_damage_is_counted_named_and_kept_with_its_line(
    kind: str, spark: object, tmp_path: Path
) -> None:
    log = tmp_path / f"log.{kind}"
    damaged = write_log(log, 3000, 40)
    assert set(damaged) == {reason for reason, _ in FORMATS[kind][1]}
    done = run_pipeline([log], tmp_path / "out", mapping=Mapping.model_validate(NARROW))
    assert done.reasons == dict(sorted(damaged.items()))
    assert done.rows_read == 3000 == done.rows_in + done.quarantined
    tables = Tables(tmp_path / "out")
    assert tables.rows["publications"] == done.rows_in
    lines = log.read_bytes().split(b"\n")
    for bad in tables.records("quarantine"):
        assert bad["source"].endswith(f"log.{kind}")
        assert bad["raw"] == lines[bad["line"] - 1].decode("utf-8", errors="replace")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_million_rows_with_five_percent_damaged_add_up(kind: str, tmp_path: Path) -> None:
    log, mapping, out = tmp_path / f"log.{kind}", tmp_path / "mapping.yaml", tmp_path / "out"
    damaged = write_log(log, 1_000_000, 20)
    mapping.write_text(json.dumps(NARROW))
    command = "from triagemq.cli import main; main()"
    arguments = ["pipeline", "run", str(log), "--mapping", str(mapping), "--out", str(out), "--json"]
    ran = subprocess.run([sys.executable, "-c", command, *arguments], stdout=subprocess.PIPE, check=True)
    done = json.loads(ran.stdout)
    assert len(damaged) >= 10
    assert damaged.total() == pytest.approx(50_000, rel=0.001)
    assert done["reasons"] == dict(sorted(damaged.items()))
    assert done["rows_read"] == 1_000_000 == done["rows_in"] + done["quarantined"]
    assert (done["tables"]["publications"], done["tables"]["quarantine"]) == (
        done["rows_in"],
        done["quarantined"],
    )


def test_csv_json_lines_and_parquet_of_the_same_rows_give_the_same_publications(
    spark: object, tmp_path: Path
) -> None:
    rows = [dict(zip(NAMES, row(number), strict=True)) for number in range(300)]
    (tmp_path / "csv").mkdir()
    for part in range(3):
        chosen = rows[part * 100 : part * 100 + 100]
        text = "\n".join([",".join(NAMES), *(",".join(each.values()) for each in chosen)]) + "\n"
        if part == 1:
            (tmp_path / "csv" / f"part-{part}.csv.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (tmp_path / "csv" / f"part-{part}.csv").write_text(text.replace("\n", "\r\n"))
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows) + "{broken\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    done = run_pipeline(
        [tmp_path / "csv", tmp_path / "log.jsonl", tmp_path / "log.parquet"],
        tmp_path / "out",
        mapping=Mapping.model_validate(NARROW),
    )
    assert (done.rows_in, done.reasons) == (900, {"not JSON": 1})
    tables = Tables(tmp_path / "out")
    found = []
    for run_id in tables.manifest.runs:
        published = tables.records("publications", run_id=run_id)
        assert len({each["publication_id"] for each in published}) == 300
        keys = ("topic_id", "topic", "publisher_id", "publisher", "published_ns", "size_bytes")
        found.append(sorted(tuple(each[key] for key in keys) for each in published))
    assert found[0] == found[1] == found[2]
    first = int(BEGIN.timestamp()) * 10**9
    assert min(each[4] for each in found[0]) == first


def test_a_wide_log_whose_header_lacks_a_name_becomes_one_topic_a_column(
    spark: object, tmp_path: Path
) -> None:
    (tmp_path / "mapping.yaml").write_text(
        "time: {column: date, format: 'yyyy-MM-dd HH:mm:ss'}\n"
        "topic: office/{column}\n"
        "values: [Temperature, Humidity, Light, CO2, HumidityRatio, Occupancy]\n"
        "publisher: office\n"
    )
    done = run_pipeline(
        [DATA / "occupancy.txt"], tmp_path / "out", mapping=load_mapping(tmp_path / "mapping.yaml")
    )
    assert (done.rows_read, done.rows_in, done.quarantined) == (200, 200, 0)
    tables = Tables(tmp_path / "out")
    assert tables.rows["publications"] == 1200
    first = tables.records("publications", where={"topic": "office/CO2"}, limit=1)[0]
    assert first["published_ns"] == int(datetime(2015, 2, 4, 17, 51, tzinfo=UTC).timestamp()) * 10**9
    assert first["size_bytes"] == len("721.25")
    profile = tables.records("publication_profile", where={"topic": "office/Light"})[0]
    assert profile["rate_per_second"] == pytest.approx(1 / 60, rel=0.01)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("topic: a\nvalue: v\n", "time: Field required"),
        ("time: t\ntopic: a\nvalue: v\nvalues: [x]\n", "both value and values"),
        ("time: t\ntopic: a\nvalues: [x]\n", "must hold {column}"),
        ("time: {column: t, unit: s, format: y}\ntopic: a\nvalue: v\n", "keep one"),
        ("time: t\ntopic: a\nvalue: v\ncolour: red\n", "colour"),
        ("time: [", "is not YAML"),
    ],
)
def test_a_wrong_mapping_is_refused_with_its_field(mapping: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mapping.yaml").write_text(mapping)
    with pytest.raises(PipelineError) as refused:
        load_mapping(tmp_path / "mapping.yaml")
    assert message in str(refused.value)
    assert refused.value.exit_code == 2


def test_a_log_without_the_columns_of_the_mapping_is_refused_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("when,what\n1,2\n")
    mapping = Mapping.model_validate({"time": {"column": "time"}, "topic": "a", "value": "what"})
    with pytest.raises(PipelineError, match="has no column time, which the mapping names; it has when, what"):
        run_pipeline([tmp_path / "log.csv"], tmp_path / "out", mapping=mapping)
    with pytest.raises(PipelineError, match="--mapping"):
        run_pipeline([tmp_path / "log.csv"], tmp_path / "out")


@pytest.mark.parametrize(
    ("unit", "text", "nanoseconds"),
    [
        ("s", "1423072260.123456789", 1423072260123456789),
        ("ms", "1423072260123", 1423072260123000000),
        ("ns", "1423072260123456789", 1423072260123456789),
    ],
)
def test_numbers_since_1970_keep_their_nanoseconds(
    unit: str, text: str, nanoseconds: int, spark: Any
) -> None:
    from triagemq.pipeline.ingest import published_ns

    mapping = Mapping.model_validate({"time": {"column": "t", "unit": unit}, "topic": "a", "value": "v"})
    fields = spark.createDataFrame([({"t": text},)], "fields map<string,string>")
    assert fields.select(published_ns(mapping)).collect()[0][0] == nanoseconds


@pytest.mark.parametrize("offset", ["+01:00", "+0100", "Z+0100", "Z+01:00", ""])
def test_times_with_an_offset_are_read_however_it_is_written(offset: str, spark: Any) -> None:
    from triagemq.pipeline.ingest import published_ns

    mapping = Mapping.model_validate({"time": "t", "topic": "a", "value": "v"})
    fields = spark.createDataFrame(
        [({"t": f"2026-01-05T09:00:00.250000{offset}"},)], "fields map<string,string>"
    )
    hour_ns = 3600 * 10**9 if not offset else 0
    assert fields.select(published_ns(mapping)).collect()[0][0] == 1767600000_250000000 + hour_ns


def test_a_log_of_which_many_rows_were_set_aside_is_no_success(
    spark: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mapping.yaml").write_text(json.dumps(NARROW))
    for name, lines in (
        ("good.csv", [["noon", *row(0)[1:]], *map(row, range(1, 10))]),
        ("bad.csv", [["noon", *row(0)[1:]], *map(row, range(1, 9))]),
    ):
        (tmp_path / name).write_bytes(b"\n".join(map(as_csv, [NAMES, *lines])) + b"\n")
    logs = [str(tmp_path / name) for name in ("good.csv", "bad.csv")]
    out = str(tmp_path / "out")
    arguments = ["pipeline", "run", *logs, "--mapping", str(tmp_path / "mapping.yaml"), "--out", out]
    # Also when it is asked for again, and there is nothing left to do.
    for _ in range(2):
        assert run([*arguments, "--json"]) == 1
        said = capsys.readouterr()
        assert json.loads(said.out)["damaged"] == [logs[1]]
        assert said.err == (
            f"triage: more than a tenth of the rows, or a whole file, of {logs[1]} was set aside; "
            f"look at them with: triage pipeline show {out} quarantine\n"
        )
    assert Tables(out).rows["publications"] == 17, "the good rows of both logs are there"


@pytest.mark.parametrize("order", ["random", "newest first", "by room"])
def test_an_export_that_is_not_in_order_of_time_loses_no_row(
    order: str, spark: object, tmp_path: Path
) -> None:
    lines = [as_csv(row(number)) for number in range(400)]
    keys = {"random": lambda line: zlib.crc32(line), "by room": lambda line: line.split(b",")[1]}
    lines = sorted(lines, key=keys[order]) if order in keys else lines[::-1]
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "export.csv").write_bytes(b"\n".join([as_csv(NAMES), *lines]) + b"\n")
    # The clock of another file goes back once, and is still found.
    sorted_file = [row(number) for number in range(400, 800)]
    sorted_file[100][0] = row(300)[0]
    (tmp_path / "log" / "sorted.csv").write_bytes(b"\n".join(map(as_csv, [NAMES, *sorted_file])) + b"\n")
    done = run_pipeline([tmp_path / "log"], tmp_path / "out", mapping=Mapping.model_validate(NARROW))
    assert (done.rows_in, done.reasons, done.damaged) == (799, {"clock going backwards": 1}, ())
    (note,) = done.notes
    assert "1 files are not in order of time" in note
    assert "export.csv" in note
    rates = Tables(tmp_path / "out").records("publication_profile")
    assert sum(each["publications"] for each in rates) == 799


def test_copies_and_clocks_going_backwards_are_found_wherever_they_are(spark: Any) -> None:
    chance = random.Random(3)
    # The time is the position, but for some.
    events = [
        (
            number,
            (number if chance.random() < 0.8 else chance.randrange(200)) * 10**9,
            f"{chance.randrange(3)}",
        )
        for number in range(200)
    ]
    events += [(number + 200, *chance.choice(events)[1:]) for number in range(40)]
    columns = "position bigint, published_ns bigint, publisher string"
    rows = spark.createDataFrame(chance.sample(events, len(events)), columns).selectExpr(
        "*", "'log' AS source", "array(1) AS readings", "cast(null AS string) AS reason"
    )
    mapping = Mapping.model_validate(NARROW | {"backwards_seconds": 5})
    found = dict(ingest._out_of_order(rows, mapping).collect())
    expected, seen, latest = {}, set(), dict[str, int]()
    for position, time, publisher in events:
        if (time, publisher) in seen:
            expected[position] = "duplicate"
            continue
        if time < latest.get(publisher, 0) - 5 * 10**9:
            expected[position] = "clock going backwards"
        seen.add((time, publisher))
        latest[publisher] = time
    assert found == expected
    assert len({*found.values()}) == 2


HEADERLESS = {
    "time": {"column": "when", "unit": "s"},
    "topic": "{room}/{sensor}",
    "publisher": "{room}",
    "value": "reading",
    "header": False,
    "columns": ["when", "reading"],
    "path": "{room}/{sensor}.csv",
}


def test_lines_may_end_with_carriage_returns_and_one_within_a_row_hides_nothing(
    spark: object, tmp_path: Path
) -> None:
    mapping = Mapping.model_validate({"time": "time", "topic": "a", "value": "reading", "size_bytes": 4})
    (tmp_path / "log").mkdir()
    header = "time,reading"
    for name, end in (("mac", "\r"), ("unix", "\n"), ("windows", "\r\n")):
        rows = [f"2026-03-01T08:00:0{second},{name}" for second in range(3)]
        (tmp_path / "log" / f"{name}.csv").write_bytes(end.join([header, *rows, ""]).encode())
    stray = f"{header}\n2026-03-01T09:00:00,1\r2026-03-01T09:00:01,2\n"
    (tmp_path / "log" / "stray.csv").write_bytes(stray.encode())
    done = run_pipeline([tmp_path / "log"], tmp_path / "out", mapping=mapping)
    assert (done.rows_in, done.reasons) == (9, {"line end within a row": 1})
    published = Tables(tmp_path / "out").records("publications")
    assert len({row["publication_id"] for row in published}) == 9


def test_a_column_that_is_there_twice_is_refused_only_where_it_is_asked_for(
    spark: object, tmp_path: Path
) -> None:
    (tmp_path / "log.csv").write_text("time,a,a,b\n2026-03-01T08:00:00,1,2,3\n")
    usual = {"time": "time", "topic": "x", "value": "b"}
    done = run_pipeline([tmp_path / "log.csv"], tmp_path / "out", mapping=Mapping.model_validate(usual))
    assert done.rows_in == 1
    with pytest.raises(PipelineError, match=r"more than one column a, .* columns: \[...\]"):
        run_pipeline(
            [tmp_path / "log.csv"], tmp_path / "out", mapping=Mapping.model_validate(usual | {"value": "a"})
        )


def test_names_in_the_path_are_those_of_the_folders_whatever_they_are_called(
    spark: object, tmp_path: Path
) -> None:
    for room in ("4 13", "50%25 + a", "[a]"):
        (tmp_path / "log" / room).mkdir(parents=True)
        (tmp_path / "log" / room / "co2.csv").write_text("1767600000,1\n1767600005,2\n")
    (tmp_path / "log" / "4 13" / "empty.csv").touch()
    (tmp_path / "log" / ".hidden").mkdir()
    (tmp_path / "log" / ".hidden" / "co2.csv").write_text("nothing\n")
    # A topic of MQTT has no plus sign.
    mapping = Mapping.model_validate(HEADERLESS | {"topic": "{sensor}"})
    done = run_pipeline([tmp_path / "log"], tmp_path / "out", mapping=mapping)
    assert (done.rows_in, done.quarantined) == (6, 0)
    assert [each.reason.rpartition("/")[2] for each in done.skipped] == ["empty.csv: is empty"]
    published = Tables(tmp_path / "out").records("publications")
    assert {(row["topic"], row["publisher"]) for row in published} == {
        ("co2", room) for room in ("4 13", "50%25 + a", "[a]")
    }


def test_a_path_may_name_what_is_in_parquet_files_of_the_same_name(spark: object, tmp_path: Path) -> None:
    for room in ("413", "414"):
        (tmp_path / "log" / room).mkdir(parents=True)
        rows = pa.table({"when": [1767600000, 1767600005], "reading": [1.5, 2.5]})
        pq.write_table(rows, tmp_path / "log" / room / "co2.parquet")
    mapping = Mapping.model_validate(HEADERLESS | {"path": "{room}/{sensor}.parquet"})
    run_pipeline([tmp_path / "log"], tmp_path / "out", mapping=mapping)
    published = Tables(tmp_path / "out").records("publications")
    assert {row["topic"] for row in published} == {"413/co2", "414/co2"}
    assert len({row["publication_id"] for row in published}) == 4


def test_files_of_one_publisher_each_have_a_clock_of_their_own(spark: object, tmp_path: Path) -> None:
    (tmp_path / "log" / "413").mkdir(parents=True)
    for sensor in ("co2", "light"):
        lines = "".join(f"{1767600000 + second},{second}\n" for second in (0, 5, 10))
        (tmp_path / "log" / "413" / f"{sensor}.csv").write_text(lines)
    done = run_pipeline([tmp_path / "log"], tmp_path / "out", mapping=Mapping.model_validate(HEADERLESS))
    assert (done.rows_in, done.quarantined) == (6, 0)


def test_a_directory_without_a_log_says_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "log" / "413").mkdir(parents=True)
    (tmp_path / "log" / "413" / "co2.csv").write_text("1767600000,1\n")
    flat = Mapping.model_validate({**HEADERLESS, "topic": "a", "publisher": "b", "path": None})
    with pytest.raises(PipelineError, match="recursive: true"):
        run_pipeline([tmp_path / "log"], tmp_path / "out", mapping=flat)
    elsewhere = Mapping.model_validate(HEADERLESS | {"path": "{room}/{sensor}.dat"})
    with pytest.raises(PipelineError, match=r"its path does not end like {room}/{sensor}\.dat"):
        run_pipeline([tmp_path / "log"], tmp_path / "out", mapping=elsewhere)


def test_of_files_that_are_given_one_by_one_only_those_that_changed_are_read_again(
    spark: object, tmp_path: Path
) -> None:
    flat = Mapping.model_validate({**HEADERLESS, "topic": "{room}", "path": "{room}.csv"})
    files = [tmp_path / f"{room}.csv" for room in (413, 414)]
    for file in files:
        file.write_text("1767600000,1\n1767600005,2\n")
    assert len(run_pipeline(files, tmp_path / "out", mapping=flat).added) == 2
    with files[0].open("a") as grown:
        grown.write("1767600010,3\n")
    again = run_pipeline(files, tmp_path / "out", mapping=flat)
    assert (len(again.replaced), len(again.unchanged), again.rows_read) == (1, 1, 3)
    topics = Tables(tmp_path / "out").table("publications")["topic"].to_pylist()
    assert sorted(topics) == ["413"] * 3 + ["414"] * 2


def test_a_damaged_file_of_a_log_is_named_and_the_others_go_on(
    spark: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    text = [
        b"\n".join([as_csv(NAMES), *(as_csv(row(number)) for number in range(begin, end))]) + b"\n"
        for begin, end in ((0, 1000), (1000, 2000), (2000, 6000))
    ]
    (log / "a.csv").write_bytes(text[0])
    # Other columns, in another order.
    order = [4, 2, 0, 1, 3]
    lines = [[*(line.split(",")[at] for at in order), "more"] for line in text[1].decode().splitlines()]
    (log / "b.csv").write_bytes(b"\n".join(map(as_csv, lines)) + b"\n")
    (log / "cut.csv.gz").write_bytes(gzip.compress(text[2])[:-2000])
    (log / "none.csv.gz").write_bytes(text[2])
    (log / "other.csv").write_bytes(b"when,what\n1,2\n")
    (tmp_path / "mapping.yaml").write_text(json.dumps(NARROW))
    out = str(tmp_path / "out")
    arguments = [
        "pipeline",
        "run",
        str(log),
        "--mapping",
        str(tmp_path / "mapping.yaml"),
        "--out",
        out,
        "--json",
    ]
    # Also when it is asked for again, and there is nothing left to do.
    for _ in range(2):
        assert run(arguments) == 1
        said = capsys.readouterr()
        done = json.loads(said.out)
        assert [Path(each["source"]).name for each in done["skipped"]] == ["none.csv.gz", "other.csv"]
        assert all(each["is_damaged"] for each in done["skipped"])
        assert "2 damaged inputs were left out, the first: file:" in said.err
        assert done["damaged"] == [str(log)]
    tables = Tables(out)
    assert tables.rows["publications"] == 2000
    (bad,) = tables.records("quarantine")
    assert (bad["reason"], Path(bad["source"]).name, bad["line"]) == ("unreadable file", "cut.csv.gz", None)
    (known,) = tables.manifest.runs.values()
    assert "cut.csv.gz" in known.notes[0]


def test_parquet_files_with_columns_of_other_types_are_read_and_damaged_ones_named(
    spark: object, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    mapping = Mapping.model_validate({"time": {"column": "t", "unit": "s"}, "topic": "a", "value": "reading"})
    for number, values in enumerate([[1, 2], ["3", "4"], [5.5, 6.5]]):
        times = [1767600000 + 2 * number, 1767600001 + 2 * number]
        pq.write_table(pa.table({"t": times, "reading": values}), log / f"{number}.parquet")
    pq.write_table(pa.table({"t": [1767600000]}), log / "lacking.parquet")
    (log / "cut.parquet").write_bytes((log / "0.parquet").read_bytes()[:-20])
    done = run_pipeline([log], tmp_path / "out", mapping=mapping)
    assert (done.rows_in, done.reasons, done.damaged) == (6, {"unreadable file": 2}, (str(log),))
    sizes = sorted(row["size_bytes"] for row in Tables(tmp_path / "out").records("publications"))
    assert sizes == [1, 1, 1, 1, 3, 3]
    named = {Path(row["source"]).name for row in Tables(tmp_path / "out").records("quarantine")}
    assert named == {"lacking.parquet", "cut.parquet"}
    with pytest.raises(PipelineError, match=r"lacking\.parquet: has no column reading"):
        run_pipeline([log / "lacking.parquet"], tmp_path / "other", mapping=mapping)
    with pytest.raises(PipelineError, match=r"cut\.parquet"):
        run_pipeline([log / "cut.parquet"], tmp_path / "another", mapping=mapping)


def test_a_damaged_trace_is_named_and_the_others_go_on(
    spark: object, tmp_path: Path, write_trace: Callable[..., Path]
) -> None:
    good, cut = (
        write_trace(tmp_path / "runs" / name, seed=seed) for seed, name in enumerate(("good", "cut"))
    )
    part = next(cut.glob("publications/*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    broken = write_trace(tmp_path / "runs" / "broken", seed=3)
    (broken / "manifest.json").write_text("{")
    for given in ([tmp_path / "runs"], [good, cut, broken]):
        done = run_pipeline(given, tmp_path / "out")
        assert len(done.added) + len(done.unchanged) == 1
        assert {Path(each.source).name for each in done.skipped if each.is_damaged} == {"cut", "broken"}
    with pytest.raises(TraceError, match="bytes instead of"):
        run_pipeline([cut], tmp_path / "out")
