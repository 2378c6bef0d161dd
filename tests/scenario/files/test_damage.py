"""Files that are no scenario, too much of one, or a damaged one: always a ScenarioError, never a traceback."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from triagemq.errors import Problem, ScenarioError
from triagemq.scenario import check, loads

VALID = """\
name: Building fire
overhead_bytes: 49
planning: {priority_classes: 4}
brokers: {hall: {inbound_rate_per_second: 1e6}, annex: }
broker_links: [{between: [hall, annex], bandwidth_bps: 1e9}]
unmanaged_switches: {sensor-net: &fast {bandwidth_bps: 10e6}}
switches: {core: , floor-1: {fed_by: trunk-1}}
ports:
  radio: {switch: floor-1, <<: *fast, buffer_packets: 2000, queues: 9}
  trunk-1: {switch: core, bandwidth_bps: 100e6}
topics: {floor/1/smoke: {size_bytes: 60}}
publishers:
  sensor-1:
    broker: hall
    switch: sensor-net
    publishes:
      floor/1/smoke: {rate_per_second: 2}
      floor/1/co: {min_separation_seconds: 0.5, size_bytes: 40, arrivals: {process: pareto, shape: 2.5}}
      floor/1/video: {rate_per_second: 1, sizes: {values: [900, 1100], weights: [1, 3]}}
subscribers:
  commander:
    broker: annex
    port: radio
    subscribes:
      floor/1/smoke: log:10
      floor/#: {utility: {shape: step, weight: 3, threshold: 0.8, freshness_seconds: 2}}
"""


def problems_of(text: str) -> list[Problem]:
    with pytest.raises(ScenarioError) as raised:
        loads(text)
    return list(raised.value.problems)


def only_problem(text: str) -> Problem:
    (problem,) = problems_of(text)
    return problem


def test_the_file_that_is_damaged_below_is_right() -> None:
    assert len(loads(VALID).subscriptions) == 3


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", 1, "is empty"),
        ("# nothing but a comment\n", 1, "is empty"),
        ("- brokers\n- ports\n", 1, "is a list"),
        ("brokers", 1, "is a single value"),
        ("brokers: [hall\nports: 1", 2, "is not YAML"),
        ("brokers:\n\thall: 1", 2, "is not YAML"),
        ("brokers: {a: *b}", 1, "alias *b"),
        ("brokers: &a {a: *a}", 1, "alias *a"),
        ("a: 1\n---\nb: 2", 2, "second document"),
        ("a: 1\nb: \x01", 2, "control character #x01"),
        ("a: 1\nb: \ud800", 2, "half of a character"),
        ("[" * 100_000, 1, "nested more than"),
        ("- " * 100_000, 1, "nested more than"),
    ],
)
def test_text_that_is_no_scenario_is_one_problem(text: str, line: int, what: str) -> None:
    problem = only_problem(text)
    assert (problem.line, problem.field) == (line, "text")
    assert what in problem.what


def test_files_that_cannot_be_read_are_one_problem(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.yaml"
    garbage.write_bytes(bytes(range(256)))
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, what in (
        (tmp_path / "absent.yaml", "does not exist"),
        (garbage / "below.yaml", "does not exist"),
        (garbage, "is not text in UTF-8"),
        (empty, "is a directory without scenario.yaml"),
        (tmp_path / "null\0.yaml", "cannot be read"),
    ):
        (problem,) = check(path)
        assert what in problem.what
        assert problem.file.startswith(str(tmp_path))


def test_an_alias_bomb_is_refused_in_no_time() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    for level in range(1, 20):
        bomb += f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n"
    problems = problems_of(VALID.replace("overhead_bytes: 49", f"{bomb}overhead_bytes: *a19"))
    assert {problem.field for problem in problems} == {f"a{level}" for level in range(20)}


def test_a_file_with_too_many_publications_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triagemq.scenario.files.reading.MOST_ROWS", 2)
    problem = only_problem(VALID)
    assert problem.field == "publishers.sensor-1.publishes"
    assert problem.what == "makes more than 2 rows"
    assert "publications.parquet" in problem.fix


def test_a_pattern_that_stands_for_too_many_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triagemq.scenario.files.reading.MOST_ROWS", 3)
    problem = only_problem(VALID)
    assert problem.field == "subscribers.commander.subscribes.floor/#"
    assert problem.what == "makes more than 3 rows"


def test_thousands_of_unknown_names_are_all_reported_quickly() -> None:
    lines = [f"  nobody-{number}: {{broker: hall, port: nowhere-{number}}}" for number in range(3000)]
    problems = problems_of(VALID + "\n".join(lines))
    assert len(problems) == 3000
    assert problems[-1].what == "there is no port 'nowhere-2999'"


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(VALID)),
            st.integers(0, 12),
            st.one_of(
                st.text(max_size=6), st.sampled_from(["[", "{", "}", ": ", "- ", "&a ", "*a", "<<: ", "\n  "])
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_damaged_file_is_either_right_or_a_scenario_error(edits: list[tuple[int, int, str]]) -> None:
    text = VALID
    for start, length, new in edits:
        text = text[:start] + new + text[start + length :]
    with suppress(ScenarioError):
        loads(text)
