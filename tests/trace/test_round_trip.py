"""What goes into a trace comes out of it: values, nulls, order, types, texts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace.checksums import verify

from triagemq.errors import TraceError
from triagemq.trace import TABLES, Outcome, Trace, TraceWriter


def test_every_table_comes_back_with_its_schema_and_nulls(tmp_path, start, deliveries, publications):
    with start(with_hops=True, run_id="the-run", scenario_fingerprint="abc") as writer:
        writer.publications(publications(9))
        writer.deliveries(deliveries(21))
        writer.hops(
            {
                "publication_id": [0, 1],
                "subscription_id": [0, 1],
                "hop": [0, 0],
                "port_id": [4, 4],
                "queue": [0, 1],
                "enqueued_ns": [5, -1],
                "dequeued_ns": [9, -1],
                "outcome": [Outcome.delivered, Outcome.limited],
            }
        )
        names = TABLES["queue_samples"].names
        writer.queue_samples({name: np.array([1, -1 if name == "width_bps" else 2]) for name in names})
        writer.decisions(
            {
                "decided_ns": np.array([7]),
                "kind": np.array(["drop_rate"]),
                "subject": ["flow 3"],
                "before": [None],
                "after": np.array(["0.25"], dtype=object),
                "reason": ["port 1 is full: ρ > 1"],
            }
        )
        writer.finish(measured_from_ns=3, extra={"seed": 7})

    trace = Trace.open(tmp_path / "run")
    for name, schema in TABLES.items():
        assert trace.table(name).schema.equals(schema), name
    assert trace.table("publications")["publisher_id"].to_pylist() == [None, 1, 2, None, 4, 0, None, 2, 3]
    rows = trace.table("deliveries").to_pylist()
    written = deliveries(21)
    assert [row["outcome"] for row in rows] == [Outcome(code).name for code in written["outcome"]]
    for name in ("flow_id", "published_ns", "enqueued_ns", "dequeued_ns", "delivered_ns"):
        expected = [None if value < 0 else value for value in written[name].tolist()]
        assert [row[name] for row in rows] == expected, name
    assert trace.table("hops")["dequeued_ns"].to_pylist() == [9, None]
    assert trace.table("queue_samples")["width_bps"].to_pylist() == [1, None]
    assert trace.table("decisions").to_pylist() == [
        {
            "decided_ns": 7,
            "kind": "drop_rate",
            "subject": "flow 3",
            "before": None,
            "after": "0.25",
            "reason": "port 1 is full: ρ > 1",
        }
    ]
    assert (trace.scenario_text, trace.plan_text) == ("topics: []\n", '{"flows": []}')
    assert (trace.run_id, trace.manifest.scenario_fingerprint) == ("the-run", "abc")
    assert (trace.manifest.measured_from_ns, trace.manifest.extra) == (3, {"seed": 7})
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["rows"]["deliveries"] == 21
    assert not (tmp_path / "run" / "INCOMPLETE").exists()
    verify(trace)


@settings(max_examples=20, deadline=None)
@given(
    calls=st.lists(st.integers(0, 40), max_size=6),
    row_group_rows=st.integers(1, 30),
    rotate_rows=st.none() | st.integers(1, 50),
)
def test_rows_keep_their_order_whatever_the_sizes_of_calls_groups_and_files(
    calls, row_group_rows, rotate_rows
):
    with tempfile.TemporaryDirectory() as directory:
        with TraceWriter(
            directory,
            scenario_text="",
            plan_text=None,
            producer="test",
            row_group_rows=row_group_rows,
            rotate_rows=rotate_rows,
        ) as writer:
            first = 0
            for count in calls:
                ids = np.arange(first, first + count)
                zeros = np.zeros(count, dtype=np.int64)
                writer.publications(
                    {
                        name: ids if name == "publication_id" else zeros
                        for name in TABLES["publications"].names
                    }
                )
                first += count
            manifest = writer.finish(measured_from_ns=0)
        trace = Trace.open(directory)
        assert trace.table("publications")["publication_id"].to_pylist() == list(range(first))
        parts = manifest.tables["publications"]
        assert sum(part.rows for part in parts) == first
        assert rotate_rows is None or all(part.rows <= rotate_rows for part in parts)
        assert trace.plan_text is None


def test_recording_a_run_does_not_wait_for_pandas_to_be_imported(tmp_path):
    program = (
        "import sys; from triagemq.trace import TraceWriter\n"
        "with TraceWriter(sys.argv[1], scenario_text='', plan_text=None, producer='test') as writer:\n"
        "    writer.decisions({'decided_ns': [1], 'kind': ['a'], 'subject': ['b'], 'before': [None],\n"
        "                      'after': ['c'], 'reason': ['d']})\n"
        "    writer.finish(measured_from_ns=0)\n"
        "sys.exit('pandas' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")]).returncode == 0


def test_a_producer_may_fill_its_arrays_again_at_once(tmp_path, start, deliveries):
    with start(row_group_rows=10) as writer:
        columns = deliveries(100)
        columns["topic_id"] = columns["publication_id"][::-1]
        writer.deliveries(columns)
        for column in columns.values():
            column[:] = 0
        writer.finish(measured_from_ns=0)
    written = Trace.open(tmp_path / "run").table("deliveries")["publication_id"]
    assert written.to_pylist() == list(range(100))


def test_columns_filters_and_counts_select_what_was_asked_for(tmp_path, start, deliveries):
    with start(rotate_rows=16) as writer:
        writer.deliveries(deliveries(10 * len(Outcome)))
        writer.finish(measured_from_ns=0)
    trace = Trace.open(tmp_path / "run")
    is_limited = pc.field("outcome") == "limited"
    table = trace.table("deliveries", ["outcome", "publication_id"], is_limited)
    assert table.column_names == ["outcome", "publication_id"]
    assert table["publication_id"].to_pylist() == list(range(3, 10 * len(Outcome), len(Outcome)))
    assert trace.table("deliveries", ["outcome", "topic_id"]).schema.names == ["outcome", "topic_id"]
    assert trace.counts() == {outcome.name: 10 for outcome in Outcome}
    assert sum(trace.counts(from_ns=2**60 + 1 + 50_000).values()) == 10 * len(Outcome) - 50
    with pytest.raises(TraceError, match=r"no column latency; it has publication_id, "):
        trace.table("deliveries", ["latency"])
    with pytest.raises(TraceError, match=r"no table 'hops'; it has publications, deliveries"):
        trace.table("hops")


def test_no_file_is_open_any_more_when_a_table_was_read(tmp_path, start, deliveries):
    """A disk that holds an open file cannot be unmounted, and elsewhere its file not be removed."""
    with start(rotate_rows=5, row_group_rows=5) as writer:
        writer.deliveries(deliveries(21))
        writer.finish(measured_from_ns=0)
    trace = Trace.open(tmp_path / "run")
    for _ in range(100):
        assert len(trace.table("deliveries", ["outcome"])) == 21
        assert _open_below(tmp_path) == []


def _open_below(directory: Path) -> list[str]:
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(descriptor.readlink()))
    return [name for name in found if name.startswith(str(directory))]


def test_files_hold_only_what_spark_reads_with_its_vectorised_reader(tmp_path, start, deliveries):
    with start(with_hops=True) as writer:
        writer.deliveries(deliveries(1000))
        writer.finish(measured_from_ns=0)
    for name in TABLES:
        file = pq.ParquetFile(tmp_path / "run" / name / "part-00000.parquet")
        kinds = {file.schema.column(index).physical_type for index in range(len(file.schema))}
        assert kinds <= {"INT32", "INT64", "BYTE_ARRAY"}
    group = pq.ParquetFile(tmp_path / "run" / "deliveries" / "part-00000.parquet").metadata.row_group(0)
    for index in range(group.num_columns):
        column = group.column(index)
        assert column.compression == "ZSTD"
        assert set(column.encodings) <= {"PLAIN", "RLE", "RLE_DICTIONARY", "DELTA_BINARY_PACKED"}


def test_a_run_without_rows_is_a_whole_run_that_foreign_readers_understand(tmp_path, start):
    with start() as writer:
        writer.finish(measured_from_ns=0)
    trace = Trace.open(tmp_path / "run")
    assert trace.table("deliveries").num_rows == 0
    assert sum(trace.counts().values()) == 0
    foreign = pq.read_table(tmp_path / "run" / "deliveries")
    assert foreign.schema.equals(TABLES["deliveries"])


def test_spark_and_arrow_pass_over_a_file_that_is_being_written(tmp_path, start, deliveries):
    with start(row_group_rows=10, rotate_rows=None, rotate_seconds=3600) as writer:
        writer.deliveries(deliveries(95))
        table = tmp_path / "run" / "deliveries"
        while not (names := [path.name for path in table.iterdir()]):
            pass
        assert all(name.startswith(".") for name in names)
        assert Trace.open(tmp_path / "run", allow_incomplete=True).table("deliveries").num_rows == 0
        writer.finish(measured_from_ns=0)
    assert [path.name for path in Path(table).iterdir()] == ["part-00000.parquet"]
    assert isinstance(Trace.open(tmp_path / "run").table("deliveries"), pa.Table)
