"""A row that is wrong is wrong in the same words, whether it stands in a YAML file or in a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triagemq.errors import Problem
from triagemq.scenario import check
from triagemq.scenario.files.rows import PUBLICATION_COLUMNS, SUBSCRIPTION_COLUMNS, Column

NETWORK = """\
brokers: {hall: }
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 8e6}}
"""
PUBLICATION = {"rate_per_second": 2.0, "size_bytes": 60.0}
SUBSCRIPTION = {"utility_shape": "log", "utility_weight": 10.0}
WRONG_PUBLICATIONS: list[dict[str, Any]] = [
    {"rate_per_second": -1.0},
    {"size_bytes": -1.0},
    {"rate_per_second": 3.0, "min_separation_seconds": 0.5},
    {"min_separation_seconds": -0.5},
    {"min_separation_seconds": 0.5, "max_separation_seconds": 0.25},
    {"min_separation_seconds": 1e-310, "rate_per_second": None},
    {"max_separation_seconds": -5.0},
    {"arrival_process": "pareto", "pareto_shape": 1.0},
    {"arrival_process": "poisson", "pareto_shape": 2.5},
    {"arrival_process": "periodic", "on_seconds": 2.0},
    {"arrival_process": "on_off", "on_seconds": 2.0, "off_seconds": -1.0},
    {"arrival_process": "poisson", "off_seconds": 2.0},
]
WRONG_SUBSCRIPTIONS: list[dict[str, Any]] = [
    {"utility_weight": -1.0},
    {"utility_shape": "step", "utility_threshold": 1.5},
    {"utility_shape": "log", "utility_threshold": 0.5},
    {"freshness_seconds": -1.0},
    {"max_latency_seconds": -1.0},
    {"max_latency_share": 0.9},
    {"max_latency_seconds": 0.2, "max_latency_share": 2.0},
    {"max_separation_seconds": -1.0},
    {"min_share": 1.5},
    {"max_rate_per_second": 0.0},
    {"expires_seconds": -1.0},
    {"role_rank": -1.0},
]


def entry(row: dict[str, Any], columns: dict[str, Column]) -> dict[str, Any]:
    """A row of a table as an entry of a file."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        *outer, last = columns[name].path
        inner = found
        for key in outer:
            inner = inner.setdefault(key, {})
        if value is not None:
            inner[last] = value
    return found


def flow(value: Any) -> str:
    return (
        f"{{{', '.join(f'{key}: {flow(inner)}' for key, inner in value.items())}}}"
        if isinstance(value, dict)
        else str(value)
    )


def problems(folder: Path, publication: dict[str, Any], subscription: dict[str, Any]) -> list[list[Problem]]:
    """What is wrong with one publication and one subscription: in a file, and in tables."""
    people = "publishers: {{sensor: {0}}}\nsubscribers: {{commander: {{port: radio{1}}}}}\n"
    published = flow(entry(publication, PUBLICATION_COLUMNS))
    wanted = flow(entry(subscription, SUBSCRIPTION_COLUMNS))
    (folder / "file.yaml").write_text(
        NETWORK
        + people.format(f"{{publishes: {{smoke: {published}}}}}", f", subscribes: {{smoke: {wanted}}}")
    )
    directory = folder / "tables"
    directory.mkdir()
    (directory / "scenario.yaml").write_text(NETWORK + people.format("", ""))
    for name, row in (
        ("publications", {"publisher": "sensor", "topic": "smoke", **publication}),
        ("subscriptions", {"subscriber": "commander", "topic": "smoke", **subscription}),
    ):
        kinds = {name: None if isinstance(value, str) else pa.float64() for name, value in row.items()}
        columns = {name: pa.array([value], kinds[name]) for name, value in row.items()}
        pq.write_table(pa.table(columns), directory / f"{name}.parquet")
    return [check(folder / "file.yaml"), check(directory)]


def test_the_rows_that_the_mistakes_are_made_in_are_right(tmp_path: Path) -> None:
    assert problems(tmp_path, PUBLICATION, SUBSCRIPTION) == [[], []]


@pytest.mark.parametrize("wrong", WRONG_PUBLICATIONS, ids=str)
def test_a_publication_is_wrong_in_the_same_words_in_a_file_and_in_a_table(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    (in_file,), (in_table,) = problems(tmp_path, PUBLICATION | wrong, SUBSCRIPTION)
    assert in_file.what == in_table.what
    assert in_file.field.split(".")[-1] == PUBLICATION_COLUMNS[in_table.field].path[-1]
    assert in_file.line == 4
    assert in_table.line == 1


@pytest.mark.parametrize("wrong", WRONG_SUBSCRIPTIONS, ids=str)
def test_a_subscription_is_wrong_in_the_same_words_in_a_file_and_in_a_table(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    (in_file,), (in_table,) = problems(tmp_path, PUBLICATION, SUBSCRIPTION | wrong)
    assert in_file.what == in_table.what
    assert in_file.field.split(".")[-1] == SUBSCRIPTION_COLUMNS[in_table.field].path[-1]
    assert in_file.line == 5
    assert in_table.line == 1
