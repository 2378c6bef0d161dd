"""Ports whose queues have rates: what a file may say of them, and what comes back from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from triagemq.errors import ScenarioError
from triagemq.plan import make_plan
from triagemq.scenario import Discipline, Scenario, dumps, load, loads, save
from triagemq.scenario.conditions import Condition, Conditions, situations

HALL = """\
name: Hall
planning: {priority_classes: 3}
brokers: {hall: }
switches: {core: }
ports:
  plain: {switch: core, bandwidth_bps: 1e6}
  radio: {switch: core, bandwidth_bps: 100e6, discipline: queue_rates, queue_rates_bps: [60 Mbit/s, 30 Mbit/s, 10e6]}
publishers: {sensor: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}}
subscribers: {commander: {port: radio, subscribes: {smoke: log:10}}}
"""
QUEUE_RATES = "queue_rates_bps: [60 Mbit/s, 30 Mbit/s, 10e6]"


def problem(text: str) -> tuple[int | None, str, str, str]:
    """The only problem of a text: line, field, what, fix."""
    with pytest.raises(ScenarioError) as caught:
        loads(text)
    (found,) = caught.value.problems
    return found.line, found.field, found.what, found.fix


def said(scenario: Scenario) -> tuple[list[list[float]], list[list[float]], list[int]]:
    ports = scenario.ports
    queue_rates, floors = (
        [each.tolist() for each in lists] for lists in (ports.queue_rates_bps, ports.floors_bps)
    )
    return queue_rates, floors, ports.borrowing.tolist()


def test_queue_rates_are_in_the_scenario_class_0_first() -> None:
    scenario = loads(HALL)
    assert scenario.ports.discipline.tolist() == [Discipline.PRIORITY, Discipline.QUEUE_RATES]
    assert said(scenario) == ([[], [60e6, 30e6, 10e6]], [[], [6e6, 3e6, 1e6]], [0, 0])
    more = loads(HALL.replace(QUEUE_RATES, f"{QUEUE_RATES}, floors_bps: [30e6, 10e6, 2e6], borrowing: true"))
    assert said(more) == ([[], [60e6, 30e6, 10e6]], [[], [30e6, 10e6, 2e6]], [0, 1])


def test_the_names_of_the_version_before_are_read() -> None:
    old = HALL.replace("discipline: queue_rates", "discipline: widths").replace(
        "queue_rates_bps", "widths_bps"
    )
    assert "widths_bps" in old
    assert loads(old).fingerprint == loads(HALL).fingerprint


@pytest.mark.parametrize("more", ["", ", floors_bps: [30e6, 10e6, 2e6]", ", borrowing: true"])
def test_queue_rates_survive_both_forms_of_a_scenario(more: str, tmp_path: Path) -> None:
    scenario = loads(HALL.replace(QUEUE_RATES, QUEUE_RATES + more))
    again = loads(dumps(scenario))
    save(scenario, tmp_path / "hall")
    assert again.fingerprint == load(tmp_path / "hall").fingerprint == scenario.fingerprint
    assert dumps(again) == dumps(scenario)
    assert said(again) == said(scenario)
    assert f"queue_rates_bps: [60000000, 30000000, 10000000]{more}".split(", f")[0] in dumps(scenario)


def test_all_that_is_said_of_queue_rates_is_in_the_fingerprint() -> None:
    texts = [
        HALL,
        HALL.replace("[60 Mbit/s, 30", "[50 Mbit/s, 40"),
        HALL.replace(QUEUE_RATES, f"{QUEUE_RATES}, borrowing: true"),
        HALL.replace(QUEUE_RATES, f"{QUEUE_RATES}, floors_bps: [1e6, 1e6, 1e6]"),
        HALL.replace(f", discipline: queue_rates, {QUEUE_RATES}", ""),
    ]
    assert len({loads(text).fingerprint for text in texts}) == len(texts)


def test_queue_rates_may_miss_the_bandwidth_by_rounding() -> None:
    scenario = loads(HALL.replace(QUEUE_RATES, "queue_rates_bps: [33333333.3, 33333333.3, 33333333.3]"))
    assert scenario.ports.queue_rates_bps[1].sum() == pytest.approx(100e6)


def test_queue_rates_and_floors_stay_the_same_shares_when_the_bandwidth_changes() -> None:
    scenario = loads(HALL)
    halved = Conditions((Condition(20.0, port="radio", bandwidth_bps=50e6),))
    before, after = (each.network(scenario) for each in situations(scenario, halved))
    assert said(before) == said(scenario)
    assert said(after) == ([[], [30e6, 15e6, 5e6]], [[], [3e6, 1.5e6, 0.5e6]], [0, 0])
    unlimited = replace(scenario.ports, bandwidth_bps=np.array([np.inf, 100e6]))
    assert unlimited.with_bandwidths(np.array([np.inf, 50e6])).queue_rates_bps[1].tolist() == [
        30e6,
        15e6,
        5e6,
    ]


@pytest.mark.parametrize(
    ("new", "field", "fix"),
    [
        ("borrowing: true", "queue_rates_bps", "queue_rates_bps"),
        ("queue_rates_bps: [60e6, 30e6, 20e6]", "queue_rates_bps", "100000000"),
        ("queue_rates_bps: [60e6, 40e6]", "queue_rates_bps", "priority_classes: 2"),
        ("queue_rates_bps: [60e6, 20e6, 10e6, 10e6]", "queue_rates_bps", "priority_classes: 4"),
        (f"{QUEUE_RATES}, floors_bps: [1e6, 1e6]", "floors_bps", "3 numbers"),
        (f"{QUEUE_RATES}, floors_bps: [1e6, 31e6, 1e6]", "floors_bps.1", "30000000"),
    ],
)
def test_queue_rates_that_do_not_fit_are_named(new: str, field: str, fix: str) -> None:
    line, where, _, advice = problem(HALL.replace(QUEUE_RATES, new))
    assert line == 7
    assert fix in advice
    assert where.startswith(
        "ports.radio.queue_rates_bps" if field == "queue_rates_bps" else "ports.radio.floors_bps"
    )


def test_a_width_of_nothing_is_a_mistake() -> None:
    _, where, _, _ = problem(HALL.replace(QUEUE_RATES, "queue_rates_bps: [60e6, 40e6, 0]"))
    assert where.startswith("ports.radio.queue_rates_bps")


@pytest.mark.parametrize("discipline", ["priority", "fair"])
def test_queue_rates_need_their_discipline(discipline: str) -> None:
    _, where, _, fix = problem(HALL.replace("discipline: queue_rates", f"discipline: {discipline}"))
    assert where == "ports.radio.queue_rates_bps"
    assert "discipline: queue_rates" in fix


def test_no_promise_leads_over_a_port_with_queue_rates() -> None:
    text = HALL.replace("smoke: log:10", "smoke: {max_latency_seconds: 1, guaranteed: true}").replace(
        "rate_per_second: 2, size_bytes: 60", "min_separation_seconds: 1, size_bytes: 60, max_size_bytes: 60"
    )
    scenario = loads(text.replace("sensor: {", "sensor: {access: core, access_bps: 1e9, "))
    assert not make_plan(scenario).promises.admitted.any()
