"""Of a campus that is described wrongly in part, the rest comes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from triagemq.errors import ScenarioError
from triagemq.live.up.left_out import what_fits
from triagemq.scenario import load

TWO_CLUSTERS = """
brokers:
  gate: {cluster: east, head: true}
  library: {cluster: east}
  yard: {cluster: west, head: true}
  hall: {cluster: west}
broker_links:
  - {between: [gate, library]}
  - {between: [gate, yard]}
  - {between: [yard, hall]}
switches: {core: }
ports: {radio: {switch: core, bandwidth_bps: 1e6}}
topics: {smoke: {size_bytes: 100}}
publishers:
  east-sensor: {cluster: east, publishes: {smoke: {rate_per_second: 1}}}
  west-sensor: {cluster: west, publishes: {smoke: {rate_per_second: 1}}}
subscribers:
  east-crew: {cluster: east, port: radio, subscribes: {smoke: {utility: "log:1"}}}
  west-crew: {cluster: west, port: radio, subscribes: {smoke: {utility: "log:1"}}}
"""


def fitting(directory: Path, *changes: tuple[str, str]) -> tuple[Path, list[str]]:
    text = TWO_CLUSTERS
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    file = directory / "campus.yaml"
    file.write_text(text)
    return what_fits(file, lambda: directory)


def test_a_file_that_is_right_is_taken_as_it_is(tmp_path: Path) -> None:
    assert fitting(tmp_path) == (tmp_path / "campus.yaml", [])


def test_a_cluster_without_a_head_is_left_out_with_its_clients(tmp_path: Path) -> None:
    file, lines = fitting(tmp_path, ("yard: {cluster: west, head: true}", "yard: {cluster: west}"))
    scenario = load(file)
    assert scenario.brokers.name == ("gate", "library")
    assert scenario.subscribers.name == ("east-crew",)
    assert "is west, a cluster without a head; add head: true to one of hall, yard; left out" in lines[0]
    assert all(
        line.startswith(str(tmp_path / "campus.yaml")) and line.endswith("; left out") for line in lines
    )


def test_a_client_of_an_unknown_cluster_is_left_out_alone(tmp_path: Path) -> None:
    file, lines = fitting(tmp_path, ("west-crew: {cluster: west", "west-crew: {cluster: south"))
    assert load(file).subscribers.name == ("east-crew",)
    assert len(load(file).brokers) == 4
    [line] = lines
    assert "campus.yaml:19: subscribers.west-crew.cluster: there is no cluster 'south'" in line


def test_of_two_brokers_of_one_name_one_is_left(tmp_path: Path) -> None:
    file, lines = fitting(
        tmp_path, ("  hall: {cluster: west}", "  hall: {cluster: west}\n  hall: {cluster: west}")
    )
    assert len(load(file).brokers) == 4
    [line] = lines
    assert "brokers.hall: stands here twice" in line


def test_whatever_else_is_wrong_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="rate_per_second"):
        fitting(
            tmp_path,
            (
                "west, publishes: {smoke: {rate_per_second: 1}}",
                "west, publishes: {smoke: {rate_per_second: -1}}",
            ),
        )
