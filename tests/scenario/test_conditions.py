"""Conditions and backups in scenario files: read, checked like everything else, and laid out in time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from triagemq.errors import ScenarioError
from triagemq.scenario import load, loads
from triagemq.scenario.conditions import (
    Conditions,
    LinkState,
    PortBandwidth,
    PublisherState,
    SubscriberState,
    load_conditions,
)
from triagemq.scenario.situations import situations

TREE = """\
brokers: {hall: }
switches:
  core:
  annex:
  floor-1: {fed_by: trunk, backup: bypass}
  room-1: {fed_by: riser, backup: cable}
ports:
  trunk: {switch: core, bandwidth_bps: 1e6}
  bypass: {switch: annex, bandwidth_bps: 5e5}
  riser: {switch: floor-1, bandwidth_bps: 1e6}
  cable: {switch: core, bandwidth_bps: 1e5}
  radio: {switch: floor-1, bandwidth_bps: 320000}
  desk: {switch: room-1, bandwidth_bps: 320000}
publishers:
  sensor-1: {publishes: {smoke: {rate_per_second: 2, size_bytes: 60}}}
  7: {publishes: {door: {rate_per_second: 3, size_bytes: 60}}}
subscribers:
  engine: {port: radio, subscribes: {smoke: log:10}}
  clerk: {port: desk, subscribes: {smoke: log:1, door: log:1}}
"""
CONDITIONS = """\
conditions:
  - {at_seconds: 30, link: [core, floor-1], state: fails}
  - {at_seconds: 10, publisher: 7, state: fails}
  - {at_seconds: 5, subscriber: clerk, state: joins}
  - {at_seconds: 20, port: radio, bandwidth_bps: 160000}
  - {at_seconds: 40, link: [floor-1, core], state: returns}
  - {at_seconds: 40, publisher: 7, state: returns}
"""


def test_conditions_are_read_in_order_of_time(tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(TREE + CONDITIONS)
    assert load_conditions(file) == Conditions(
        (
            SubscriberState(5, "clerk", present=True),
            PublisherState(10, "7", works=False),
            PortBandwidth(20, "radio", 160000),
            LinkState(30, "trunk", up=False),
            LinkState(40, "trunk", up=True),
            PublisherState(40, "7", works=True),
        ),
        {"floor-1": "bypass", "room-1": "cable"},
    )


def test_a_file_without_conditions_has_none_and_a_directory_may_have_them(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(
        TREE.replace(", backup: bypass", "").replace(", backup: cable", "")
    )
    assert load_conditions(tmp_path) == Conditions()
    (tmp_path / "scenario.yaml").write_text(TREE + CONDITIONS)
    assert len(load_conditions(tmp_path).timeline) == 6


def test_conditions_change_neither_the_scenario_nor_its_fingerprint() -> None:
    bare = TREE.replace(", backup: bypass", "").replace(", backup: cable", "")
    assert loads(TREE + CONDITIONS).fingerprint == loads(bare).fingerprint


def test_situations_follow_each_other(tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text(TREE + CONDITIONS)
    scenario = load(file)
    course = situations(scenario, load_conditions(file))
    assert [each.at_seconds for each in course] == [0, 5, 10, 20, 30, 40]
    clerk, radio = scenario.subscribers.name.index("clerk"), scenario.ports.name.index("radio")
    assert [bool(each.subscriber_present[clerk]) for each in course] == [False, True, True, True, True, True]
    assert [each.bandwidth_bps[radio] for each in course] == [320000] * 3 + [160000] * 3
    assert [each.publication_rate(scenario).tolist() for each in course[1:3]] == [[3, 2], [0, 2]]
    assert [int(each.active_subscriptions(scenario).sum()) for each in course[:2]] == [1, 3]
    feeding = [sorted(each.feeding_ports(scenario)) for each in course]
    assert feeding == [["riser", "trunk"]] * 4 + [["bypass", "riser"], ["riser", "trunk"]]
    changed = course[4].network(scenario)
    assert changed.ports.bandwidth_bps[radio] == 160000
    assert scenario.ports.bandwidth_bps[radio] == 320000
    fed = changed.switches.fed_by_port[changed.switches.name.index("floor-1")]
    assert changed.ports.name[fed] == "bypass"
    assert course[0].network(scenario).fingerprint == scenario.fingerprint


@pytest.mark.parametrize(
    ("down", "feeding", "cut_off"),
    [
        ([], ["riser", "trunk"], []),
        (["trunk"], ["bypass", "riser"], []),
        (["riser"], ["cable", "trunk"], []),
        (["trunk", "bypass"], ["cable"], ["floor-1"]),
        (["trunk", "bypass", "cable"], [], ["floor-1", "room-1"]),
        (["riser", "cable"], ["trunk"], ["room-1"]),
    ],
)
def test_switches_fall_back_on_their_backups(down: list[str], feeding: list[str], cut_off: list[str]) -> None:
    scenario = loads(TREE)
    backups = {"floor-1": "bypass", "room-1": "cable"}
    failing = tuple(LinkState(1, port, up=False) for port in down)
    now = situations(scenario, Conditions(failing, backups))[-1]
    assert sorted(now.feeding_ports(scenario)) == feeding
    assert [scenario.switches.name[row] for row in np.flatnonzero(~now.switch_reached)] == cut_off


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "what"),
    [
        ("port: radio", "port: radoi", 5, "conditions.4.port", "there is no port 'radoi'"),
        (
            "publisher: 7, state: fails",
            "publisher: 8, state: fails",
            3,
            "conditions.2.publisher",
            "no publisher",
        ),
        ("subscriber: clerk", "subscriber: clark", 4, "conditions.3.subscriber", "no subscriber 'clark'"),
        ("[core, floor-1]", "[core, floor-9]", 2, "conditions.1.link", "no switch 'floor-9'"),
        ("[core, floor-1]", "[annex, core]", 2, "conditions.1.link", "no port of annex or core feeds"),
        ("[core, floor-1]", "[core]", 2, "conditions.1.link", "has 1 entries"),
        ("[core, floor-1], state: fails", "[core, floor-1]", 2, "conditions.1.state", "is missing"),
        ("clerk, state: joins", "clerk, state: fails", 4, "conditions.3.state", "is fails"),
        ("clerk, state: joins", "clerk, state: jions", 4, "conditions.3.state", "'jions' is not one of"),
        ("radio, bandwidth_bps: 160000", "radio, state: fails", 5, "conditions.4.state", "means nothing"),
        ("radio, bandwidth_bps: 160000", "radio", 5, "conditions.4.bandwidth_bps", "is missing"),
        ("bandwidth_bps: 160000", "bandwidth_bps: 0", 5, "conditions.4.bandwidth_bps", "is 0"),
        ("at_seconds: 20, ", "", 5, "conditions.4.at_seconds", "is missing"),
        ("at_seconds: 20", "at_seconds: -1", 5, "conditions.4.at_seconds", "is -1"),
        ("at_seconds: 20", "at_second: 20", 5, "conditions.4.at_second", "is not a known key"),
        ("port: radio, ", "port: radio, publisher: 7, ", 5, "conditions.4", "names port and publisher"),
        ("subscriber: clerk, ", "", 4, "conditions.3", "does not say what changes"),
    ],
)
def test_a_mistake_in_a_condition_is_named_with_its_line(
    old: str, new: str, line: int, field: str, what: str
) -> None:
    assert CONDITIONS.count(old) == 1
    with pytest.raises(ScenarioError) as raised:
        loads(TREE + CONDITIONS.replace(old, new))
    (problem,) = raised.value.problems
    assert (problem.line, problem.field) == (line + TREE.count("\n"), field)
    assert what in problem.what
    assert problem.fix


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("backup: bypass", "backup: bypas", "there is no port 'bypas'"),
        ("backup: bypass", "backup: trunk", "as fed_by is"),
        ("backup: bypass", "backup: radio", "has the subscriber engine"),
        ("backup: bypass", "backup: riser", "feeds the switch room-1 already"),
        ("backup: cable", "backup: bypass", "is the backup of floor-1 already"),
        ("bypass: {switch: annex", "bypass: {switch: room-1", "is behind floor-1 itself"),
        ("{fed_by: trunk, backup: bypass}", "{backup: bypass}", "stands without fed_by"),
    ],
)
def test_a_backup_is_a_port_of_its_own(old: str, new: str, what: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        loads(TREE.replace(old, new))
    (problem,) = raised.value.problems
    assert what in problem.what
    assert problem.line in (5, 6)
    assert problem.field.endswith(".backup")


@pytest.mark.parametrize("text", ["conditions: 7", "conditions: {at_seconds: 5}", "conditions: [7]"])
def test_conditions_are_a_list_of_mappings(text: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        loads(f"{TREE}{text}\n")
    assert raised.value.problems[0].field.startswith("conditions")


def test_no_conditions_are_fine() -> None:
    loads(f"{TREE}conditions:\n")
    loads(f"{TREE}conditions: []\n")
