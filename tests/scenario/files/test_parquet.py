"""Scenario directories: publications and subscriptions as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triagemq.errors import Problem
from triagemq.scenario import ArrivalProcess, SizeDistribution, check, load, loads, save

POSITIONS = """\
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 8e6}}
publishers: {sensor: , camera: }
subscribers: {commander: {port: radio}, clerk: {port: radio}}
"""
PUBLICATIONS: dict[str, list[Any]] = {
    "publisher": ["sensor", "sensor", "camera"],
    "topic": ["smoke", "co", "video"],
    "rate_per_second": [2, 4, 1],
    "size_bytes": [60.0, 40.0, 1000.0],
}
SUBSCRIPTIONS: dict[str, list[Any]] = {
    "subscriber": ["commander", "clerk", "clerk"],
    "topic": ["smoke", "smoke", "video"],
    "utility_shape": ["log", "linear", "step"],
    "utility_weight": [10.0, 2.0, 3.0],
    "utility_threshold": [None, None, 0.8],
    "max_latency_seconds": [0.05, None, None],
}


def write(
    path: Path,
    text: str = POSITIONS,
    publications: dict[str, Any] | None = None,
    subscriptions: dict[str, Any] | None = None,
) -> Path:
    """A scenario directory with the tables above, some columns changed; a column of None is left out."""
    path.mkdir(exist_ok=True)
    (path / "scenario.yaml").write_text(text)
    for name, columns, changed in (
        ("publications", PUBLICATIONS, publications),
        ("subscriptions", SUBSCRIPTIONS, subscriptions),
    ):
        kept = {key: values for key, values in {**columns, **(changed or {})}.items() if values is not None}
        pq.write_table(pa.table(kept), path / f"{name}.parquet")
    return path


def only_problem(path: Path) -> Problem:
    (problem,) = check(path)
    return problem


def test_tables_mean_what_the_same_rows_mean_in_yaml(tmp_path: Path) -> None:
    text = """\
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 8e6}}
publishers:
  sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}, co: {rate_per_second: 4, size_bytes: 40}}}
  camera: {publishes: {video: {rate_per_second: 1, size_bytes: 1000}}}
subscribers:
  commander: {port: radio, subscribes: {smoke: {utility: log:10, max_latency_seconds: 0.05}}}
  clerk: {port: radio, subscribes: {smoke: linear:2, video: step:3@0.8}}
"""
    scenario = load(write(tmp_path))
    assert scenario.fingerprint == loads(text).fingerprint
    assert scenario.name == tmp_path.name


def test_every_optional_column_of_publications_is_read(tmp_path: Path) -> None:
    columns = {
        "rate_per_second": [None, 4, 1],
        "size_bytes": [60, 40, None],
        "size_distribution": ["constant", None, "empirical"],
        "arrival_process": ["periodic", "pareto", "on_off"],
        "pareto_shape": [None, 2.5, None],
        "on_seconds": [None, None, 2],
        "off_seconds": [None, None, 8],
        "min_separation_seconds": [0.5, None, None],
        "max_separation_seconds": [5, None, None],
        "size_values": [None, None, [900, 1100]],
        "size_weights": [None, None, [1, 3]],
    }
    scenario = load(write(tmp_path, publications=columns))
    table = scenario.publications  # in the order camera, sensor co, sensor smoke
    assert table.rate_per_second.tolist() == [1, 4, 2]
    assert table.size_bytes.tolist() == [1050, 40, 60]
    assert table.size_distribution.tolist() == [
        SizeDistribution.EMPIRICAL,
        SizeDistribution.EXPONENTIAL,
        SizeDistribution.CONSTANT,
    ]
    assert table.arrival_process.tolist() == [
        ArrivalProcess.ON_OFF,
        ArrivalProcess.PARETO,
        ArrivalProcess.PERIODIC,
    ]
    assert table.pareto_shape.tolist() == [0, 2.5, 0]
    assert (table.on_seconds.tolist(), table.off_seconds.tolist()) == ([2, 0, 0], [8, 0, 0])
    assert table.min_separation_seconds.tolist() == [0, 0, 0.5]
    assert table.max_separation_seconds.tolist() == [np.inf, np.inf, 5]
    assert scenario.size_samples.weight[0].tolist() == [1, 3]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
def test_names_may_be_text_or_dictionaries(kind: pa.DataType, tmp_path: Path) -> None:
    encoded = {
        name: pa.array(SUBSCRIPTIONS[name]).cast(kind) for name in ("subscriber", "topic", "utility_shape")
    }
    plain, other = write(tmp_path / "plain"), write(tmp_path / "other", subscriptions=encoded)
    assert load(plain).fingerprint == load(other).fingerprint


def test_patterns_of_the_yaml_match_the_topics_of_a_table(tmp_path: Path) -> None:
    write(
        tmp_path,
        text=POSITIONS.replace("clerk: {port: radio}", 'clerk: {port: radio, subscribes: {"#": log:1}}'),
    )
    (tmp_path / "subscriptions.parquet").unlink()
    assert len(load(tmp_path).subscriptions) == 3


@pytest.mark.parametrize(
    ("column", "values", "row", "what", "fix"),
    [
        ("publisher", ["sensor", "sensr", "camera"], 2, "no publisher 'sensr'", "did you mean sensor?"),
        ("publisher", ["sensor", None, "camera"], 2, "is empty", "name of a publisher"),
        ("topic", ["smoke", "co", "floor/#"], 3, "'floor/#' is a pattern", "without + and #"),
        ("topic", ["smoke", "smoke", "video"], 2, "repeats row 1", "remove one of the two rows"),
        ("rate_per_second", [2, 0, 1], 2, "is 0", "above 0"),
        ("rate_per_second", [2, None, 1], 2, "is missing", "above 0"),
        ("rate_per_second", [2.0, np.nan, 1.0], 2, "is NaN", "above 0"),
        ("rate_per_second", [2.0, np.inf, 1.0], 2, "is inf", "above 0"),
        ("size_bytes", [60, -40, 1000], 2, "is -40", "above 0"),
        (
            "size_distribution",
            ["constant", "constnt", None],
            2,
            "'constnt' is not one of",
            "did you mean constant?",
        ),
        ("arrival_process", [None, None, "pareto"], 3, "is missing", "above 1"),
        ("pareto_shape", [None, 2.5, None], 2, "is 2.5", "other arrivals than pareto"),
        ("on_seconds", [1, None, None], 1, "is 1", "other arrivals than on_off"),
        (
            "min_separation_seconds",
            [1, None, None],
            1,
            "is 2",
            "at most 1, or a smaller min_separation_seconds",
        ),
        ("max_separation_seconds", [None, -5, None], 2, "is -5", "or null"),
        ("size_distribution", ["empirical", None, None], 1, "not a list of sizes", "sizes above 0"),
    ],
)
def test_a_wrong_publication_is_named_by_its_row(
    column: str, values: list[Any], row: int, what: str, fix: str, tmp_path: Path
) -> None:
    changed = {column: values}
    if column == "topic":
        changed["publisher"] = ["sensor", "sensor", "sensor"]
    problem = next(iter(check(write(tmp_path, publications=changed, subscriptions={"topic": ["smoke"] * 3}))))
    assert problem.file == str(tmp_path / "publications.parquet")
    assert problem.line == row
    assert what in problem.what
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("column", "values", "row", "what", "fix"),
    [
        ("subscriber", ["commander", "clerk", "clark"], 3, "no subscriber 'clark'", "did you mean clerk?"),
        ("topic", ["smoke", "smoke", "vido"], 3, "no topic 'vido'", "did you mean video?"),
        ("topic", ["smoke", "smoke", "floor/+"], 3, "is a pattern", "one row per topic"),
        ("topic", ["smoke", "smoke", "heat"], 3, "no publisher has heat", "remove this one"),
        ("topic", ["smoke", "smoke", "smoke"], 3, "repeats row 2", "remove one of the two rows"),
        ("utility_shape", ["log", "lin", "step"], 2, "'lin' is not one of", "did you mean linear?"),
        ("utility_shape", ["log", None, "step"], 2, "is empty", "write log"),
        ("utility_weight", [1.0, -2.0, 3.0], 2, "is -2", "at least 0"),
        ("utility_threshold", [None, None, None], 3, "is missing", "above 0, at most 1"),
        ("utility_threshold", [0.5, None, 0.8], 1, "is 0.5", "other shapes than step"),
        ("freshness_seconds", [None, 0.0, None], 2, "is 0", "null for no limit"),
        ("max_latency_seconds", [None, np.nan, None], 2, "is NaN", "null for no limit"),
        ("min_share", [None, 1.5, 0.2], 2, "is 1.5", "at least 0, at most 1"),
        ("max_rate_per_second", [2.0, None, 0.0], 3, "is 0", "null for no limit"),
        ("expires_seconds", [-1.0, None, 1.0], 1, "is -1", "null for no limit"),
    ],
)
def test_a_wrong_subscription_is_named_by_its_row(
    column: str, values: list[Any], row: int, what: str, fix: str, tmp_path: Path
) -> None:
    problem = only_problem(write(tmp_path, f"topics: [heat]\n{POSITIONS}", subscriptions={column: values}))
    assert problem.file == str(tmp_path / "subscriptions.parquet")
    assert (problem.line, problem.field) == (row, column)
    assert what in problem.what
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("columns", "field", "what", "fix"),
    [
        ({"utility_weight": None}, "utility_weight", "is missing", "add a column of numbers"),
        (
            {"max_latency_second": [1.0] * 3},
            "max_latency_second",
            "not a known column",
            "max_latency_seconds",
        ),
        ({"colour": ["red"] * 3}, "colour", "not a known column", "remove it; known keys: subscriber,"),
        ({"utility_weight": ["much"] * 3}, "utility_weight", "is a column of string", "write numbers"),
        ({"topic": [1, 2, 3]}, "topic", "is a column of int64", "write text"),
    ],
)
def test_wrong_columns_are_named(
    columns: dict[str, Any], field: str, what: str, fix: str, tmp_path: Path
) -> None:
    problem = only_problem(write(tmp_path, subscriptions=columns))
    assert (problem.line, problem.field) == (None, field)
    assert what in problem.what
    assert fix in problem.fix


def test_of_many_wrong_rows_twenty_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    count = 1000
    columns = {
        "subscriber": ["clerk"] * count,
        "topic": [f"topic-{number}" for number in range(count)],
        "utility_shape": ["log"] * count,
        "utility_weight": [-1.0] * count,
        "utility_threshold": None,
        "max_latency_seconds": None,
    }
    problems = check(write(tmp_path, subscriptions=columns))
    for field in ("topic", "utility_weight"):
        of_a_kind = [problem for problem in problems if problem.field == field]
        assert [problem.line for problem in of_a_kind] == list(range(1, 22))
        assert of_a_kind[-1].what == "and 980 more"


def test_rows_in_the_yaml_beside_a_table_are_refused(tmp_path: Path) -> None:
    text = POSITIONS.replace("camera: }", "camera: {publishes: {heat: {rate_per_second: 1, size_bytes: 1}}}}")
    problem = only_problem(write(tmp_path, text))
    assert (problem.line, problem.field) == (4, "publishers.camera.publishes")
    assert "publications.parquet" in problem.what


def test_a_table_that_is_none_is_one_problem(tmp_path: Path) -> None:
    write(tmp_path)
    for name in ("publications.parquet", "subscriptions.parquet"):
        good = (tmp_path / name).read_bytes()
        for bad in (b"", b"PAR1", good[: len(good) // 2], bytes(100)):
            (tmp_path / name).write_bytes(bad)
            problem = only_problem(tmp_path)
            assert problem.file == str(tmp_path / name)
            assert "is not a Parquet table" in problem.what
            assert "\n" not in str(problem)
        (tmp_path / name).write_bytes(good)


def test_a_table_may_be_a_directory_of_parts_as_spark_writes_it(tmp_path: Path) -> None:
    one, parts = write(tmp_path / "one"), write(tmp_path / "parts")
    table = parts / "subscriptions.parquet"
    rows = pq.read_table(table)
    table.unlink()
    table.mkdir()
    for number in range(3):
        pq.write_table(rows.slice(number, 1), table / f"part-{number}.parquet")
    (table / "_SUCCESS").touch()
    assert load(parts).fingerprint == load(one).fingerprint


def test_mistakes_in_all_three_files_are_reported_together(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        POSITIONS.replace("switch: core", "switch: cor"),
        publications={"size_bytes": [60, -1, 1000]},
        subscriptions={"utility_weight": [1, -1, 1]},
    )
    assert [(Path(problem.file).name, problem.line) for problem in check(path)] == [
        ("scenario.yaml", 3),
        ("publications.parquet", 2),
        ("subscriptions.parquet", 2),
    ]


def test_sizes_and_paths_are_checked_in_tables_too(tmp_path: Path) -> None:
    text = f"mtu_bytes: 500\n{POSITIONS}".replace("{hall: }", "{hall: , annex: }")
    text = text.replace("sensor: , camera: ", "sensor: {broker: hall}, camera: {broker: annex}")
    text = text.replace("{port: radio}", "{port: radio, broker: hall}")
    problems = check(write(tmp_path, text))
    assert [(Path(problem.file).name, problem.line, problem.field) for problem in problems] == [
        ("publications.parquet", 3, "size_bytes"),
        ("subscriptions.parquet", 3, "row"),
    ]
    assert "has a path to hall" in problems[1].what


def test_a_million_subscriptions_load_and_survive_a_round_trip(tmp_path: Path) -> None:
    people, topics, each = 10_000, 2_000, 100
    ports = "".join(f"  port-{number}: {{switch: core, bandwidth_bps: 8e6}}\n" for number in range(1_000))
    clients = "".join(f"  person-{number}: {{port: port-{number % 1000}}}\n" for number in range(people))
    (tmp_path / "scenario.yaml").write_text(
        f"brokers: {{hall: }}\nswitches: {{core: }}\nports:\n{ports}publishers: {{sensor: }}\nsubscribers:\n{clients}"
    )
    names = np.array([f"floor/{number}/smoke" for number in range(topics)])
    pq.write_table(
        pa.table(
            {
                "publisher": ["sensor"] * topics,
                "topic": names,
                "rate_per_second": np.ones(topics),
                "size_bytes": np.full(topics, 60.0),
            }
        ),
        tmp_path / "publications.parquet",
    )
    person = np.repeat(np.arange(people), each)
    wanted = (person * 7 + np.tile(np.arange(each) * 13, people)) % topics
    rng = np.random.default_rng(1)
    pq.write_table(
        pa.table(
            {
                "subscriber": np.array([f"person-{number}" for number in range(people)])[person],
                "topic": names[wanted],
                "utility_shape": np.array(["log", "linear"])[person % 2],
                "utility_weight": rng.random(people * each),
                "max_latency_seconds": rng.random(people * each) + 0.01,
            }
        ),
        tmp_path / "subscriptions.parquet",
    )
    scenario = load(tmp_path)
    assert len(scenario.subscriptions) == people * each
    save(scenario, tmp_path / "again")
    assert load(tmp_path / "again").fingerprint == scenario.fingerprint
