"""The campus of examples/building-campus.yaml: three switches in line, the last port overloaded, class 0 unharmed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.box.campuses import path_to

from triagemq.lab.box import lay_out
from triagemq.plan import make_plan
from triagemq.scenario import load, load_with_conditions, port_depths
from triagemq.simulate import simulate

FILE = Path(__file__).parents[3] / "examples" / "building-campus.yaml"


def test_its_last_port_is_three_switches_away_and_gets_half_as_much_again_as_it_can_carry() -> None:
    scenario = load(FILE)
    floor = scenario.ports.name.index("floor-radio")
    assert port_depths(scenario)[floor] == 2
    rates = dict.fromkeys(scenario.topics.name, 0.0)
    for topic, rate in zip(
        scenario.publications.topic, scenario.publications.rate_per_second.tolist(), strict=True
    ):
        rates[scenario.topics.name[topic]] += rate
    assert sum(rates.values()) < 150
    subscriptions = scenario.subscriptions
    copies = sum(
        rates[scenario.topics.name[topic]]
        for subscriber, topic in zip(subscriptions.subscriber, subscriptions.topic, strict=True)
        if scenario.subscribers.port[subscriber] == floor
    )
    offered = copies * (100 + scenario.overhead_bytes) * 8 / scenario.ports.bandwidth_bps[floor]
    assert offered == pytest.approx(1.5, abs=0.1)


def test_class_0_gets_everything_and_low_classes_what_is_left() -> None:
    scenario = load(FILE)
    plan = make_plan(scenario)
    assert plan.flows.priority_class.max() == 6
    result = simulate(scenario, plan, publications=30_000, seed=1)
    success = result.classes.success_rate
    assert success[0] == 1
    assert success[5:].max() < 0.8


def test_it_fits_into_a_box_whose_paths_follow_its_switches() -> None:
    layout = lay_out(load(FILE), "a", backups=load_with_conditions(FILE)[1].backups)
    path = path_to(layout, layout.subscribers["attack-team-1"])
    assert [link.port for link in path if link.port] == [
        "core-to-building",
        "building-to-floor",
        "floor-radio",
    ]
