"""`triage pipeline show`: finished tables without Spark, and without pyspark being imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from triagemq.cli.pipeline import app
from triagemq.errors import ParameterError
from triagemq.pipeline import Tables, reading
from triagemq.pipeline.store import PublishedRun, TableStore


def directory(tables: Tables) -> str:
    return tables.place


def show(*arguments: str) -> dict[str, object]:
    done = CliRunner().invoke(app, ["show", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    shown: dict[str, object] = json.loads(done.stdout)
    return shown


def test_show_lists_the_tables_and_their_rows(tables: Tables) -> None:
    shown = show(directory(tables))
    assert {"table": "class_performance", "rows": 4} in shown["tables"]


def test_show_prints_the_rows_of_a_table_that_pass_the_filter(tables: Tables) -> None:
    shown = show(directory(tables), "class_performance", "--where", "priority_class=2")
    assert shown["table"] == "class_performance"
    assert [row["priority_class"] for row in shown["rows"]] == [2]
    columns = {
        "run_id",
        "count",
        "delivered",
        "success_rate",
        "mean_latency_seconds",
        "p50",
        "p95",
        "p99",
        "max",
    }
    assert columns <= set(shown["rows"][0])
    assert len(show(directory(tables), "deliveries", "--limit", "7")["rows"]) == 7


def test_show_for_people(tables: Tables) -> None:
    done = CliRunner().invoke(app, ["show", directory(tables), "class_performance"], catch_exceptions=False)
    assert "priority_class" in done.stdout
    assert "mean_latency_seconds" in done.stdout
    assert "…" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "no table 'nonsense'; there are class_performance"),
        (["class_performance", "--where", "colour=red"], "no column colour"),
        (["class_performance", "--where", "priority_class=high"], "'high' is not a int32"),
        (["class_performance", "--where", "priority_class"], "write column=value"),
    ],
)
def test_a_mistake_is_named(arguments: list[str], message: str, tables: Tables) -> None:
    with pytest.raises(ParameterError) as refused:
        CliRunner().invoke(app, ["show", directory(tables), *arguments], catch_exceptions=False)
    assert message in str(refused.value)


def test_no_tables_says_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="make them with: triage pipeline run TRACE"):
        Tables(tmp_path)


def test_reading_and_running_again_import_no_pyspark(tables: Tables, trace: Path) -> None:
    code = (
        "import sys\n"
        "from triagemq.pipeline import Tables, run_pipeline\n"
        "from triagemq.cli import pipeline\n"
        "assert Tables(sys.argv[1]).records('class_performance')\n"
        "assert not run_pipeline([sys.argv[2]], sys.argv[1]).started_spark\n"
        "assert 'pyspark' not in sys.modules, 'pyspark was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code, directory(tables), str(trace)], check=True)


def scattered(out: Path, rows: int, files: int) -> Tables:
    """Numbers in any order, in several files, with a wide column beside them."""
    numbers = np.random.default_rng(1).permutation(rows)
    with TableStore.open(out, kind="run") as store:
        store.begin()
        parts = [
            pa.table({"number": each, "wide": [f"{n:0100d}" for n in each]})
            for each in np.array_split(numbers, files)
        ]
        made = tuple(store.write("numbers", part) for part in parts)
        store.publish({"r": PublishedRun("1", "here", rows, rows, 0, {}, {"numbers": made})})
    return Tables(out)


def test_the_first_rows_are_the_smallest_of_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = scattered(tmp_path, 3000, 7)
    monkeypatch.setattr(reading, "_MOST_SORTED_ROWS", 100)
    assert tables.table("numbers", limit=150)["number"].to_pylist() == list(range(150))
    assert tables.table("numbers", limit=0).num_rows == 0
    assert tables.table("numbers", columns=["wide"], where={"number": "17"}, limit=5).to_pylist() == [
        {"wide": f"{17:0100d}"}
    ]


def test_columns_that_are_not_asked_for_are_not_read(tmp_path: Path) -> None:
    tables = scattered(tmp_path, 3000, 3)
    for name in tables.files("numbers"):
        metadata, octets = pq.read_metadata(name), bytearray(Path(name).read_bytes())
        column = metadata.row_group(0).column(1)
        begin = column.dictionary_page_offset or column.data_page_offset
        octets[begin : begin + column.total_compressed_size] = bytes(column.total_compressed_size)
        Path(name).write_bytes(octets)
    assert tables.table("numbers", columns=["number"])["number"].to_pylist() == list(range(3000))
    with pytest.raises(OSError, match=r"wide|deserialize|Thrift|page"):
        tables.table("numbers")
