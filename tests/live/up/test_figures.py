"""A scenario run live by `triage up`: what is measured beside what was forecast, with triage and without."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.live.up.estimating import estimates_the_building_fire
from tests.live.up.exchanging import BUILDING_FIRE, TRIAGE, Up

from triagemq.pipeline import Tables, run_pipeline
from triagemq.plan.files import parse_plan
from triagemq.scenario import load
from triagemq.trace import Trace, runs


def _figures(directory: Path, *options: str) -> dict[str, Any]:
    with Up(directory, *options, file=BUILDING_FIRE) as running:
        code, output = running.result()
        assert code == 0, running.errors()
    figures: dict[str, Any] = json.loads(output)
    assert set(figures["restarts"].values()) == {0}
    return figures


def _command(name: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run([*TRIAGE, name, *arguments, "--json"], check=True, capture_output=True)
    return dict(json.loads(done.stdout))


def _is_as_forecast(figures: dict[str, Any]) -> None:
    """And class 0 delivers everything."""
    assert figures["classes"][0]["priority_class"] == 0
    assert figures["classes"][0]["success_rate"] == 1.0
    _agrees(figures)


def _agrees(figures: dict[str, Any]) -> None:
    """Every class is within 0.03 of its forecast, or has it inside the 99 % interval of the measurement."""
    forecast = {row["priority_class"]: row for row in figures["forecast"]["classes"]}
    assert set(forecast) == {row["priority_class"] for row in figures["classes"]}
    for row in figures["classes"]:
        expected = forecast[row["priority_class"]]["success_rate"]
        assert abs(row["success_rate"] - expected) <= max(0.03, row["success_ci99"] or 0.0), (row, expected)


def test_measured_beside_forecast_with_the_keys_of_simulate(tmp_path: Path) -> None:
    figures = _figures(tmp_path, "--for", "10")
    _is_as_forecast(figures)
    simulated = _command("simulate", str(BUILDING_FIRE), "--for", "10")
    for key in ("scenario", "publications", "measured_publications", "copies", "deliveries"):
        assert type(figures[key]) is type(simulated[key])
    assert set(simulated["classes"][0]) <= set(figures["classes"][0])
    assert set(simulated["utility"]) == set(figures["utility"])
    assert figures["scenario"] == simulated["scenario"]
    found = runs(tmp_path / figures["trace"])
    assert len(found.complete) == 1
    assert not found.incomplete
    trace = Trace.open(found.complete[0])
    assert len(trace.table("publications")) == figures["publications"]
    assert len(trace.table("decisions")) > 0
    assert len(trace.table("queue_samples")) > 0
    # By its forecast the pipeline puts beside the tables what was promised.
    parse_plan(trace.plan_text or "").require(load(BUILDING_FIRE))


@pytest.mark.slow
def test_without_triage_what_matters_most_fares_like_the_rest(tmp_path: Path) -> None:
    figures = _figures(tmp_path, "--for", "6", "--no-triage")
    assert figures["triage"] is False
    assert figures["classes"][0]["priority_class"] == 0
    assert figures["classes"][0]["success_rate"] < 0.95
    with_triage = _command("forecast", str(BUILDING_FIRE))
    assert figures["utility"]["rate"] < with_triage["utility"]["rate"]
    assert figures["forecast"]["utility"]["rate"] < with_triage["utility"]["rate"]


@pytest.mark.slow
def test_a_broker_in_python_is_enough(tmp_path: Path) -> None:
    _is_as_forecast(_figures(tmp_path, "--for", "8", "--broker", "embedded"))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("broker", [(), ("--broker", "embedded")], ids=["default", "embedded"])
def test_a_minute_of_the_building_fire(tmp_path: Path, broker: tuple[str, ...]) -> None:
    figures = _figures(tmp_path, "--for", "60", *broker)
    _is_as_forecast(figures)
    run_pipeline([tmp_path / figures["trace"]], tmp_path / "tables")
    estimates_the_building_fire(Tables(tmp_path / "tables"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_minute_without_triage(tmp_path: Path) -> None:
    """Which of them a full buffer loses depends on how bursts meet; how many it loses does not."""
    figures = _figures(tmp_path, "--for", "60", "--no-triage")
    forecast = {row["priority_class"]: row["success_rate"] for row in figures["forecast"]["classes"]}
    expected = sum(row["count"] * forecast[row["priority_class"]] for row in figures["classes"])
    assert abs(figures["deliveries"] - expected) < 0.03 * figures["copies"]
    assert figures["classes"][0]["success_rate"] < 0.9
