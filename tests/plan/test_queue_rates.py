"""Plans for ports whose queues have rates: every queue carries what fits its own width."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from triagemq.cli.app import app
from triagemq.errors import PlanError
from triagemq.plan import Plan, explain, make_plan
from triagemq.plan.planner import places
from triagemq.scenario import Scenario, loads

CROWDED = """\
name: Hall
planning: {{priority_classes: 3, flows_per_subscriber: 6}}
brokers: {{hall: }}
switches: {{core: , floor: {{fed_by: trunk}}}}
ports:
  trunk: {{switch: core, bandwidth_bps: 4e6, {trunk}}}
  radio: {{switch: floor, bandwidth_bps: 1e6, discipline: queue_rates,
    queue_rates_bps: [2e5, 5e5, 3e5], borrowing: {borrowing}}}
  light: {{switch: floor, bandwidth_bps: 1e6, {light}}}
publishers:
  sensor:
    publishes:
{topics}
subscribers:
  commander: {{port: radio, subscribes: {{{wanted}}}}}
  deputy: {{port: light, subscribes: {{{wanted}}}}}
"""
QUEUE_RATES = "discipline: queue_rates, queue_rates_bps: [2e6, 1e6, 1e6]"
NARROW = "discipline: queue_rates, queue_rates_bps: [2e5, 5e5, 3e5]"


def crowded(
    *, borrowing: bool = False, trunk: str = "error_rate: 0", light: str = "error_rate: 0"
) -> Scenario:
    """Twice what the radio can carry, of topics that are worth more or less."""
    topics = range(12)
    return loads(
        CROWDED.format(
            trunk=trunk,
            light=light,
            borrowing=str(borrowing).lower(),
            topics="\n".join(f"      t{each}: {{rate_per_second: 100, size_bytes: 200}}" for each in topics),
            wanted=", ".join(f"t{each}: log:{2 + each}" for each in topics),
        )
    )


def load_of_queues(scenario: Scenario, plan: Plan, port: str) -> np.ndarray:
    """What a plan leaves for each queue of a port, as a part of its width."""
    number = scenario.ports.name.index(port)
    here = plan.flows.port == number
    kept = plan.flows.load_bytes_per_second * (1 - plan.flows.drop_rate) * 8
    loads = np.bincount(plan.flows.priority_class[here], kept[here], minlength=3)
    return loads / scenario.ports.queue_rates_bps[number]


@pytest.mark.parametrize("drops", ["optimal", "flat", "linear", "exponential"])
def test_every_partitioned_queue_is_stable_at_its_own_width(drops: str) -> None:
    scenario = crowded()
    plan = make_plan(scenario, drops=drops)
    found = load_of_queues(scenario, plan, "radio")
    assert (found <= 0.9 + 1e-9).all()
    assert found == pytest.approx(0.9, abs=1e-6)
    assert plan.ports.rho_planned[scenario.ports.name.index("radio")] == pytest.approx(0.9, abs=1e-6)
    overloaded = {each.subject for each in plan.decisions if each.kind == "port_overloaded"}
    assert overloaded >= {"radio queue 0", "radio queue 1", "radio queue 2"}


def test_a_narrow_queue_drops_what_a_wide_one_would_carry() -> None:
    """Class 0 has the narrowest queue here: it loses most, though the port has room."""
    scenario = crowded()
    plan = make_plan(scenario, drops="flat")
    here = plan.flows.port == scenario.ports.name.index("radio")
    kept = [
        1 - plan.flows.drop_rate[here & (plan.flows.priority_class == level)].mean() for level in range(3)
    ]
    assert kept[0] < kept[2] < kept[1]


def test_queues_that_borrow_are_planned_as_one_port() -> None:
    scenario = crowded(borrowing=True)
    plan = make_plan(scenario)
    radio = scenario.ports.name.index("radio")
    assert plan.ports.rho_planned[radio] == pytest.approx(0.9, abs=1e-6)
    assert load_of_queues(scenario, plan, "radio").max() > 1
    assert len(places(scenario, plan.flows).names) == len(scenario.ports)


def test_queue_rates_one_behind_the_other_are_planned_queue_by_queue() -> None:
    scenario = crowded(trunk=QUEUE_RATES, light=NARROW)
    plan = make_plan(scenario)
    assert (load_of_queues(scenario, plan, "radio") <= 0.9 + 1e-9).all()
    kept = plan.flows.load_bytes_per_second * (1 - plan.flows.drop_rate) * 8
    trunk = np.bincount(plan.flows.priority_class, kept, minlength=3)
    assert (trunk <= 0.9 * np.array([2e6, 1e6, 1e6]) + 1e-3).all()


def test_a_partitioned_port_before_one_that_is_not_is_refused_in_one_line() -> None:
    scenario = crowded(trunk=QUEUE_RATES)
    with pytest.raises(
        PlanError, match="port 'trunk' is partitioned, and port 'light' behind it is not"
    ) as caught:
        make_plan(scenario)
    assert "\n" not in str(caught.value)
    assert (make_plan(scenario, drops="none").flows.drop_rate == 0).all()


def test_more_classes_than_queue_rates_are_refused() -> None:
    with pytest.raises(
        PlanError, match="4 priority classes do not fit port 'radio', which has 3 queue rates"
    ):
        make_plan(crowded(), priority_classes=4)


def test_an_explanation_names_the_queue() -> None:
    scenario = crowded()
    text = explain(scenario, make_plan(scenario), "commander", "t11")
    assert "port radio queue 0 is offered" in text
    assert "may carry 0.9 and carries 0.9" in text
    assert "in a queue with 200000 bit/s, because port radio queue 0 is offered" in text


def test_the_command_shows_queue_rates(tmp_path: Path) -> None:
    from triagemq.scenario import save

    save(crowded(borrowing=True), tmp_path / "hall.yaml")
    ran = CliRunner().invoke(app, ["plan", str(tmp_path / "hall.yaml"), "--json"])
    (radio,) = [row for row in json.loads(ran.stdout)["ports"] if row["port"] == "radio"]
    assert radio["queue_rates_bps"] == [2e5, 5e5, 3e5]
    assert radio["borrowing"] is True
    shown = CliRunner().invoke(app, ["plan", str(tmp_path / "hall.yaml")]).stdout
    assert "200,000; 500,000; 300,000; borrowing" in " ".join(shown.split())
