"""Plans survive their files exactly, and no file, whatever is in it, ends in a traceback."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.errors import OutputError, ParameterError, PlanError
from triagemq.lab.generators import table2
from triagemq.plan import LatencyFactors, Plan, dump_plan, load_plan, make_plan, parse_plan, save_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(table2(seed=2), drops="linear", rho_tolerance=0.6)


def assert_same(one: Plan, other: Plan) -> None:
    assert one.scenario_fingerprint == other.scenario_fingerprint
    assert one.made_by == other.made_by
    assert one.decisions == other.decisions
    for table in ("flows", "ports"):
        for name in getattr(one, table).__dataclass_fields__:
            ours, theirs = getattr(getattr(one, table), name), getattr(getattr(other, table), name)
            np.testing.assert_array_equal(ours, theirs)
            assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(one.flow, other.flow)
    np.testing.assert_array_equal(one.rank, other.rank)
    if one.latency is not None:
        np.testing.assert_array_equal(one.latency.factor, other.latency.factor)
        np.testing.assert_array_equal(one.latency.urgency, other.latency.urgency)
    assert (one.latency is None) == (other.latency is None)


def test_a_plan_survives_its_file_exactly(plan, tmp_path):
    for _ in range(2):  # the second replaces the first
        save_plan(plan, tmp_path / "plan.json")
        assert_same(plan, load_plan(tmp_path / "plan.json"))
    assert plan.decisions
    with pytest.raises(ParameterError, match="json"):
        save_plan(plan, tmp_path / "plan.parquet")


def test_what_latency_does_survives_too(tmp_path):
    scenario = table2(seed=2, subscribers=2, subscriptions=(5, 5))
    count = len(scenario.subscriptions)
    urgent = make_plan(scenario, latency=LatencyFactors(np.linspace(0, 1, count), np.linspace(3, 0, count)))
    save_plan(urgent, tmp_path / "plan.json")
    assert_same(urgent, load_plan(tmp_path / "plan.json"))


def test_json_is_readable_and_names_its_format(plan):
    document = json.loads(dump_plan(plan))
    assert document["format"] == "triagemq-plan"
    assert document["made_by"]["drops"] == "linear"
    assert len(document["flows"]["drop_rate"]) == len(plan.flows)
    assert_same(plan, parse_plan(dump_plan(plan)))


def broken(plan: Plan, *path: str, value: object) -> str:
    document = json.loads(dump_plan(plan))
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("format",), "other", "format"),
        (("version",), 99, "version"),
        (("scenario_fingerprint",), 3, "fingerprint"),
        (("made_by",), {}, "made_by"),
        (("made_by", "seed"), "x", "seed"),
        (("flows",), [], "flows"),
        (("flows", "drop_rate"), "x", "flows.drop_rate"),
        (("flows", "drop_rate"), [], "unequal length"),
        (("flows", "drop_rate"), [None], "flows.drop_rate"),
        (("flows", "priority_class"), [0.5], "flows.priority_class"),
        (("flows", "priority_class"), [2**40], "flows.priority_class"),
        (("subscriptions", "flow"), [10**6], "unequal length"),
        (("ports", "rho_offered"), [1e400], "ports.rho_offered"),
        (("ports", "rho_offered"), [10**400], "ports.rho_offered"),
        (("decisions",), None, "decisions"),
        (("decisions",), [{"kind": "x"}], "decision"),
    ],
)
def test_wrong_contents_are_refused_by_name(plan, path, value, said):
    with pytest.raises(PlanError, match=said):
        parse_plan(broken(plan, *path, value=value))


def test_impossible_values_are_refused(plan):
    document = json.loads(dump_plan(plan))
    document["subscriptions"]["factor"] = [1.0] * len(plan.flow)
    with pytest.raises(PlanError, match="factor and urgency"):
        parse_plan(json.dumps(document))
    document = json.loads(dump_plan(plan))
    document["flows"]["drop_rate"][0] = 1.5
    with pytest.raises(PlanError, match="drop_rate lies outside"):
        parse_plan(json.dumps(document))
    document = json.loads(dump_plan(plan))
    document["subscriptions"]["flow"][0] = len(plan.flows)
    with pytest.raises(PlanError, match="lies outside"):
        parse_plan(json.dumps(document))


@given(text=st.text() | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
@settings(max_examples=100, deadline=None)
def test_foreign_text_is_refused(text):
    with pytest.raises(PlanError):
        parse_plan(text)


@given(where=st.integers(0, 4000), byte=st.integers(0, 255))
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_refused_or_still_a_plan(plan, tmp_path_factory, where, byte):
    damaged = bytearray(dump_plan(plan).encode())
    damaged[where] = byte
    path = tmp_path_factory.mktemp("damaged") / "plan.json"
    path.write_bytes(bytes(damaged))
    with contextlib.suppress(PlanError):
        load_plan(path)


def test_files_that_are_missing_or_binary_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="no such plan"):
        load_plan(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="not a plan"):
        load_plan(tmp_path / "binary.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(PlanError, match="not a plan: "):
        load_plan(tmp_path / "folder")


def test_a_directory_of_tables_of_a_version_before_is_read_and_refused_if_damaged(plan, tmp_path):
    directory = tmp_path / "of=a" / "plan"
    directory.mkdir(parents=True)
    document = json.loads(dump_plan(plan))
    for title in ("subscriptions", "flows", "ports", "decisions"):
        table = document.pop(title)
        stored = pa.Table.from_pylist(table) if title == "decisions" else pa.table(table)
        pq.write_table(stored, directory / f"{title}.parquet", compression="zstd")
    (directory / "plan.json").write_text(json.dumps(document))
    assert_same(plan, load_plan(directory))
    (directory / "flows.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(PlanError, match="not a plan"):
        load_plan(directory)
    (directory / "flows.parquet").unlink()
    with pytest.raises(PlanError, match="flows: Field required"):
        load_plan(directory)
    (directory / "plan.json").write_text("[]")
    with pytest.raises(PlanError, match="not a plan"):
        load_plan(directory)


def test_a_plan_that_cannot_be_written_is_an_output_error(plan, tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        save_plan(plan, tmp_path / "missing" / "plan.json")
